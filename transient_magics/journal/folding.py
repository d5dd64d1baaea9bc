"""What follows from an event: the rules by which a journal's events add up to a ClusterState. No clock, no file.

`fold(state, event)` returns the next state and never changes the old one; `replay(events)` folds them all. Folding an
event twice does not happen, because events carry their `seq` and older ones are passed over.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeVar, cast

from ..errors import JournalError, TransientError
from ..protocol import checks
from ..protocol.run import RunSpec
from ..protocol.study import StudySpec
from ..spec import ClusterSpec
from . import events as e
from .clock import Clock
from .events import Event
from .state import ClusterState, RunState, VmState, WorkerState, unknown_run
from .studies import StudyState, TrialState

MOST_LOST = 1_000_000
"""So many events may be missing before the next one: numbers that others choose must leave room for ours."""
RECENT = 60
UNEXPECTED = "it came after it was given up"
"""Why a VM is of no use that runs though it had been called refused or gone."""
SERIES = 720
MARKS = 120


def replay(history: Iterable[Event], state: ClusterState | None = None) -> ClusterState:
    """Fold all of `history`, from the empty state or from `state` on. Events that do not fit are passed over."""
    state = state or ClusterState()
    for event in history:
        try:
            state = fold(state, event)
        except JournalError:
            state = _changed(state, passed_over=state.passed_over + 1)
    return state


def fold(state: ClusterState, event: Event) -> ClusterState:
    """The state after `event`. Events that were folded already (by their seq) change nothing.

    Raises JournalError for an event that nothing can be made of; as yet it was not folded then.
    """
    if event.seq and event.seq <= state.seq:
        return state
    if event.seq > state.seq + MOST_LOST:
        raise JournalError(f"An event of number {event.seq} cannot follow on number {state.seq}")
    if rule := _RULES.get(type(event)):
        try:
            state = rule(state, event)
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, TransientError) as error:
            raise JournalError(f"A {event.kind} event makes no sense: {error}") from error
    recent = state.recent
    if not isinstance(event, (e.TrainProgress, e.VmTraffic, e.Unknown)):
        recent = (*recent[1 - RECENT :], event)
    return _changed(state, seq=max(event.seq, state.seq), recent=recent)


_Value = TypeVar("_Value", ClusterState, VmState, RunState, StudyState, TrialState)


def _changed(value: _Value, /, **changes: object) -> _Value:
    """As `dataclasses.replace`, which takes four times as long; a month's journal is folded when a panel opens."""
    new = object.__new__(type(value))
    for name in value.__slots__:
        object.__setattr__(new, name, changes[name] if name in changes else getattr(value, name))
    return new


_Kind = TypeVar("_Kind", bound=Event)
_Rule = Callable[[ClusterState, _Kind], ClusterState]
_RULES: dict[type[Event], _Rule[Event]] = {}


def _rule(*kinds: type[_Kind]) -> Callable[[_Rule[_Kind]], _Rule[_Kind]]:
    def register(function: _Rule[_Kind]) -> _Rule[_Kind]:
        _RULES.update(dict.fromkeys(kinds, cast("_Rule[Event]", function)))  # it gets events of these kinds alone
        return function

    return register


def _with_vm(state: ClusterState, name: str, /, **changes: object) -> ClusterState:
    vm = state.vms.get(name)
    if vm is None or not vm.living:
        return state
    return _changed(state, vms={**state.vms, name: _changed(vm, **changes)})


def _stopping(vm: VmState | None, event: e.VmRevoked | e.VmDeleted) -> float:
    return _between(vm.started_at or vm.running_at, event.stopping, event.at) if vm else 0.0


def _between(earliest: float, told: int, latest: float) -> float:
    """A moment that another machine told (ns), in seconds; 0 where it does not lie between these."""
    moment = told / 1e9
    return moment if earliest <= moment <= latest else 0.0


def _with_run(state: ClusterState, name: str, /, **changes: object) -> ClusterState:
    run = state.runs.get(name)
    if run is None or run.over:
        return state
    return _changed(state, runs={**state.runs, name: _changed(run, **changes)})


_Timed = TypeVar("_Timed", bound=tuple[float, *tuple[object, ...]])


