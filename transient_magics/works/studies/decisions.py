"""What is to be done about a study: a pure function of the cluster's state, the places for workers,
and the time.

A study has as many trials under way as have workers, and no more: one is asked for when so many
places are free as it takes, or come free in a moment, after all runs that wait have theirs. So a
run that is declared beside a study comes next, and two studies share a cluster in turns. What is
asked and told is in the journal first; what follows from it (a run declared, a run stopped) is
decided anew at every look, until it has happened.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

from ...controller.decisions.ledger import has_place, has_room
from ...journal import ClusterState, RunState, StudyState, TrialState
from ...journal.cost import charged
from ...protocol.machines import parse_machines
from ...spec import render_duration, render_money
from .sampling import point

FIRST = 3
"""When so many trials have failed, none has not, and none that trains has come further, the study
ends: the next ones would fail, too.
"""


@dataclass(frozen=True, slots=True)
class Tell:
    """The trial has ended so."""

    trial: int
    state: Literal["complete", "pruned", "failed", "stopped"]
    value: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class End:
    """The study asks for no further trial."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Ask:
    """A further trial may begin."""

    trial: int


@dataclass(frozen=True, slots=True)
class Declare:
    """A trial's run is not there yet."""

    trial: int
    repeat: int


@dataclass(frozen=True, slots=True)
class StopRun:
    """The run trains for nobody any more. `save`: with a last checkpoint."""

    run: str
    save: bool


Decision = Tell | End | Ask | Declare | StopRun


def decide(
    study: StudyState,
    state: ClusterState,
    slots: Mapping[int, str],
    now: float,
    pruned: Collection[int] = (),
) -> list[Decision]:
    """All that is to be done now. `slots` are the places of the cluster's workers, each with its
    GPU, `pruned` the trials that the pruner would end.
    """
    told = [
        found for trial in study.running if (found := _outcome(study, trial, state, now, pruned))
    ]
    if told:  # what follows from these is decided when they are in the journal
        return list(told)
    return [*_stops(study, state), *_declarations(study, state), *_next(study, state, slots, now)]


def _outcome(
    study: StudyState, trial: TrialState, state: ClusterState, now: float, pruned: Collection[int]
) -> Tell | None:
    """How the trial has ended; None: it has not."""
    runs = [run for name in trial.runs if (run := state.of(RunState).get(name))]
    if failed := next((run for run in runs if run.phase == "failed"), None):
        return Tell(trial.number, "failed", reason=failed.reason.rstrip("."))
    if any(run.phase == "finished" and run.stopped and not run.reason for run in runs):
        return Tell(trial.number, "stopped", reason="stopped by the user")
    if len(runs) == len(trial.runs) and all(run.over for run in runs):
        return _judged(study, trial.number, runs)
    if study.stopping and (state.phase in ("deleting", "deleted") or not _is_made(trial, runs)):
        return Tell(trial.number, "stopped", reason=study.reason or "the study has ended")
    if hangs := next(
        (run for run in runs if _stands_still(run, state, now) > study.spec.give_up_seconds), None
    ):
        since = render_duration(study.spec.give_up_seconds)
        return Tell(trial.number, "failed", reason=f"{hangs.name} made no step for {since}")
    if any(not state.has_begun(run) for run in runs) and (why := _impossible(study, trial, state)):
        return Tell(trial.number, "failed", reason=why)
    if (
        trial.number in pruned and runs and not runs[0].made
    ):  # then its worker is free, and its value to come
        return Tell(
            trial.number, "pruned", _latest(study, runs[0]), f"pruned at step {runs[0].step:,}"
        )
    return None


def _is_made(trial: TrialState, runs: list[RunState]) -> bool:
    """Whether its steps are, all of them: what it was trained for is its last evaluation, which
    takes no worker.
    """
    return len(runs) == len(trial.runs) and all(run.made or run.over for run in runs)


def _judged(study: StudyState, trial: int, runs: list[RunState]) -> Tell:
    """A trial all of whose runs have ended well, if they were measured."""
    values: list[float] = []
    for run in runs:
        value = run.comes_to(study.spec.goal)
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
            return Tell(trial, "failed", reason=why.rstrip("."))
        values.append(value)
    return Tell(trial, "complete", math.fsum(values) / len(values))


def _latest(study: StudyState, run: RunState) -> float | None:
    value = run.metrics.get(study.spec.goal.metric, math.nan)
    return value if math.isfinite(value) else None


def _stands_still(run: RunState, state: ClusterState, now: float) -> float:
    """For how many seconds a run that has a worker has made no step."""
    if (
        run.over
        or run.made
        or not state.has_begun(run)
        or (run.train_steps and run.step >= run.train_steps)
    ):
        return 0.0
    ready = [vm.answered_at for vm in state.serving if state.has(run.name, vm) and vm.answered_at]
    if not ready:
        return 0.0
    mine = (place for place, name in state.leases.items() if name == run.name)
    begins = [min(ready), run.started_at, *(state.leased_at.get(place, 0.0) for place in mine)]
    begins += [worker.joined_at for worker in run.workers.values()]
    begins += (
        [min(time for time, step, *_ in run.series if step == run.series[-1][1])]
        if run.series
        else []
    )
    begins += [run.evaluations[-1][0]] if run.evaluations else []
    return now - max(begins)


def _stops(study: StudyState, state: ClusterState) -> list[Decision]:
    """Runs that go on though their trial has ended."""
    return [
        StopRun(name, save=trial.state == "stopped")
        for trial in study.trials.values()
        if trial.told
        for name in trial.runs
        if (run := state.of(RunState).get(name)) and not run.over
    ]


def _declarations(study: StudyState, state: ClusterState) -> list[Decision]:
    return [
        Declare(trial.number, repeat)
        for trial in study.running
        for repeat, name in enumerate(trial.runs)
        if name not in state.of(RunState)
    ]


def _impossible(study: StudyState, trial: TrialState, state: ClusterState) -> str:
    """Why the cluster, as it is declared now, can never have the trial's machines; nothing where it
    can.
    """
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
        return [End(reason)]
    if len(study.trials) >= study.wanted:
        if study.running:
            return []
        return [End()]
    if any(name not in state.of(RunState) for trial in study.running for name in trial.runs):
        return []
    if slots and _has_room(study, state, slots, now):
        return [Ask(len(study.trials))]
    return []


def _has_room(study: StudyState, state: ClusterState, slots: Mapping[int, str], now: float) -> bool:
    """Whether the next trial's workers are free: of a sampler that learns, those of its smallest
    configuration.
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
        not (state.spec and state.spec.holds(configuration))  # it will fail, and holds up nobody
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
    told = [trial for trial in study.trials.values() if trial.told]
    if (
        len(told) >= FIRST
        and all(trial.state == "failed" for trial in told)
        and not _gets_further(study, state)
    ):
        return f"its first {len(told)} trials failed: {told[-1].reason}"
    return ""


def _gets_further(study: StudyState, state: ClusterState) -> bool:
    """Whether a trial trains that has made more steps than any that has ended, as where some points
    diverge at once.
    """

    def steps(trial: TrialState) -> int:
        return max(
            (state.of(RunState)[name].step for name in trial.runs if name in state.of(RunState)),
            default=0,
        )

    most = max(steps(trial) for trial in study.trials.values() if trial.told)
    return any(steps(trial) > most for trial in study.running)
