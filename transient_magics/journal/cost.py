"""What a cluster has cost, costs now, and would have cost on demand: from VMs' times and prices, never stored.

A VM costs as Google bills it ("VM instance pricing", "Spot VMs"): from RUNNING until it is told to stop, so that the
usual notice of a preemption is free, and a longer one, during which the VM runs on, is not (no page says so; it is
RUNNING then); by the second, each start a minute at least; nothing where it is preempted within its first minute.
Compute Engine's own times count where they are known. The price of a VM has that of its disk and its external address
in it, which are counted for as long. The on-demand equivalent is the same VM time at on-demand prices
(what the same work would have cost without transient servers). Data that workers exchange with parameter servers in
another zone, and with VMs there that prepare their mini-batches, costs by the byte, as both ends count them; so does
what follows a cluster that moves. On demand that would cost the same. A VM that is stopped, to be started again, costs
its disk. Where the emulated clock runs faster, VM time is counted on it.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..protocol.job import NOTICE_SECONDS
from ..spec import PREPARATION, WORKER, ClusterSpec, price_kind
from ..spec.places import slot_of
from .power import Stretch
from .state import ClusterState, VmState
from .studies import StudyState

_GIB = 2**30
_LEAST_SECONDS = 60.0
Tenure = tuple[str, float, float]
"""Who had a worker, from when to when, in seconds since 1970."""
_LATE_SECONDS = 90.0
"""A VM that still runs this long after the end of its notice was not preempted."""


@dataclass(frozen=True, slots=True)
class Bill:
    """US dollars: in all, per hour at this moment, and the same at on-demand prices. `by_vm` in dollars.

    `transfer` and `transfer_hourly`: what of these is data transfer between zones; hours are the emulated clock's, but
    for transfer. `projected`: what the total will be at the end of the last run that goes on, at present speeds; None
    where there is none to tell from.
    """

    total: float
    hourly: float
    on_demand: float
    by_vm: dict[str, float]
    source: str
    transfer: float = 0.0
    transfer_hourly: float = 0.0
    projected: float | None = None

    @property
    def saved(self) -> float:
        """The share of the on-demand cost that was saved, 0 to 1."""
        return 1 - self.total / self.on_demand if self.on_demand > 0 else 0.0


def bill(state: ClusterState, now: float) -> Bill:
    """The bill of a cluster at `now` (seconds since 1970)."""
    spec = state.spec

    def per_byte(vm: VmState) -> float:
        own = vm.gib_price
        return (spec.transfer_prices.get(vm.zone, 0.0) if spec and own is None else own or 0.0) / _GIB

    moved = {vm.name: vm.traffic_bytes * per_byte(vm) for vm in state.vms.values()}
    paid = {vm.name: list(_paid(state, vm, now)) for vm in state.vms.values()}
    by_vm = {name: sum(hours * each.hourly for hours, each in paid[name]) + moved[name] for name in paid}
    places = {(price_kind(vm.role, vm.accelerator), vm.zone) for vm in state.vms.values()}
    sources = {line.source for kind, zone in places if spec and (line := spec.known_price(kind, zone))}
    running = [vm for vm in state.living if vm.running_at and not _stopped_at(vm, now)]
    followed = state.transferred_dollars
    transfer, transfer_hourly = (
        sum(moved.values()) + followed,
        sum(vm.traffic_rate * 3600 * per_byte(vm) for vm in running),
    )
    total = sum(by_vm.values()) + followed + state.forgotten_dollars
    hourly = sum(vm.hourly for vm in running) + transfer_hourly
    return Bill(
        total=total,
        hourly=hourly,
        on_demand=sum(hours * each.on_demand_hourly for of in paid.values() for hours, each in of)
        + transfer
        + state.forgotten_dollars,
        by_vm=by_vm,
        source="; ".join(sorted(sources)),
        transfer=transfer,
        transfer_hourly=transfer_hourly,
        projected=_projected(state, total, (hourly - transfer_hourly) * state.clock.rate + transfer_hourly),
    )


def at_the_end(state: ClusterState, spec: ClusterSpec, now: float) -> float:
    """US dollars, to a millionth, that the cluster will have cost when Compute Engine ends its VMs, as `spec` from now.

    So nobody has to be in charge until then. Data transfer that is still to come is not in it, nor what is left of the
    first minute of VMs that a resize sends away. VMs that stayed where a move has had the others end sooner end later.
    """
    left = spec.ends_at - spec.declared_at - state.clock.between(spec.declared_at, now)
    minutes = sum((_billed(state, vm, now) - _uptime(state, vm, now)) / 3600 * vm.hourly for vm in state.living)
    later = sum(max(vm.ends - spec.ends_at, 0.0) / 3600 * vm.hourly for vm in state.living)
    return round(bill(state, now).total - minutes + spec.most_hourly * max(left, 0.0) / 3600 + later, 6)


def cost_between(state: ClusterState, begin: float, end: float) -> float:
    """What the VMs that ran between two moments (seconds since 1970) cost then by the second, in US dollars."""

    def dollars(vm: VmState) -> float:
        spans = [(max(each.since, begin), min(until, end), each) for each, until in _spans(vm, end)]
        return sum(state.clock.between(since, until) / 3600 * at.hourly for since, until, at in spans if since < until)

    return sum(dollars(vm) for vm in state.vms.values() if vm.running_at)


def run_costs(state: ClusterState, now: float) -> dict[str, float]:
    """What each run and job has cost until `now`, in US dollars: together they are the cluster's bill.

    Each has the cost of its workers' VMs, by the time for which it had them and what they were then, and of those that
    prepared mini-batches for it. Trials that had a VM at the same time have parts of it alike. All else that the
    cluster costs (parameter servers, starting, idle and lost time, what crosses zones) is divided by the time that each
    had workers. Nothing as long as no run has had any.
    """
    had: dict[str, float] = {}
    own: dict[str, float] = {}
    prepared: dict[str, float] = {}
    whole = bill(state, now)
    tenures = _tenures(state, now)
    for vm in state.vms.values():
        begin, end = _started_at(vm), _stopped_at(vm, now) or now
        if vm.role == PREPARATION and (preparer := state.preparers.get(vm.slot)):
            prepared[preparer] = prepared.get(preparer, 0.0) + whole.by_vm[vm.name]
        lived = state.clock.between(begin, end)
        if vm.role != WORKER or not begin or lived <= 0:
            continue
        for run, seconds in _shares(state, tenures.get(vm.slot, ()), begin, end).items():
            had[run] = had.get(run, 0.0) + seconds
        for since, until, dollars in _priced(state, vm, now, whole.by_vm[vm.name]):
            for run, seconds in _shares(state, tenures.get(vm.slot, ()), since, until).items():
                own[run] = own.get(run, 0.0) + dollars * seconds / state.clock.between(since, until)
    own = {run: dollars + prepared.get(run, 0.0) for run, dollars in own.items()}
    left, together = whole.total - sum(own.values()), sum(had.values())
    return {run: own[run] + left * seconds / together for run, seconds in had.items()}


def _priced(state: ClusterState, vm: VmState, now: float, dollars: float) -> Iterator[tuple[float, float, float]]:
    """From when to when a VM cost how many of its `dollars`: what it sent did so all the time."""
    paid = [hours * each.hourly for hours, each in _paid(state, vm, now)]
    end = _stopped_at(vm, now) or now
    yield _started_at(vm), end, dollars - sum(paid)
    for (each, until), part in zip(_spans(vm, end), paid, strict=True):
        yield each.since, until, part


def study_cost(state: ClusterState, study: StudyState, now: float) -> float:
    """What the runs of all trials of a study have cost until `now`, in US dollars."""
    costs = run_costs(state, now)
    return sum(costs.get(run, 0.0) for trial in study.trials.values() for run in trial.runs)


def _shares(state: ClusterState, tenures: Iterable[Tenure], begin: float, end: float) -> dict[str, float]:
    """For how many seconds each had a worker that ran from `begin` to `end`; those that shared it had parts alike."""
    within = [(run, max(begin, since), min(end, until)) for run, since, until in tenures]
    turns = [turn for run, since, until in within if since < until for turn in ((since, 1, run), (until, -1, run))]
    found: dict[str, float] = {}
    there: Counter[str] = Counter()
    last = begin
    for moment, change, run in sorted(turns):
        for name in there:
            found[name] = found.get(name, 0.0) + state.clock.between(last, moment) / len(there)
        last = moment
        there[run] += change
        if not there[run]:
            del there[run]
    return found


def _tenures(state: ClusterState, now: float) -> dict[int, list[Tenure]]:
    """By slot: which runs and jobs had its worker, from when to when."""
    found: dict[int, list[Tenure]] = {}
    for run, spans in state.tenures.items():
        for place, begin, end in spans:
            found.setdefault(slot_of(place), []).append((run, begin, end))
    for place, run in state.leases.items():
        known, job = state.runs.get(run), state.jobs.get(run) or state.dasks.get(run)
        end = known.finished_at if known and known.over else job.ended_at if job and job.over else now
        found.setdefault(slot_of(place), []).append((run, state.leased_at.get(place, end), end))
    return found


def _spans(vm: VmState, end: float) -> Iterator[tuple[Stretch, float]]:
    """What a VM was until when; `end`: the last moment, of one that did not stop before."""
    ends = [*(each.since for each in vm.stretches[1:]), _stopped_at(vm, end) or end]
    yield from zip(vm.stretches, ends, strict=True)


def _paid(state: ClusterState, vm: VmState, now: float) -> Iterator[tuple[float, Stretch]]:
    """For how many hours a VM is paid until `now`, as what it was then."""
    for each, after in itertools.pairwise(vm.stretches):
        seconds = state.clock.between(each.since, after.since)
        yield (max(_LEAST_SECONDS, seconds) if each.runs else seconds) / 3600, each
    yield _billed(state, vm, now) / 3600, vm.stretches[-1]


def _billed(state: ClusterState, vm: VmState, now: float) -> float:
    """For how many seconds a VM is paid until `now`, since it was started or stopped last."""
    if not vm.running_at:
        return 0.0
    seconds = _uptime(state, vm, now)
    if not vm.stretches[-1].runs:
        return seconds
    taken = _stopped_at(vm, now) and vm.state in ("leaving", "revoked") and vm.provisioning_model != "standard"
    return 0.0 if taken and seconds < _LEAST_SECONDS else max(_LEAST_SECONDS, seconds)


def _uptime(state: ClusterState, vm: VmState, now: float) -> float:
    """For how many seconds it ran until `now`, or was stopped, since it was started or stopped last."""
    if not vm.running_at:
        return 0.0
    last = vm.stretches[-1]
    seconds = state.clock.between(last.since, _stopped_at(vm, now) or now)
    if vm.ended_at and not vm.stopping_at and state.spec and last.runs:
        # Nobody saw when; Compute Engine ends VMs at their limit.
        left = state.spec.ends_at - state.spec.declared_at
        seconds = min(seconds, left - state.clock.between(state.spec.declared_at, last.since))
    return max(0.0, seconds)


def _started_at(vm: VmState) -> float:
    return vm.started_at or vm.running_at


def _stopped_at(vm: VmState, now: float) -> float:
    """When it was told to stop, as far as is known; 0 while it runs."""
    told = vm.stopping_at or vm.ended_at
    if vm.noticed_at and (told or now) - vm.noticed_at <= vm.notice_seconds + _LATE_SECONDS:
        runs_on = vm.notice_seconds if vm.notice_seconds > NOTICE_SECONDS else 0.0
        return min(vm.noticed_at + runs_on, told or now)
    return told


def _projected(state: ClusterState, total: float, hourly: float) -> float | None:
    """With `hourly` dollars in an hour in which it trains: data crosses no faster where the emulated clock does."""
    going = [run for run in state.runs.values() if not run.over and run.steps_per_second > 0]
    longest = max(((run.train_steps - run.step) / run.steps_per_second for run in going), default=0.0)
    return total + hourly * longest / 3600 if longest > 0 else None
