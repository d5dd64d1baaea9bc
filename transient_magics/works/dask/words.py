"""Dask clusters in words: how one does, and what happened to it."""

from __future__ import annotations

from ...client.text.words import count, size
from ...journal import ClusterState, Event, VmState
from ...protocol.checks import plain
from .events import DaskBegan, DaskClosed, DaskCrashed, DaskGpuUnused, DaskLeft, DaskServing
from .state import DaskState

QUIET = ()
TONES = {DaskGpuUnused: "warn"}
"""How a panel colours events."""


def work_words(dask: DaskState, cluster: ClusterState | None) -> str:
    """Return what a Dask cluster does, or how it ended, on a cluster in this state."""
    if cluster is None:
        return dask_words(dask)
    ready = sum(vm.state == "ready" and cluster.has(dask.name, vm) for vm in cluster.living)
    return dask_words(dask, ready)


def user_of(dask: DaskState, vm: VmState) -> str:
    """Return the name of a Dask cluster, or of the bag that has it, while it uses the VM; else
    nothing.
    """
    if dask.phase == "running":
        return dask.spec.bag or dask.name
    return ""


def dask_words(dask: DaskState, there: int | None = None) -> str:
    """`Dask on 2 workers, after 1 revocation`, or how it ended. `there`: how many of its workers'
    VMs are ready.
    """
    if dask.left:
        after = f", after {count(dask.left, 'revocation')}"
    else:
        after = ""
    after += f", after {count(dask.crashes, 'fault')}" if dask.crashes else ""
    if dask.stop and not dask.over:
        return f"ends: {plain(dask.stop.reason)}"
    match dask.phase:
        case "declared":
            return f"waits for {count(dask.spec.workers, 'worker')}"
        case "running":
            if there is not None and there < dask.spec.workers:
                some = f"{there} of "
            else:
                some = ""
            if dask.gpu_unused:
                unused = f"; GPU not used on {', '.join(dask.gpu_unused)}"
            else:
                unused = ""
            begins = "" if dask.serving else ", begins"
            return f"Dask on {some}{count(dask.spec.workers, 'worker')}{begins}{after}{unused}"
    if dask.reason:
        return f"{dask.phase}: {plain(dask.reason)}{after}"
    return f"{dask.phase}{after}"


def event_words(event: Event) -> str:
    """What happened to a Dask cluster; nothing of other events."""
    match event:
        case DaskBegan():
            return f"the scheduler of {event.dask} begins on {event.vm}"
        case DaskServing():
            return f"the scheduler of {event.dask} listens (Dask {event.versions.get('distributed', '?')})"
        case DaskLeft():
            again = event.lost + event.interrupted
            if again:
                anew = f", {count(again, 'task')} computed again"
            else:
                anew = ""
            return (
                f"{event.worker} left {event.dask} in {event.seconds:.1f} s: {count(event.moved, 'result')} moved "
                f"({size(event.moved_bytes)}){anew}"
            )
        case DaskCrashed():
            return f"the process of {event.dask} on {event.vm} ended: {event.reason}"
        case DaskGpuUnused() if event.seconds:
            minutes = f"{event.seconds / 60:.0f} min"
            return f"{event.dask} has not used the GPU of {event.vm} ({plain(event.gpu)}) in {minutes}: it is paid for"
        case DaskGpuUnused():
            return f"{event.dask} uses the GPU of {event.vm} ({plain(event.gpu)}) now"
        case DaskClosed():
            return f"the scheduler of {event.dask} has ended: {event.reason}"
    return ""