def _longer(points: tuple[_Timed, ...], new: _Timed, most: int) -> tuple[_Timed, ...]:
    """With one more at the end. Points begin with their time; where there would be too many, half of them stay, at
    about equal distances."""
    if len(points) >= most:
        apart = (new[0] - points[0][0]) * 2 / most
        kept = [points[0]]
        for point in points:
            if point[0] - kept[-1][0] >= apart > 0:
                kept.append(point)
        points = tuple(kept)
    return (*points, new)


@_rule(e.ClusterDeclared)
def _(state: ClusterState, event: e.ClusterDeclared) -> ClusterState:
    spec = ClusterSpec.from_dict(event.spec)
    return _changed(state, name=spec.name, spec=spec, phase="provisioning", declared_at=event.at)


@_rule(e.ClusterResized)
def _(state: ClusterState, event: e.ClusterResized) -> ClusterState:
    return _changed(state, spec=ClusterSpec.from_dict(event.spec), failed_boots={}, unfit={})


@_rule(e.ClusterZonesFound, e.ClusterPriced)
def _(state: ClusterState, event: e.ClusterZonesFound | e.ClusterPriced) -> ClusterState:
    return _changed(state, spec=ClusterSpec.from_dict(event.spec))


@_rule(e.ClusterClock)
def _(state: ClusterState, event: e.ClusterClock) -> ClusterState:
    if not event.anchors or (state.spec and not state.spec.emulated):
        raise ValueError("Google's clock is that of this machine")
    return _changed(state, clock=Clock(event.anchors))


@_rule(e.ClusterImageChosen)
def _(state: ClusterState, event: e.ClusterImageChosen) -> ClusterState:
    if state.spec is None:
        return state
    return _changed(state, spec=replace(state.spec, image=event.image or None, image_for_gpus=event.gpu))


@_rule(e.ClusterReady)
def _(state: ClusterState, event: e.ClusterReady) -> ClusterState:
    return _changed(state, phase="ready", ready_at=event.at) if state.phase == "provisioning" else state


@_rule(e.ClusterAdvised)
def _(state: ClusterState, event: e.ClusterAdvised) -> ClusterState:
    return _changed(state, advice={**state.advice, event.accelerator: event})


@_rule(e.ClusterDeleting)
def _(state: ClusterState, event: e.ClusterDeleting) -> ClusterState:
    return _changed(state, phase="deleting", reason=event.reason)


@_rule(e.ClusterDeleted)
def _(state: ClusterState, event: e.ClusterDeleted) -> ClusterState:
    return _changed(state, phase="deleted", ended_at=event.at, trouble="")


@_rule(e.VmRequested)
def _(state: ClusterState, event: e.VmRequested) -> ClusterState:
    vm = VmState(
        name=event.vm,
        role=event.role,
        slot=event.slot,
        zone=event.zone,
        accelerator=event.accelerator,
        machine_type=event.machine_type,
        provisioning_model=event.provisioning_model,
        hourly=event.hourly,
        on_demand_hourly=event.on_demand_hourly,
        replaces=event.replaces,
        requested_at=event.at,
    )
    return _changed(state, vms={**state.vms, event.vm: vm})


@_rule(e.VmRefused)
def _(state: ClusterState, event: e.VmRefused) -> ClusterState:
    return _with_vm(
        state,
        event.vm,
        state="refused",
        reason=event.reason,
        cause=event.cause,
        hints=tuple(event.hints),
        ended_at=event.at,
    )


@_rule(e.VmRunning)
def _(state: ClusterState, event: e.VmRunning) -> ClusterState:
    vm = state.vms.get(event.vm)
    if vm and not vm.living and not vm.running_at:  # it costs money, whoever said that it cannot be had
        vm = _changed(vm, state="requested", failure=vm.failure or UNEXPECTED, reason="", cause="", ended_at=0.0)
        state = _changed(state, vms={**state.vms, event.vm: vm})
    return _with_vm(
        state,
        event.vm,
        state="booting" if vm and vm.state == "requested" else vm.state if vm else "booting",
        address=event.address,
        external_address=event.external_address,
        vm_id=event.vm_id,
        running_at=(vm.running_at if vm else 0.0) or event.at,
        started_at=(vm.started_at or _between(vm.requested_at, event.started, event.at)) if vm else 0.0,
    )


