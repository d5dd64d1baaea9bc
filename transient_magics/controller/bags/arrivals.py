"""What comes home of a bag beside its driver's lines: arrays that jobs returned, and the surrogate. Both are foreign.

NumPy reads both. A light installation has none, and so no bags.
"""

from __future__ import annotations

import hashlib
from importlib.util import find_spec
from pathlib import Path

from ...files import write_atomically
from ...protocol import layout

MOST_SURROGATE = 64 * 2**20
"""Bytes of each of its files."""


def can_read() -> bool:
    """Whether this machine has what reads them."""
    return find_spec("numpy") is not None


def take_arrays(fresh: Path, target: Path, digest: str) -> None:
    """Have the file of arrays `fresh` as `target`. Raises ValueError where it is not what was told, or not arrays."""
    from ...bags.arrays import read_arrays

    try:
        packed = fresh.read_bytes()
        if hashlib.sha256(packed).hexdigest() != digest:
            raise ValueError("it is not what was told")
        read_arrays(packed)
        fresh.replace(target)
    finally:
        fresh.unlink(missing_ok=True)


def take_surrogate(folder: Path, header: bytes, arrays: bytes) -> None:
    """Have it in the folder of the bag. Raises ValueError where it is none."""
    from ...bags.surrogate import stored

    stored.read(header, arrays)
    write_atomically(folder / layout.SURROGATE_ARRAYS, arrays)
    write_atomically(folder / layout.SURROGATE, header)
