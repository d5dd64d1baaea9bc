"""What events of Dask clusters do: begun, serving, left by workers, ended."""

from __future__ import annotations

from collections.abc import Mapping

from ...protocol.dask.spec import DaskSpec
from .. import events as e
from ..jobs import DaskState
from ..state import ClusterState
from .rules import Rules, refuse_unknown_vms, with_work

rules = Rules()


def begin(name: str, spec: Mapping[str, object], at: float) -> DaskState:
    """Return the state of a Dask cluster that was declared at a moment (seconds since 1970)."""
    return DaskState(name, DaskSpec.from_dict({**spec, "name": name}), declared_at=at)


def _heard(
    state: ClusterState,
    event: e.DaskServing | e.DaskLeft | e.DaskCrashed | e.DaskGpuUnused | e.DaskClosed,
) -> dict[str, int]:
    dask = state.of(DaskState)[event.dask]
    if isinstance(event, e.DaskCrashed | e.DaskGpuUnused):
        vm = event.vm
    else:
        vm = dask.vm
    return {**dask.heard, vm: event.time}


@rules.of(e.DaskBegan)
def _(state: ClusterState, event: e.DaskBegan) -> ClusterState:
    refuse_unknown_vms(state, [event.vm])
    return with_work(state, "dask", event.dask, phase="running", vm=event.vm)


@rules.of(e.DaskServing)
def _(state: ClusterState, event: e.DaskServing) -> ClusterState:
    return with_work(state, "dask", event.dask, serving=event, heard=_heard(state, event))


@rules.of(e.DaskLeft)
def _(state: ClusterState, event: e.DaskLeft) -> ClusterState:
    left = state.of(DaskState)[event.dask].left + 1
    return with_work(state, "dask", event.dask, left=left, heard=_heard(state, event))


@rules.of(e.DaskCrashed)
def _(state: ClusterState, event: e.DaskCrashed) -> ClusterState:
    dask = state.of(DaskState)[event.dask]
    told = {"crashes": dask.crashes + 1, "heard": _heard(state, event)}
    if event.vm == dask.vm:  # what a scheduler knew is nowhere else
        return with_work(
            state, "dask", event.dask, lost=f"its scheduler ended: {event.reason}", **told
        )
    return with_work(state, "dask", event.dask, **told)


@rules.of(e.DaskGpuUnused)
def _(state: ClusterState, event: e.DaskGpuUnused) -> ClusterState:
    unused = {
        vm: gpu for vm, gpu in state.of(DaskState)[event.dask].gpu_unused.items() if vm != event.vm
    }
    if event.seconds:
        unused[event.vm] = event.gpu
    return with_work(state, "dask", event.dask, gpu_unused=unused, heard=_heard(state, event))


@rules.of(e.DaskClosed)
def _(state: ClusterState, event: e.DaskClosed) -> ClusterState:
    return with_work(state, "dask", event.dask, closed=event.reason, heard=_heard(state, event))
