"""Decisions about a study: a pure function of the cluster's state, its slots and the time.

A study has as many trials under way as there are workers for. A trial starts when enough slots are
free, or will be in a moment, after all waiting runs have theirs. So a run that is declared beside
a study is next, and two studies share a cluster in turns. A trial is recorded in the journal when
it starts and when it ends. What follows from that, such as declaring or stopping a run, is decided
again at each tick until it has happened.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from ...controller.decisions.ledger import has_room
from ...journal import ClusterState, RunState
from ...journal.cost import charged
from ...protocol.machines import parse_machines
from ...spec import render_duration, render_money
from .sampling import point
from .seats import has_place
from .state import StudyState, TrialState

FIRST = 3
"""Failed trials after which the study ends, because the next ones would fail, too.

It continues if any trial has not failed, or if one that trains has come further.
"""


@dataclass(frozen=True, slots=True)
class FinishTrial:
    """Record that a trial has ended."""

    trial: int
    state: Literal["complete", "pruned", "failed", "stopped"]
    value: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class EndStudy:
    """Start no further trial."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class StartTrial:
    """Start another trial."""

    trial: int


@dataclass(frozen=True, slots=True)
class DeclareRun:
    """Declare a run of a trial that does not exist yet."""

    trial: int
    repeat: int


@dataclass(frozen=True, slots=True)
class StopRun:
    """Stop a run whose trial has ended; `save`: with a last checkpoint."""

    run: str
    save: bool


Decision = FinishTrial | EndStudy | StartTrial | DeclareRun | StopRun


def decide(
    study: StudyState,
    state: ClusterState,
    slots: Mapping[int, str],
    now: float,
    pruned: Collection[int] = (),
) -> list[Decision]:
    """Return everything to do now.

    Parameters
    ----------
    study, state
        The states of the study and of its cluster.
    slots
        The slots of the cluster's workers, each with its GPU.
    now
        Seconds since 1970.
    pruned
        The numbers of the trials that the pruner would end.
    """
    ended = [_outcome(study, trial, state, now, pruned) for trial in study.running]
    finished = [outcome for outcome in ended if outcome]
    if finished:
        # What follows from these is decided when they are in the journal.
        return list(finished)
    return [*_stops(study, state), *_declarations(study, state), *_next(study, state, slots, now)]


def _outcome(
    study: StudyState, trial: TrialState, state: ClusterState, now: float, pruned: Collection[int]
) -> FinishTrial | None:
    """Return how a trial has ended; None: it has not."""
    runs = [run for name in trial.runs if (run := state.of(RunState).get(name))]
    if failed := next((run for run in runs if run.phase == "failed"), None):
        return FinishTrial(trial.number, "failed", reason=failed.reason.rstrip("."))
    if any(run.phase == "finished" and run.stopped and not run.reason for run in runs):
        return FinishTrial(trial.number, "stopped", reason="stopped by the user")
    if len(runs) == len(trial.runs) and all(run.over for run in runs):
        return _judged(study, trial.number, runs)
    if study.stopping and (state.phase in ("deleting", "deleted") or not _is_made(trial, runs)):
        return FinishTrial(trial.number, "stopped", reason=study.reason or "the study has ended")
    limit = study.spec.give_up_seconds
    stuck = next((run for run in runs if _seconds_without_step(run, state, now) > limit), None)
    if stuck:
        reason = f"{stuck.name} made no step for {render_duration(limit)}"
        return FinishTrial(trial.number, "failed", reason=reason)
    if any(not state.has_begun(run) for run in runs) and (why := _impossible(study, trial, state)):
        return FinishTrial(trial.number, "failed", reason=why)
    # A run that has made all its steps is being evaluated, and its worker is free already.
    if trial.number in pruned and runs and not runs[0].made:
        return FinishTrial(
            trial.number, "pruned", _latest(study, runs[0]), f"pruned at step {runs[0].step:,}"
        )
    return None


def _is_made(trial: TrialState, runs: list[RunState]) -> bool:
    """Return whether all steps of a trial are made: the last evaluation needs no worker."""
    return len(runs) == len(trial.runs) and all(run.made or run.over for run in runs)


def _judged(study: StudyState, trial: int, runs: list[RunState]) -> FinishTrial:
    """Return the result of a trial whose runs have ended: failed if one was not measured."""
    values: list[float] = []
    for run in runs:
        value = run.value_of(study.spec.goal)
        if value is None or not math.isfinite(value):
            metric = study.spec.goal.metric
            if run.unevaluated and not run.metrics:
                why = f"{run.name} could not be evaluated: {run.unevaluated[2]}"
            elif not run.metrics:
                why = f"{run.name} was not evaluated"
            elif value is None:
                why = f"{run.name} has no metric {metric} (it has {', '.join(sorted(run.metrics))})"
            else:
                why = f"the {metric} of {run.name} is not a number"
            return FinishTrial(trial, "failed", reason=why.rstrip("."))
        values.append(value)
    return FinishTrial(trial, "complete", math.fsum(values) / len(values))


