"""What a bag leaves beside the lines of its driver: arrays that jobs returned, and the surrogate.

NumPy reads both. A light installation has none, and so no bags.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from ...journal.bags.state import DeclaredBag
from ...protocol import layout
from ...protocol.bag.events import BagResult
from ..artifacts import MOST_ARRAYS, MOST_SURROGATE, Artifact

IN_BUCKET = tuple(
    f"{layout.BAGS}/*/{name}" for name in (f"{layout.RESULTS}/*", layout.SURROGATE, layout.SURROGATE_ARRAYS)
)
"""Files that the controller on a VM copies into the cluster's bucket."""


def can_read() -> bool:
    """Whether this machine has what reads them."""
    return find_spec("numpy") is not None


def arrays(result: BagResult) -> Artifact:
    """The arrays that a job returned with a result."""
    file = f"{layout.BAGS}/{result.bag}/{layout.RESULTS}/{result.arrays}"
    size = result.bytes or MOST_ARRAYS
    return Artifact(f"arrays of {result.bag}", (file,), MOST_ARRAYS, result.digest, size, check_arrays)


def surrogate(bag: str, results: int) -> Artifact:
    """The surrogate that was learnt from so many results. Its header is replaced last: it names the arrays."""
    files = tuple(f"{layout.BAGS}/{bag}/{name}" for name in (layout.SURROGATE_ARRAYS, layout.SURROGATE))
    return Artifact(
        f"surrogate of {bag}", files, MOST_SURROGATE, size=MOST_SURROGATE, check=check_surrogate, version=results
    )


def left(bag: DeclaredBag) -> Iterator[Artifact]:
    """All that a bag has left so far, as far as this machine can read it."""
    if not can_read():
        return
    for job in bag.state.jobs.values():
        if job.result and job.result.arrays:
            yield arrays(job.result)
    if bag.state.learnt:
        yield surrogate(bag.name, bag.state.learnt[-1].results)


def check_arrays(path: Path) -> None:
    """Raise ValueError where a file holds anything but arrays of numbers."""
    from ...bags.arrays import read_arrays

    read_arrays(path.read_bytes())


def check_surrogate(packed: Path, header: Path) -> None:
    """Raise ValueError where two files are no surrogate."""
    from ...bags.surrogate import stored

    stored.read(header.read_bytes(), packed.read_bytes())
