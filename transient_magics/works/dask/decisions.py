"""What is due for a Dask cluster: a pure function of it and of the state of its cluster.

It begins once it has workers' places and the first parameter server's VM is ready, on which its
scheduler is. Workers come as their VMs are ready and go as they are taken; it goes on while the
scheduler lives. What a scheduler knows is nowhere else, so none is begun again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...journal import ClusterState, VmState
from ...spec import PARAMETER_SERVER
from .state import DaskState

END_SECONDS = 15.0
"""After it was told to end: until its VMs are free in any case."""


@dataclass(frozen=True)
class Begin:
    """Give the scheduler to this VM."""

    vm: str


@dataclass(frozen=True)
class Stop:
    """The Dask cluster stops for this reason, a clause; as failed if it cannot continue."""

    reason: str
    state: Literal["finished", "failed"] = "finished"


@dataclass(frozen=True)
class End:
    """It is over."""

    state: Literal["finished", "failed", "stopped"]
    reason: str


Decision = Begin | Stop | End


def decide(
    dask: DaskState, state: ClusterState, ended: frozenset[str], now: float
) -> list[Decision]:
    """What is to be done now. `ended`: the VMs that have answered that they do nothing for it any
    more.
    """
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
        return [Stop(f"its scheduler was on {dask.vm}, which is gone", "failed")]
    if dask.closed or dask.lost:
        return [Stop(dask.closed or dask.lost, "finished" if dask.closed else "failed")]
    return []


def parts(dask: DaskState, state: ClusterState) -> list[VmState]:
    """The VMs that have, or are to have, a part in it: its scheduler's, and once that listens its
    workers'.
    """
    if not dask.vm:
        return []
    scheduler = [vm for vm in state.serving if vm.name == dask.vm]
    if dask.serving:
        return [*scheduler, *workers(dask, state)]
    return scheduler


def workers(dask: DaskState, state: ClusterState) -> list[VmState]:
    """The VMs in its places that can work, also under notice: they may be at it."""
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
