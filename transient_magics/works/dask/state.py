"""The state of a Dask cluster on VMs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...journal.work import Work
from .events import DaskServing
from .spec import DaskSpec


@dataclass(frozen=True, slots=True)
class DaskState(Work[DaskSpec]):
    """One Dask cluster."""

    kind = "dask"
    begins_with_fewer = True

    vm: str = ""
    """VM of its scheduler; empty if it has none yet."""
    serving: DaskServing | None = None
    """Address of the scheduler, once it listens."""
    reported_at: Mapping[str, int] = field(default_factory=dict[str, int])
    """Time (ns) of the last event, by VM; a new follower receives all events again."""
    gpu_unused: Mapping[str, str] = field(default_factory=dict[str, str])
    """GPUs reported as unused since the worker started, by VM."""
    left: int = 0
    """Number of workers that left after a notice."""
    crashes: int = 0
    closed: str = ""
    """Reason of a normal end of the scheduler, a clause."""
    lost: str = ""
    """Reason of any other end, a clause."""

    @property
    def owner(self) -> str:
        """The bag that started it; else empty."""
        return self.spec.bag

    @property
    def worker_count(self) -> int:
        """The number of workers that it requests."""
        return self.spec.workers
