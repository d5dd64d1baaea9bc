"""Record files in blocks: a worker starts with the first blocks that it copied.

A block is a sequence of whole records of one TFRecord file, so it is such a file itself. The chief
reads the files once and writes an index of the blocks. A file with incomplete records is refused
here. The frame of a record: its length (8 bytes), the length's masked CRC32C (4), the record, the
record's CRC32C (4). TensorFlow checks the last when it reads the record.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import mmap
import os
import re
import resource
import shutil
import struct
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ...errors import DeclarationError, TrainingError
from ...files import write_atomically
from ...protocol import checks
from ...protocol.run import Cache
from ..role import log

NAME = ".blocks"
"""A file in the folder of records that come in blocks.

Beside the chief it is the index of the blocks.
"""
STREAMED_FROM = 64 << 20
"""Size of training files in bytes from which they come in blocks.

A copy of fewer takes half a second at 1 Gbit/s.
"""
_LEAST = 256 << 10
_MOST = 8 << 20
_TARGET_COUNT = 1024
"""Number of blocks, within the bounds of their size above.

Few enough to lease quickly, and small enough that little is read twice.
"""
_SHARD = re.compile(r".*-\d{5}-of-\d{5}", re.ASCII)
_LENGTH = struct.Struct("<QI")
_FRAME = _LENGTH.size + 4
_MASK = 0xA282EAD8

_SHM = Path("/dev/shm")
_OWNER = "run"
"""Link in a folder of /dev/shm to the folder of the run that has its blocks there."""
_NAME = re.compile(r"(\d{1,12})-([0-9a-f]{8})", re.ASCII)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_BY_DEFAULT = 0.5
"""Share of the free disk space that a cache may use without --cache."""


@dataclass(frozen=True)
class Block:
    """Whole records in a file: `size` bytes from `offset`, with their number and CRC32C."""

    file: str
    offset: int
    size: int
    records: int
    crc32c: int


@dataclass(frozen=True)
class Index:
    """All blocks of the training files; a block's number is its position."""

    blocks: tuple[Block, ...]

    @property
    def bytes(self) -> int:
        """Size of all records in bytes."""
        return sum(block.size for block in self.blocks)

    @property
    def records(self) -> int:
        """Number of all records."""
        return sum(block.records for block in self.blocks)

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the files, relative to their folder."""
        return tuple(dict.fromkeys(block.file for block in self.blocks))


def is_shard(name: str) -> bool:
    """Return whether Tensor2Tensor uses such a name for a file of records, of any split."""
    return _SHARD.fullmatch(name) is not None


def are_streamed(directory: Path) -> bool:
    """Return whether the training records of this folder come in blocks."""
    return (directory / NAME).exists()


def large(paths: Sequence[Path]) -> bool:
    """Return whether these files come in blocks by default."""
    return sum(path.stat().st_size for path in paths) >= STREAMED_FROM


def indexed(directory: Path, paths: Sequence[Path]) -> Index:
    """Return the blocks of the record files `paths` in `directory`.

    Reads the index in that folder, or else creates it. Raises TrainingError for a torn file, and
    OSError.
    """
    sizes = {str(path.relative_to(directory)): path.stat().st_size for path in paths}
    stored = _read(directory / NAME)
    not_empty = {name: size for name, size in sizes.items() if size}
    if stored is not None and _sizes(stored) == not_empty:
        return stored
    total = sum(sizes.values())
    block_bytes = min(max(total // _TARGET_COUNT, _LEAST), _MOST)
    found = Index(tuple(block for path in paths for block in _cut(directory, path, block_bytes)))
    rows = [list(asdict(block).values()) for block in found.blocks]
    write_atomically(directory / NAME, json.dumps({"blocks": rows}))
    return found


def _sizes(index: Index) -> dict[str, int]:
    sizes = dict.fromkeys(index.files, 0)
    for block in index.blocks:
        sizes[block.file] += block.size
    return sizes


def _read(path: Path) -> Index | None:
    """Return the stored index; None if it has to be created."""
    try:
        rows = json.loads(path.read_bytes())["blocks"]
        names = tuple(Block.__dataclass_fields__)
        return Index(tuple(checks.built(Block, dict(zip(names, row, strict=True))) for row in rows))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _cut(directory: Path, path: Path, block_bytes: int) -> Iterator[Block]:
    """Yield the blocks of a file."""
    import google_crc32c

    if not path.stat().st_size:
        return
    name = str(path.relative_to(directory))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        begin = records = 0
        for end in _ends(path, content):
            records += 1
            if end - begin >= block_bytes or end == len(content):
                checksum = google_crc32c.value(content[begin:end])
                yield Block(name, begin, end - begin, records, checksum)
                begin = end
                records = 0


def _ends(path: Path, content: mmap.mmap) -> Iterator[int]:
    """Yield the end of each record."""
    import google_crc32c

    place = 0
    size = len(content)
    while place < size:
        if size - place < _FRAME:
            raise _torn(path, place, "ends within a record")
        length, masked = _LENGTH.unpack_from(content, place)
        if _masked(google_crc32c.value(content[place : place + 8])) != masked:
            raise _torn(path, place, "is not a record")
        if place + _FRAME + length > size:
            raise _torn(path, place, "ends within a record")
        place += _FRAME + length
        yield place


def _masked(crc: int) -> int:
    return (((crc >> 15) | (crc << 17)) + _MASK) & 0xFFFFFFFF


def _torn(path: Path, place: int, what: str) -> TrainingError:
    return TrainingError(
        f"the record file {path.name} is damaged: the part at byte {place:,} {what}",
        fix="Delete it at its source, so that it is generated again.",
    )


# Blocks of records on the worker's VM, in a cache that never evicts (MinIO of CoorDL, VLDB 2021).
#
# A cached block stays, and a block without space passes through: if a part x of the data fits,
# exactly that part is found in every epoch. A cache that evicts the least recently used block finds
# less, because each record is used once per epoch, after all others. TensorFlow reads blocks as
# files. Blocks in the worker's memory are files without a name (memfd), as are those that pass
# through.


@dataclass(frozen=True)
class Content:
    """A block's number, size and CRC32C."""

    number: int
    size: int
    crc32c: int


