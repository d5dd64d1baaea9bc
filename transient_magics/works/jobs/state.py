"""The state of a job: its attempts, what is kept of it, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...journal.work import Work
from .events import JobExited, JobKept
from .spec import JobSpec


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
    exits: Mapping[str, JobExited] = field(default_factory=dict[str, JobExited])
    """By VM: how it ended there."""
    kept: JobKept | None = None
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
