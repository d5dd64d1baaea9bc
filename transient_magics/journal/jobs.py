"""What the events of a journal add up to, of jobs (attempts, what is kept, how they ended) and of
Dask clusters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..protocol.dask.spec import DaskSpec
from ..protocol.job import JobSpec
from . import events as e
from .work import Work


@dataclass(frozen=True, slots=True)
class JobState(Work[JobSpec]):
    """One job. An attempt is under way where `vms` are named: those to which it was given, rank 0
    first.
    """

    kind = "job"

    attempt: int = 0
    vms: tuple[str, ...] = ()
    began_at: float = 0.0
    """When the attempt under way was given to its VMs."""
    started: Mapping[str, float] = field(default_factory=dict[str, float])
    """By VM: when the command runs there in the attempt under way."""
    exits: Mapping[str, e.JobExited] = field(default_factory=dict[str, e.JobExited])
    """By VM: how it ended there."""
    kept: e.JobKept | None = None
    """The folder as it was brought here last."""
    gpu_unused: Mapping[str, str] = field(default_factory=dict[str, str])
    """By VM: the GPU that no process of the attempt under way has used yet, once that was reported.
    """
    packed: Mapping[int, int] = field(default_factory=dict[int, int])
    """By rank: the number on its VM of the last archive that was taken in the attempt under way."""
    unkept: str = ""
    """Why it is not brought here, or not all of it, a clause, while it is not; at the end, what it
    then is.
    """
    interruptions: int = 0
    """Attempts that ended without a fault of the job's own."""
    failures: int = 0
    spent: float = 0.0
    """Seconds for which it ran in the attempts before."""
    started_at: float = 0.0
    code: int | None = None
    tail: str = ""

    @property
    def worker_count(self) -> int:
        """How many workers it asks for."""
        return self.spec.workers

    @property
    def may_change_vms(self) -> bool:
        """Whether no attempt is under way."""
        return not self.vms

    def ran(self, now: float) -> float:
        """For how many seconds its command has run, over all attempts."""
        begin = min(self.started.values(), default=0.0)
        return self.spent + (max(0.0, now - begin) if begin else 0.0)


@dataclass(frozen=True, slots=True)
class DaskState(Work[DaskSpec]):
    """One Dask cluster."""

    kind = "dask"
    begins_with_fewer = True

    vm: str = ""
    """That of its scheduler; empty: it has none yet."""
    serving: e.DaskServing | None = None
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
