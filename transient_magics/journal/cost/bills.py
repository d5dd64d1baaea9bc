"""Costs of a cluster and of each piece of its work at a moment, and of the cluster at its end.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ... import markup
from ...spec import PREPARATION, WORKER, ClusterSpec, price_kind, render_money
from ...spec.cluster import slot_of
from ..state import ClusterState, VmState
from .shares import Division, Lines, Meter, Workers, divided, stopped_at

_NOTHING = 1e-9
"""The rounding error of sums that cancel out, in US dollars."""
MOVED = "data that followed it"
FORGOTTEN = "before its journal was removed"


def bill(state: ClusterState, now: float) -> Bill:
    """Return the bill of a cluster at `now` (seconds since 1970)."""
    spec = state.spec
    division = divided(state, now)
    times = division.times
    crossed = {vm.name: sum(vm.transfer.values()) for vm in state.vms.values()}
    by_vm = {
        name: sum(hours * machine.hourly for hours, machine in times[name]) + crossed[name]
        for name in times
    }
    places = {(price_kind(vm.role, vm.accelerator), vm.zone) for vm in state.vms.values()}
    sources = {
        line.source for kind, zone in places if spec and (line := spec.find_price(kind, zone))
    }
    running = [vm for vm in state.living if vm.running_at and not stopped_at(vm, now)]
    moved = state.transferred_dollars
    transfer = sum(crossed.values()) + moved
    transfer_hourly = sum(_transfer_hourly(state, vm) for vm in running)
    on_demand = sum(
        hours * machine.on_demand_hourly for of in times.values() for hours, machine in of
    )
    return Bill(
        subject=state.name,
        total=sum(by_vm.values()) + moved + state.forgotten_dollars,
        lines=_lines(state, division),
        over=state.over,
        hourly=sum(vm.hourly for vm in running) + transfer_hourly,
        on_demand=on_demand + transfer + state.forgotten_dollars,
        by_vm=by_vm,
        work=_work(state, division),
        source="; ".join(sorted(sources)),
        transfer=transfer,
        transfer_hourly=transfer_hourly,
    )


def total(state: ClusterState, now: float) -> float:
    """Return the total of the bill of a cluster at `now`, in US dollars, without its lines."""
    meter = Meter(state, now)
    by_vm = (meter.dollars(vm) + sum(vm.transfer.values()) for vm in state.vms.values())
    return sum(by_vm) + state.transferred_dollars + state.forgotten_dollars


def costs(state: ClusterState, now: float) -> dict[str, Cost]:
    """Return by name the cost of each run, job, Dask cluster, study and bag until `now`.

    Names of work are unique on a cluster. Runs of studies and Dask clusters of bags have entries of
    their own, too.
    """
    return _work(state, divided(state, now))


def charged(state: ClusterState, name: str, now: float) -> float:
    """Return the amount that counts against a cost limit of work until `now`, in US dollars.

    It is the work's cost, plus start-up and notices of VMs in its slots while it had these. A study
    with its own cluster pays all of the cluster's cost.
    """
    work = state.works.get(name)
    if work and work.owns_cluster:
        return total(state, now)
    division = divided(state, now)
    if work and not work.takes_workers:
        members = work.members
    else:
        members = (name,)
    return sum(sum(division.work[member].values()) + division.beside[member] for member in members)


def hourly_of(state: ClusterState, name: str) -> tuple[float, float]:
    """Return the hourly cost of running work besides its workers' VMs, in US dollars.

    The first figure is its share of other VMs and the VMs that prepare for it, per hour on the
    cluster's clock. The second one is its data transfer, per hour of this machine's clock.
    """
    others = sum(
        vm.hourly for vm in state.living if vm.running_at and vm.role not in (WORKER, PREPARATION)
    )
    workers = Workers()
    for place, holder in state.leases.items():
        workers.change(slot_of(place), holder, 1)
    if state.leases:
        share = workers.parts.get(name, 0.0)
    else:
        share = 1.0
    own = [vm for vm in state.living if state.has(name, vm)]
    preparing = [
        vm for vm in state.living if vm.role == PREPARATION and state.preparers.get(vm.slot) == name
    ]
    transfer = sum(_transfer_hourly(state, vm) for vm in (*own, *preparing))
    return share * others + sum(vm.hourly for vm in preparing), transfer


def at_the_end(state: ClusterState, spec: ClusterSpec, now: float) -> float:
    """Return the cluster's cost when Compute Engine ends its VMs, if it follows `spec` from now.

    It is rounded to a millionth of a dollar, and needs no controller until then. It excludes future
    data transfer, and the rest of the first minute of VMs that a resize removes. VMs that stayed
    during a move that shortened the life of the others end later.
    """
    left = spec.ends_at - spec.declared_at - state.clock.between(spec.declared_at, now)
    meter = Meter(state, now)
    minutes = sum(
        (meter.billed_seconds(vm) - meter.uptime(vm)) / 3600 * vm.hourly for vm in state.living
    )
    later = sum(max(vm.ends - spec.ends_at, 0.0) / 3600 * vm.hourly for vm in state.living)
    return round(total(state, now) - minutes + spec.most_hourly * max(left, 0.0) / 3600 + later, 6)


def _work(state: ClusterState, division: Division) -> dict[str, Cost]:
    """Return the cost of each piece of work, by name."""
    ended = state.over
    found = {
        work.name: _cost(work.name, division.work.get(work.name, {}), over=ended or work.over)
        for work in state.works.values()
        if work.takes_workers
    }
    for work in state.works.values():
        if work.takes_workers:
            continue
        lines = Lines(float)
        for member in work.members:
            _add(lines, division.work.get(member, {}))
        # The value of a trial is there before its run has ended, and a bag is over before its last
        # workers are free.
        over = work.over and all(found[name].over for name in work.members if name in found)
        found[work.name] = _cost(work.name, lines, over=ended or over)
    return found


def _cost(name: str, lines: Mapping[str, float], *, over: bool) -> Cost:
    return Cost(subject=name, total=sum(lines.values()), lines=dict(lines), over=over)


def _add(lines: Lines, more: Mapping[str, float]) -> None:
    for name, dollars in more.items():
        lines[name] += dollars


def _transfer_hourly(state: ClusterState, vm: VmState) -> float:
    return vm.traffic_rate * 3600 * state.byte_price(vm)


def _lines(state: ClusterState, division: Division) -> dict[str, float]:
    """Return the lines of a cluster's bill: work, and the rest.

    Runs count in their study, Dask clusters in their bag.
    """
    whole = {member: work.name for work in state.works.values() for member in work.members}
    lines = Lines(float)
    for name, of in division.work.items():
        lines[whole.get(name, name)] += sum(of.values())
    _add(
        lines,
        {**division.rest, MOVED: state.transferred_dollars, FORGOTTEN: state.forgotten_dollars},
    )
    return {name: dollars for name, dollars in lines.items() if abs(dollars) > _NOTHING}


@dataclass(frozen=True, slots=True)
class Projection:
    """The cost of work at its end, in US dollars: the mean, and the ends of the 90 % interval.

    `provided`: the condition of all three, as a clause; empty if there is none.
    """

    mean: float
    low: float
    high: float
    provided: str = ""

    def __str__(self) -> str:
        low = render_money(self.low)
        high = render_money(self.high)
        if low != high:
            between = f" ({low} to {high})"
        else:
            between = ""
        return f"{render_money(self.mean)} at its end{between}{self.provided}"


@dataclass(frozen=True, kw_only=True, repr=False)
class Cost:
    """The cost of a run, study, job, bag, Dask cluster or cluster.

    Attributes
    ----------
    subject : str
        Its name.
    total : float
        US dollars until now; its final cost if it is `over`.
    lines : Mapping[str, float]
        The parts of `total` in US dollars, which sum to it.
    over : bool
        Whether it has ended.
    projected : Projection or None
        Its cost at its end; None if it is over, or if no forecast can be made.
    note : str
        Why no forecast can be made, if the user can change that; else empty.
    """

    subject: str
    total: float
    lines: Mapping[str, float] = field(default_factory=dict[str, float])
    over: bool = False
    projected: Projection | None = None
    note: str = ""

    @property
    def words(self) -> str:
        """`$0.05 so far, $0.42 at its end ($0.38 to $0.46)`, or `$1.07` if it is over."""
        total = render_money(self.total)
        if self.over:
            return total
        more = self.projected or self.note
        if more:
            return f"{total} so far, {more}"
        return f"{total} so far"

    def __repr__(self) -> str:
        return f"{self.subject}: {self.words}"

    @property
    def _figures(self) -> dict[str, str]:
        """The facts shown below its words: each line and its cost."""
        return {name: render_money(dollars) for name, dollars in self.lines.items()}

    def _repr_html_(self) -> str:
        return markup.facts(repr(self), self._figures, numbers=[1])


@dataclass(frozen=True, kw_only=True, repr=False)
class Bill(Cost):
    """The cost of a cluster: until now, per hour at this moment, and at on-demand prices.

    `by_vm` in US dollars. `work`: the cost of each piece of work, by name. `transfer` and
    `transfer_hourly`: the parts for data transfer between zones. Hours are those of the emulated
    clock, except for transfer.
    """

    hourly: float = 0.0
    on_demand: float = 0.0
    by_vm: Mapping[str, float] = field(default_factory=dict[str, float])
    work: Mapping[str, Cost] = field(default_factory=dict[str, Cost])
    source: str = ""
    transfer: float = 0.0
    transfer_hourly: float = 0.0

    @property
    def saved(self) -> float:
        """The share of the on-demand cost that was saved, 0 to 1."""
        if self.on_demand > 0:
            return 1 - self.total / self.on_demand
        return 0.0

    @property
    def _figures(self) -> dict[str, str]:
        figures = super()._figures
        if not self.over:
            figures["per hour now"] = render_money(self.hourly)
        if self.on_demand > 0:
            figures["at on-demand prices"] = render_money(self.on_demand)
        return figures

    def __str__(self) -> str:
        return markup.lines(repr(self), self._figures)
