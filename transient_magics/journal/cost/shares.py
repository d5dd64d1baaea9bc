"""Division of a cluster's bill among its work: from VMs' times and prices, never stored.

Each run, job and Dask cluster costs

- its workers: the time of their VMs, at their prices, from its lease to its end. Trials that
  share a VM have equal parts of its time. VMs that prepare its mini-batches count too;
- its share of the cluster's other VMs (parameter servers, the controller's VM) while it runs: at
  each moment these are divided by the number of workers of each piece of work;
- the traffic of its workers with parameter servers in other zones, by the byte, as counted at both
  ends.

A study costs the sum of its trials' runs, a bag the sum of its Dask clusters. Events after the end
of work do not change its cost. Everything else on a cluster's bill has separate lines: start-up
(until VMs respond, with the rest of a first minute), idle (VMs without work), VMs after a
preemption notice, and corrections. Corrections are negative, and have two causes after the end of
work. Compute Engine reports that a VM of the work had stopped earlier, or it preempts a VM of the
work within the VM's first minute, which is free. All lines sum to the bill.

On-demand prices cover the same VM time. A `Meter` divides the life of a VM into spans with a price:
starting, usable, or under notice. Pure.

Google bills a VM by the second from RUNNING on, with a minimum of one minute for each start. A VM
that is preempted within its first minute is free. "Instance uptime is measured as the number of
seconds between when you start an instance and when you stop an instance, the latter being when the
instance state is STOPPING" ("VM instance pricing", a copy of late 2025 or after: it lists N4A
machines; copies of 2017 said TERMINATED). A preempted VM is STOPPING during the usual 30 seconds of
its notice, so they are free. A longer notice leaves it RUNNING, and is billed.

Compute Engine's own times count where it reports them. The time of a VM's end may arrive after the end
of work that had the VM, whose cost stays the same: `Span.learnt` marks time that turned out to be
free. The price of a VM includes its disk and its external address. A VM that is stopped, to be
started again, costs its disk. If the emulated clock runs faster, VM time is counted on it.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial

from ...protocol.machines import NOTICE_SECONDS
from ...spec import PREPARATION, WORKER
from ...spec.cluster import slot_of
from ..power import Stretch
from ..state import ClusterState, RunState, VmState

CORRECTIONS = "corrections"
_WORKERS = "its workers"
_SHARED = "its share of other VMs"
_TRANSFER = "data transfer"
_NOTHING = 1e-12
"""The rounding error of sums that cancel out, in US dollars per hour."""
Lines = defaultdict[str, float]
"""US dollars by purpose."""
_Tenure = tuple[str, float, float]
"""The work that had a worker, and the begin and end in seconds on the cluster's clock."""


@dataclass(frozen=True, slots=True)
class Division:
    """The price of all VM time and transfer of a cluster, in US dollars.

    `work`: by work and purpose. `rest`: costs that no work pays, by purpose. `beside`: the part of
    `rest` that is start-up and notices of VMs in slots of work, by that work. `times`: the billed
    hours of each VM, by machine.
    """

    work: defaultdict[str, Lines] = field(
        default_factory=lambda: defaultdict[str, Lines](partial(Lines, float))
    )
    rest: Lines = field(default_factory=lambda: Lines(float))
    beside: Lines = field(default_factory=lambda: Lines(float))
    times: dict[str, list[tuple[float, Stretch]]] = field(
        default_factory=dict[str, list[tuple[float, Stretch]]]
    )


