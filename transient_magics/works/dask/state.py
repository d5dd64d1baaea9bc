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
    """That of its scheduler; empty: it has none yet."""
    serving: DaskServing | None = None
    """Where the scheduler listens, once it does."""
    heard: Mapping[str, int] = field(default_factory=dict[str, int])
    """By VM: the moment (ns) of the last that it told. Who follows it anew hears all of it again.
    """
    gpu_unused: Mapping[str, str] = field(default_factory=dict[str, str])
    """By VM: the GPU that no process has used since the worker started, once that was reported."""
    left: int = 0
    """Workers that left after a notice."""
    crashes: int = 0
    closed: str = ""
    """Why the scheduler has ended by itself, a clause, once it has."""
    lost: str = ""
    """How it ended otherwise, a clause."""

    @property
    def owner(self) -> str:
        """The bag that began it; else empty."""
        return self.spec.bag

    @property
    def worker_count(self) -> int:
        """How many workers it asks for."""
        return self.spec.workers
