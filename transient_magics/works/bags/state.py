"""The state of a bag: jobs, attempts, results that count, surrogates and progress."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...journal.work import Work
from ...protocol.outputs import outputs_of
from ...protocol.run import Value
from . import events as b
from .numbered import Numbered
from .spec import BagSpec


@dataclass(frozen=True, slots=True)
class BagJobState:
    """One job.

    `phase` is waiting, running, done, failed (too many failures of its own) or skipped (not waited
    for). Times are in seconds since 1970 (0: not yet).
    """

    number: int
    point: Mapping[str, Value]
    batch: int = 0
    filling: bool = False
    predicted: Mapping[str, tuple[float, float]] = field(
        default_factory=dict[str, tuple[float, float]]
    )
    phase: str = "waiting"
    attempt: int = 0
    """Number of the latest attempt; 0 if none started."""
    vm: str = ""
    """VM on which it runs; empty if it is not running."""
    age: float = 0.0
    """Age of that VM when the attempt started, in seconds."""
    began_at: float = 0.0
    done: float = 0.0
    """Seconds of computing in the last checkpoint."""
    interruptions: int = 0
    failures: int = 0
    reason: str = ""
    """Why its last attempt returned no result, a clause."""
    result: b.BagResult | None = None
    printed: Mapping[int, str] = field(default_factory=dict[int, str])
    """Last output of the latest ended attempts, by attempt; attempts without output are absent."""


@dataclass(frozen=True, slots=True)
class BagState:
    """The state of one bag; `results` are job numbers in the order of their results."""

    spec: BagSpec
    jobs: Numbered[BagJobState] = field(default_factory=Numbered[BagJobState])
    results: tuple[int, ...] = ()
    learnt: tuple[b.BagLearnt, ...] = ()
    stopped: b.BagStopped | None = None
    saving_seconds: float = 0.0
    """Total duration of all checkpoints."""
    computed_seconds: float = 0.0
    """Computing time of the jobs with a result, without lost time."""
    failed: int = 0
    """Number of jobs that failed permanently."""
    given_up: tuple[str, ...] = ()
    """VMs that receive no further jobs, by the reuse policy."""

    @property
    def over(self) -> bool:
        """Whether the bag starts no further jobs."""
        return self.stopped is not None

    @property
    def counted(self) -> tuple[int, ...]:
        """The jobs whose results are the bag's: the first N."""
        return self.results[: self.spec.jobs]

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs without errors, from the first result; empty before it."""
        if self.results:
            first = self.jobs[self.results[0]].result
        else:
            first = None
        if first:
            return outputs_of(first.returned)
        return ()

    @property
    def waiting(self) -> list[BagJobState]:
        """Jobs to start or start again, in the order in which they were proposed."""
        return [job for job in self.jobs.values() if job.phase == "waiting"]

    @property
    def running(self) -> list[BagJobState]:
        """Jobs with a running attempt."""
        return [job for job in self.jobs.values() if job.phase == "running"]

    @property
    def interruptions(self) -> int:
        """Number of attempts that were lost with their VM."""
        return sum(job.interruptions for job in self.jobs.values())

    @property
    def to_propose(self) -> int:
        """Number of jobs that may still be proposed.

        The total is N (1 + p), plus one for each job that failed permanently.
        """
        if self.over:
            return 0
        return max(self.spec.begun + self.failed - len(self.jobs), 0)

    @property
    def may_give_up(self) -> bool:
        """Whether a VM may be given up; each costs a boot, so there are at most as many as jobs."""
        return self.spec.policy == "reuse" and len(self.given_up) < self.spec.begun

    @property
    def enough(self) -> bool:
        """Whether all required results are available."""
        return len(self.results) >= self.spec.jobs

    def points(self) -> Sequence[tuple[Mapping[str, Value], Mapping[str, float]]]:
        """Return the results of the bag: each point with its returned values."""
        found = ((self.jobs[number].point, self.jobs[number].result) for number in self.counted)
        return [(point, result.returned) for point, result in found if result]


@dataclass(frozen=True, slots=True)
class DeclaredBag(Work[BagSpec]):
    """A bag on a cluster."""

    kind = "bag"
    takes_workers = False

    state: BagState = field(kw_only=True)
    """State from the events of its driver."""
    began_at: float = 0.0
    dasks: tuple[str, ...] = ()
    """Names of the Dask clusters of the bag, in order."""
    reported_at: int = 0
    """Time (ns) of the last event of its current driver.

    A new follower of the driver receives all events again.
    """

    @property
    def members(self) -> tuple[str, ...]:
        """The names of its Dask clusters."""
        return self.dasks