def divided(state: ClusterState, now: float) -> Division:
    """Divide the price of all VM time and transfer: by work and purpose, and the rest."""
    found = Division()
    meter = Meter(state, now)
    work = found.work
    rest = found.rest
    tenures = _tenures(state, now)
    holders = {slot: _Holders(those) for slot, those in tenures.items()}
    shared = list[Span]()
    for vm in state.vms.values():
        for name, dollars in vm.transfer.items():
            if name:
                work[name][_TRANSFER] += dollars
            else:
                rest[IDLE] += dollars
        found.times[vm.name] = list(meter.paid(vm))
        paid = sum(hours * stretch.hourly for hours, stretch in found.times[vm.name])
        rest[START_UP] += paid
        for span in meter.spans(vm):
            if span.learnt == math.inf:
                rest[START_UP] -= span.dollars
                rest[span.line] += span.dollars
            if vm.role not in (WORKER, PREPARATION):
                if span.usable:
                    shared.append(span)
                continue
            if not span.reserved:
                continue
            for name, seconds in (
                _holders_of(state, vm, holders).shares(span.begin, span.end).items()
            ):
                dollars = span.cost_of(seconds)
                if span.line != IDLE:
                    found.beside[name] += dollars if span.learnt == math.inf else 0.0
                elif line := _line(state, name, span.learnt):
                    work[name][_WORKERS] += dollars
                    rest[line] -= dollars
    _share(state, shared, tenures, found)
    return found


def _line(state: ClusterState, name: str, learnt: float) -> str:
    """Return the line from which the cost of work is moved; empty if the work pays nothing.

    Time that is not billed is paid only by work that had ended when this was recorded.
    """
    if learnt == math.inf:
        return IDLE
    ended = state.ended_of(name)
    return CORRECTIONS if 0 < ended <= learnt else ""


def _share(
    state: ClusterState,
    spans: Iterable[Span],
    tenures: Mapping[int, list[_Tenure]],
    found: Division,
) -> None:
    """Divide the price of shared VMs, at each moment, by the number of workers of each work."""
    moments = list[tuple[float, float, float, int, str, int]]()
    for span in spans:
        moments += [
            (span.begin, span.hourly, span.learnt, 0, "", 0),
            (span.end, -span.hourly, span.learnt, 0, "", 0),
        ]
    if not moments:
        return
    for slot, those in tenures.items():
        for name, begin, end in those:
            moments += [(begin, 0.0, math.inf, slot, name, 1), (end, 0.0, math.inf, slot, name, -1)]
    hourly = defaultdict[float, float](float)
    last = -math.inf
    workers = Workers()
    for moment, price, learnt, slot, name, change in sorted(moments):
        if moment > last and any(hourly.values()):
            parts = workers.parts
            for recorded_at, hourly_price in hourly.items():
                dollars = hourly_price * (moment - last) / 3600
                for holder, part in parts.items():
                    if line := _line(state, holder, recorded_at):
                        found.work[holder][_SHARED] += dollars * part
                        found.rest[line] -= dollars * part
        last = moment
        hourly[learnt] += price
        if hourly[learnt] < _NOTHING:
            del hourly[learnt]
        if change:
            workers.change(slot, name, change)


class Workers:
    """The number of workers of each piece of work; those that share a VM have equal parts of it."""

    def __init__(self) -> None:
        self._on: defaultdict[int, Counter[str]] = defaultdict(Counter[str])
        """The number of places of each work, by slot."""
        self._slots = Counter[str]()
        self._workers: defaultdict[str, float] = defaultdict(float)

    @property
    def parts(self) -> dict[str, float]:
        """The share of each work in all leased workers."""
        whole = sum(self._workers[name] for name in self._slots)
        return {name: self._workers[name] / whole for name in self._slots}

    def change(self, slot: int, name: str, places: int) -> None:
        """Give work more `places` in a slot; negative: fewer."""
        there = self._on[slot]
        for holder in there:
            self._workers[holder] -= 1 / len(there)
            self._slots[holder] -= 1
        there[name] += places
        if not there[name]:
            del there[name]
        for holder in there:
            self._workers[holder] += 1 / len(there)
            self._slots[holder] += 1
        if not self._slots[name]:
            del self._slots[name], self._workers[name]


