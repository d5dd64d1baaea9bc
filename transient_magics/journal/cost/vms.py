"""For how long each VM is billed, at which price, and what it was meanwhile: starting, usable, or under notice. Pure.

Google bills a VM by the second from RUNNING on, each start for a minute at least, and nothing where it is preempted
within its first minute. "Instance uptime is measured as the number of seconds between when you start an instance and
when you stop an instance, the latter being when the instance state is STOPPING" ("VM instance pricing", a copy of late
2025 or after: it lists N4A machines; copies of 2017 said TERMINATED). A preempted VM is STOPPING during the usual 30
seconds of its notice, so they are free. A longer notice leaves it RUNNING, and is billed.

Compute Engine's own times count where they are known. That of a VM's end may arrive after the end of work that had
the VM, whose cost stays as it was: `Span.learnt` marks the time that is not billed after all. The price of a VM
includes its disk and its external address. A VM that is stopped, to be started again, costs its disk. Where the
emulated clock runs faster, VM time is counted on it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from ...protocol.job import NOTICE_SECONDS
from ..power import Stretch
from ..state import ClusterState, VmState

START_UP, IDLE, NOTICED = "start-up", "idle", "after a notice"
_LEAST_SECONDS = 60.0
_LATE_SECONDS = 90.0
"""A VM that still runs this long after the end of its notice was not preempted."""


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a VM's time after a start: moments in seconds on the cluster's clock, US dollars per hour.

    `line`: what it is for where no work pays it: START_UP, IDLE or NOTICED. `held`: the VM is in its slot of the
    cluster; it is not where a move brings it or leaves it. `learnt`: Compute Engine does not bill this time, and when
    that was learnt (seconds since 1970); infinite for all other time.
    """

    begin: float
    end: float
    hourly: float
    line: str
    held: bool
    learnt: float = math.inf

    @property
    def usable(self) -> bool:
        """Whether work may have the VM."""
        return self.held and self.line == IDLE

    @property
    def dollars(self) -> float:
        """The price of all of it."""
        return self.cost_of(self.end - self.begin)

    def cost_of(self, seconds: float) -> float:
        """The price of some of its seconds."""
        return seconds / 3600 * self.hourly


class Meter:
    """For how long the VMs of a cluster are billed until `now` (seconds since 1970)."""

    def __init__(self, state: ClusterState, now: float) -> None:
        self._spec = state.spec
        self._clock = state.clock
        self._now = now

    def paid(self, vm: VmState) -> Iterator[tuple[float, Stretch]]:
        """Yield for how many hours a VM is billed as each machine that it was."""
        stretches = vm.stretches
        for stretch, after in itertools.pairwise(stretches):
            seconds = self._clock.between(stretch.since, after.since)
            yield (max(_LEAST_SECONDS, seconds) if stretch.runs else seconds) / 3600, stretch
        yield self.billed_seconds(vm) / 3600, stretches[-1]

    def dollars(self, vm: VmState) -> float:
        """Return the price of all time for which a VM is billed, in US dollars."""
        return sum(hours * stretch.hourly for hours, stretch in self.paid(vm))

    def spans(self, vm: VmState) -> Iterator[Span]:
        """Yield the time of a VM by what it did: starting, in use or idle, under notice."""
        if not vm.running_at:
            return
        clock, stretches = self._clock, vm.stretches
        begins = [clock.at(stretch.since) for stretch in stretches]
        ends = [*begins[1:], begins[-1] + self.uptime(vm)]
        noticed = clock.at(vm.noticed_at) if vm.noticed_at else math.inf
        arrived = math.inf if vm.coming else clock.at(vm.arrived_at)
        left = clock.at(vm.left_at) if vm.left_at else math.inf
        answered = ends[-1]
        for stretch, begin, end in zip(stretches, begins, ends, strict=True):
            answered = begin
            if stretch.runs:
                answered = max(begin, clock.at(stretch.ready_at)) if stretch.ready_at else math.inf
            moments = sorted(
                {min(max(moment, begin), end) for moment in (begin, answered, arrived, left, noticed, end)}
            )
            for since, until in itertools.pairwise(moments):
                line = START_UP if since < answered else NOTICED if since >= noticed else IDLE
                yield Span(since, until, stretch.hourly, line, arrived <= since < left)
        since = max(ends[-1], answered, arrived)
        until = min(self._seemed_to_end(vm), noticed, left)
        if stretches[-1].runs and since < until:
            yield Span(since, until, stretches[-1].hourly, IDLE, held=True, learnt=vm.ended_at)

    def billed_seconds(self, vm: VmState) -> float:
        """Return for how many seconds a VM is billed, since it was started or stopped last."""
        if not vm.running_at:
            return 0.0
        seconds = self.uptime(vm)
        if not vm.stretches[-1].runs:
            return seconds
        stopped = stopped_at(vm, self._now)
        taken = stopped and vm.state in ("leaving", "revoked") and vm.provisioning_model != "standard"
        return 0.0 if taken and seconds < _LEAST_SECONDS else max(_LEAST_SECONDS, seconds)

    def uptime(self, vm: VmState) -> float:
        """Return for how many seconds a VM ran, or was stopped, since it was started or stopped last."""
        if not vm.running_at:
            return 0.0
        last = vm.stretches[-1]
        begin, end = self._clock.at(last.since), self._clock.at(stopped_at(vm, self._now) or self._now)
        if vm.ended_at and not vm.stopping_at and last.runs:
            # The time of its end is unknown; Compute Engine ends VMs at their limit.
            end = min(end, self._limit)
        return max(0.0, end - begin)

    @cached_property
    def _limit(self) -> float:
        """When Compute Engine ends VMs, on the cluster's clock. Each lookup takes prices of all zones."""
        if self._spec is None:
            return math.inf
        return self._clock.at(self._spec.declared_at) + self._spec.ends_at - self._spec.declared_at

    def _seemed_to_end(self, vm: VmState) -> float:
        """Until when a VM seemed to run as its end was learnt, on the cluster's clock."""
        return self._clock.at(_stop(vm, vm.ended_at, vm.ended_at)) if vm.ended_at else -math.inf


def stopped_at(vm: VmState, now: float) -> float:
    """Return when billing of a VM ended, in seconds since 1970; 0 while it runs."""
    return _stop(vm, vm.stopping_at or vm.ended_at, now)


def _stop(vm: VmState, ended: float, now: float) -> float:
    """Return when billing of a VM stopped that ended at a moment, or did not (0)."""
    if vm.noticed_at and (ended or now) - vm.noticed_at <= vm.notice_seconds + _LATE_SECONDS:
        runs_on = vm.notice_seconds if vm.notice_seconds > NOTICE_SECONDS else 0.0
        return min(vm.noticed_at + runs_on, ended or now)
    return ended
