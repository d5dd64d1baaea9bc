"""The rules for events of runs, of their workers and of their deadlines.

Most rules need only the run. `@_run_rule(EVENT)` makes a rule of a function that returns the run's
changed fields. Events of unknown runs, and of runs that are over, change nothing: a chief may
report late.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from ...protocol import checks
from ...protocol.machines import MOST_WORKERS, render_machines
from ...protocol.run import FitDeclaration, RunSpec
from ...protocol.vm_events import (
    TrainBest,
    TrainCheckpoint,
    TrainData,
    TrainEpoch,
    TrainEvaluated,
    TrainFailed,
    TrainFinished,
    TrainMade,
    TrainMeasured,
    TrainOrder,
    TrainProgress,
    TrainRecovered,
    TrainShipped,
    TrainSlow,
    TrainStarted,
    TrainUnevaluated,
    TrainUnsaved,
    WorkerJoined,
    WorkerLeft,
)
from .. import events as e
from ..deadlines import DeadlineState
from ..events import Event
from ..state import ClusterState, EvaluatedPart, RunState, WorkerState, unknown_run
from .rules import Rules, changed, put, with_work

rules = Rules()
SERIES = 720
"""Maximum number of points of a run's series."""
MARKS = 120
"""Maximum number of checkpoints of a run, of evaluations, and of epochs."""
MOST_MEASURED = 1000
"""Maximum number of stall measures of a run: the latest."""
WAITED = 12
"""Maximum number of reports of a run on its workers' waiting for mini-batches: the latest."""
_Kind = TypeVar("_Kind", bound=Event)
_Changes = Mapping[str, object]


def _run_rule(
    kind: type[_Kind],
) -> Callable[[Callable[[RunState, _Kind], _Changes]], Callable[[RunState, _Kind], _Changes]]:
    """Return a decorator that makes a rule of a function returning the changed fields of a run."""

    def register(
        changes: Callable[[RunState, _Kind], _Changes],
    ) -> Callable[[RunState, _Kind], _Changes]:
        @rules.of(kind)
        def _(state: ClusterState, event: _Kind) -> ClusterState:
            run = state.of(RunState).get(event.work_of("run"))
            if run is None or run.over:
                return state
            return put(state, changed(run, **changes(run, event)))

        return changes

    return register


@rules.of(WorkerJoined)
def _(state: ClusterState, event: WorkerJoined) -> ClusterState:
    vm = state.vms.get(event.worker)
    answered_at = 0.0
    if vm:
        answered_at = vm.answered_at
        # A VM of this kind can train, so the ones that were unfit no longer count.
        unfit = {key: times for key, times in state.unfit.items() if key != vm.boots_as}
        state = changed(state, unfit=unfit)
    run = state.of(RunState).get(event.run)
    if run is None:
        return state
    worker = WorkerState(event.worker, event.number, event.at)
    workers = {**run.workers, event.worker: worker}
    # The limit bounds the state: a chief may report workers with any names.
    if len(workers) > MOST_WORKERS:
        del workers[next(iter(workers))]
    took = event.at - max(answered_at, run.declared_at)
    deadline = run.deadline
    if deadline:
        deadline = deadline.joined(event.worker, took)
    return with_run(state, event.run, workers=workers, deadline=deadline)


@_run_rule(WorkerLeft)
def _(run: RunState, event: WorkerLeft) -> _Changes:
    workers = dict(run.workers)
    worker = workers.get(event.worker)
    # A worker that joined again under the same name has a new number, and stays.
    if worker and worker.number == event.number:
        del workers[event.worker]
    deadline = run.deadline
    if deadline:
        deadline = deadline.changed()
    return {"workers": workers, "deadline": deadline}


def begin(name: str, spec: Mapping[str, object], at: float) -> RunState:
    """Return the state of a run that was declared at a moment (seconds since 1970)."""
    fields = checks.known_fields(RunSpec, spec)
    fields.pop("name", None)
    run = replace(unknown_run(name, **fields), declared_at=at)
    if run.spec.finish_by:
        return replace(run, deadline=DeadlineState())
    return run


@rules.of(e.TrainChecked)
def _(state: ClusterState, event: e.TrainChecked) -> ClusterState:
    counted: dict[str, object] = {
        "parameters": event.parameters,
        "variable_bytes": event.variable_bytes,
    }
    spec = state.of(RunState)[event.run].spec
    counted["spec"] = FitDeclaration.of(event).applied(spec)
    return with_run(state, event.run, checked=True, **counted)


