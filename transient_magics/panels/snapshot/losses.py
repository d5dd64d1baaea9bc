"""What revocations cost a run: how long places of workers stood empty, and the steps that are
missing for it.
"""

from __future__ import annotations

from ...client import text
from ...journal import ClusterState, RunState
from ...spec import render_duration


def lost(state: ClusterState, run: RunState, now: float) -> tuple[float, float]:
    """Seconds of a worker that are missing, and steps at the run's mean speed per worker.

    A place is empty from the moment its VM was revoked until the VM that took it was ready. A
    worker that goes takes no step of others with it: what is lost is what it would have done.
    Nothing is told where the run shares the cluster with another, or has a part of it alone,
    because the state does not keep whose worker it was.
    """
    end = run.ended_at or now
    workers = state.spec.worker_count if state.spec else 0
    if (
        not run.started_at
        or not workers
        or 0 < run.spec.most_workers < workers
        or _has_company(state, run, end)
    ):
        return 0.0, 0.0
    seconds = 0.0
    after_them = text.replacements(state)
    for vm in state.vms.values():
        if vm.role == "worker" and vm.state == "revoked" and vm.slot < workers:
            after = after_them.get(vm.name)
            if after:
                until = after.ready_at or after.ended_at or end
            else:
                until = end
            seconds += max(0.0, min(until, end) - max(vm.ended_at, run.started_at))
    present = workers * (end - run.started_at) - seconds
    steps = run.step - (run.series[0][1] if run.series else 0)
    return seconds, seconds * steps / present if present > 0 else 0.0


def _has_company(state: ClusterState, run: RunState, end: float) -> bool:
    """Whether another run trained at the same time."""
    others = (
        each for each in state.of(RunState).values() if each.name != run.name and each.started_at
    )
    return any(
        other.started_at < end and run.started_at < (other.ended_at or end) for other in others
    )


def lost_words(state: ClusterState, run: RunState, now: float) -> str:
    """`42 s of a worker, ≈ 70 steps`; nothing where nothing was lost."""
    seconds, steps = lost(state, run, now)
    if seconds < 1:
        return ""
    return f"{render_duration(seconds)} of a worker" + (
        f", ≈ {text.count(round(steps), 'step')}" if steps >= 0.5 else ""
    )