@_rule(e.VmBootStep)
def _(state: ClusterState, event: e.VmBootStep) -> ClusterState:
    return _with_vm(state, event.vm, step=event.what)


@_rule(e.VmBootFailed)
def _(state: ClusterState, event: e.VmBootFailed) -> ClusterState:
    vm = state.vms.get(event.vm)
    if vm is None or not vm.living or vm.failure:
        return state
    failed = {
        **state.failed_boots,
        vm.boots_as: state.failed_boots.get(vm.boots_as, 0) + 1,
    }
    return _changed(_with_vm(state, event.vm, failure=event.reason), failed_boots=failed)


@_rule(e.VmUnfit)
def _(state: ClusterState, event: e.VmUnfit) -> ClusterState:
    vm = state.vms.get(event.vm)
    if vm is None or not vm.living or vm.failure:
        return state
    unfit = {**state.unfit, vm.boots_as: state.unfit.get(vm.boots_as, 0) + 1}
    return _changed(_with_vm(state, event.vm, failure=event.reason), unfit=unfit)


@_rule(e.VmReady)
def _(state: ClusterState, event: e.VmReady) -> ClusterState:
    vm = state.vms.get(event.vm)
    if vm is None or not vm.living or vm.state == "leaving":
        return state
    if vm.boots_as in state.failed_boots:
        failed = {key: times for key, times in state.failed_boots.items() if key != vm.boots_as}
        state = _changed(state, failed_boots=failed)
    return _with_vm(state, event.vm, state="ready", step="", ready_at=vm.ready_at or event.at)


@_rule(e.VmPreemptionNotice)
def _(state: ClusterState, event: e.VmPreemptionNotice) -> ClusterState:
    return _with_vm(state, event.vm, state="leaving", noticed_at=event.at)


@_rule(e.VmTraffic)
def _(state: ClusterState, event: e.VmTraffic) -> ClusterState:
    vm = state.vms.get(event.vm)
    if vm is None:
        return state
    total, since = event.sent + event.received, vm.traffic_at or vm.running_at
    rate = (total - vm.traffic_bytes) / (event.at - since) if event.at > since > 0 else 0.0
    return _with_vm(state, event.vm, traffic_bytes=total, traffic_rate=max(0.0, rate), traffic_at=event.at)


@_rule(e.VmRevoked)
def _(state: ClusterState, event: e.VmRevoked) -> ClusterState:
    vm = state.vms.get(event.vm)
    counted = state.revocations + (1 if vm and vm.living else 0)
    ended = _with_vm(state, event.vm, state="revoked", ended_at=event.at, stopping_at=_stopping(vm, event))
    return _changed(ended, revocations=counted)


@_rule(e.VmDeleted)
def _(state: ClusterState, event: e.VmDeleted) -> ClusterState:
    stopping = _stopping(state.vms.get(event.vm), event)
    return _with_vm(state, event.vm, state="deleted", reason=event.reason, ended_at=event.at, stopping_at=stopping)


@_rule(e.WorkerJoined)
def _(state: ClusterState, event: e.WorkerJoined) -> ClusterState:
    run, vm = state.runs.get(event.run), state.vms.get(event.worker)
    if vm and vm.boots_as in state.unfit:
        state = _changed(state, unfit={key: times for key, times in state.unfit.items() if key != vm.boots_as})
    worker = WorkerState(event.worker, event.number, event.at)
    return _with_run(state, event.run, workers={**(run.workers if run else {}), event.worker: worker})


@_rule(e.WorkerLeft)
def _(state: ClusterState, event: e.WorkerLeft) -> ClusterState:
    run = state.runs.get(event.run)
    workers = dict(run.workers) if run else {}
    if (worker := workers.get(event.worker)) and worker.number == event.number:
        del workers[event.worker]
    return _with_run(state, event.run, workers=workers)


@_rule(e.TrainDeclared)
def _(state: ClusterState, event: e.TrainDeclared) -> ClusterState:
    known = checks.known(RunSpec, event.spec)
    known.pop("name", None)
    run = replace(unknown_run(event.run, **known), declared_at=event.at)
    return _changed(state, runs={**state.runs, event.run: run})


