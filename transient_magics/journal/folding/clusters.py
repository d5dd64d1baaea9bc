"""The rules for events of the cluster and of its controller.

They cover its declaration and phases, its leases, its moves to other zones, and the VMs that the
provider wants back.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ...clock import Clock
from ...spec import WORKER, ClusterSpec
from .. import events as e
from ..state import ClusterState, Reclaim, Relocation, RunState, VmState
from .rules import Rules, changed
from .runs import with_run

rules = Rules()


@rules.of(e.ClusterDeclared)
def _(state: ClusterState, event: e.ClusterDeclared) -> ClusterState:
    spec = ClusterSpec.from_dict(event.spec)
    return changed(state, name=spec.name, spec=spec, phase="provisioning", declared_at=event.at)


@rules.of(e.ClusterForgotten)
def _(state: ClusterState, event: e.ClusterForgotten) -> ClusterState:
    return changed(state, forgotten_dollars=state.forgotten_dollars + event.dollars)


@rules.of(e.ClusterResized)
def _(state: ClusterState, event: e.ClusterResized) -> ClusterState:
    vms = dict(state.vms)
    for name in event.gives_up:
        vm = vms.get(name)
        if vm and vm.role == WORKER and vm.living:
            vms[name] = changed(vm, left=True, left_at=event.at)
    spec = ClusterSpec.from_dict(event.spec)
    return changed(state, spec=spec, vms=vms, failed_boots={}, unfit={})


@rules.of(e.ClusterZonesFound, e.ClusterPriced)
def _(state: ClusterState, event: e.ClusterZonesFound | e.ClusterPriced) -> ClusterState:
    return changed(state, spec=ClusterSpec.from_dict(event.spec))


@rules.of(e.ClusterClock)
def _(state: ClusterState, event: e.ClusterClock) -> ClusterState:
    if state.spec and not state.spec.emulated:
        raise ValueError("only an emulated cluster has a clock of its own")
    return changed(state, clock=Clock(event.anchors))


@rules.of(e.ClusterImageChosen)
def _(state: ClusterState, event: e.ClusterImageChosen) -> ClusterState:
    if state.spec is None:
        return state
    return changed(
        state, spec=replace(state.spec, image=event.image or None, image_for_gpus=event.gpu)
    )


@rules.of(e.ClusterReady)
def _(state: ClusterState, event: e.ClusterReady) -> ClusterState:
    if state.phase == "provisioning":
        return changed(state, phase="ready", ready_at=event.at)
    return state


@rules.of(e.ClusterAdvised)
def _(state: ClusterState, event: e.ClusterAdvised) -> ClusterState:
    return changed(state, advice={**state.advice, event.accelerator: event})


@rules.of(e.ClusterDeleting)
def _(state: ClusterState, event: e.ClusterDeleting) -> ClusterState:
    return changed(state, phase="deleting", reason=event.reason)


@rules.of(e.ClusterDeleted)
def _(state: ClusterState, event: e.ClusterDeleted) -> ClusterState:
    return changed(state, phase="deleted", ended_at=event.at, trouble="")


@rules.of(e.ClusterLeased)
def _(state: ClusterState, event: e.ClusterLeased) -> ClusterState:
    leases = {int(place): name for place, name in event.workers.items()}
    leased_at = dict.fromkeys(leases, event.at)
    tenures = dict(state.tenures)
    for place, name in state.leases.items():
        begin = state.leased_at.get(place)
        if leases.get(place) == name:
            leased_at[place] = begin or event.at
        elif begin:
            tenures[name] = (*tenures.get(name, ()), (place, begin, event.at))
    for name in {*leases.values()} - {*state.leases.values(), *state.tenures}:
        run = state.of(RunState).get(name)
        # The chief starts when the parameter servers are ready. The run trains and costs money only
        # from its first worker on.
        if run and run.started_at:
            state = with_run(state, name, started_at=event.at)
    ahead = {int(slot): name for slot, name in event.ahead.items()}
    return changed(
        state,
        ports=dict(event.ports),
        leases=leases,
        leased_at=leased_at,
        tenures=tenures,
        held_back=dict(event.held),
        ahead=ahead,
    )


# Moves


@rules.of(e.ClusterRelocating)
def _(state: ClusterState, event: e.ClusterRelocating) -> ClusterState:
    if state.relocation:
        raise ValueError("the cluster is already being relocated")
    relocation = Relocation(ClusterSpec.from_dict(event.spec), event.at)
    return changed(state, relocation=relocation, failed_boots={}, unfit={})


@rules.of(e.ClusterRelocated)
def _(state: ClusterState, event: e.ClusterRelocated) -> ClusterState:
    if state.relocation is None:
        raise ValueError("the cluster is not being relocated")
    vms = dict(state.vms)
    for name, vm in state.vms.items():
        if name in event.leaves:
            vms[name] = _left(state, vm, event.at)
        elif vm.coming:
            vms[name] = changed(vm, coming=False, arrived_at=event.at)
    return changed(
        _without_move(state),
        spec=state.relocation.spec,
        vms=vms,
        transferred_dollars=state.transferred_dollars + event.dollars,
    )


@rules.of(e.ClusterStayed)
def _(state: ClusterState, event: e.ClusterStayed) -> ClusterState:
    vms = dict(state.vms)
    for name, vm in state.vms.items():
        if vm.coming:
            vms[name] = changed(_left(state, vm, event.at), arrived_at=math.inf)
    return changed(_without_move(state), vms=vms)


def _without_move(state: ClusterState) -> ClusterState:
    """Return the state after a move. VMs that failed at another place no longer count."""
    return changed(state, relocation=None, failed_boots={}, unfit={})


def _left(state: ClusterState, vm: VmState, at: float) -> VmState:
    """Return a VM that is deleted. Its price of traffic is kept: the declaration may change it."""
    gib_price = state.byte_price(vm) * 2**30
    return changed(vm, coming=False, left=True, left_at=at, gib_price=gib_price)


# VMs that the provider wants back


@rules.of(e.ReclaimWanted)
def _(state: ClusterState, event: e.ReclaimWanted) -> ClusterState:
    if event.number:
        return changed(state, reclaim=Reclaim(event))
    return changed(state, reclaim=None)


@rules.of(e.ReclaimProposed)
def _(state: ClusterState, event: e.ReclaimProposed) -> ClusterState:
    return changed(state, reclaim=replace(_reclaim_of(state), proposed=event))


@rules.of(e.ReclaimAnswered)
def _(state: ClusterState, event: e.ReclaimAnswered) -> ClusterState:
    return changed(state, reclaim=replace(_reclaim_of(state), proposed=None, answered=event))


def _reclaim_of(state: ClusterState) -> Reclaim:
    """Return the provider's request for VMs. Raises ValueError if there is none."""
    if state.reclaim is None:
        raise ValueError("there is no reclaim")
    return state.reclaim


# The controller


@rules.of(e.ControllerMoved)
def _(state: ClusterState, event: e.ControllerMoved) -> ClusterState:
    if event.vm and event.vm not in state.vms:
        raise ValueError(f"unknown VM {event.vm}")
    return changed(state, seat=event.vm, trouble="")


@rules.of(e.ControllerTrouble)
def _(state: ClusterState, event: e.ControllerTrouble) -> ClusterState:
    return changed(state, trouble=event.what)
