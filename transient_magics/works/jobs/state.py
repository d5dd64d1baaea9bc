"""The state of a job: its attempts, what is kept of it, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...journal.work import Work
from .events import JobExited, JobKept
from .spec import JobSpec


@dataclass(frozen=True, slots=True)
class JobState(Work[JobSpec]):
    """The state of one job.

    While an attempt is running, `vms` are its VMs, rank 0 first; else `vms` is empty.
    """

    kind = "job"

    attempt: int = 0
    vms: tuple[str, ...] = ()
    began_at: float = 0.0
    """Time at which the current attempt was assigned to its VMs."""
    started: Mapping[str, float] = field(default_factory=dict[str, float])
    """Start times of the command in the current attempt, by VM."""
    exits: Mapping[str, JobExited] = field(default_factory=dict[str, JobExited])
    """Ends of the command, by VM."""
    kept: JobKept | None = None
    """The last received archive of the folder."""
    gpu_unused: Mapping[str, str] = field(default_factory=dict[str, str])
    """GPUs reported as unused in the current attempt, by VM."""
    packed: Mapping[int, int] = field(default_factory=dict[int, int])
    """Numbers of the last received archives in the current attempt, by rank."""
    unkept: str = ""
    """Reason why the folder is not received completely, a clause; empty if it is.

    At the end of the job, the final reason.
    """
    interruptions: int = 0
    """Number of attempts that ended without a failure of the job."""
    failures: int = 0
    spent: float = 0.0
    """Running time in previous attempts, in seconds."""
    started_at: float = 0.0
    code: int | None = None
    tail: str = ""

    @property
    def worker_count(self) -> int:
        """The number of workers that it requests."""
        return self.spec.workers

    @property
    def may_change_vms(self) -> bool:
        """Whether no attempt is under way."""
        return not self.vms

    def ran(self, now: float) -> float:
        """Return the running time of its command over all attempts, in seconds."""
        begin = min(self.started.values(), default=0.0)
        return self.spent + (max(0.0, now - begin) if begin else 0.0)