@_rule(e.TrainChecked)
def _(state: ClusterState, event: e.TrainChecked) -> ClusterState:
    counted = {"parameters": event.parameters, "variable_bytes": event.variable_bytes}
    return _with_run(state, event.run, checked=True, **counted)


@_rule(e.TrainMoved)
def _(state: ClusterState, event: e.TrainMoved) -> ClusterState:
    queue = [run.name for run in state.queue]
    if event.run not in queue:
        raise ValueError(f"{event.run} does not wait")
    order = [run.name for run in state.turns if run.name != event.run]
    queue.remove(event.run)
    if event.before and event.before not in queue:
        raise ValueError(f"{event.before} does not wait")
    before = event.before or next(iter(queue), "")
    order.insert(order.index(before) if before else len(order), event.run)
    return _changed(state, order=tuple(order))


@_rule(e.TrainStarted)
def _(state: ClusterState, event: e.TrainStarted) -> ClusterState:
    run = state.runs.get(event.run)
    started = (run.started_at if run else 0.0) or event.at
    parameters = event.parameters or (run.parameters if run else 0)
    return _with_run(
        state, event.run, phase="running", started_at=started, step=event.step, slow=None, parameters=parameters
    )


@_rule(e.TrainProgress)
def _(state: ClusterState, event: e.TrainProgress) -> ClusterState:
    run = state.runs.get(event.run)
    point = (event.at, event.step, event.loss, event.steps_per_second)
    series = _longer(run.series if run else (), point, SERIES)
    known = {"steps_per_second": event.steps_per_second, "series": series}
    if run and event.server_bytes > run.server_bytes:
        known["server_bytes"] = event.server_bytes
    return _with_run(state, event.run, step=event.step, loss=event.loss, **known)


@_rule(e.TrainCheckpoint)
def _(state: ClusterState, event: e.TrainCheckpoint) -> ClusterState:
    run = state.runs.get(event.run)
    checkpoints = _longer(run.checkpoints if run else (), (event.at, event.step), MARKS)
    known = {"checkpoint_step": event.step, "checkpoint": event.path, "checkpoints": checkpoints, "unsaved": None}
    # Progress is told every few seconds only: what was saved since is no less than that.
    return _with_run(state, event.run, step=max(run.step if run else 0, event.step), **known)


@_rule(e.TrainUnsaved)
def _(state: ClusterState, event: e.TrainUnsaved) -> ClusterState:
    return _with_run(state, event.run, unsaved=(event.at, event.step, event.reason))


@_rule(e.TrainShipped)
def _(state: ClusterState, event: e.TrainShipped) -> ClusterState:
    return _with_run(state, event.run, shipped_step=event.step, shipped=event.path)


@_rule(e.TrainEvaluated)
def _(state: ClusterState, event: e.TrainEvaluated) -> ClusterState:
    run = state.runs.get(event.run)
    if run is None:
        return state
    # A run may be evaluated again after it is over.
    metrics = {**event.metrics, **dict.fromkeys(event.undefined, math.nan)}
    evaluations = _longer(run.evaluations, (event.at, event.step, metrics), MARKS)
    of = event.examples, event.complete
    changed = _changed(run, metrics=metrics, evaluated=of, evaluations=evaluations, unevaluated=None)
    return _changed(state, runs={**state.runs, event.run: changed})


@_rule(e.TrainBest)
def _(state: ClusterState, event: e.TrainBest) -> ClusterState:
    run = state.runs.get(event.run)
    known = run.best if run else None
    if known and not event.shipped and (known.step, known.value) == (event.step, event.value):
        event = replace(event, shipped=known.shipped)
    return _with_run(state, event.run, best=event)


@_rule(e.TrainUnevaluated)
def _(state: ClusterState, event: e.TrainUnevaluated) -> ClusterState:
    return _with_run(state, event.run, unevaluated=(event.at, event.step, event.reason))


@_rule(e.TrainTraced)
def _(state: ClusterState, event: e.TrainTraced) -> ClusterState:
    return _with_run(state, event.run, traced=event)


