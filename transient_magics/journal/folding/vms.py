"""The rules for events of VMs: requested, booting, ready, leaving, gone.

A VM may also be stopped, changed to another machine type and started again.
"""

from __future__ import annotations

from dataclasses import replace

from ...protocol.machines import Share
from .. import events as e
from ..power import MachineChange, Stretch
from ..state import ClusterState, RunState, VmState
from .rules import Rules, changed, put

rules = Rules()

_MOST_SHARES = 50
UNEXPECTED = "it came after it was given up"
"""The failure of a VM that runs although it was reported as refused or gone."""


@rules.of(e.VmRequested)
def _(state: ClusterState, event: e.VmRequested) -> ClusterState:
    # Names are never used twice.
    if event.vm in state.vms:
        return state
    # Only an earlier VM can be replaced, so that no chain of replacements is a cycle.
    replaces = event.replaces
    if replaces not in state.vms:
        replaces = None
    vm = VmState(
        name=event.vm,
        role=event.role,
        slot=event.slot,
        zone=event.zone,
        accelerator=event.accelerator,
        machine_type=event.machine_type,
        provisioning_model=event.provisioning_model,
        hourly=event.hourly,
        on_demand_hourly=event.on_demand_hourly,
        replaces=replaces,
        requested_at=event.at,
        ends=event.ends,
        coming=state.relocation is not None,
    )
    return changed(state, vms={**state.vms, event.vm: vm})


@rules.of(e.VmRefused)
def _(state: ClusterState, event: e.VmRefused) -> ClusterState:
    return with_vm(
        state,
        event.vm,
        state="refused",
        reason=event.reason,
        cause=event.cause,
        hints=tuple(event.hints),
        ended_at=event.at,
    )


@rules.of(e.VmRunning)
def _(state: ClusterState, event: e.VmRunning) -> ClusterState:
    vm = state.vms.get(event.vm)
    if vm is None:
        return state
    # A VM may run although it was reported as refused or gone. It costs money, so the state must
    # contain it: it counts as a failed VM, and is deleted.
    if not vm.living and not vm.running_at:
        failure = vm.failure or UNEXPECTED
        vm = changed(vm, state="requested", failure=failure, reason="", cause="", ended_at=0.0)
        state = changed(state, vms={**state.vms, event.vm: vm})
    phase = vm.state
    if phase == "requested":
        phase = "booting"
    return with_vm(
        state,
        event.vm,
        state=phase,
        address=event.address,
        external_address=event.external_address,
        vm_id=event.vm_id,
        running_at=vm.running_at or event.at,
        started_at=vm.started_at or between(vm.requested_at, event.started, event.at),
    )


@rules.of(e.VmBootStep)
def _(state: ClusterState, event: e.VmBootStep) -> ClusterState:
    return with_vm(state, event.vm, step=event.what)


@rules.of(e.VmBootFailed)
def _(state: ClusterState, event: e.VmBootFailed) -> ClusterState:
    vm = state.vms.get(event.vm)
    if vm is None or not vm.living or vm.failure:
        return state
    failed = {
        **state.failed_boots,
        vm.boots_as: state.failed_boots.get(vm.boots_as, 0) + 1,
    }
    return changed(with_vm(state, event.vm, failure=event.reason), failed_boots=failed)


@rules.of(e.VmUnfit)
def _(state: ClusterState, event: e.VmUnfit) -> ClusterState:
    vm = state.vms.get(event.vm)
    if vm is None or not vm.living or vm.failure:
        return state
    unfit = {**state.unfit, vm.boots_as: state.unfit.get(vm.boots_as, 0) + 1}
    return changed(with_vm(state, event.vm, failure=event.reason), unfit=unfit)


@rules.of(e.VmReady)
def _(state: ClusterState, event: e.VmReady) -> ClusterState:
    vm = state.vms.get(event.vm)
    if vm is None or not vm.living or vm.state in ("leaving", "stopping", "stopped"):
        return state
    if vm.boots_as in state.failed_boots:
        failed = {key: times for key, times in state.failed_boots.items() if key != vm.boots_as}
        state = changed(state, failed_boots=failed)
    if vm.powered:
        powered = (*vm.powered[:-1], replace(vm.powered[-1], ready_at=event.at))
    else:
        powered = ()
    return with_vm(
        state, event.vm, state="ready", step="", ready_at=vm.ready_at or event.at, powered=powered
    )


