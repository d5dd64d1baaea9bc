"""States and events of Dask clusters in words."""

from __future__ import annotations

from ...client.text.words import count, size
from ...journal import ClusterState, Event, VmState
from ...protocol.checks import plain
from .events import DaskBegan, DaskClosed, DaskCrashed, DaskGpuUnused, DaskLeft, DaskServing
from .state import DaskState

QUIET = ()
TONES = {DaskGpuUnused: "warn"}
"""Colours of events on a panel."""


def work_words(dask: DaskState, cluster: ClusterState | None) -> str:
    """Return what a Dask cluster does, or how it ended, on a cluster in this state."""
    if cluster is None:
        return dask_words(dask)
    ready = sum(vm.state == "ready" and cluster.has(dask.name, vm) for vm in cluster.living)
    return dask_words(dask, ready)


def user_of(dask: DaskState, vm: VmState) -> str:
    """Return the name of a Dask cluster, or of its bag, while it uses the VM; else nothing."""
    if dask.phase == "running":
        return dask.spec.bag or dask.name
    return ""


def dask_words(dask: DaskState, ready: int | None = None) -> str:
    """Return `Dask on 2 workers, after 1 revocation`, or how it ended.

    `ready` is the number of its workers' VMs that are ready (default: unknown).
    """
    after = f", after {count(dask.left, 'revocation')}" if dask.left else ""
    if dask.crashes:
        after += f", after {count(dask.crashes, 'fault')}"
    if dask.stop and not dask.over:
        return f"ends: {plain(dask.stop.reason)}"
    match dask.phase:
        case "declared":
            return f"waits for {count(dask.spec.workers, 'worker')}"
        case "running":
            some = ""
            if ready is not None and ready < dask.spec.workers:
                some = f"{ready} of "
            unused = f"; GPU not used on {', '.join(dask.gpu_unused)}" if dask.gpu_unused else ""
            begins = "" if dask.serving else ", begins"
            return f"Dask on {some}{count(dask.spec.workers, 'worker')}{begins}{after}{unused}"
    if dask.reason:
        return f"{dask.phase}: {plain(dask.reason)}{after}"
    return f"{dask.phase}{after}"


def event_words(event: Event) -> str:
    """Return what happened to a Dask cluster; an empty text for other events."""
    match event:
        case DaskBegan():
            return f"the scheduler of {event.dask} begins on {event.vm}"
        case DaskServing():
            return f"the scheduler of {event.dask} listens (Dask {event.versions.get('distributed', '?')})"
        case DaskLeft():
            moved = f"{count(event.moved, 'result')} moved ({size(event.moved_bytes)})"
            repeated = event.lost + event.interrupted
            if repeated:
                moved += f", {count(repeated, 'task')} computed again"
            return f"{event.worker} left {event.dask} in {event.seconds:.1f} s: {moved}"
        case DaskCrashed():
            return f"the process of {event.dask} on {event.vm} ended: {event.reason}"
        case DaskGpuUnused() if event.seconds:
            minutes = f"{event.seconds / 60:.0f} min"
            gpu = f"the GPU of {event.vm} ({plain(event.gpu)})"
            return f"{event.dask} has not used {gpu} in {minutes}: it is paid for"
        case DaskGpuUnused():
            return f"{event.dask} uses the GPU of {event.vm} ({plain(event.gpu)}) now"
        case DaskClosed():
            return f"the scheduler of {event.dask} has ended: {event.reason}"
    return ""
