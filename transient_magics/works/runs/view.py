"""A run on panels: its part of a snapshot, its line, and how it is shown in a cell of its own.

A measurement of stalls is a run, too; its panel is in `stalls/view.py`.
"""

from __future__ import annotations

from ...client import text
from ...journal import ClusterState, Cost, RunState
from ...panels.show import show as show_panel
from ...panels.snapshot.contract import Proposal, Training, WorkLine
from ...panels.snapshot.curves import end_of
from ...spec import render_duration
from . import words
from .handle import Run
from .stalls.handle import Stalls
from .stalls.view import show_stalls

Facts = list[tuple[str, str]]


def show(handle: Run | Stalls) -> None:
    """Show a run or a measurement of stalls in the running cell."""
    if isinstance(handle, Stalls):
        show_stalls(handle)
    else:
        show_panel(handle.cluster, handle.name)


def training(run: RunState, state: ClusterState, cost: Cost, forecast: str, now: float) -> Training:
    """Return the part of a snapshot about the run that a panel shows.

    Parameters
    ----------
    run, state, cost
        The run, the state of its cluster, and its cost.
    forecast
        How it ends, in words.
    now
        Seconds since 1970.
    """
    return {
        "name": run.name,
        "title": title(run),
        "phase": words.work_phase(run),
        "phase_words": phase_words(run, state),
        "words": words.work_words(run, state),
        "step": run.step,
        "steps": run.train_steps,
        "counted": f"{words.counted_words(run)} {'measures' if run.spec.stalls else 'steps'}",
        "forecast": forecast,
        "facts": _facts(run, state, cost, now),
        "data": words.data_words(run.data) if run.data else "",
        "proposal": _proposal(run, state.name, now),
        "end": end_of(run),
        "stoppable": not run.over and not run.stopped and not state.over,
    }


def title(run: RunState) -> str:
    """Return what a run trains, such as `resnet on image_digits`."""
    if run.spec.model:
        return f"{run.spec.model} on {run.spec.problem}"
    return "the cell's own model"


def phase_words(run: RunState, state: ClusterState) -> str:
    """Return the phase of a run in words: also waiting, starting or evaluating."""
    if words.is_evaluated(run):
        return "evaluating"
    if run.phase != "declared":
        return words.work_phase(run)
    return "waiting" if words.waits_for(run, state) else "starting"


def add_progress(line: WorkLine, run: RunState, state: ClusterState) -> None:
    """Add the phase and the progress of a run to its line."""
    line["phase"] = phase_words(run, state)
    if run.phase != "declared":
        line["step"] = run.step
        line["steps"] = run.train_steps


def _proposal(run: RunState, cluster: str, now: float) -> Proposal | None:
    if run.deadline is None or run.over:
        return None
    proposed = run.deadline.proposed
    if proposed is None or now > proposed.until:
        return None
    return {
        "number": proposed.seq,
        "text": f"{run.name}: {proposed.reason}?",
        "how": text.to_agree_words(cluster, run.name),
        "until": proposed.until,
    }


def _facts(run: RunState, state: ClusterState, cost: Cost, now: float) -> Facts:
    spent = [("this run", cost.words)] if cost.total else []
    if run.phase == "declared":
        return spent
    workers = ("workers", str(len(run.workers)))
    if run.spec.stalls:
        # A measurement trains nothing, so it has neither loss nor checkpoint.
        return spent if run.over else [*spent, workers]
    facts: Facts = []
    if not run.over:
        facts += [("steps/s", text.number(run.steps_per_second)), workers]
    facts += [*words.outlook_facts(run, now), *spent, ("loss", text.number(run.loss))]
    saved = "none yet" if run.checkpoint_step is None else f"step {run.checkpoint_step:,}"
    facts.append(("checkpoint", saved))
    if lost := lost_words(run, state, now):
        facts.append(("lost to revocations", lost))
    for name, value in text.scores(run.metrics).items():
        facts.append((f"dev {name}", text.number(value)))
    if run.evaluated.examples:
        facts.append(("dev split", text.examples_words(*run.evaluated)))
    return facts


def lost_words(run: RunState, state: ClusterState, now: float) -> str:
    """Return what revocations cost a run, such as `42 s of a worker, ≈ 70 steps`; or nothing."""
    seconds, steps = lost(run, state, now)
    if seconds < 1:
        return ""
    lost_time = f"{render_duration(seconds)} of a worker"
    if steps < 0.5:
        return lost_time
    return f"{lost_time}, ≈ {text.count(round(steps), 'step')}"


def lost(run: RunState, state: ClusterState, now: float) -> tuple[float, float]:
    """Return the worker-seconds that a run lost to revocations, and the steps.

    A worker is missing from the revocation of its VM until the next VM in its place is ready. Its
    steps are estimated with the run's mean speed per worker. Both are 0 where the run shares the
    cluster with another run or has a part of it, because the state does not record whose worker
    was lost.
    """
    end = run.ended_at or now
    workers = state.spec.worker_count if state.spec else 0
    if not run.started_at or not workers:
        return 0.0, 0.0
    if 0 < run.spec.most_workers < workers or _has_company(run, state, end):
        return 0.0, 0.0
    seconds = 0.0
    replacements = text.replacements(state)
    for vm in state.vms.values():
        if vm.role == "worker" and vm.state == "revoked" and vm.slot < workers:
            until = end
            if after := replacements.get(vm.name):
                until = after.ready_at or after.ended_at or end
            seconds += max(0.0, min(until, end) - max(vm.ended_at, run.started_at))
    present = workers * (end - run.started_at) - seconds
    if present <= 0:
        return seconds, 0.0
    first_step = run.series[0][1] if run.series else 0
    return seconds, seconds * (run.step - first_step) / present


def _has_company(run: RunState, state: ClusterState, end: float) -> bool:
    """Return whether another run trained at the same time."""
    return any(
        other.started_at < end and run.started_at < (other.ended_at or end)
        for other in state.of(RunState).values()
        if other.name != run.name and other.started_at
    )
