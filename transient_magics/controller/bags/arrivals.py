"""What a bag leaves beside the lines of its driver: arrays that jobs returned, and the surrogate.

NumPy reads both. A light installation has none, and so no bags.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from ...files import write_atomically
from ...journal.bags.state import DeclaredBag
from ...protocol import layout
from ...protocol.bag.events import BagResult
from ..artifacts import MOST_ARRAYS, MOST_SURROGATE, Artifact


def can_read() -> bool:
    """Whether this machine has what reads them."""
    return find_spec("numpy") is not None


def arrays(result: BagResult) -> Artifact:
    """The arrays that a job returned with a result."""
    file = f"{layout.BAGS}/{result.bag}/{layout.RESULTS}/{result.arrays}"
    return Artifact(f"arrays of {result.bag}", (file,), MOST_ARRAYS, result.digest, result.bytes, _check_arrays)


def surrogate(bag: str, results: int) -> Artifact:
    """The surrogate that was learnt from so many results. Its header is replaced last: it names the arrays."""
    files = tuple(f"{layout.BAGS}/{bag}/{name}" for name in (layout.SURROGATE_ARRAYS, layout.SURROGATE))
    return Artifact(f"surrogate of {bag}", files, MOST_SURROGATE, check=_check_surrogate, version=results)


def left(bag: DeclaredBag) -> Iterator[Artifact]:
    """All that a bag has left so far, as far as this machine can read it."""
    if not can_read():
        return
    for job in bag.state.jobs.values():
        if job.result and job.result.arrays:
            yield arrays(job.result)
    if bag.state.learnt:
        yield surrogate(bag.name, bag.state.learnt[-1].results)


def _check_arrays(path: Path) -> None:
    from ...bags.arrays import read_arrays

    read_arrays(path.read_bytes())


def _check_surrogate(packed: Path, header: Path) -> None:
    from ...bags.surrogate import stored

    stored.read(header.read_bytes(), packed.read_bytes())


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
