"""What events of runs and of their workers do: steps, checkpoints, evaluations, ends."""

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
from ..state import ClusterState, RunState, WorkerState, unknown_run
from .rules import Rules, changed, put, with_work

rules = Rules()


SERIES = 720


MARKS = 120


MOST_MEASURED = 1000


WAITED = 12


@rules.of(WorkerJoined)
def _(state: ClusterState, event: WorkerJoined) -> ClusterState:
    run = state.of(RunState).get(event.run)
    vm = state.vms.get(event.worker)
    if vm and vm.boots_as in state.unfit:
        state = changed(
            state, unfit={key: times for key, times in state.unfit.items() if key != vm.boots_as}
        )
    worker = WorkerState(event.worker, event.number, event.at)
    workers = {**(run.workers if run else {}), event.worker: worker}
    if len(workers) > MOST_WORKERS:  # a chief may say so of any name
        del workers[next(iter(workers))]
    took = event.at - max(vm.answered_at if vm else 0.0, run.declared_at if run else 0.0)
    return with_run(
        state,
        event.run,
        workers=workers,
        deadline=_timed(run, lambda known: known.joined(event.worker, took)),
    )


@rules.of(WorkerLeft)
def _(state: ClusterState, event: WorkerLeft) -> ClusterState:
    run = state.of(RunState).get(event.run)
    if run:
        workers = dict(run.workers)
    else:
        workers = {}
    if (worker := workers.get(event.worker)) and worker.number == event.number:
        del workers[event.worker]
    return with_run(state, event.run, workers=workers, deadline=_timed(run, DeadlineState.changed))


def begin(name: str, spec: Mapping[str, object], at: float) -> RunState:
    """Return the state of a run that was declared at a moment (seconds since 1970)."""
    known = checks.known(RunSpec, spec)
    known.pop("name", None)
    run = replace(unknown_run(name, **known), declared_at=at)
    return replace(run, deadline=DeadlineState() if run.spec.finish_by else None)


@rules.of(e.TrainChecked)
def _(state: ClusterState, event: e.TrainChecked) -> ClusterState:
    counted: dict[str, object] = {
        "parameters": event.parameters,
        "variable_bytes": event.variable_bytes,
    }
    spec = state.of(RunState)[event.run].spec
    fit = FitDeclaration(event.steps, event.epoch_steps, event.keep_best, event.stop_when)
    if event.steps:
        counted["spec"] = fit.applied(spec)
    return with_run(state, event.run, checked=True, **counted)


@rules.of(e.TrainMoved)
def _(state: ClusterState, event: e.TrainMoved) -> ClusterState:
    queue = [run.name for run in state.queue]
    if event.run not in queue:
        raise ValueError(f"{event.run} does not wait")
    order = [claim.name for claim in state.claims if claim.name != event.run]
    queue.remove(event.run)
    if event.before and event.before not in queue:
        raise ValueError(f"{event.before} does not wait")
    before = event.before or next(iter(queue), "")
    order.insert(order.index(before) if before else len(order), event.run)
    return changed(state, order=tuple(order))


@rules.of(TrainStarted)
def _(state: ClusterState, event: TrainStarted) -> ClusterState:
    run = state.of(RunState).get(event.run)
    started = (run.started_at if run else 0.0) or event.at
    parameters = event.parameters or (run.parameters if run else 0)
    made = bool(
        run and run.made and event.step >= run.step
    )  # else its last steps went with a parameter server's VM
    deadline = _timed(run, lambda known: known.started(event.at, event.step))
    return with_run(
        state,
        event.run,
        phase="running",
        started_at=started,
        step=event.step,
        slow=None,
        parameters=parameters,
        made=made,
        deadline=deadline,
    )


@rules.of(TrainProgress)
def _(state: ClusterState, event: TrainProgress) -> ClusterState:
    run = state.of(RunState).get(event.run)
    point = (event.at, event.step, event.loss, event.steps_per_second)
    series = _longer(run.series if run else (), point, SERIES)
    machines = _machines(state, run)
    deadline = _timed(
        run, lambda known: known.told(event.at, event.step, machines, state.clock.rate)
    )
    known: dict[str, object] = {
        "steps_per_second": event.steps_per_second,
        "series": series,
        "deadline": deadline,
    }
    if run and run.spec.prep:
        told = (*run.preparation.waited, (event.at, min(event.waiting, 1.0)))
        known["preparation"] = replace(run.preparation, waited=told[-WAITED:])
    if run and event.server_bytes > run.server_bytes:
        known["server_bytes"] = event.server_bytes
    return with_run(state, event.run, step=event.step, loss=event.loss, **known)


@rules.of(e.PreparationScaled)
def _(state: ClusterState, event: e.PreparationScaled) -> ClusterState:
    if others := [
        slot for slot in event.slots if state.preparers.get(slot, event.run) != event.run
    ]:
        raise ValueError(f"slot {others[0]} is another run's")
    known = state.of(RunState)[event.run].preparation
    more = len(event.slots) > len(known.slots)
    new = replace(
        known,
        slots=event.slots,
        since=event.at,
        gave_back=known.gave_back or len(event.slots) < len(known.slots),
        least=len(event.slots) if more and known.gave_back else known.least,
    )
    preparers = {**state.preparers, **dict.fromkeys(event.slots, event.run)}
    return changed(with_run(state, event.run, preparation=new), preparers=preparers)


