"""Record files cut into blocks, which workers copy one by one: a worker starts on the first records that it has.

A block is a run of whole records of one TFRecord file, so it is such a file itself. The chief looks through the files
once and writes down where the blocks are; a file that does not consist of whole records is refused here. Framing of a
record: its length (8 bytes), the length's masked CRC32C (4), the record, the record's (4); the last is checked by
TensorFlow when the record is read.
"""

from __future__ import annotations

import json
import mmap
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ...errors import TrainingError
from ...files import write_atomically
from ...protocol import checks

NAME = ".blocks"
"""In the folder of the records: they come in blocks. Beside the chief it is the list of them."""
STREAMED_FROM = 64 << 20
"""Bytes of training files from which on they come in blocks; fewer are copied in half a second at 1 Gbit/s."""
_LEAST, _MOST = 256 << 10, 8 << 20
_WANTED = 1024
"""Blocks, between these sizes: few enough to lease quickly, so small that what is read twice is a small part."""
_SHARD = re.compile(r".*-\d{5}-of-\d{5}", re.ASCII)
_LENGTH = struct.Struct("<QI")
_FRAME = _LENGTH.size + 4
_MASK = 0xA282EAD8


@dataclass(frozen=True)
class Block:
    """`records` whole records, which are `size` bytes from `offset` on in `file`, with their CRC32C."""

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
    """The blocks of the record files `paths` in `directory`: as written down there, else looked up and written down.

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
                yield Block(name, begin, end - begin, records, google_crc32c.value(content[begin:end]))
                begin, records = end, 0


def _ends(path: Path, content: mmap.mmap) -> Iterator[int]:
    """Where each record ends."""
    import google_crc32c

    place, size = 0, len(content)
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
    return TrainingError(f"the record file {path.name} is torn: what begins at byte {place:,} {what}", fix=fix)