class BlockCache:
    """The blocks of one worker; `get` and `put` return paths that are valid until `release`."""

    def __init__(self, cache: Cache | None, run: Path) -> None:
        """Open the cache of a run.

        Parameters
        ----------
        cache
            As declared with --cache, or None.
        run
            The run's folder.

        Raises
        ------
        DeclarationError
            For a cache that is larger than the free space of this VM.
        """
        self._folder = _folder(cache, run)
        free = cache_room(cache.place if cache else "disk", run)
        self._files = dict(self._found())
        self._bytes = sum(path.stat().st_size for path in self._files.values())
        self._limit = int(_BY_DEFAULT * free)
        if cache:
            self._limit = cache.bytes
        if cache and cache.bytes > free + self._bytes:
            raise DeclarationError(
                f"a cache of {_gb(cache.bytes)} is larger than the free space, {_gb(free)} of "
                f"{_WHERE[cache.place]}",
                where="--cache",
                fix="Choose a smaller size, or another place.",
            )
        self._unchecked = set(self._files)
        self._passing: dict[int, int] = {}
        self._kept: dict[int, int] = {}
        """Descriptors of files without a name, by the block's number."""
        if cache and cache.place == "memory":
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 1 << 16)), hard))

    @property
    def bytes(self) -> int:
        """Size of the cached blocks in bytes."""
        return self._bytes

    @property
    def numbers(self) -> frozenset[int]:
        """Numbers of the cached blocks."""
        return frozenset((*self._files, *self._kept))

    def get(self, block: Content) -> str | None:
        """Return the path of a block, or None if it is not cached.

        A block from an earlier process is verified first.
        """
        if (handle := self._kept.get(block.number)) is not None:
            return _path(handle)
        path = self._files.get(block.number)
        if path is None:
            return None
        if block.number in self._unchecked:
            self._unchecked.discard(block.number)
            if not _is(path, block):
                self._drop(block.number, path)
                return None
        return str(path)

    def put(self, block: Content, content: bytes) -> str:
        """Store a block and return its path; without space it passes through.

        Raises OSError.
        """
        if self._bytes + block.size <= self._limit:
            try:
                return self._keep(block, content)
            except OSError as error:
                if error.errno not in _FULL:
                    raise
                reason = os.strerror(error.errno)
                log(f"the cache is full with {_gb(self._bytes)}: {reason}")
                self._limit = self._bytes
        handle = _without_name(content)
        self._passing[block.number] = handle
        return _path(handle)

    def release(self, number: int) -> None:
        """Delete a block that was read, unless it is cached."""
        if (handle := self._passing.pop(number, None)) is not None:
            os.close(handle)

    def close(self) -> None:
        """Delete the whole cache, because the worker leaves the run."""
        for handle in (*self._passing.values(), *self._kept.values()):
            os.close(handle)
        self._passing = {}
        self._kept = {}
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _keep(self, block: Content, content: bytes) -> str:
        if self._folder is None:
            handle = _without_name(content)
            self._kept[block.number] = handle
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
        self._files[block.number] = path
        self._bytes += block.size
        return str(path)

    def _drop(self, number: int, path: Path) -> None:
        self._bytes -= path.stat().st_size
        path.unlink(missing_ok=True)
        del self._files[number]

    def _found(self) -> list[tuple[int, Path]]:
        """Return the blocks of an earlier process, and delete its partial ones."""
        if self._folder is None or not self._folder.is_dir():
            return []
        for part in self._folder.glob(".*.part"):
            part.unlink(missing_ok=True)
        named = ((_NAME.fullmatch(path.name), path) for path in self._folder.iterdir())
        return [(int(match[1]), path) for match, path in named if match]


