"""The rules for events of jobs: attempts start, end and follow each other; folders are kept."""

from __future__ import annotations

from collections.abc import Mapping

from ...journal import events as e
from ...journal.folding.rules import Rules, changed, refuse_unknown_vms, with_work
from ...journal.state import ClusterState
from .events import (
    JobBegan,
    JobExited,
    JobGpuUnused,
    JobInterrupted,
    JobKept,
    JobStarted,
    JobUnkept,
)
from .spec import JobSpec
from .state import JobState

rules = Rules()


def begin(name: str, spec: Mapping[str, object], at: float) -> JobState:
    """Return the state of a job that was declared at a moment (seconds since 1970)."""
    return JobState(name, JobSpec.from_dict({**spec, "name": name}), declared_at=at)


@rules.of(JobBegan)
def _(state: ClusterState, event: JobBegan) -> ClusterState:
    job = state.of(JobState)[event.job]
    if event.attempt != job.attempt + 1 or job.vms:
        raise ValueError(f"the next attempt must be {job.attempt + 1}, not {event.attempt}")
    refuse_unknown_vms(state, event.vms)
    return with_work(
        state,
        "job",
        event.job,
        phase="running",
        attempt=event.attempt,
        vms=tuple(event.vms),
        began_at=event.at,
        started={},
        exits={},
        packed={},
        gpu_unused={},
    )


@rules.of(JobStarted)
def _(state: ClusterState, event: JobStarted) -> ClusterState:
    job = state.of(JobState)[event.job]
    if event.attempt != job.attempt or not job.vms:
        return state
    started = {**job.started, job.vms[event.rank]: event.at}
    return with_work(
        state, "job", event.job, started=started, started_at=job.started_at or event.at
    )


@rules.of(JobKept)
def _(state: ClusterState, event: JobKept) -> ClusterState:
    job = state.of(JobState)[event.job]
    if job.kept and event.number <= job.kept.number:
        raise ValueError(f"archive {event.number} is not newer than {job.kept.number}")
    packed = job.packed
    if event.attempt == job.attempt:
        packed = {**packed, event.rank: event.packed}
    return with_work(state, "job", event.job, kept=event, packed=packed)


@rules.of(JobUnkept)
def _(state: ClusterState, event: JobUnkept) -> ClusterState:
    return with_work(state, "job", event.job, unkept=event.reason)


@rules.of(JobGpuUnused)
def _(state: ClusterState, event: JobGpuUnused) -> ClusterState:
    job = state.of(JobState)[event.job]
    if event.attempt != job.attempt or not job.vms:
        return state
    unused = {vm: gpu for vm, gpu in job.gpu_unused.items() if vm != job.vms[event.rank]}
    if event.seconds:
        unused[job.vms[event.rank]] = event.gpu
    return with_work(state, "job", event.job, gpu_unused=unused)


@rules.of(JobExited)
def _(state: ClusterState, event: JobExited) -> ClusterState:
    job = state.of(JobState)[event.job]
    if event.attempt != job.attempt or not job.vms:
        return state
    return with_work(state, "job", event.job, exits={**job.exits, job.vms[event.rank]: event})


@rules.of(JobInterrupted)
def _(state: ClusterState, event: JobInterrupted) -> ClusterState:
    job = state.of(JobState)[event.job]
    if event.attempt != job.attempt or not job.vms:
        return state
    if event.failed:
        counted = {"failures": job.failures + 1}
    else:
        counted = {"interruptions": job.interruptions + 1}
    return with_work(
        state,
        "job",
        event.job,
        vms=(),
        began_at=0.0,
        started={},
        exits={},
        spent=job.ran(event.at),
        unkept="",
        gpu_unused={},
        reason=event.reason,
        **counted,
    )


def ended(job: JobState, event: e.WorkEnded) -> JobState:
    """Return a job that is over, with the exit code and the last lines of its command."""
    code = None
    tail = ""
    if exit := _decisive_exit(job):
        code = exit.code
        if event.state != "finished":
            tail = exit.tail
    return changed(job, code=code, tail=tail, spent=job.ran(event.at), started={}, gpu_unused={})


def _decisive_exit(job: JobState) -> JobExited | None:
    """Return the exit of the last attempt that determines how the job ended.

    That is the first one, or the first failure if the job was not stopped: the other ranks are
    asked to end because of it.
    """
    exits = [*job.exits.values()]
    if not job.stop:
        exits.sort(key=lambda exit: exit.noticed or exit.code == 0)
    return next(iter(exits), None)