@rules.of(e.VmPreemptionNotice)
def _(state: ClusterState, event: e.VmPreemptionNotice) -> ClusterState:
    return with_vm(
        state,
        event.vm,
        state="leaving",
        noticed_at=event.at,
        notice_seconds=event.seconds,
        change=None,
    )


@rules.of(e.VmTraffic)
def _(state: ClusterState, event: e.VmTraffic) -> ClusterState:
    vm = state.vms.get(event.vm)
    if vm is None:
        return state
    total = event.sent + event.received
    since = vm.traffic_at or vm.running_at
    new = max(0, total - vm.traffic_bytes)
    if event.at > since > 0:
        rate = new / (event.at - since)
    else:
        rate = 0.0
    names = state.holders(vm) or [""]
    dollars = new * state.byte_price(vm) / len(names)
    transfer = {
        **vm.transfer,
        **{name: vm.transfer.get(name, 0.0) + dollars for name in names if dollars},
    }
    return with_vm(
        state,
        event.vm,
        traffic_bytes=total,
        traffic_rate=rate,
        traffic_at=event.at,
        transfer=transfer,
    )


@rules.of(e.VmDeflated, e.VmInflated)
def _(state: ClusterState, event: e.VmDeflated | e.VmInflated) -> ClusterState:
    vm = state.vms.get(event.vm)
    share = Share(event.cpu, event.network)
    shares = (*(vm.shares if vm else ()), (event.at, share))[-_MOST_SHARES:]
    return with_vm(state, event.vm, share=share, shares=shares)


@rules.of(e.VmRevoked)
def _(state: ClusterState, event: e.VmRevoked) -> ClusterState:
    vm = state.vms.get(event.vm)
    counted = state.revocations + (1 if vm and vm.living else 0)
    ended = with_vm(
        state, event.vm, state="revoked", ended_at=event.at, stopping_at=_stopping(vm, event)
    )
    return changed(ended, revocations=counted)


@rules.of(e.VmDeleted)
def _(state: ClusterState, event: e.VmDeleted) -> ClusterState:
    stopping = _stopping(state.vms.get(event.vm), event)
    return with_vm(
        state,
        event.vm,
        state="deleted",
        reason=event.reason,
        ended_at=event.at,
        stopping_at=stopping,
    )


# VMs that are stopped, changed and started again


@rules.of(e.VmMachineAsked)
def _(state: ClusterState, event: e.VmMachineAsked) -> ClusterState:
    vm = state.vms.get(event.vm)
    if vm is None or vm.state != "ready":
        return state
    change = MachineChange(
        event.machine_type,
        event.hourly,
        event.on_demand_hourly,
        event.disk_hourly,
        event.part,
        event.reason,
    )
    return with_vm(state, event.vm, state="stopping", change=change)


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
    remade: list[RunState] = []
    for run in state.of(RunState).values():
        if run.deadline and not run.over:
            remade.append(replace(run, deadline=run.deadline.remade()))
    state = put(state, *remade)
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


def with_vm(state: ClusterState, name: str, /, **changes: object) -> ClusterState:
    """Change fields of a VM, unless it is gone or unknown."""
    vm = state.vms.get(name)
    if vm is None or not vm.living:
        return state
    return changed(state, vms={**state.vms, name: changed(vm, **changes)})


def _stopping(vm: VmState | None, event: e.VmRevoked | e.VmDeleted) -> float:
    if vm:
        return between(vm.stretches[-1].since, event.stopping, event.at)
    return 0.0


def between(earliest: float, reported: int, latest: float) -> float:
    """Return a moment that another machine reported, in seconds; 0 if outside this interval."""
    moment = reported / 1e9
    if earliest <= moment <= latest:
        return moment
    return 0.0
