"""What events of the cluster and of its controller do: its declaration, phases and leases."""

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
    vms = {
        name: changed(vm, left=True, left_at=event.at)
        if name in event.gives_up and vm.role == WORKER and vm.living
        else vm
        for name, vm in state.vms.items()
    }
    return changed(
        state, spec=ClusterSpec.from_dict(event.spec), vms=vms, failed_boots={}, unfit={}
    )


@rules.of(e.ClusterZonesFound, e.ClusterPriced)
def _(state: ClusterState, event: e.ClusterZonesFound | e.ClusterPriced) -> ClusterState:
    return changed(state, spec=ClusterSpec.from_dict(event.spec))


@rules.of(e.ClusterClock)
def _(state: ClusterState, event: e.ClusterClock) -> ClusterState:
    if state.spec and not state.spec.emulated:
        raise ValueError("Google's clock is that of this machine")
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
    workers = {int(slot): run for slot, run in event.workers.items()}
    since: dict[int, float] = {}
    tenures = dict(state.tenures)
    for slot, run in state.leases.items():
        if workers.get(slot) == run:
            since[slot] = state.leased_at.get(slot, event.at)
        elif begin := state.leased_at.get(slot):
            tenures[run] = (*tenures.get(run, ()), (slot, begin, event.at))
    since = {slot: since.get(slot, event.at) for slot in workers}
    for name in {*workers.values()} - {*state.leases.values(), *state.tenures}:
        run = state.of(RunState).get(name)
        if run and run.started_at:  # its parameter servers were there before its first worker
            state = with_run(state, name, started_at=event.at)
    ahead = {int(slot): run for slot, run in event.ahead.items()}
    return changed(
        state,
        ports=dict(event.ports),
        leases=workers,
        leased_at=since,
        tenures=tenures,
        held=dict(event.held),
        ahead=ahead,
    )


# Moves


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


# VMs that the provider wants back


@rules.of(e.ReclaimWanted)
def _(state: ClusterState, event: e.ReclaimWanted) -> ClusterState:
    return changed(state, reclaim=Reclaim(event) if event.number else None)


@rules.of(e.ReclaimProposed)
def _(state: ClusterState, event: e.ReclaimProposed) -> ClusterState:
    return changed(state, reclaim=replace(_reclaim_of(state), proposed=event))


@rules.of(e.ReclaimAnswered)
def _(state: ClusterState, event: e.ReclaimAnswered) -> ClusterState:
    return changed(state, reclaim=replace(_reclaim_of(state), proposed=None, answered=event))


def _reclaim_of(state: ClusterState) -> Reclaim:
    if state.reclaim is None:
        raise ValueError("no VM is wanted back")
    return state.reclaim


# The controller


@rules.of(e.ControllerMoved)
def _(state: ClusterState, event: e.ControllerMoved) -> ClusterState:
    if event.vm and event.vm not in state.vms:
        raise ValueError(f"there is no VM {event.vm}")
    return changed(state, seat=event.vm, trouble="")


@rules.of(e.ControllerTrouble)
def _(state: ClusterState, event: e.ControllerTrouble) -> ClusterState:
    return changed(state, trouble=event.what)