@_rule(e.TrainSlow)
def _(state: ClusterState, event: e.TrainSlow) -> ClusterState:
    return _with_run(state, event.run, slow=event)


@_rule(e.TrainRecovered)
def _(state: ClusterState, event: e.TrainRecovered) -> ClusterState:
    return _with_run(state, event.run, slow=None)


@_rule(e.TrainFinished)
def _(state: ClusterState, event: e.TrainFinished) -> ClusterState:
    run = state.runs.get(event.run)
    return _with_run(
        state,
        event.run,
        phase="finished",
        finished_at=event.at,
        step=event.step,
        loss=event.loss if event.loss is not None or run is None else run.loss,
        steps_per_second=0.0,
        slow=None,
        workers={},
        checkpoint=event.checkpoint or (run.checkpoint if run else ""),
        stopped=event.stopped,
        reason=event.reason,
    )


@_rule(e.TrainFailed)
def _(state: ClusterState, event: e.TrainFailed) -> ClusterState:
    return _with_run(
        state,
        event.run,
        phase="failed",
        finished_at=event.at,
        reason=event.reason,
        steps_per_second=0.0,
        slow=None,
        workers={},
    )


def _with_study(state: ClusterState, name: str, /, **changes: object) -> ClusterState:
    return _changed(state, studies={**state.studies, name: _changed(state.studies[name], **changes)})


@_rule(e.StudyDeclared)
def _(state: ClusterState, event: e.StudyDeclared) -> ClusterState:
    spec = StudySpec.from_dict({**event.spec, "name": event.study})
    study = StudyState(event.study, spec, spec.bounded(spec.trials), declared_at=event.at)
    return _changed(state, studies={**state.studies, event.study: study})


@_rule(e.StudyAsked)
def _(state: ClusterState, event: e.StudyAsked) -> ClusterState:
    study = state.studies[event.study]
    if event.trial != len(study.trials):
        raise ValueError(f"trial {event.trial} does not follow on {len(study.trials) - 1}")
    trial = TrialState(event.trial, dict(event.params), event.runs, asked_at=event.at)
    return _with_study(state, event.study, trials={**study.trials, event.trial: trial})


@_rule(e.StudyTold)
def _(state: ClusterState, event: e.StudyTold) -> ClusterState:
    trials = state.studies[event.study].trials
    if trials[event.trial].told:
        raise ValueError(f"trial {event.trial} was told before")
    told = _changed(trials[event.trial], state=event.state, value=event.value, reason=event.reason, told_at=event.at)
    return _with_study(state, event.study, trials={**trials, event.trial: told})


@_rule(e.StudyExtended)
def _(state: ClusterState, event: e.StudyExtended) -> ClusterState:
    study = state.studies[event.study]
    wanted = study.spec.bounded(study.wanted + event.trials)
    return _with_study(state, event.study, wanted=wanted, ended_at=0.0, reason="")


@_rule(e.StudyEnded)
def _(state: ClusterState, event: e.StudyEnded) -> ClusterState:
    return _with_study(state, event.study, ended_at=event.at, reason=event.reason)


@_rule(e.ClusterLeased)
def _(state: ClusterState, event: e.ClusterLeased) -> ClusterState:
    workers = {int(slot): run for slot, run in event.workers.items()}
    since: dict[int, float] = {}
    tenures = dict(state.tenures)
    for slot, run in state.leases.items():
        if workers.get(slot) == run:
            since[slot] = state.leased_at.get(slot, event.at)
        elif begin := state.leased_at.get(slot):
            tenures[run] = (*tenures.get(run, ()), (slot, begin, event.at))
    since = {slot: since.get(slot, event.at) for slot in workers}
    return _changed(
        state, ports=dict(event.ports), leases=workers, leased_at=since, tenures=tenures, held=dict(event.held)
    )


@_rule(e.ControllerMoved)
def _(state: ClusterState, event: e.ControllerMoved) -> ClusterState:
    if event.vm and event.vm not in state.vms:
        raise ValueError(f"there is no VM {event.vm}")
    return _changed(state, seat=event.vm, trouble="")


@_rule(e.ControllerTrouble)
def _(state: ClusterState, event: e.ControllerTrouble) -> ClusterState:
    return _changed(state, trouble=event.what)
