"""Record files cut into blocks, which workers copy one by one: a worker starts on the first records
that it has.

A block is a run of whole records of one TFRecord file, so it is such a file itself. The chief looks
through the files once and writes down where the blocks are; a file that does not consist of whole
records is refused here. Framing of a record: its length (8 bytes), the length's masked CRC32C (4),
the record, the record's (4); the last is checked by TensorFlow when the record is read.
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
"""In the folder of the records: they come in blocks. Beside the chief it is the list of them."""
STREAMED_FROM = 64 << 20
"""Bytes of training files from which on they come in blocks; fewer are copied in half a second at 1
Gbit/s.
"""
_LEAST = 256 << 10
_MOST = 8 << 20
_WANTED = 1024
"""Blocks, between these sizes: few enough to lease quickly, so small that what is read twice is a
small part.
"""
_SHARD = re.compile(r".*-\d{5}-of-\d{5}", re.ASCII)
_LENGTH = struct.Struct("<QI")
_FRAME = _LENGTH.size + 4
_MASK = 0xA282EAD8

_SHM = Path("/dev/shm")
_OWNER = "run"
"""Link in a folder in /dev/shm to the folder of the run whose blocks are there."""
_NAME = re.compile(r"(\d{1,12})-([0-9a-f]{8})", re.ASCII)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_BY_DEFAULT = 0.5
"""Of what is free on the disk, without --cache."""


@dataclass(frozen=True)
class Block:
    """`records` whole records, which are `size` bytes from `offset` on in `file`, with their
    CRC32C.
    """

    file: str
    offset: int
    size: int
    records: int
    crc32c: int


@dataclass(frozen=True)
class Index:
    """All blocks of the training files; a block's number is its place here."""

    blocks: tuple[Block, ...]

    @property
    def bytes(self) -> int:
        """Of all records."""
        return sum(block.size for block in self.blocks)

    @property
    def records(self) -> int:
        """How many there are."""
        return sum(block.records for block in self.blocks)

    @property
    def files(self) -> tuple[str, ...]:
        """The names of the files, below their folder."""
        return tuple(dict.fromkeys(block.file for block in self.blocks))


def is_shard(name: str) -> bool:
    """Whether this is what Tensor2Tensor calls a file of records, of any split."""
    return _SHARD.fullmatch(name) is not None


def are_streamed(directory: Path) -> bool:
    """Whether the training records of this folder come in blocks."""
    return (directory / NAME).exists()


def large(paths: Sequence[Path]) -> bool:
    """Whether these files come in blocks although nobody asked for it."""
    return sum(path.stat().st_size for path in paths) >= STREAMED_FROM


