"""For how long each VM is billed, at which price, and what it was meanwhile: starting, usable, or under notice. Pure.

Google bills a VM by the second from RUNNING on, each start for a minute at least, and nothing where it is preempted
within its first minute. "Instance uptime is measured as the number of seconds between when you start an instance and
when you stop an instance, the latter being when the instance state is STOPPING" ("VM instance pricing", a copy of late
2025 or after: it lists N4A machines; copies of 2017 said TERMINATED). A preempted VM is STOPPING during the usual 30
seconds of its notice, so they are free. A longer notice leaves it RUNNING, and is billed.

Compute Engine's own times count where they are known. The price of a VM includes its disk and its external address. A
VM that is stopped, to be started again, costs its disk. Where the emulated clock runs faster, VM time is counted on it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from ...protocol.job import NOTICE_SECONDS
from ..power import Stretch
from ..state import ClusterState, VmState

_LEAST_SECONDS = 60.0
_LATE_SECONDS = 90.0
"""A VM that still runs this long after the end of its notice was not preempted."""


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a VM's billed time after a start: moments in seconds on the cluster's clock, US dollars per hour.

    `usable`: work may have the VM; else it is under notice, or the cluster has left it, or is not there yet.
    `noticed`: after a preemption notice.
    """

    begin: float
    end: float
    hourly: float
    usable: bool
    noticed: bool = False

    @property
    def dollars(self) -> float:
        """The price of all of it."""
        return self.cost_of(self.end - self.begin)

    def cost_of(self, seconds: float) -> float:
        """The price of some of its seconds."""
        return seconds / 3600 * self.hourly


def paid(state: ClusterState, vm: VmState, now: float) -> Iterator[tuple[float, Stretch]]:
    """Yield for how many hours a VM is billed until `now` as each machine that it was."""
    for stretch, after in itertools.pairwise(vm.stretches):
        seconds = state.clock.between(stretch.since, after.since)
        yield (max(_LEAST_SECONDS, seconds) if stretch.runs else seconds) / 3600, stretch
    yield billed_seconds(state, vm, now) / 3600, vm.stretches[-1]


def spans(state: ClusterState, vm: VmState, now: float) -> Iterator[Span]:
    """Yield the billed time in which a VM answered or was stopped; all that it is billed besides is for starting."""
    if not vm.running_at:
        return
    clock, stretches = state.clock, vm.stretches
    begins = [clock.at(stretch.since) for stretch in stretches]
    ends = [*begins[1:], begins[-1] + uptime(state, vm, now)]
    noticed = clock.at(vm.noticed_at) if vm.noticed_at else math.inf
    if 0 < vm.stopping_at < vm.noticed_at:
        # Compute Engine's time of the notice, a moment before ours, comes with the VM's end, when work may be over.
        ends[-1] = max(ends[-1], noticed)
    arrived = math.inf if vm.coming else clock.at(vm.arrived_at)
    left = clock.at(vm.left_at) if vm.left_at else math.inf
    for stretch, begin, end in zip(stretches, begins, ends, strict=True):
        if stretch.runs:
            begin = max(begin, clock.at(stretch.ready_at)) if stretch.ready_at else end
        moments = sorted({min(max(moment, begin), end) for moment in (begin, arrived, left, noticed, end)})
        for since, until in itertools.pairwise(moments):
            is_noticed = since >= noticed
            usable = arrived <= since < left and not is_noticed
            yield Span(since, until, stretch.hourly, usable, is_noticed)


def billed_seconds(state: ClusterState, vm: VmState, now: float) -> float:
    """Return for how many seconds a VM is billed until `now`, since it was started or stopped last."""
    if not vm.running_at:
        return 0.0
    seconds = uptime(state, vm, now)
    if not vm.stretches[-1].runs:
        return seconds
    taken = stopped_at(vm, now) and vm.state in ("leaving", "revoked") and vm.provisioning_model != "standard"
    return 0.0 if taken and seconds < _LEAST_SECONDS else max(_LEAST_SECONDS, seconds)


def uptime(state: ClusterState, vm: VmState, now: float) -> float:
    """Return for how many seconds a VM ran until `now`, or was stopped, since it was started or stopped last."""
    if not vm.running_at:
        return 0.0
    last = vm.stretches[-1]
    seconds = state.clock.between(last.since, stopped_at(vm, now) or now)
    if vm.ended_at and not vm.stopping_at and state.spec and last.runs:
        # Nobody saw when; Compute Engine ends VMs at their limit.
        left = state.spec.ends_at - state.spec.declared_at
        seconds = min(seconds, left - state.clock.between(state.spec.declared_at, last.since))
    return max(0.0, seconds)


def stopped_at(vm: VmState, now: float) -> float:
    """Return when billing of a VM ended, in seconds since 1970; 0 while it runs."""
    told = vm.stopping_at or vm.ended_at
    if vm.noticed_at and (told or now) - vm.noticed_at <= vm.notice_seconds + _LATE_SECONDS:
        runs_on = vm.notice_seconds if vm.notice_seconds > NOTICE_SECONDS else 0.0
        return min(vm.noticed_at + runs_on, told or now)
    return told