@rules.of(e.TrainMoved)
def _(state: ClusterState, event: e.TrainMoved) -> ClusterState:
    queue = [run.name for run in state.queue]
    if event.run not in queue:
        raise ValueError(f"{event.run} is not in the queue")
    order = [claim.name for claim in state.claims if claim.name != event.run]
    queue.remove(event.run)
    if event.before and event.before not in queue:
        raise ValueError(f"{event.before} is not in the queue")
    before = event.before or next(iter(queue), "")
    order.insert(order.index(before) if before else len(order), event.run)
    return changed(state, order=tuple(order))


@_run_rule(TrainStarted)
def _(run: RunState, event: TrainStarted) -> _Changes:
    deadline = run.deadline
    if deadline:
        deadline = deadline.started(event.at, event.step)
    spec = run.spec
    if event.steps:
        # A phase may be shorter or longer than the check of the run expected.
        spec = replace(spec, train_steps=event.steps)
    return {
        "spec": spec,
        "phase": "running",
        "started_at": run.started_at or event.at,
        "step": event.step,
        "slow": None,
        "parameters": event.parameters or run.parameters,
        # A run that starts at an earlier step lost its last steps with a parameter server's VM.
        "made": run.made and event.step >= run.step,
        "deadline": deadline,
    }


@rules.of(TrainProgress)
def _(state: ClusterState, event: TrainProgress) -> ClusterState:
    run = state.of(RunState).get(event.run)
    if run is None:
        return state
    point = (event.at, event.step, event.loss, event.steps_per_second)
    changes: dict[str, object] = {
        "step": event.step,
        "loss": event.loss,
        "steps_per_second": event.steps_per_second,
        "series": _longer(run.series, point, SERIES),
    }
    if run.deadline:
        machines = _machines(state, run)
        changes["deadline"] = run.deadline.progressed(
            event.at, event.step, machines, state.clock.rate
        )
    if run.spec.prep:
        waited = (*run.preparation.waited, (event.at, min(event.waiting, 1.0)))
        changes["preparation"] = replace(run.preparation, waited=waited[-WAITED:])
    if event.server_bytes > run.server_bytes:
        changes["server_bytes"] = event.server_bytes
    return with_run(state, event.run, **changes)


@rules.of(e.PreparationScaled)
def _(state: ClusterState, event: e.PreparationScaled) -> ClusterState:
    if others := [
        slot for slot in event.slots if state.preparers.get(slot, event.run) != event.run
    ]:
        raise ValueError(f"slot {others[0]} belongs to another run")
    before = state.of(RunState)[event.run].preparation
    count = len(event.slots)
    least = before.least
    # The run returned VMs and needs more again, so it keeps at least as many from now on.
    if count > len(before.slots) and before.gave_back:
        least = count
    preparation = replace(
        before,
        slots=event.slots,
        since=event.at,
        gave_back=before.gave_back or count < len(before.slots),
        least=least,
    )
    preparers = {**state.preparers, **dict.fromkeys(event.slots, event.run)}
    return changed(with_run(state, event.run, preparation=preparation), preparers=preparers)


@_run_rule(TrainData)
def _(run: RunState, event: TrainData) -> _Changes:
    return {"data": event}


@_run_rule(TrainCheckpoint)
def _(run: RunState, event: TrainCheckpoint) -> _Changes:
    deadline = run.deadline
    if deadline:
        deadline = deadline.saved(event.step, event.seconds)
    return {
        # Progress is reported only every few seconds, so a checkpoint may have a later step.
        "step": max(run.step, event.step),
        "checkpoint_step": event.step,
        "checkpoint": event.path,
        "checkpoints": _longer(run.checkpoints, (event.at, event.step), MARKS),
        "unsaved": None,
        "deadline": deadline,
    }


@_run_rule(TrainUnsaved)
def _(run: RunState, event: TrainUnsaved) -> _Changes:
    return {"unsaved": (event.at, event.step, event.reason)}


@_run_rule(TrainShipped)
def _(run: RunState, event: TrainShipped) -> _Changes:
    return {"shipped_step": event.step, "shipped": event.path}


@rules.of(TrainEvaluated)
def _(state: ClusterState, event: TrainEvaluated) -> ClusterState:
    run = state.of(RunState).get(event.run)
    if run is None:
        return state
    # A run may be evaluated again after it is over.
    metrics = {**event.metrics, **dict.fromkeys(event.undefined, math.nan)}
    evaluations = _longer(run.evaluations, (event.at, event.step, metrics), MARKS)
    part = EvaluatedPart(event.examples, event.complete, event.of, event.endless)
    run = changed(run, metrics=metrics, evaluated=part, evaluations=evaluations, unevaluated=None)
    return put(state, run)


