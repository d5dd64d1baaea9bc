"""Which waiting job goes to which free VM, which VMs are worth a job no more, and which are kept
without one. Pure.

`reuse`: a job goes to a VM of age s iff E[T_s] <= E[T_0], else to a fresh one (Kadupitiya, Jadhao
and Sharma, HPDC 2020); a fresh one is there after its boot only, which counts. Short jobs go to the
VMs that are likeliest to be revoked, long ones to those that are not (Sharma and Jadhao, arXiv
2111.06466). `memoryless`: the next job to any VM.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from .expectation import Expectations

SPARE_HOURS = 1.0
"""How long a stable VM is kept without a job (HPDC 2020, section 5)."""
Policy = Literal["reuse", "memoryless"]


@dataclass(frozen=True, slots=True)
class Free:
    """A VM without a job: its age, and for how long it has had none, in hours. `fresh`: it is
    younger than the bag's driver, so its age when it is first seen here is what a fresh one takes
    to come.
    """

    vm: str
    age: float
    idle: float = 0.0
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job to be begun, with the hours of work that are left of it."""

    job: int
    work: float


@dataclass(frozen=True, slots=True)
class Placement:
    """`pairs` of a job and its VM; VMs to give up, each for a fresh one (`renew`) or for none
    (`drop`).
    """

    pairs: tuple[tuple[int, str], ...] = ()
    renew: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()


def place(
    waiting: Sequence[Waiting],
    free: Sequence[Free],
    expected: Expectations,
    policy: Policy,
    boot: float = 0.0,
) -> Placement:
    """What to do now. `waiting` in the order in which the jobs were proposed; `boot`: hours until a
    fresh VM is there.

    No more VMs are renewed than jobs wait. Of VMs without a job those are kept that are stable, for
    an hour.
    """
    if policy == "memoryless":
        pairs = [(job.job, vm.vm) for job, vm in zip(waiting, free, strict=False)]
        dropped = [vm.vm for vm in free[len(pairs) :] if vm.idle >= SPARE_HOURS]
        return Placement(tuple(pairs), drop=tuple(dropped))
    queue = {each.job: each for each in waiting}
    if waiting:
        usual = waiting[len(waiting) // 2].work
    else:
        usual = expected.longest
    first = sorted(waiting[: len(free)], key=lambda each: each.work)
    pairs = []
    refused = []
    for turn, vm in enumerate(sorted(free, key=lambda vm: -expected.risk(usual, vm.age))):
        shortest = min(queue.values(), key=lambda each: each.work, default=None)
        offered = [
            each for each in (*first[turn : turn + 1], shortest) if each and each.job in queue
        ]
        taken = next((each for each in offered if takes(expected, each.work, vm.age, boot)), None)
        if taken is None:
            refused.append(vm)
        else:
            pairs.append((taken.job, vm.vm))
            del queue[taken.job]
    renewed = refused[: len(queue)]
    rest = refused[len(queue) :]
    dropped = [
        vm.vm for vm in rest if vm.idle >= SPARE_HOURS or not takes(expected, usual, vm.age, boot)
    ]
    return Placement(tuple(pairs), tuple(vm.vm for vm in renewed), tuple(dropped))


def takes(expected: Expectations, work: float, age: float, boot: float = 0.0) -> bool:
    """Whether such a job goes to a VM of that age rather than to a fresh one: E[T_s] <= E[T_0]."""
    return expected.hours(work, age) <= boot + expected.hours(work, 0.0)


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of VM that could be rented: so many of them at so many dollars per hour each, and what
    a job is there.
    """

    name: str
    vms: int
    hourly: float
    expected: Expectations
    work: float

    @property
    def cost(self) -> float:
        """n x price x E[T]: of one round of jobs, one on each VM."""
        return self.vms * self.hourly * self.expected.hours(self.work)

    @property
    def job_cost(self) -> float:
        """Dollars of one job."""
        return self.hourly * self.expected.hours(self.work)


def cheapest(kinds: Sequence[Kind]) -> Kind:
    """The type with the least n x price x E[T]; where the number of VMs differs, by what they get
    done.
    """
    return min(kinds, key=lambda each: (each.job_cost, each.cost))
