"""Blocks of records near their worker, in a cache that never evicts (MinIO of CoorDL, VLDB 2021).

What has gone in stays, and what finds no room passes through: of data of which a part x fits, exactly that part is
found here in every epoch. A cache that evicts what was not used for longest finds less, since each record is used
once an epoch: after all others. TensorFlow reads blocks as files; those in the worker's own memory are files without
a name (memfd), as are those that pass through.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import resource
import shutil
from dataclasses import dataclass
from pathlib import Path

from ...errors import DeclarationError
from ...protocol.cache import Cache
from ..role import log

_SHM = Path("/dev/shm")
_OWNER = "run"
"""Link in a folder in /dev/shm to the folder of the run whose blocks are there."""
_NAME = re.compile(r"(\d{1,12})-([0-9a-f]{8})", re.ASCII)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_BY_DEFAULT = 0.5
"""Of what is free on the disk, without --cache."""


@dataclass(frozen=True)
class Content:
    """A block's number and its CRC32C, and how large it is."""

    number: int
    size: int
    crc32c: int


class BlockCache:
    """The blocks that one worker has; `get` and `put` answer with paths that TensorFlow can read until `release`."""

    def __init__(self, cache: Cache | None, run: Path) -> None:
        """`run` is the run's folder. Raises DeclarationError for a cache that this VM has no room for."""
        self._folder = _folder(cache, run)
        free = room(cache.place if cache else "disk", run)
        self._there = dict(self._found())
        self._bytes = sum(path.stat().st_size for path in self._there.values())
        self._limit = cache.bytes if cache else int(_BY_DEFAULT * free)
        if cache and cache.bytes > free + self._bytes:
            raise DeclarationError(
                f"a cache of {_gb(cache.bytes)} is larger than what is free here, {_gb(free)} of {_WHERE[cache.place]}",
                where="--cache",
                fix="Give less, or another place.",
            )
        self._unchecked = set(self._there)
        self._passing: dict[int, int] = {}
        self._kept: dict[int, int] = {}
        """Files without a name, by the block's number."""
        if cache and cache.place == "memory":
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 1 << 16)), hard))

    @property
    def bytes(self) -> int:
        """What is kept."""
        return self._bytes

    @property
    def numbers(self) -> frozenset[int]:
        """The blocks that are kept."""
        return frozenset((*self._there, *self._kept))

    def get(self, wanted: Content) -> str | None:
        """Where the block is, if it is kept. One that a process before this one left here is looked at first."""
        if (handle := self._kept.get(wanted.number)) is not None:
            return _path(handle)
        path = self._there.get(wanted.number)
        if path is None:
            return None
        if wanted.number in self._unchecked:
            self._unchecked.discard(wanted.number)
            if not _is(path, wanted):
                self._drop(wanted.number, path)
                return None
        return str(path)

    def put(self, block: Content, content: bytes) -> str:
        """Where the block is from now on: kept if there is room, else passing through. Raises OSError."""
        if self._bytes + block.size <= self._limit:
            try:
                return self._keep(block, content)
            except OSError as error:
                if error.errno not in _FULL:
                    raise
                log(f"the cache takes no more than the {_gb(self._bytes)} in it: {os.strerror(error.errno)}")
                self._limit = self._bytes
        self._passing[block.number] = handle = _without_name(content)
        return _path(handle)

    def release(self, number: int) -> None:
        """The block has been read: it goes, unless it is kept."""
        if (handle := self._passing.pop(number, None)) is not None:
            os.close(handle)

    def close(self) -> None:
        """The worker leaves for good: nothing of the cache stays."""
        for handle in (*self._passing.values(), *self._kept.values()):
            os.close(handle)
        self._passing, self._kept = {}, {}
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _keep(self, block: Content, content: bytes) -> str:
        if self._folder is None:
            self._kept[block.number] = handle = _without_name(content)
            self._bytes += block.size
            return _path(handle)
        path = self._folder / f"{block.number}-{block.crc32c:08x}"
        part = self._folder / f".{path.name}.part"
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            part.write_bytes(content)
            part.replace(path)
        except OSError:
            part.unlink(missing_ok=True)
            raise
        self._there[block.number] = path
        self._bytes += block.size
        return str(path)

    def _drop(self, number: int, path: Path) -> None:
        self._bytes -= path.stat().st_size
        path.unlink(missing_ok=True)
        del self._there[number]

    def _found(self) -> list[tuple[int, Path]]:
        if self._folder is None or not self._folder.is_dir():
            return []
        for part in self._folder.glob(".*.part"):
            part.unlink(missing_ok=True)
        return [(int(match[1]), path) for path in self._folder.iterdir() if (match := _NAME.fullmatch(path.name))]


_WHERE = {"memory": "memory", "shm": "memory for /dev/shm", "disk": "disk"}


def room(place: str, folder: Path) -> int:
    """Bytes that are free for a cache: on the disk of `folder`, or of memory."""
    if place == "disk":
        return shutil.disk_usage(folder).free
    free = [_available()]
    if place == "shm":
        free.append(shutil.disk_usage(_SHM).free)
    return min(free)


def _available() -> int:
    """Of memory: what the kernel says is available, and no more than this process' control group may have."""
    for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("MemAvailable:"):
            found = [int(line.split()[1]) << 10]
            break
    else:
        found = list[int]()
    for limit in (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes")):
        with contextlib.suppress(OSError, ValueError):  # "max", or no such file: there is no limit
            found.append(int(limit.read_text(encoding="utf-8")))
    return min(found, default=0)


def _folder(cache: Cache | None, run: Path) -> Path | None:
    """Where blocks lie; None for the process' own memory. Folders in /dev/shm of runs that are no more go."""
    if cache is not None and cache.place == "memory":
        return None
    if cache is None or cache.place == "disk":
        return run / "blocks"
    for other in _SHM.glob("transient-*"):
        if (other / _OWNER).is_symlink() and not (other / _OWNER).exists():
            shutil.rmtree(other, ignore_errors=True)
    folder = _SHM / f"transient-{hashlib.sha256(str(run).encode()).hexdigest()[:16]}"
    folder.mkdir(exist_ok=True, mode=0o700)
    with contextlib.suppress(FileExistsError):
        (folder / _OWNER).symlink_to(run)
    return folder


def _without_name(content: bytes) -> int:
    handle = os.memfd_create("block")
    view = memoryview(content)
    while view:
        view = view[os.write(handle, view) :]
    return handle


def _path(handle: int) -> str:
    return f"/proc/self/fd/{handle}"


def _is(path: Path, wanted: Content) -> bool:
    import google_crc32c

    try:
        content = path.read_bytes()
    except OSError:
        return False
    return len(content) == wanted.size and google_crc32c.value(content) == wanted.crc32c


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"
