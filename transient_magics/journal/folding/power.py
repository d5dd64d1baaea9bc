"""What events of VMs do that are stopped, changed and started again."""

from __future__ import annotations

from dataclasses import replace

from .. import events as e
from ..power import MachineChange, Stretch
from ..state import ClusterState, RunState
from .rules import Rules, put
from .vms import between, with_vm

rules = Rules()


@rules.of(e.VmMachineAsked)
def _(state: ClusterState, event: e.VmMachineAsked) -> ClusterState:
    vm = state.vms.get(event.vm)
    if vm is None or vm.state != "ready":
        return state
    wanted = MachineChange(
        event.machine_type,
        event.hourly,
        event.on_demand_hourly,
        event.disk_hourly,
        event.part,
        event.reason,
    )
    return with_vm(state, event.vm, state="stopping", change=wanted)


@rules.of(e.VmStopped)
def _(state: ClusterState, event: e.VmStopped) -> ClusterState:
    vm = state.vms.get(event.vm)
    if vm is None or vm.change is None:
        return state
    disk = vm.change.disk_hourly
    since = between(vm.stretches[-1].since, event.stopping, event.at) or event.at
    return with_vm(
        state,
        event.vm,
        state="stopped",
        address="",
        external_address="",
        step="",
        hourly=disk,
        on_demand_hourly=disk,
        powered=(*vm.stretches, Stretch(since, vm.machine_type, disk, disk, runs=False)),
    )


@rules.of(e.VmMachineChanged)
def _(state: ClusterState, event: e.VmMachineChanged) -> ClusterState:
    changed: list[RunState] = []
    for run in state.of(RunState).values():
        if run.deadline and not run.over:
            changed.append(replace(run, deadline=run.deadline.remade()))
    state = put(state, *changed)
    return with_vm(state, event.vm, machine_type=event.machine_type)


@rules.of(e.VmMachineRefused)
def _(state: ClusterState, event: e.VmMachineRefused) -> ClusterState:
    vm = state.vms.get(event.vm)
    if vm is None or vm.change is None:
        return state
    if vm.state == "stopping":
        return with_vm(state, event.vm, state="ready", change=None)
    before = vm.ran
    as_before = replace(
        vm.change,
        machine_type=before.machine_type,
        hourly=before.hourly,
        on_demand_hourly=before.on_demand_hourly,
        part=before.part,
    )
    return with_vm(state, event.vm, change=as_before)


@rules.of(e.VmStartRefused)
def _(state: ClusterState, event: e.VmStartRefused) -> ClusterState:
    vm = state.vms.get(event.vm)
    if vm is None or vm.change is None:
        return state
    return with_vm(
        state,
        event.vm,
        change=replace(vm.change, refused=vm.change.refused + 1, refused_at=event.at),
    )


@rules.of(e.VmEndSet)
def _(state: ClusterState, event: e.VmEndSet) -> ClusterState:
    vm = state.vms.get(event.vm)
    if vm is None or vm.change is None:
        return state
    return with_vm(state, event.vm, change=replace(vm.change, tries=vm.change.tries + 1))


@rules.of(e.VmStarted)
def _(state: ClusterState, event: e.VmStarted) -> ClusterState:
    vm = state.vms.get(event.vm)
    if vm is None or vm.change is None:
        return state
    change: MachineChange = vm.change
    since = between(vm.stretches[-1].since, event.started, event.at) or event.at
    runs = Stretch(since, vm.machine_type, change.hourly, change.on_demand_hourly, change.part)
    return with_vm(
        state,
        event.vm,
        state="booting" if event.address else "stopping",
        change=None if event.address else replace(change, tries=change.tries + 1),
        address=event.address,
        external_address=event.external_address,
        hourly=change.hourly,
        on_demand_hourly=change.on_demand_hourly,
        restarted_at=event.at,
        powered=(*vm.stretches, runs),
    )