class _Holders:
    """The work that had the VM of a slot, by time, in equal parts if several had it."""

    def __init__(self, tenures: Iterable[_Tenure]) -> None:
        turns = [
            turn for name, since, until in tenures for turn in ((since, 1, name), (until, -1, name))
        ]
        self._moments = list[float]()
        self._names = list[tuple[str, ...]]()
        """The work from each moment until the next one."""
        there = Counter[str]()
        for moment, change, name in sorted(turns):
            there[name] += change
            if not there[name]:
                del there[name]
            self._moments.append(moment)
            self._names.append(tuple(there))

    def shares(self, begin: float, end: float) -> dict[str, float]:
        """Return the seconds for which each work had the VM between two moments."""
        found: dict[str, float] = {}
        for index in range(max(bisect_right(self._moments, begin) - 1, 0), len(self._moments)):
            since = max(self._moments[index], begin)
            if since >= end:
                break
            if index + 1 < len(self._moments):
                until = min(self._moments[index + 1], end)
            else:
                until = end
            for name in self._names[index]:
                found[name] = found.get(name, 0.0) + (until - since) / len(self._names[index])
        return found


def _holders_of(state: ClusterState, vm: VmState, holders: Mapping[int, _Holders]) -> _Holders:
    if vm.role == WORKER:
        return holders.get(vm.slot) or _NO_HOLDERS
    run = state.of(RunState).get(state.preparers.get(vm.slot, ""))
    if run is None:
        return _NO_HOLDERS
    return _Holders([(run.name, -math.inf, state.clock.at(run.ended_at) if run.over else math.inf)])


_NO_HOLDERS = _Holders(())


def _tenures(state: ClusterState, now: float) -> dict[int, list[_Tenure]]:
    """Return by slot which work had its worker, from when to when; none after its end."""
    found: defaultdict[int, list[_Tenure]] = defaultdict(list[_Tenure])
    at = state.clock.at
    for name, slot, begin, end in _leases(state, now):
        end = min(end, state.ended_of(name) or end)
        if begin < end:
            found[slot].append((name, at(begin), at(end)))
    return found


def _leases(state: ClusterState, now: float) -> Iterator[tuple[str, int, float, float]]:
    for name, places in state.tenures.items():
        for place, begin, end in places:
            yield name, slot_of(place), begin, end
    for place, name in state.leases.items():
        yield name, slot_of(place), state.leased_at.get(place, now), now


