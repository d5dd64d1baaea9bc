"""What a cluster has cost, costs now, and would have cost on demand: from VMs' times and prices, never stored.

A VM costs from the moment Compute Engine reports it as RUNNING until it is gone, by the second. The on-demand
equivalent is the same VM time at on-demand prices (what the same work would have cost without transient servers). The
price of a VM has that of its disk and its external address in it, which come and go with it.
Data that VMs exchange with parameter servers in another zone costs by the byte, as the VMs at both ends count
them; on demand it would cost the same. Where the emulated clock runs faster, VM time is counted on it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..spec import ClusterSpec, price_kind
from .state import ClusterState, VmState

_GIB = 2**30


@dataclass(frozen=True, slots=True)
class Bill:
    """US dollars: in all, per hour at this moment, and the same at on-demand prices. `by_vm` in dollars.

    `transfer` and `transfer_hourly`: what of these is data transfer between zones; hours are the emulated clock's, but
    for transfer. `projected`: what the total will be
    at the end of the run that goes on, at its present speed; None where there is none to tell from.
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

    def dollars(vm: VmState, price: Callable[[VmState], float]) -> float:
        if not vm.running_at:
            return 0.0
        return max(0.0, state.clock.between(vm.running_at, vm.ended_at or now)) / 3600 * price(vm)

    def per_byte(vm: VmState) -> float:
        return spec.transfer_prices.get(vm.zone, 0.0) / _GIB if spec else 0.0

    moved = {vm.name: vm.traffic_bytes * per_byte(vm) for vm in state.vms.values()}
    by_vm = {vm.name: dollars(vm, lambda each: each.hourly) + moved[vm.name] for vm in state.vms.values()}
    places = {(price_kind(vm.role, vm.accelerator), vm.zone) for vm in state.vms.values()}
    sources = {line.source for kind, zone in places if spec and (line := spec.known_price(kind, zone))}
    running = [vm for vm in state.living if vm.running_at]
    transfer, transfer_hourly = sum(moved.values()), sum(vm.traffic_rate * 3600 * per_byte(vm) for vm in running)
    total, hourly = sum(by_vm.values()), sum(vm.hourly for vm in running) + transfer_hourly
    return Bill(
        total=total,
        hourly=hourly,
        on_demand=sum(dollars(vm, lambda each: each.on_demand_hourly) for vm in state.vms.values()) + transfer,
        by_vm=by_vm,
        source="; ".join(sorted(sources)),
        transfer=transfer,
        transfer_hourly=transfer_hourly,
        projected=_projected(state, total, (hourly - transfer_hourly) * state.clock.rate + transfer_hourly),
    )


def at_the_end(state: ClusterState, spec: ClusterSpec, now: float) -> float:
    """US dollars that the cluster will have cost when Compute Engine ends its VMs, if it is `spec` from now on.

    So nobody has to be in charge until then. Data transfer that is still to come is not in it.
    """
    left = spec.ends_at - spec.declared_at - state.clock.between(spec.declared_at, now)
    return bill(state, now).total + spec.most_hourly * max(left, 0.0) / 3600


def _projected(state: ClusterState, total: float, hourly: float) -> float | None:
    """With `hourly` dollars in an hour in which it trains: data crosses no faster where the emulated clock does."""
    run = state.active_run
    if run is None or run.steps_per_second <= 0 or run.step >= run.train_steps:
        return None
    return total + hourly * (run.train_steps - run.step) / run.steps_per_second / 3600
