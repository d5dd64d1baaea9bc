"""What events of a move do: VMs are rented where the cluster is to be, it is there, or it stays
where it was.
"""

from __future__ import annotations

import math

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
    vms = {
        name: _left(state, vm, event.at) if name in event.leaves else _stays(vm, event.at)
        for name, vm in state.vms.items()
    }
    dollars = state.transferred_dollars + event.dollars
    return changed(_rested(state), spec=state.relocation.spec, vms=vms, transferred_dollars=dollars)


@rules.of(e.ClusterStayed)
def _(state: ClusterState, event: e.ClusterStayed) -> ClusterState:
    vms = {
        name: changed(_left(state, vm, event.at), arrived_at=math.inf) if vm.coming else vm
        for name, vm in state.vms.items()
    }
    return changed(_rested(state), vms=vms)


def _rested(state: ClusterState) -> ClusterState:
    """What did not boot elsewhere says nothing of the VMs that are asked for from now on."""
    return changed(state, relocation=None, failed_boots={}, unfit={})


def _left(state: ClusterState, vm: VmState, at: float) -> VmState:
    return changed(vm, coming=False, left=True, left_at=at, gib_price=state.byte_price(vm) * 2**30)


def _stays(vm: VmState, at: float) -> VmState:
    return changed(vm, coming=False, arrived_at=at if vm.coming else vm.arrived_at)
