"""What is declared of a Dask cluster on VMs.

One record for whoever declares it, for the controller and for the VMs, as JSON in `dask.json`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Self

from ...protocol import checks
from ...protocol.checks import Count, Name, NameOrNone, within
from ...protocol.machines import MOST_LEASED

LEAVE_SECONDS = 20.0
"""After the notice of a preemption: for how long results are moved to other workers. 30 s are sure.
"""
MOST_THREADS = 1024


@dataclass(frozen=True, slots=True)
class DaskSpec:
    """A declared Dask cluster: a scheduler, and a worker process on each of `workers` VMs.

    `threads`: tasks that a worker runs at once (0: as many as its VM has cores). `memory_bytes`:
    what a worker may have in memory (0: nine tenths of what its VM has). A task that more than
    `allowed_failures` workers crashed with has failed. `bag`: whose driver is beside its scheduler,
    instead of a client (empty: none's).
    """

    name: Name
    workers: Annotated[int, within(1, MOST_LEASED)]
    threads: Annotated[int, within(0, MOST_THREADS)] = 0
    memory_bytes: Count = 0
    allowed_failures: Annotated[int, within(0, 1000)] = 3
    bag: NameOrNone = ""
    declared_at: float = 0.0

    def to_dict(self) -> dict[str, object]:
        """Plain JSON values; `from_dict` reads them back as an equal spec."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Self:
        """Read what `to_dict` wrote; unknown fields are ignored. Raises ValueError with the field
        that is wrong.
        """
        return checks.built(cls, values)
