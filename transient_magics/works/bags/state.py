"""What is known of a bag: its jobs, their attempts, the results that count, what was learnt from
them, how it goes.
"""

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
    """One job. `phase`: waiting, running, done, failed (by its own faults, too often) or skipped
    (not waited for).

    Times in seconds since 1970 (0: not yet).
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
    """The latest one; 0: none began."""
    vm: str = ""
    """Where it runs; empty: nowhere."""
    age: float = 0.0
    """Of that VM when it began, in seconds."""
    began_at: float = 0.0
    done: float = 0.0
    """Seconds of computing that are safe."""
    interruptions: int = 0
    failures: int = 0
    reason: str = ""
    """Why its last attempt gave no result, a clause."""
    result: b.BagResult | None = None
    said: Mapping[int, str] = field(default_factory=dict[int, str])
    """By attempt that has ended, of the last ones, the last that it printed; nothing of those that
    printed nothing.
    """


@dataclass(frozen=True, slots=True)
class BagState:
    """One bag. `results`: job numbers in the order in which their results came."""

    spec: BagSpec
    jobs: Numbered[BagJobState] = field(default_factory=Numbered[BagJobState])
    results: tuple[int, ...] = ()
    learnt: tuple[b.BagLearnt, ...] = ()
    stopped: b.BagStopped | None = None
    saving_seconds: float = 0.0
    """What all checkpoints took."""
    computed_seconds: float = 0.0
    """What the jobs with a result computed, without what was lost."""
    failed: int = 0
    """Jobs that failed for good."""
    given_up: tuple[str, ...] = ()
    """VMs that are worth no job any more, by the policy of reuse."""

    @property
    def over(self) -> bool:
        """It begins no job any more."""
        return self.stopped is not None

    @property
    def counted(self) -> tuple[int, ...]:
        """The jobs whose results are the bag's: the first N."""
        return self.results[: self.spec.jobs]

    @property
    def outputs(self) -> tuple[str, ...]:
        """What the jobs return, without errors, by the first result; empty before."""
        if self.results:
            first = self.jobs[self.results[0]].result
        else:
            first = None
        if first:
            return outputs_of(first.returned)
        return ()

    @property
    def waiting(self) -> list[BagJobState]:
        """Those to be begun, or begun again, in the order in which they were proposed."""
        return [job for job in self.jobs.values() if job.phase == "waiting"]

    @property
    def running(self) -> list[BagJobState]:
        """Those with an attempt under way."""
        return [job for job in self.jobs.values() if job.phase == "running"]

    @property
    def interruptions(self) -> int:
        """Attempts that were lost with their VM."""
        return sum(job.interruptions for job in self.jobs.values())

    @property
    def to_propose(self) -> int:
        """How many jobs may still be proposed: N (1 + p), and one more for each that failed for
        good.
        """
        if self.over:
            return 0
        return max(self.spec.begun + self.failed - len(self.jobs), 0)

    @property
    def may_give_up(self) -> bool:
        """Whether a VM may be given up: each costs a boot, so there are as many as jobs at most."""
        return self.spec.policy == "reuse" and len(self.given_up) < self.spec.begun

    @property
    def enough(self) -> bool:
        """All results that were wanted are there."""
        return len(self.results) >= self.spec.jobs

    def points(self) -> Sequence[tuple[Mapping[str, Value], Mapping[str, float]]]:
        """The bag's results: each point, and what was returned there."""
        found = ((self.jobs[number].point, self.jobs[number].result) for number in self.counted)
        return [(point, result.returned) for point, result in found if result]


@dataclass(frozen=True, slots=True)
class DeclaredBag(Work[BagSpec]):
    """A bag on a cluster."""

    kind = "bag"
    leases = False

    state: BagState = field(kw_only=True)
    """What its driver has told."""
    began_at: float = 0.0
    dasks: tuple[str, ...] = ()
    """The Dask clusters whose workers were the bag's, one after the other."""
    heard: int = 0
    """The moment (ns) of the last that its present driver told. Who follows it anew hears all of it
    again.
    """

    @property
    def members(self) -> tuple[str, ...]:
        """The names of its Dask clusters."""
        return self.dasks
