"""The rules for events of bags, and the fold of what a driver reports.

The controller, every reader of the journal and a driver that starts again use the same `fold`. The
first result of a job counts. The first N results are those of the bag, in their order. After the end
of the bag nothing counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ...journal.folding.rules import Rules, with_work
from ...journal.state import ClusterState
from ...protocol.outputs import outputs_of
from .events import (
    OWN_FAULTS,
    BagBegan,
    BagEvent,
    BagGaveUp,
    BagLearnt,
    BagLost,
    BagProposed,
    BagResult,
    BagSaved,
    BagStarted,
    BagStopped,
)
from .numbered import Numbered
from .spec import BagSpec
from .state import BagJobState, BagState, DeclaredBag

_MOST_PRINTED = 32
"""Number of last attempts of a job whose output is kept.

Any number of its VMs may be revoked.
"""


rules = Rules()
FREQUENT = (BagProposed, BagStarted, BagSaved, BagResult)
"""Events that come too often to be kept among the recent ones."""


def begin(name: str, spec: Mapping[str, object], at: float) -> DeclaredBag:
    """Return the state of a bag that was declared at a moment (seconds since 1970)."""
    declared = BagSpec.from_dict({**spec, "name": name})
    return DeclaredBag(name, declared, declared_at=at, state=BagState(declared))


@rules.of(BagBegan)
def _(state: ClusterState, event: BagBegan) -> ClusterState:
    bag = state.of(DeclaredBag)[event.bag]
    began_at = bag.began_at or event.at
    if event.dask in bag.dasks:
        return with_work(state, "bag", event.bag, phase="running", began_at=began_at)
    dasks = (*bag.dasks, event.dask)
    # Each driver has its own clock.
    return with_work(
        state, "bag", event.bag, phase="running", dasks=dasks, began_at=began_at, reported_at=0
    )


@rules.of(
    BagProposed,
    BagStarted,
    BagSaved,
    BagLost,
    BagResult,
    BagGaveUp,
    BagLearnt,
    BagStopped,
)
def _(state: ClusterState, event: BagEvent) -> ClusterState:
    bag = state.of(DeclaredBag)[event.bag]
    return with_work(
        state,
        "bag",
        event.bag,
        state=fold(bag.state, event),
        reported_at=max(bag.reported_at, event.time),
    )


def fold(state: BagState, event: BagEvent) -> BagState:
    """Return the state after an event; duplicate and late events change nothing.

    Raises
    ------
    ValueError
        If the event cannot follow. The message is a clause.
    """
    if event.bag != state.spec.name:
        raise ValueError(f"the {event.kind} event belongs to another bag")
    if state.over:
        return state
    match event:
        case BagProposed():
            return _proposed(state, event)
        case BagGaveUp():
            return _gave_up(state, event)
        case BagLearnt():
            return _learnt(state, event)
        case BagStopped():
            return _stopped(state, event)
        case _:
            return _attempted(state, event)


def replay(spec: BagSpec, events: Iterable[BagEvent]) -> BagState:
    """Return the state after all events. Raises ValueError as `fold` does."""
    state = BagState(spec)
    for event in events:
        state = fold(state, event)
    return state


def _proposed(state: BagState, event: BagProposed) -> BagState:
    if event.job in state.jobs:
        if state.jobs[event.job].point != event.point:
            raise ValueError(f"job {event.job} was already proposed with another point")
        return state
    if event.job != len(state.jobs):
        raise ValueError(f"the next job must be {len(state.jobs)}, not {event.job}")
    if not state.spec.has(event.point):
        raise ValueError(f"the point of job {event.job} is outside of the space")
    if not state.to_propose:
        raise ValueError(f"job {event.job} exceeds the number of jobs of the bag")
    job = BagJobState(event.job, event.point, event.batch, event.filling, event.predicted)
    return _with(state, job)


def _attempted(state: BagState, event: BagStarted | BagSaved | BagLost | BagResult) -> BagState:
    job = state.jobs.get(event.job)
    if job is None:
        raise ValueError(f"unknown job {event.job}")
    if isinstance(event, BagStarted):
        return _started(state, job, event)
    if not 0 < event.attempt <= job.attempt:
        raise ValueError(f"attempt {event.attempt} of job {event.job} has not started")
    if job.phase in ("done", "failed"):
        return state
    if isinstance(event, BagResult):
        # Results of any attempt count: a VM that was given up may finish its job.
        return _resulted(state, job, event)
    if event.attempt != job.attempt or job.phase != "running":
        return state
    if isinstance(event, BagSaved):
        if event.done <= job.done:
            return state
        state = replace(state, saving_seconds=state.saving_seconds + event.seconds)
        return _with(state, replace(job, done=event.done))
    reason = event.reason or event.why
    job = replace(job, printed=_printed(job, event))
    if event.why not in OWN_FAULTS:
        return _with(
            state,
            replace(
                job, phase="waiting", vm="", interruptions=job.interruptions + 1, reason=reason
            ),
        )
    failures = job.failures + 1
    phase = "failed" if failures > state.spec.retries else "waiting"
    if phase == "failed":
        state = replace(state, failed=state.failed + 1)
    return _with(state, replace(job, phase=phase, vm="", failures=failures, reason=reason))


def _started(state: BagState, job: BagJobState, event: BagStarted) -> BagState:
    if event.attempt <= job.attempt:
        return state
    if event.attempt != job.attempt + 1:
        raise ValueError(
            f"the next attempt of job {job.number} must be {job.attempt + 1}, not {event.attempt}"
        )
    if job.phase in ("done", "failed"):
        return state
    if job.phase == "running":
        raise ValueError(f"job {job.number} already runs on {job.vm}")
    job = replace(
        job, phase="running", attempt=event.attempt, vm=event.vm, age=event.age, began_at=event.at
    )
    # It is less than was saved if the checkpoint was lost with the VM of a driver.
    return _with(state, replace(job, done=event.done))


def _resulted(state: BagState, job: BagJobState, event: BagResult) -> BagState:
    if state.outputs and {*outputs_of(event.returned)} != {*state.outputs}:
        raise ValueError(
            f"job {job.number} returned {', '.join(outputs_of(event.returned))}, but the first job "
            f"returned {', '.join(state.outputs)}"
        )
    job = replace(job, phase="done", vm="", result=event, reason="", printed=_printed(job, event))
    state = replace(
        state,
        results=(*state.results, job.number),
        computed_seconds=state.computed_seconds + event.seconds,
    )
    return _with(state, job)


def _printed(job: BagJobState, event: BagLost | BagResult) -> Mapping[int, str]:
    if event.printed:
        printed = {**job.printed, event.attempt: event.printed}
    else:
        printed = job.printed
    if len(printed) <= _MOST_PRINTED:
        return printed
    return dict([*printed.items()][-_MOST_PRINTED:])


def _gave_up(state: BagState, event: BagGaveUp) -> BagState:
    if event.vm in state.given_up:
        return state
    if not state.may_give_up:
        raise ValueError(
            f"the policy {state.spec.policy} does not allow a release of {event.vm} after "
            f"{len(state.given_up)} others"
        )
    if busy := next((job for job in state.running if job.vm == event.vm), None):
        raise ValueError(f"{event.vm} cannot be released, because job {busy.number} runs on it")
    return replace(state, given_up=(*state.given_up, event.vm))


def _learnt(state: BagState, event: BagLearnt) -> BagState:
    if event.results > len(state.results):
        raise ValueError(
            f"the surrogate cannot have {event.results} results: the bag has {len(state.results)}"
        )
    if state.learnt:
        before = state.learnt[-1].results
    else:
        before = -1
    if event.results < before:
        raise ValueError(f"the surrogate must have at least {before} results, not {event.results}")
    if event.results == before:  # repeated by a driver that started again
        return state
    return replace(state, learnt=(*state.learnt, event))


def _stopped(state: BagState, event: BagStopped) -> BagState:
    if event.why == "counted" and not state.enough:
        raise ValueError(f"the bag has only {len(state.results)} of {state.spec.jobs} results")
    jobs = Numbered(
        replace(job, phase="skipped", vm="") if job.phase in ("waiting", "running") else job
        for job in state.jobs.values()
    )
    return replace(state, jobs=jobs, stopped=event)


def _with(state: BagState, job: BagJobState) -> BagState:
    return replace(state, jobs=state.jobs.with_value(job.number, job))
