"""How the bill of a cluster is divided among its work: from VMs' times and prices, never stored.

Each run, job and Dask cluster costs

- its workers: the time of their VMs, at their prices, from when it has them to its end. Trials that share a VM have
  equal parts of its time. So do VMs that prepare its mini-batches;
- its share of what the cluster needs besides (parameter servers, the controller's VM) while it runs: at each moment
  these are divided by the number of workers that each piece of work has;
- what its workers exchange with parameter servers in other zones, by the byte, as both ends count it.

A study costs what its trials' runs do, a bag what its Dask clusters do. What happens after the end of work changes
none of it. Everything else on a cluster's bill stands in lines of its own: start-up (until VMs answer, the rest of a
first minute with it, less what Google does not bill of VMs taken within theirs), idle (VMs without work), VMs after a
preemption notice, and corrections: less than nothing, where Compute Engine reports only after the end of work that a
VM of that work had stopped sooner. All lines sum to the bill.

Prices on demand are for the same VM time. For how long VMs are billed is in `vms`.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from ...spec import PREPARATION, WORKER
from ...spec.places import slot_of
from ..power import Stretch
from ..state import ClusterState, VmState
from .vms import IDLE, START_UP, Meter, Span

CORRECTIONS = "corrections"
_WORKERS, _SHARED, _TRANSFER = "its workers", "its share of other VMs", "data transfer"
_NOTHING = 1e-12
"""US dollars per hour: what is left of sums that cancel out."""
Lines = defaultdict[str, float]
"""US dollars by what for."""
_Tenure = tuple[str, float, float]
"""The work that had a worker, from when and until when, in seconds on the cluster's clock."""


@dataclass(frozen=True, slots=True)
class Division:
    """The price of all VM time and transfer of a cluster, in US dollars.

    `work`: by work and what for. `rest`: what no work pays, by what for. `beside`: the part of `rest` that is start-up
    and notices of VMs in slots of work, by that work. `times`: by VM, for how many hours it is billed as what.
    """

    work: defaultdict[str, Lines] = field(default_factory=lambda: defaultdict[str, Lines](partial(Lines, float)))
    rest: Lines = field(default_factory=lambda: Lines(float))
    beside: Lines = field(default_factory=lambda: Lines(float))
    times: dict[str, list[tuple[float, Stretch]]] = field(default_factory=dict[str, list[tuple[float, Stretch]]])


def divided(state: ClusterState, now: float) -> Division:
    """Divide the price of all VM time and transfer: by work and purpose, and the rest."""
    found, meter = Division(), Meter(state, now)
    work, rest = found.work, found.rest
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
            if not span.held:
                continue
            for name, seconds in _holders_of(state, vm, holders).shares(span.begin, span.end).items():
                dollars = span.cost_of(seconds)
                if span.line != IDLE:
                    # Google does not bill a VM that it takes within its first minute.
                    found.beside[name] += dollars if paid else 0.0
                elif line := _line(state, name, span.learnt):
                    work[name][_WORKERS] += dollars
                    rest[line] -= dollars
    _share(state, shared, tenures, found)
    return found


def _line(state: ClusterState, name: str, learnt: float) -> str:
    """Return the line from which work takes what it pays; empty where it pays nothing.

    Time that is not billed is paid by work alone that was over when that was learnt.
    """
    if learnt == math.inf:
        return IDLE
    ended = state.ended_of(name)
    return CORRECTIONS if 0 < ended <= learnt else ""


def _share(
    state: ClusterState, spans: Iterable[Span], tenures: Mapping[int, list[_Tenure]], found: Division
) -> None:  # fmt: skip
    """Divide, at each moment, the price of VMs that all work needs by the number of workers that each has."""
    moments = list[tuple[float, float, float, int, str, int]]()
    for span in spans:
        moments += [(span.begin, span.hourly, span.learnt, 0, "", 0), (span.end, -span.hourly, span.learnt, 0, "", 0)]
    if not moments:
        return
    for slot, those in tenures.items():
        for name, begin, end in those:
            moments += [(begin, 0.0, math.inf, slot, name, 1), (end, 0.0, math.inf, slot, name, -1)]
    hourly, last = defaultdict[float, float](float), -math.inf
    workers = Workers()
    for moment, price, learnt, slot, name, change in sorted(moments):
        if moment > last and any(hourly.values()):
            parts = workers.parts
            for known, each in hourly.items():
                dollars = each * (moment - last) / 3600
                for holder, part in parts.items():
                    if line := _line(state, holder, known):
                        found.work[holder][_SHARED] += dollars * part
                        found.rest[line] -= dollars * part
        last = moment
        hourly[learnt] += price
        if hourly[learnt] < _NOTHING:
            del hourly[learnt]
        if change:
            workers.change(slot, name, change)


class Workers:
    """How many workers each piece of work has; those that share a VM have equal parts of it."""

    def __init__(self) -> None:
        self._on: defaultdict[int, Counter[str]] = defaultdict(Counter[str])
        """By slot: how many places each has there."""
        self._slots = Counter[str]()
        self._workers: defaultdict[str, float] = defaultdict(float)

    @property
    def parts(self) -> dict[str, float]:
        """The part that each has of all workers that work has."""
        whole = sum(self._workers[name] for name in self._slots)
        return {name: self._workers[name] / whole for name in self._slots}

    def change(self, slot: int, name: str, places: int) -> None:
        """Give work more `places` in a slot; negative: fewer."""
        there = self._on[slot]
        for each in there:
            self._workers[each] -= 1 / len(there)
            self._slots[each] -= 1
        there[name] += places
        if not there[name]:
            del there[name]
        for each in there:
            self._workers[each] += 1 / len(there)
            self._slots[each] += 1
        if not self._slots[name]:
            del self._slots[name], self._workers[name]


class _Holders:
    """The work that had the VM of a slot, by time, in equal parts where several had it."""

    def __init__(self, tenures: Iterable[_Tenure]) -> None:
        turns = [turn for name, since, until in tenures for turn in ((since, 1, name), (until, -1, name))]
        self._moments = list[float]()
        self._names = list[tuple[str, ...]]()
        """From each moment on, until the next one."""
        there = Counter[str]()
        for moment, change, name in sorted(turns):
            there[name] += change
            if not there[name]:
                del there[name]
            self._moments.append(moment)
            self._names.append(tuple(there))

    def shares(self, begin: float, end: float) -> dict[str, float]:
        """Return for how many seconds each had the VM between two moments."""
        found: dict[str, float] = {}
        for index in range(max(bisect_right(self._moments, begin) - 1, 0), len(self._moments)):
            since = max(self._moments[index], begin)
            if since >= end:
                break
            until = min(self._moments[index + 1], end) if index + 1 < len(self._moments) else end
            for name in self._names[index]:
                found[name] = found.get(name, 0.0) + (until - since) / len(self._names[index])
        return found


def _holders_of(state: ClusterState, vm: VmState, holders: Mapping[int, _Holders]) -> _Holders:
    if vm.role == WORKER:
        return holders.get(vm.slot) or _NO_HOLDERS
    run = state.runs.get(state.preparers.get(vm.slot, ""))
    if run is None:
        return _NO_HOLDERS
    return _Holders([(run.name, -math.inf, state.clock.at(run.ended_at) if run.over else math.inf)])


_NO_HOLDERS = _Holders(())


def _tenures(state: ClusterState, now: float) -> dict[int, list[_Tenure]]:
    """By slot: which work had its worker, from when to when; none after its end."""
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