def _latest(study: StudyState, run: RunState) -> float | None:
    value = run.metrics.get(study.spec.goal.metric, math.nan)
    return value if math.isfinite(value) else None


def _seconds_without_step(run: RunState, state: ClusterState, now: float) -> float:
    """Return for how many seconds a run with a worker has made no step."""
    made = run.made or (run.train_steps and run.step >= run.train_steps)
    if run.over or made or not state.has_begun(run):
        return 0.0
    ready = [vm.answered_at for vm in state.serving if state.has(run.name, vm) and vm.answered_at]
    if not ready:
        return 0.0
    slots = (slot for slot, name in state.leases.items() if name == run.name)
    begins = [min(ready), run.started_at, *(state.leased_at.get(slot, 0.0) for slot in slots)]
    begins += [worker.joined_at for worker in run.workers.values()]
    if run.series:
        _, last_step, *_ = run.series[-1]
        begins.append(min(time for time, step, *_ in run.series if step == last_step))
    if run.evaluations:
        begins.append(run.evaluations[-1][0])
    return now - max(begins)


def _stops(study: StudyState, state: ClusterState) -> list[Decision]:
    """Return the stops of runs that continue although their trial has ended."""
    return [
        StopRun(name, save=trial.state == "stopped")
        for trial in study.trials.values()
        if trial.ended
        for name in trial.runs
        if (run := state.of(RunState).get(name)) and not run.over
    ]


def _declarations(study: StudyState, state: ClusterState) -> list[Decision]:
    return [
        DeclareRun(trial.number, repeat)
        for trial in study.running
        for repeat, name in enumerate(trial.runs)
        if name not in state.of(RunState)
    ]


def _impossible(study: StudyState, trial: TrialState, state: ClusterState) -> str:
    """Return why the cluster can never have a trial's machines; empty if it can."""
    machines = study.spec.machines(trial.params)
    if not machines or state.spec is None or state.spec.holds(machines):
        return ""
    return f"{state.spec.name} is {state.spec.spec} now, and holds no {machines}"


def _next(
    study: StudyState, state: ClusterState, slots: Mapping[int, str], now: float
) -> list[Decision]:
    if study.stopping:
        return []
    if reason := _reason_to_end(study, state, now):
        return [EndStudy(reason)]
    if len(study.trials) >= study.planned:
        if study.running:
            return []
        return [EndStudy()]
    if any(name not in state.of(RunState) for trial in study.running for name in trial.runs):
        return []
    if slots and _has_room(study, state, slots, now):
        return [StartTrial(len(study.trials))]
    return []


def _has_room(study: StudyState, state: ClusterState, slots: Mapping[int, str], now: float) -> bool:
    """Return whether the workers of the next trial are free.

    If the sampler chooses the configuration later, those of any configuration count.
    """
    spec = study.spec
    params = point(study.spec, len(study.trials))
    if spec.per_vm > 1 and has_place(study, state, now):
        return True
    if not spec.on:
        return has_room(state, slots, now, min(spec.workers, len(slots)), {})
    if params is None:
        configurations = spec.on
    else:
        configurations = [spec.machines(params)]
    return any(
        # A configuration that does not fit the cluster fails now, so it waits for no worker.
        not (state.spec and state.spec.holds(configuration))
        or has_room(
            state, slots, now, spec.workers_of(configuration), parse_machines(configuration)
        )
        for configuration in configurations
    )


def _reason_to_end(study: StudyState, state: ClusterState, now: float) -> str:
    if state.phase in ("deleting", "deleted"):
        return "its cluster is deleted"
    spec = study.spec
    hours = state.clock.between(study.declared_at, now) / 3600
    if spec.max_hours is not None and hours >= spec.max_hours:
        return f"its limit of {render_duration(3600 * spec.max_hours)} has passed"
    if spec.max_cost is not None and charged(state, study.name, now) >= spec.max_cost:
        return f"its limit of {render_money(spec.max_cost)} is spent"
    ended = [trial for trial in study.trials.values() if trial.ended]
    if (
        len(ended) >= FIRST
        and all(trial.state == "failed" for trial in ended)
        and not _gets_further(study, state)
    ):
        return f"its first {len(ended)} trials failed: {ended[-1].reason}"
    return ""


def _gets_further(study: StudyState, state: ClusterState) -> bool:
    """Return whether a trial that trains has made more steps than any that has ended.

    Some points of a space may diverge immediately.
    """

    def steps(trial: TrialState) -> int:
        return max(
            (state.of(RunState)[name].step for name in trial.runs if name in state.of(RunState)),
            default=0,
        )

    most = max(steps(trial) for trial in study.trials.values() if trial.ended)
    return any(steps(trial) > most for trial in study.running)