START_UP = "start-up"
IDLE = "idle"
NOTICED = "after a notice"
_LEAST_SECONDS = 60.0
_LATE_SECONDS = 90.0
"""A VM that still runs this long after the end of its notice was not preempted."""


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a VM's time after a start, in seconds on the cluster's clock and dollars per hour.

    `line`: its purpose if no work pays it: START_UP, IDLE or NOTICED. `reserved`: the VM is in its slot
    of the cluster, not before or after a move. `learnt`: when it was learnt that Compute Engine
    does not bill this time (seconds since 1970); infinite for billed time.
    """

    begin: float
    end: float
    hourly: float
    line: str
    reserved: bool
    learnt: float = math.inf

    @property
    def usable(self) -> bool:
        """Whether work may have the VM."""
        return self.reserved and self.line == IDLE

    @property
    def dollars(self) -> float:
        """The price of the whole span."""
        return self.cost_of(self.end - self.begin)

    def cost_of(self, seconds: float) -> float:
        """Return the price of some of its seconds."""
        return seconds / 3600 * self.hourly


class Meter:
    """A meter of the billed time of a cluster's VMs until `now` (seconds since 1970)."""

    def __init__(self, state: ClusterState, now: float) -> None:
        self._spec = state.spec
        self._clock = state.clock
        self._now = now

    def paid(self, vm: VmState) -> Iterator[tuple[float, Stretch]]:
        """Yield the billed hours of a VM for each of its machines over time."""
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
        clock = self._clock
        stretches = vm.stretches
        begins = [clock.at(stretch.since) for stretch in stretches]
        ends = [*begins[1:], begins[-1] + self.uptime(vm)]
        if vm.noticed_at:
            noticed = clock.at(vm.noticed_at)
        else:
            noticed = math.inf
        if vm.coming:
            arrived = math.inf
        else:
            arrived = clock.at(vm.arrived_at)
        if vm.left_at:
            left = clock.at(vm.left_at)
        else:
            left = math.inf
        answered = ends[-1]
        for stretch, begin, end in zip(stretches, begins, ends, strict=True):
            free = stretch is stretches[-1] and self._is_free(vm)
            if free:
                learnt = vm.noticed_at or vm.ended_at
            else:
                learnt = math.inf
            answered = begin
            if stretch.runs:
                if stretch.ready_at:
                    answered = max(begin, clock.at(stretch.ready_at))
                else:
                    answered = math.inf
            moments = sorted(
                {
                    min(max(moment, begin), end)
                    for moment in (begin, answered, arrived, left, noticed, end)
                }
            )
            for since, until in itertools.pairwise(moments):
                if since < answered:
                    line = START_UP
                else:
                    line = NOTICED if since >= noticed else IDLE
                yield Span(since, until, stretch.hourly, line, arrived <= since < left, learnt)
        since = max(ends[-1], answered, arrived)
        until = min(self._seemed_to_end(vm), noticed, left)
        if stretches[-1].runs and since < until:
            yield Span(since, until, stretches[-1].hourly, IDLE, reserved=True, learnt=vm.ended_at)

    def billed_seconds(self, vm: VmState) -> float:
        """Return the billed seconds of a VM since its latest start or stop."""
        if not vm.running_at:
            return 0.0
        seconds = self.uptime(vm)
        if not vm.stretches[-1].runs:
            return seconds
        if self._is_free(vm):
            return 0.0
        return max(_LEAST_SECONDS, seconds)

    def _is_free(self, vm: VmState) -> bool:
        """Return whether Google bills nothing since a VM's last start.

        This is so if it preempted the VM within the first minute.
        """
        if not vm.running_at or not vm.stretches[-1].runs or not stopped_at(vm, self._now):
            return False
        preempted = vm.state in ("leaving", "revoked") and vm.provisioning_model != "standard"
        return preempted and self.uptime(vm) < _LEAST_SECONDS

    def uptime(self, vm: VmState) -> float:
        """Return the seconds for which a VM ran, or was stopped, since its latest start or stop."""
        if not vm.running_at:
            return 0.0
        last = vm.stretches[-1]
        begin = self._clock.at(last.since)
        end = self._clock.at(stopped_at(vm, self._now) or self._now)
        if vm.ended_at and not vm.stopping_at and last.runs:
            # The time of its end is unknown; Compute Engine ends VMs at their limit.
            end = min(end, self._limit)
        return max(0.0, end - begin)

    @cached_property
    def _limit(self) -> float:
        """The moment at which Compute Engine ends VMs, on the cluster's clock.

        Cached, because each lookup takes the prices of all zones.
        """
        if self._spec is None:
            return math.inf
        return self._clock.at(self._spec.declared_at) + self._spec.ends_at - self._spec.declared_at

    def _seemed_to_end(self, vm: VmState) -> float:
        """Return the apparent end of a VM when its end was learnt, on the cluster's clock."""
        if vm.ended_at:
            return self._clock.at(_stop(vm, vm.ended_at, vm.ended_at))
        return -math.inf


def stopped_at(vm: VmState, now: float) -> float:
    """Return when billing of a VM ended, in seconds since 1970; 0 while it runs."""
    return _stop(vm, vm.stopping_at or vm.ended_at, now)


def _stop(vm: VmState, ended: float, now: float) -> float:
    """Return when billing of a VM stopped that ended at `ended`, or has not ended (0)."""
    if vm.noticed_at and (ended or now) - vm.noticed_at <= vm.notice_seconds + _LATE_SECONDS:
        if vm.notice_seconds > NOTICE_SECONDS:
            runs_on = vm.notice_seconds
        else:
            runs_on = 0.0
        return min(vm.noticed_at + runs_on, ended or now)
    return ended
