"""Arrays that come from VMs as npz files: bounded before anything is unpacked, of plain numbers, never unpickled."""

from __future__ import annotations

import io
import math
import re
import tokenize
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
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
    NotImplementedError,
    RuntimeError,
    EOFError,
    OSError,
    MemoryError,
)
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_KINDS = "biufc"  # booleans, whole numbers, numbers, complex ones


def read_arrays(packed: bytes) -> Mapping[str, NDArray[Any]]:
    """The arrays of an npz file by their names.

    Raises ValueError, a clause, for a file that is none, is too large, or holds anything but arrays of numbers.
    """
    if len(packed) > MOST_ARRAY_BYTES:
        raise ValueError(f"arrays of {len(packed)} bytes, where {MOST_ARRAY_BYTES} are let in")
    try:
        with zipfile.ZipFile(io.BytesIO(packed)) as archive:
            entries = archive.infolist()
            if len(entries) > MOST_ARRAYS or len({each.filename for each in entries}) < len(entries):
                raise ValueError(f"{len(entries)} arrays, or one twice")
            if wrong := next((each for each in entries if not _NAME.fullmatch(each.filename)), None):
                raise ValueError(f"no name of an array: {wrong.filename!r:.80}")
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
    if version not in _HEADERS:
        raise ValueError(f"{entry.filename} is of an unknown version")
    shape, _, dtype = _HEADERS[version](file)
    if dtype.kind not in _KINDS:
        raise ValueError(f"{entry.filename} holds no numbers: {dtype}")
    if math.prod(shape) * dtype.itemsize != len(content) - file.tell():  # before anything is allocated for it
        raise ValueError(f"{entry.filename} is not as large as it says")
    return np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)
