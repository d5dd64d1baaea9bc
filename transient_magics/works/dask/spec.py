"""The declaration of a Dask cluster on VMs.

Clients, the controller and VMs share one record, which is JSON in `dask.json`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Self

from ...protocol import checks
from ...protocol.checks import Count, Name, NameOrNone, within
from ...protocol.machines import MOST_LEASED

LEAVE_SECONDS = 20.0
"""Time for moving results to other workers after a preemption notice, which comes 30 s ahead."""
MOST_THREADS = 1024


@dataclass(frozen=True, slots=True)
class DaskSpec:
    """A declared Dask cluster: a scheduler, and a worker process on each of `workers` VMs.

    `threads` is the number of simultaneous tasks of a worker (0: the number of cores).
    `memory_bytes` is the memory of a worker (0: 90 % of that of its VM). A task fails after more
    than `allowed_failures` worker crashes. `bag` is the bag whose driver runs with the scheduler
    instead of a client (empty: none).
    """

    name: Name
    workers: Annotated[int, within(1, MOST_LEASED)]
    threads: Annotated[int, within(0, MOST_THREADS)] = 0
    memory_bytes: Count = 0
    allowed_failures: Annotated[int, within(0, 1000)] = 3
    bag: NameOrNone = ""
    declared_at: float = 0.0

    def to_dict(self) -> dict[str, object]:
        """Return plain JSON values, from which `from_dict` creates an equal spec."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Self:
        """Create a spec from the values of `to_dict`; unknown fields are ignored.

        Raises ValueError with the invalid field.
        """
        return checks.built(cls, values)
