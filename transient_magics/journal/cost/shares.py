"""What work and clusters cost: from VMs' times and prices, never stored.

Each run, job and Dask cluster costs

- its workers: the time of their VMs, at their prices, from when it has them to its end. Trials that share a VM have
  equal parts of its time. So do VMs that prepare its mini-batches;
- its share of what the cluster needs besides (parameter servers, the controller's VM) while it runs: at each moment
  these are divided by the number of workers that each piece of work has;
- what its workers exchange with parameter servers in other zones, by the byte, as both ends count it.

A study costs what its trials' runs do, a bag what its Dask clusters do. What happens after the end of work changes
none of it. All else that a cluster is billed stands in lines of its own: start-up (until VMs answer, the rest of a
first minute with it, less what Google does not bill of VMs taken within theirs), idle (VMs without work), and VMs
after a preemption notice. All lines sum to the bill.

Prices on demand are for the same VM time. For how long VMs are billed is in `vms`.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import partial

from ...spec import PREPARATION, WORKER
from ...spec.places import slot_of
from ..state import ClusterState, VmState
from .vms import paid, spans

START_UP, IDLE, NOTICED = "start-up", "idle", "after a notice"
_WORKERS, _SHARED, _TRANSFER = "its workers", "its share of other VMs", "data transfer"
_NOTHING = 1e-12
"""US dollars per hour: what is left of sums that cancel out."""
Lines = defaultdict[str, float]
"""US dollars by what for."""
_latest: tuple[ClusterState, float, tuple[Mapping[str, Lines], Lines]] | None = None
_Tenure = tuple[str, float, float]
"""Which work had a worker, from when to when, in seconds on the cluster's clock."""


def divided(state: ClusterState, now: float) -> tuple[Mapping[str, Lines], Lines]:
    """Divide the price of all VM time and transfer: by work and what for, and what is no work's."""
    # A panel asks several times for each picture, and a thousand trials take some 20 ms.
    global _latest
    found = _latest  # another thread may replace it
    if found is None or found[0] is not state or found[1] != now:
        found = _latest = state, now, _divide(state, now)
    return found[2]


def _divide(state: ClusterState, now: float) -> tuple[Mapping[str, Lines], Lines]:
    work = defaultdict[str, Lines](partial(Lines, float))
    rest = Lines(float)
    tenures = _tenures(state, now)
    shared = list[tuple[float, float, float]]()
    for vm in state.vms.values():
        for name, dollars in vm.transfer.items():
            if name:
                work[name][_TRANSFER] += dollars
            else:
                rest[IDLE] += dollars
        starting = sum(hours * machine.hourly for hours, machine in paid(state, vm, now))
        for span in spans(state, vm, now):
            starting -= span.dollars
            if vm.role not in (WORKER, PREPARATION) and span.usable:
                shared.append((span.begin, span.end, span.hourly))
                continue
            left = span.dollars
            if span.usable:
                for name, seconds in _shares(_tenures_on(state, vm, tenures), span.begin, span.end).items():
                    work[name][_WORKERS] += span.cost_of(seconds)
                    left -= span.cost_of(seconds)
            rest[NOTICED if span.noticed else IDLE] += left
        rest[START_UP] += starting
    _share(shared, tenures, work, rest)
    return work, rest


def _share(
    shared: Iterable[tuple[float, float, float]],
    tenures: Mapping[int, list[_Tenure]],
    work: defaultdict[str, Lines],
    rest: Lines,
) -> None:
    """Divide, at each moment, the price of VMs that all work needs by the number of workers that each has."""
    moments = list[tuple[float, float, int, str, int]]()
    for begin, end, hourly in shared:
        moments += [(begin, hourly, 0, "", 0), (end, -hourly, 0, "", 0)]
    if not moments:
        return
    for slot, those in tenures.items():
        for name, begin, end in those:
            moments += [(begin, 0.0, slot, name, 1), (end, 0.0, slot, name, -1)]
    hourly, last = 0.0, -math.inf
    workers = Workers()
    for moment, price, slot, name, change in sorted(moments):
        if moment > last and hourly > _NOTHING:
            dollars = hourly * (moment - last) / 3600
            parts = workers.parts
            for each, part in parts.items():
                work[each][_SHARED] += dollars * part
            if not parts:
                rest[IDLE] += dollars
        hourly, last = hourly + price, moment
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
        """Give work so many places more in a slot, or less."""
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


def _shares(tenures: Iterable[_Tenure], begin: float, end: float) -> dict[str, float]:
    """For how many seconds each had a worker between two moments; those that shared it have equal parts."""
    within = [(run, max(begin, since), min(end, until)) for run, since, until in tenures]
    turns = [turn for run, since, until in within if since < until for turn in ((since, 1, run), (until, -1, run))]
    found: dict[str, float] = {}
    there: Counter[str] = Counter()
    last = begin
    for moment, change, run in sorted(turns):
        for name in there:
            found[name] = found.get(name, 0.0) + (moment - last) / len(there)
        last = moment
        there[run] += change
        if not there[run]:
            del there[run]
    return found


def _tenures_on(state: ClusterState, vm: VmState, tenures: Mapping[int, list[_Tenure]]) -> Iterable[_Tenure]:
    if vm.role == WORKER:
        return tenures.get(vm.slot, ())
    run = state.runs.get(state.preparers.get(vm.slot, ""))
    if run is None:
        return ()
    return [(run.name, -math.inf, state.clock.at(run.finished_at) if run.over else math.inf)]


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
