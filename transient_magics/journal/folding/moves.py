"""What events of a move do: VMs are rented where the cluster is to be, it is there, or it stays where it was."""

from __future__ import annotations

from ...spec import ClusterSpec
from .. import events as e
from ..state import ClusterState, Relocation, VmState
from .rules import Rules, changed

rules = Rules()


@rules.of(e.ClusterRelocating)
def _(state: ClusterState, event: e.ClusterRelocating) -> ClusterState:
    if state.relocation:
        raise ValueError("it moves already")
    relocation = Relocation(ClusterSpec.from_dict(event.spec), event.at)
    return changed(state, relocation=relocation, failed_boots={}, unfit={})


@rules.of(e.ClusterRelocated)
def _(state: ClusterState, event: e.ClusterRelocated) -> ClusterState:
    if state.relocation is None:
        raise ValueError("it does not move")
    vms = {name: _left(state, vm) if name in event.leaves else _stays(state, vm) for name, vm in state.vms.items()}
    dollars = state.transferred_dollars + event.dollars
    return changed(_rested(state), spec=state.relocation.spec, vms=vms, transferred_dollars=dollars)


@rules.of(e.ClusterStayed)
def _(state: ClusterState, event: e.ClusterStayed) -> ClusterState:
    vms = {name: _left(state, vm) if vm.coming else vm for name, vm in state.vms.items()}
    return changed(_rested(state), vms=vms)


def _rested(state: ClusterState) -> ClusterState:
    """What did not boot elsewhere says nothing of the VMs that are asked for from now on."""
    return changed(state, relocation=None, failed_boots={}, unfit={})


def _left(state: ClusterState, vm: VmState) -> VmState:
    return changed(vm, coming=False, left=True, gib_price=_price(state, vm))


def _stays(state: ClusterState, vm: VmState) -> VmState:
    """One that is gone has exchanged all its data with the place that was."""
    return changed(vm, coming=False, gib_price=vm.gib_price if vm.living else _price(state, vm))


def _price(state: ClusterState, vm: VmState) -> float:
    own = vm.gib_price
    return own if own is not None else state.spec.transfer_prices.get(vm.zone, 0.0) if state.spec else 0.0