def indexed(directory: Path, paths: Sequence[Path]) -> Index:
    """The blocks of the record files `paths` in `directory`: as written down there, else looked up
    and written down.

    Raises TrainingError for a torn file, OSError.
    """
    sizes = {str(path.relative_to(directory)): path.stat().st_size for path in paths}
    known = _read(directory / NAME)
    if known is not None and _sizes(known) == {name: size for name, size in sizes.items() if size}:
        return known
    total = sum(sizes.values())
    block_bytes = min(max(total // _WANTED, _LEAST), _MOST)
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
    try:
        rows = json.loads(path.read_bytes())["blocks"]
        names = tuple(Block.__dataclass_fields__)
        return Index(tuple(checks.built(Block, dict(zip(names, row, strict=True))) for row in rows))
    except (OSError, ValueError, KeyError, TypeError):
        return None  # it is made anew


def _cut(directory: Path, path: Path, block_bytes: int) -> Iterator[Block]:
    import google_crc32c

    if not path.stat().st_size:
        return
    name = str(path.relative_to(directory))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        begin = records = 0
        for end in _ends(path, content):
            records += 1
            if end - begin >= block_bytes or end == len(content):
                yield Block(
                    name, begin, end - begin, records, google_crc32c.value(content[begin:end])
                )
                begin = end
                records = 0


def _ends(path: Path, content: mmap.mmap) -> Iterator[int]:
    """Where each record ends."""
    import google_crc32c

    place = 0
    size = len(content)
    while place < size:
        if size - place < _FRAME:
            raise _torn(path, place, "ends within a record")
        length, masked = _LENGTH.unpack_from(content, place)
        if _masked(google_crc32c.value(content[place : place + 8])) != masked:
            raise _torn(path, place, "is no record")
        if place + _FRAME + length > size:
            raise _torn(path, place, "ends within a record")
        place += _FRAME + length
        yield place


def _masked(crc: int) -> int:
    return (((crc >> 15) | (crc << 17)) + _MASK) & 0xFFFFFFFF


def _torn(path: Path, place: int, what: str) -> TrainingError:
    fix = "Delete it where it comes from, and have it made again."
    return TrainingError(
        f"the record file {path.name} is torn: what begins at byte {place:,} {what}", fix=fix
    )


# Blocks of records near their worker, in a cache that never evicts (MinIO of CoorDL, VLDB 2021).
#
# What has gone in stays, and what finds no room passes through: of data of which a part x fits,
# exactly that part is found here in every epoch. A cache that evicts what was not used for longest
# finds less, since each record is used once an epoch: after all others. TensorFlow reads blocks as
# files; those in the worker's own memory are files without a name (memfd), as are those that pass
# through.


@dataclass(frozen=True)
class Content:
    """A block's number and its CRC32C, and how large it is."""

    number: int
    size: int
    crc32c: int


class BlockCache:
    """The blocks that one worker has; `get` and `put` answer with paths that TensorFlow can read
    until `release`.
    """

    def __init__(self, cache: Cache | None, run: Path) -> None:
        """`run` is the run's folder. Raises DeclarationError for a cache that this VM has no room
        for.
        """
        self._folder = _folder(cache, run)
        free = cache_room(cache.place if cache else "disk", run)
        self._there = dict(self._found())
        self._bytes = sum(path.stat().st_size for path in self._there.values())
        if cache:
            self._limit = cache.bytes
        else:
            self._limit = int(_BY_DEFAULT * free)
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
        """Where the block is, if it is kept. One that a process before this one left here is looked
        at first.
        """
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
        """Where the block is from now on: kept if there is room, else passing through. Raises
        OSError.
        """
        if self._bytes + block.size <= self._limit:
            try:
                return self._keep(block, content)
            except OSError as error:
                if error.errno not in _FULL:
                    raise
                log(
                    f"the cache takes no more than the {_gb(self._bytes)} in it: {os.strerror(error.errno)}"
                )
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
        self._passing = {}
        self._kept = {}
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
        return [
            (int(match[1]), path)
            for path in self._folder.iterdir()
            if (match := _NAME.fullmatch(path.name))
        ]


_WHERE = {"memory": "memory", "shm": "memory for /dev/shm", "disk": "disk"}


def cache_room(place: str, folder: Path) -> int:
    """Bytes that are free for a cache: on the disk of `folder`, or of memory."""
    if place == "disk":
        return shutil.disk_usage(folder).free
    free = [_available()]
    if place == "shm":
        free.append(shutil.disk_usage(_SHM).free)
    return min(free)


def _available() -> int:
    """Of memory: what the kernel says is available, and no more than this process' control group
    may have.
    """
    for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("MemAvailable:"):
            found = [int(line.split()[1]) << 10]
            break
    else:
        found = list[int]()
    for limit in (
        Path("/sys/fs/cgroup/memory.max"),
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
    ):
        with contextlib.suppress(OSError, ValueError):  # "max", or no such file: there is no limit
            found.append(int(limit.read_text(encoding="utf-8")))
    return min(found, default=0)


def _folder(cache: Cache | None, run: Path) -> Path | None:
    """Where blocks lie; None for the process' own memory. Folders in /dev/shm of runs that are no
    more go.
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
    if size >= 1e8:
        return f"{size / 1e9:.1f} GB"
    return f"{size / 1e6:.1f} MB"
