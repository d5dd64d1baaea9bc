"""The rules for events of Dask clusters: they start, serve, lose workers, and close."""

from __future__ import annotations

from collections.abc import Mapping

from ...journal.folding.rules import Rules, refuse_unknown_vms, with_work
from ...journal.state import ClusterState
from .events import DaskBegan, DaskClosed, DaskCrashed, DaskGpuUnused, DaskLeft, DaskServing
from .spec import DaskSpec
from .state import DaskState

rules = Rules()


def begin(name: str, spec: Mapping[str, object], at: float) -> DaskState:
    """Return the state of a Dask cluster that was declared at a moment (seconds since 1970)."""
    return DaskState(name, DaskSpec.from_dict({**spec, "name": name}), declared_at=at)


def _reported(
    state: ClusterState,
    event: DaskServing | DaskLeft | DaskCrashed | DaskGpuUnused | DaskClosed,
) -> dict[str, int]:
    dask = state.of(DaskState)[event.dask]
    if isinstance(event, DaskCrashed | DaskGpuUnused):
        vm = event.vm
    else:
        vm = dask.vm
    return {**dask.reported_at, vm: event.time}


@rules.of(DaskBegan)
def _(state: ClusterState, event: DaskBegan) -> ClusterState:
    refuse_unknown_vms(state, [event.vm])
    return with_work(state, "dask", event.dask, phase="running", vm=event.vm)


@rules.of(DaskServing)
def _(state: ClusterState, event: DaskServing) -> ClusterState:
    return with_work(state, "dask", event.dask, serving=event, reported_at=_reported(state, event))


@rules.of(DaskLeft)
def _(state: ClusterState, event: DaskLeft) -> ClusterState:
    left = state.of(DaskState)[event.dask].left + 1
    return with_work(state, "dask", event.dask, left=left, reported_at=_reported(state, event))


@rules.of(DaskCrashed)
def _(state: ClusterState, event: DaskCrashed) -> ClusterState:
    dask = state.of(DaskState)[event.dask]
    changes = {"crashes": dask.crashes + 1, "reported_at": _reported(state, event)}
    if event.vm == dask.vm:  # the state of a scheduler has no other copy
        return with_work(
            state, "dask", event.dask, lost=f"its scheduler ended: {event.reason}", **changes
        )
    return with_work(state, "dask", event.dask, **changes)


@rules.of(DaskGpuUnused)
def _(state: ClusterState, event: DaskGpuUnused) -> ClusterState:
    unused = {
        vm: gpu for vm, gpu in state.of(DaskState)[event.dask].gpu_unused.items() if vm != event.vm
    }
    if event.seconds:
        unused[event.vm] = event.gpu
    return with_work(
        state, "dask", event.dask, gpu_unused=unused, reported_at=_reported(state, event)
    )


@rules.of(DaskClosed)
def _(state: ClusterState, event: DaskClosed) -> ClusterState:
    return with_work(
        state, "dask", event.dask, closed=event.reason, reported_at=_reported(state, event)
    )