_WHERE = {"memory": "memory", "shm": "memory for /dev/shm", "disk": "disk"}


def cache_room(place: str, folder: Path) -> int:
    """Return the free bytes for a cache: on the disk of `folder`, or in memory."""
    if place == "disk":
        return shutil.disk_usage(folder).free
    free = [_available()]
    if place == "shm":
        free.append(shutil.disk_usage(_SHM).free)
    return min(free)


def _available() -> int:
    """Return the free memory in bytes, within the bound of this process's control group."""
    found: list[int] = []
    for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("MemAvailable:"):
            found.append(int(line.split()[1]) << 10)
            break
    for limit in (
        Path("/sys/fs/cgroup/memory.max"),
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
    ):
        with contextlib.suppress(OSError, ValueError):  # "max", or no such file: no limit
            found.append(int(limit.read_text(encoding="utf-8")))
    return min(found, default=0)


def _folder(cache: Cache | None, run: Path) -> Path | None:
    """Return the folder of the blocks; None for the process's own memory.

    Deletes folders in /dev/shm of deleted runs.
    """
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
    """Write a file without a name (memfd), and return its descriptor."""
    handle = os.memfd_create("block")
    view = memoryview(content)
    while view:
        view = view[os.write(handle, view) :]
    return handle


def _path(handle: int) -> str:
    return f"/proc/self/fd/{handle}"


def _is(path: Path, block: Content) -> bool:
    """Return whether the file has the content of the block."""
    import google_crc32c

    try:
        content = path.read_bytes()
    except OSError:
        return False
    return len(content) == block.size and google_crc32c.value(content) == block.crc32c


def _gb(size: int) -> str:
    if size >= 1e8:
        return f"{size / 1e9:.1f} GB"
    return f"{size / 1e6:.1f} MB"