@_run_rule(TrainEpoch)
def _(run: RunState, event: TrainEpoch) -> _Changes:
    return {"epochs": _longer(run.epochs, (event.at, event.step, event.logs), MARKS)}


@_run_rule(TrainOrder)
def _(run: RunState, event: TrainOrder) -> _Changes:
    return {"order": event.reason}


@_run_rule(TrainBest)
def _(run: RunState, event: TrainBest) -> _Changes:
    best = run.best
    # The chief reports the same evaluation again, first without the path in the bucket.
    if best and not event.shipped and (best.step, best.value) == (event.step, event.value):
        event = replace(event, shipped=best.shipped)
    return {"best": event}


@_run_rule(TrainUnevaluated)
def _(run: RunState, event: TrainUnevaluated) -> _Changes:
    return {"unevaluated": (event.at, event.step, event.reason)}


@_run_rule(e.TrainTraced)
def _(run: RunState, event: e.TrainTraced) -> _Changes:
    return {"traced": event}


@_run_rule(TrainSlow)
def _(run: RunState, event: TrainSlow) -> _Changes:
    return {"slow": event}


@_run_rule(TrainRecovered)
def _(run: RunState, event: TrainRecovered) -> _Changes:
    return {"slow": None}


@_run_rule(TrainMeasured)
def _(run: RunState, event: TrainMeasured) -> _Changes:
    measured = (*run.measured, event)[-MOST_MEASURED:]
    return {"measured": measured, "step": len(measured)}


@_run_rule(TrainMade)
def _(run: RunState, event: TrainMade) -> _Changes:
    return {"made": True, "step": event.step, "steps_per_second": 0.0, "slow": None}


@_run_rule(TrainFinished)
def _(run: RunState, event: TrainFinished) -> _Changes:
    loss = event.loss
    if loss is None:
        loss = run.loss
    return {
        **_end("finished", event),
        "step": event.step,
        "loss": loss,
        "checkpoint": event.checkpoint or run.checkpoint,
        "stopped": event.stopped,
    }


@_run_rule(TrainFailed)
def _(run: RunState, event: TrainFailed) -> _Changes:
    return _end("failed", event)


def _end(phase: str, event: TrainFinished | TrainFailed) -> _Changes:
    """Return the fields that change at every end of a run."""
    return {
        "phase": phase,
        "ended_at": event.at,
        "reason": event.reason,
        "steps_per_second": 0.0,
        "slow": None,
        "workers": {},
    }


# Deadlines


@rules.of(e.DeadlineActed)
def _(state: ClusterState, event: e.DeadlineActed) -> ClusterState:
    return _with_deadline(state, event.run, acted=event, proposed=None)


@rules.of(e.DeadlineProposed)
def _(state: ClusterState, event: e.DeadlineProposed) -> ClusterState:
    return _with_deadline(state, event.run, proposed=event if event.until else None)


@rules.of(e.DeadlineOutlook)
def _(state: ClusterState, event: e.DeadlineOutlook) -> ClusterState:
    return _with_deadline(state, event.run, outlook=event)


@rules.of(e.DeadlineLate)
def _(state: ClusterState, event: e.DeadlineLate) -> ClusterState:
    return _with_deadline(state, event.run, late=None if event.again else event)


def _with_deadline(state: ClusterState, name: str, **changes: object) -> ClusterState:
    run = state.of(RunState)[name]
    if run.deadline is None:
        raise ValueError(f"{name} has no deadline")
    return with_run(state, name, deadline=replace(run.deadline, **changes))


def with_run(state: ClusterState, name: str, /, **changes: object) -> ClusterState:
    """Change a run, unless it is over or unknown."""
    if name in state.of(RunState):
        return with_work(state, "run", name, **changes)
    return state


def _machines(state: ClusterState, run: RunState) -> str:
    """Return the machines of the run's present workers, such as `k80x2`; empty if it has none."""
    vms = [state.vms[name] for name in run.workers if name in state.vms]
    return render_machines(dict(sorted(Counter(vm.accelerator or "cpu" for vm in vms).items())))


_Timed = TypeVar("_Timed", bound=tuple[float, *tuple[object, ...]])


def _longer(points: tuple[_Timed, ...], new: _Timed, most: int) -> tuple[_Timed, ...]:
    """Return the points with one more at the end. Each begins with its time.

    If there would be too many, about half of them are kept, at about equal distances.
    """
    if len(points) >= most:
        apart = (new[0] - points[0][0]) * 2 / most
        kept = [points[0]]
        for point in points:
            if point[0] - kept[-1][0] >= apart > 0:
                kept.append(point)
        points = tuple(kept)
    return (*points, new)
