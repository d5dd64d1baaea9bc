"""Arrays that come from VMs as npz files: bounded before anything is unpacked, of plain numbers,
never unpickled.
"""

from __future__ import annotations

import io
import math
import re
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..protocol.bag.events import MOST_ARRAY_BYTES

MOST_ARRAYS = 4096
MOST_UNPACKED_BYTES = 4 * MOST_ARRAY_BYTES
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}\.npy", re.ASCII)
_BROKEN = (
    zipfile.BadZipFile,
    zlib.error,
    NotImplementedError,
    RuntimeError,
    EOFError,
    OSError,
    MemoryError,
)
_PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""How NumPy packs; what undoes others raises errors of its own, and takes memory as the file says.
"""
_ENTRY = b"PK\x01\x02"
_LENGTHS = {(1, 0): 2, (2, 0): 4}
_HEADER = re.compile(
    rb"\{'descr': '([<>|=]?[biufc][0-9]{1,2})', 'fortran_order': (?:True|False), "
    rb"'shape': \(((?:[0-9]{1,19}, )*(?:[0-9]{1,19},?)?)\), \} *\n"
)
"""As NumPy writes it, of booleans, whole numbers, numbers, and complex ones. NumPy itself evaluates
what is there.
"""


def read_arrays(packed: bytes) -> Mapping[str, NDArray[Any]]:
    """The arrays of an npz file by their names.

    Raises ValueError, a clause, for a file that is none, is too large, or holds anything but arrays
    of numbers.
    """
    if len(packed) > MOST_ARRAY_BYTES:
        raise ValueError(f"arrays of {len(packed)} bytes, where {MOST_ARRAY_BYTES} are let in")
    if packed.count(_ENTRY) > 2 * MOST_ARRAYS:  # before anything is made of each of them
        raise ValueError(f"more than {MOST_ARRAYS} arrays")
    try:
        with zipfile.ZipFile(io.BytesIO(packed)) as archive:
            entries = archive.infolist()
            if len(entries) > MOST_ARRAYS or len({entry.filename for entry in entries}) < len(
                entries
            ):
                raise ValueError(f"{len(entries)} arrays, or one twice")
            if wrong := next(
                (each for each in entries if not _NAME.fullmatch(each.filename)), None
            ):
                raise ValueError(f"no name of an array: {wrong.filename!r:.80}")
            if other := next((each for each in entries if each.compress_type not in _PACKED), None):
                raise ValueError(f"{other.filename} is packed as no array is")
            if sum(each.file_size for each in entries) > MOST_UNPACKED_BYTES:
                raise ValueError(f"arrays that unpack to more than {MOST_UNPACKED_BYTES} bytes")
            return {each.filename.removesuffix(".npy"): _array(archive, each) for each in entries}
    except _BROKEN as error:
        raise ValueError(f"no file of arrays: {error}") from None


def _array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> NDArray[Any]:
    with archive.open(entry) as file:
        content = file.read(entry.file_size + 1)
    if len(content) > entry.file_size:
        raise ValueError(f"{entry.filename} is larger than it says")
    file = io.BytesIO(content)
    version = np.lib.format.read_magic(file)
    if version not in _LENGTHS:
        raise ValueError(f"{entry.filename} is of an unknown version")
    header = file.read(int.from_bytes(file.read(_LENGTHS[version]), "little"))
    if not (told := _HEADER.fullmatch(header)):
        raise ValueError(f"{entry.filename} holds no plain numbers: {header!r:.80}")
    try:
        size = np.dtype(told[1].decode()).itemsize
    except TypeError:
        raise ValueError(f"{entry.filename} holds no numbers that there are: {told[1]!r}") from None
    shape = [int(each) for each in told[2].split(b",") if each.strip()]
    if math.prod(shape) * size != len(content) - file.tell():  # before anything is allocated for it
        raise ValueError(f"{entry.filename} is not as large as it says")
    return np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
