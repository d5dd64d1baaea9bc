"""What a cluster has cost, costs now, and would have cost on demand: from VMs' times and prices, never stored.

A VM costs from the moment Compute Engine reports it as RUNNING until it is gone, by the second. The on-demand
equivalent is the same VM time at on-demand prices (what the same work would have cost without transient servers).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .state import ClusterState, VmState


@dataclass(frozen=True, slots=True)
class Bill:
    """US dollars: in all, per hour at this moment, and the same at on-demand prices. `by_vm` in dollars."""

    total: float
    hourly: float
    on_demand: float
    by_vm: dict[str, float]
    source: str

    @property
    def saved(self) -> float:
        """The share of the on-demand cost that was saved, 0 to 1."""
        return 1 - self.total / self.on_demand if self.on_demand > 0 else 0.0


def bill(state: ClusterState, now: float) -> Bill:
    """The bill of a cluster at `now` (seconds since 1970)."""

    def dollars(vm: VmState, price: Callable[[VmState], float]) -> float:
        if not vm.running_at:
            return 0.0
        return max(0.0, (vm.ended_at or now) - vm.running_at) / 3600 * price(vm)

    by_vm = {vm.name: dollars(vm, lambda each: each.hourly) for vm in state.vms.values()}
    places = {(vm.accelerator or "parameter-server", vm.zone) for vm in state.vms.values()}
    sources = {state.spec.price(kind, zone).source for kind, zone in places} if state.spec else set()
    return Bill(
        total=sum(by_vm.values()),
        hourly=sum(vm.hourly for vm in state.living if vm.running_at),
        on_demand=sum(dollars(vm, lambda each: each.on_demand_hourly) for vm in state.vms.values()),
        by_vm=by_vm,
        source="; ".join(sorted(sources)),
    )
