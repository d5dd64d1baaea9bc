"""TensorBoard's event files, written without TensorFlow.

A file is a sequence of records in the framing of TFRecord: length, its checksum, data, its
checksum. Each record is an `Event` message. Only the fields that TensorBoard reads for scalars and
texts are encoded; the numbers of fields and wire types below are those of event.proto,
summary.proto and tensor.proto.
"""

from __future__ import annotations

import struct
import time
from functools import cache
from pathlib import Path

_VARINT = 0
_FIXED64 = 1
_BYTES = 2
_FIXED32 = 5
_STRING_TENSOR = 7
_LARGEST = 3.4e38
"""Largest magnitude written for a 32-bit float."""
_POLYNOMIAL = 0x82F63B78
"""Castagnoli polynomial of CRC-32C, with its bits reversed."""


def scalar(at: float, step: int, tag: str, value: float) -> bytes:
    """Return the record of a value at a global step, `at` seconds since 1970."""
    number = struct.pack("<f", max(-_LARGEST, min(value, _LARGEST)))
    return _event(at, step, message(1, tag.encode()) + _key(2, _FIXED32) + number)


def text(at: float, step: int, tag: str, words: str) -> bytes:
    """Return the record of a text (Markdown) at a global step."""
    tensor = (
        _key(1, _VARINT) + _varint(_STRING_TENSOR) + message(2, b"") + message(8, words.encode())
    )
    plugin = message(1, message(1, b"text"))
    return _event(at, step, message(1, tag.encode()) + message(8, tensor) + message(9, plugin))


def append(folder: Path, name: str, records: list[bytes], size: int) -> int:
    """Append records after the first `size` bytes of the event file `name`; return its new size.

    Bytes after these come from an interrupted write and are discarded. A new file starts with a
    version record.
    """
    folder.mkdir(parents=True, exist_ok=True)
    content = b"".join(records)
    path = folder / name
    if not size or not path.exists():
        path.write_bytes(_version() + content)
    else:
        with path.open("r+b") as file:
            file.truncate(size)
            file.seek(size)
            file.write(content)
    return path.stat().st_size


def _version() -> bytes:
    return _record(
        _key(1, _FIXED64) + struct.pack("<d", time.time()) + message(3, b"brain.Event:2")
    )


def _event(at: float, step: int, value: bytes) -> bytes:
    moment = _key(1, _FIXED64) + struct.pack("<d", at)
    return _record(moment + _key(2, _VARINT) + _varint(step) + message(5, message(1, value)))


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return b"".join((length, _masked_checksum(length), data, _masked_checksum(data)))


def message(field: int, content: bytes) -> bytes:
    """Return an encoded field whose content is a message, a text or bytes."""
    return _key(field, _BYTES) + _varint(len(content)) + content


def _key(field: int, wire: int) -> bytes:
    return _varint(field << 3 | wire)


def integer(field: int, value: int) -> bytes:
    """Return an encoded field that is a whole number, zero or more."""
    return _key(field, _VARINT) + _varint(value)


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _masked_checksum(data: bytes) -> bytes:
    """Return the CRC-32C of `data`, rotated and offset as TFRecord does.

    The mask keeps a checksum over data that itself has checksums meaningful.
    """
    table = _table()
    value = 0xFFFFFFFF
    for byte in data:
        value = table[(value ^ byte) & 0xFF] ^ value >> 8
    value ^= 0xFFFFFFFF
    return struct.pack("<I", ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF)


@cache
def _table() -> tuple[int, ...]:
    entries = []
    for entry in range(256):
        for _ in range(8):
            entry = entry >> 1 ^ (_POLYNOMIAL if entry & 1 else 0)
        entries.append(entry)
    return tuple(entries)
