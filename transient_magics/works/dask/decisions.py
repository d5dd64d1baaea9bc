"""Decide what is due for a Dask cluster: pure functions of the cluster's state and the time.

It begins once workers' slots are leased to it and the VM of the first parameter server is ready,
which gets the scheduler. Workers join as their VMs are ready, and leave when these are revoked. It
continues while the scheduler lives. Only the scheduler has the state of its tasks, so no other one
takes its place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...journal import ClusterState, VmState
from ...spec import PARAMETER_SERVER
from .state import DaskState

END_SECONDS = 15.0
"""Time after which the VMs of a stopped Dask cluster are free in any case."""


@dataclass(frozen=True)
class Begin:
    """Begin the scheduler on this VM."""

    vm: str


@dataclass(frozen=True)
class Stop:
    """Stop for this reason, a clause; as failed if it cannot continue."""

    reason: str
    state: Literal["finished", "failed"] = "finished"


@dataclass(frozen=True)
class End:
    """End in this state."""

    state: Literal["finished", "failed", "stopped"]
    reason: str


Decision = Begin | Stop | End


def decide(
    dask: DaskState, state: ClusterState, ended: frozenset[str], now: float
) -> list[Decision]:
    """Return what is due now; `ended` are the VMs that confirmed the end of their parts."""
    if dask.over:
        return []
    if dask.stop:
        left = [vm for vm in parts(dask, state) if vm.name not in ended]
        if left and now - dask.stopping_at <= END_SECONDS:
            return []
        return [End(dask.stop.state, dask.stop.reason)]
    if state.phase == "deleting":
        return [Stop(f"the cluster ends: {state.reason}")]
    if not dask.vm:
        server = _server(state)
        if server and state.has_begun(dask):
            return [Begin(server.name)]
        return []
    vm = state.vms.get(dask.vm)
    if vm is None or not vm.living:
        return [Stop(f"its scheduler ran on {dask.vm}, which was lost", "failed")]
    if dask.closed or dask.lost:
        return [Stop(dask.closed or dask.lost, "finished" if dask.closed else "failed")]
    return []


def parts(dask: DaskState, state: ClusterState) -> list[VmState]:
    """Return the VMs with a part: that of the scheduler, and those of workers once it listens."""
    if not dask.vm:
        return []
    scheduler = [vm for vm in state.serving if vm.name == dask.vm]
    if dask.serving:
        return [*scheduler, *workers(dask, state)]
    return scheduler


def workers(dask: DaskState, state: ClusterState) -> list[VmState]:
    """Return the VMs in its slots that can compute, also under a preemption notice."""
    there = (
        vm for vm in state.serving if state.has(dask.name, vm) and vm.state in ("ready", "leaving")
    )
    return [vm for vm in there if not vm.failure]


def _server(state: ClusterState) -> VmState | None:
    servers = (
        vm
        for vm in state.serving
        if vm.role == PARAMETER_SERVER and vm.slot == 0 and vm.state == "ready"
    )
    return next((vm for vm in servers if not vm.failure), None)
