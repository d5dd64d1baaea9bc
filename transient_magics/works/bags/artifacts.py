"""The artifacts of a bag: arrays that jobs returned, and the surrogate.

NumPy reads both. A light installation has none, and so no bags.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from ...controller.artifacts import Artifact
from ...controller.remote_controller.result_sync import Sync
from ...journal import Event
from ...protocol import layout
from ...protocol.outputs import MOST_ARRAY_BYTES
from .events import BagLearnt, BagResult
from .state import DeclaredBag

MOST_SURROGATE = 64 * 2**20
"""Limit on each file of a surrogate, in bytes."""


def can_read() -> bool:
    """Return whether this machine has NumPy."""
    return find_spec("numpy") is not None


def arrays(result: BagResult) -> Artifact:
    """Return the arrays that a job returned with a result."""
    file = f"{layout.BAGS}/{result.bag}/{layout.RESULTS}/{result.arrays}"
    size = result.bytes or MOST_ARRAY_BYTES
    return Artifact(
        f"arrays of {result.bag}", (file,), MOST_ARRAY_BYTES, result.digest, size, check_arrays
    )


def surrogate(bag: str, results: int) -> Artifact:
    """Return the surrogate of `results` results. Its header is replaced last: it has the digest."""
    files = tuple(
        f"{layout.BAGS}/{bag}/{name}" for name in (layout.SURROGATE_ARRAYS, layout.SURROGATE)
    )
    return Artifact(
        f"surrogate of {bag}",
        files,
        MOST_SURROGATE,
        size=MOST_SURROGATE,
        check=check_surrogate,
        version=results,
    )


def check_arrays(path: Path) -> None:
    """Raise ValueError if a file holds anything but arrays of numbers."""
    from .storage import read_arrays

    read_arrays(path.read_bytes())


def check_surrogate(packed: Path, header: Path) -> None:
    """Raise ValueError if two files are not a surrogate."""
    from .storage import unpack_surrogate

    unpack_surrogate(header.read_bytes(), packed.read_bytes())


class BagSync(Sync[DeclaredBag]):
    """Copies the arrays that jobs of bags returned, and surrogates."""

    kind = "bag"
    in_bucket = tuple(
        f"{layout.BAGS}/*/{name}"
        for name in (f"{layout.RESULTS}/*", layout.SURROGATE, layout.SURROGATE_ARRAYS)
    )

    def left(self, work: DeclaredBag) -> Iterator[Artifact]:
        """Yield the artifacts of a bag, if this machine can read them."""
        if not can_read():
            return
        for job in work.state.jobs.values():
            if job.result and job.result.arrays:
                yield arrays(job.result)
        if work.state.learnt:
            yield surrogate(work.name, work.state.learnt[-1].results)

    def tells(self, event: Event) -> bool:
        """Return whether files come with the event; events of job starts have none."""
        return isinstance(event, BagLearnt) or (isinstance(event, BagResult) and bool(event.arrays))


SYNC = BagSync