@rules.of(TrainData)
def _(state: ClusterState, event: TrainData) -> ClusterState:
    return with_run(state, event.run, data=event)


@rules.of(TrainCheckpoint)
def _(state: ClusterState, event: TrainCheckpoint) -> ClusterState:
    run = state.of(RunState).get(event.run)
    checkpoints = _longer(run.checkpoints if run else (), (event.at, event.step), MARKS)
    known = {
        "checkpoint_step": event.step,
        "checkpoint": event.path,
        "checkpoints": checkpoints,
        "unsaved": None,
    }
    deadline = _timed(run, lambda known: known.saved(event.step, event.seconds))
    # Progress is told every few seconds only: what was saved since is no less than that.
    return with_run(
        state, event.run, step=max(run.step if run else 0, event.step), deadline=deadline, **known
    )


@rules.of(TrainUnsaved)
def _(state: ClusterState, event: TrainUnsaved) -> ClusterState:
    return with_run(state, event.run, unsaved=(event.at, event.step, event.reason))


@rules.of(TrainShipped)
def _(state: ClusterState, event: TrainShipped) -> ClusterState:
    return with_run(state, event.run, shipped_step=event.step, shipped=event.path)


@rules.of(TrainEvaluated)
def _(state: ClusterState, event: TrainEvaluated) -> ClusterState:
    run = state.of(RunState).get(event.run)
    if run is None:
        return state
    # A run may be evaluated again after it is over.
    metrics = {**event.metrics, **dict.fromkeys(event.undefined, math.nan)}
    evaluations = _longer(run.evaluations, (event.at, event.step, metrics), MARKS)
    of = event.examples, event.complete, event.of, event.endless
    run = changed(run, metrics=metrics, evaluated=of, evaluations=evaluations, unevaluated=None)
    return put(state, run)


@rules.of(TrainOrder)
def _(state: ClusterState, event: TrainOrder) -> ClusterState:
    return with_run(state, event.run, order=event.reason)


@rules.of(TrainBest)
def _(state: ClusterState, event: TrainBest) -> ClusterState:
    run = state.of(RunState).get(event.run)
    known = run.best if run else None
    if known and not event.shipped and (known.step, known.value) == (event.step, event.value):
        event = replace(event, shipped=known.shipped)
    return with_run(state, event.run, best=event)


@rules.of(TrainUnevaluated)
def _(state: ClusterState, event: TrainUnevaluated) -> ClusterState:
    return with_run(state, event.run, unevaluated=(event.at, event.step, event.reason))


@rules.of(e.TrainTraced)
def _(state: ClusterState, event: e.TrainTraced) -> ClusterState:
    return with_run(state, event.run, traced=event)


@rules.of(TrainSlow)
def _(state: ClusterState, event: TrainSlow) -> ClusterState:
    return with_run(state, event.run, slow=event)


@rules.of(TrainRecovered)
def _(state: ClusterState, event: TrainRecovered) -> ClusterState:
    return with_run(state, event.run, slow=None)


@rules.of(TrainMeasured)
def _(state: ClusterState, event: TrainMeasured) -> ClusterState:
    run = state.of(RunState).get(event.run)
    measured = (*(run.measured if run else ()), event)[-MOST_MEASURED:]
    return with_run(state, event.run, measured=measured, step=len(measured))


@rules.of(TrainMade)
def _(state: ClusterState, event: TrainMade) -> ClusterState:
    return with_run(state, event.run, made=True, step=event.step, steps_per_second=0.0, slow=None)


@rules.of(TrainFinished)
def _(state: ClusterState, event: TrainFinished) -> ClusterState:
    run = state.of(RunState).get(event.run)
    return with_run(
        state,
        event.run,
        phase="finished",
        ended_at=event.at,
        step=event.step,
        loss=event.loss if event.loss is not None or run is None else run.loss,
        steps_per_second=0.0,
        slow=None,
        workers={},
        checkpoint=event.checkpoint or (run.checkpoint if run else ""),
        stopped=event.stopped,
        reason=event.reason,
    )


@rules.of(TrainFailed)
def _(state: ClusterState, event: TrainFailed) -> ClusterState:
    return with_run(
        state,
        event.run,
        phase="failed",
        ended_at=event.at,
        reason=event.reason,
        steps_per_second=0.0,
        slow=None,
        workers={},
    )


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


def _timed(
    run: RunState | None, change: Callable[[DeadlineState], DeadlineState]
) -> DeadlineState | None:
    """What is known of a run with a deadline, with this change; None of any other run."""
    if run and run.deadline:
        return change(run.deadline)
    return None


def _machines(state: ClusterState, run: RunState | None) -> str:
    """The workers that train in the run now; empty where there are none."""
    vms = [state.vms[name] for name in (run.workers if run else ()) if name in state.vms]
    return render_machines(dict(sorted(Counter(vm.accelerator or "cpu" for vm in vms).items())))


_Timed = TypeVar("_Timed", bound=tuple[float, *tuple[object, ...]])


def _longer(points: tuple[_Timed, ...], new: _Timed, most: int) -> tuple[_Timed, ...]:
    """With one more at the end. Points begin with their time; where there would be too many, half
    of them stay, at about equal distances.
    """
    if len(points) >= most:
        apart = (new[0] - points[0][0]) * 2 / most
        kept = [points[0]]
        for point in points:
            if point[0] - kept[-1][0] >= apart > 0:
                kept.append(point)
        points = tuple(kept)
    return (*points, new)
