"""What is to be done about a job: a pure function of the cluster's state and the time.

An attempt begins once as many VMs as the job wants are ready in the places that it has (the ledger
says which), and is over when its command has ended on all of them. A command on several VMs does
not continue without one of its ranks. At the preemption notice of one VM all ranks are warned, so
that each can save while the others still answer; the next attempt begins when all have ended.
Whatever ends by a revocation is no failure; a command that fails is tried again as often as its
user said. That it was told to end is a VM's own word: it counts once the VM leaves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ...journal import ClusterState, VmState
from ...spec import ClusterSpec, render_duration
from .events import JobExited
from .state import JobState

END_AHEAD_SECONDS = 60.0
"""So long before its limits end a cluster its jobs are told, so that what they keep is brought
here: Compute Engine tells its VMs no sooner than with every preemption, and what they have then
comes home only if it is little.
"""
STOP_SECONDS = 90.0
"""A job that was told to end and is not heard of for so long has ended, as far as anybody can say.
"""
LEAVING_SECONDS = 180.0
"""A VM where a command ended by a notice leaves within this time, or there was none: Compute Engine
takes it 30 seconds after its notice, and lets one that is stopped have 90.
"""


@dataclass(frozen=True, slots=True)
class Begin:
    """The next attempt begins on these VMs, rank 0 first."""

    vms: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StopOn:
    """The command is told to end on this VM."""

    vm: str


@dataclass(frozen=True, slots=True)
class Warn:
    """The rank on this VM is warned that a VM of the job ends in `seconds`."""

    vm: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Interrupt:
    """The attempt is over and another one follows."""

    reason: str
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Stopping:
    """The job stops: with its cluster, or as failed by a limit of its own."""

    reason: str
    state: Literal["failed", "stopped"] = "stopped"


@dataclass(frozen=True, slots=True)
class End:
    """The job is over."""

    state: Literal["finished", "failed", "stopped"]
    reason: str = ""


Decision = Begin | StopOn | Warn | Interrupt | Stopping | End


def decide(job: JobState, state: ClusterState, now: float) -> list[Decision]:
    """All that is to be done now. Calling it again before it is carried out gives the same again."""
    if job.over:
        return []
    if not job.stop:
        if state.phase == "deleting":
            return [Stopping(f"the cluster ends: {state.reason}")]
        if state.spec and (left := state.seconds_left(now)) <= _ahead(state.spec, state.clock.rate):
            return [Stopping(f"its cluster's limits end it in {render_duration(max(left, 0.0))}")]
        limit = job.spec.timeout_seconds
        if limit is not None and job.ran(now) >= limit:
            return [
                Stopping(
                    f"it has run for {render_duration(limit)}, its limit (--job-timeout)",
                    "failed",
                )
            ]
    if job.vms:
        return _under_way(job, state, now)
    return _between(job, state)


def _ahead(spec: ClusterSpec, rate: float) -> float:
    return min(END_AHEAD_SECONDS, (spec.ends_at - spec.declared_at) / rate / 4)


def ready(job: JobState, state: ClusterState) -> list[VmState]:
    """The VMs in the job's places that can be given an attempt, in the order of their ranks."""
    fit = (vm for vm in state.serving if state.has(job.name, vm) and vm.state == "ready")
    by_slot = {vm.slot: vm for vm in fit if not vm.failure}
    return [by_slot[slot] for slot in sorted(by_slot)]


def _between(job: JobState, state: ClusterState) -> list[Decision]:
    if job.stop:
        return [_stopped(job)]
    vms = ready(job, state)
    if len(vms) == job.spec.workers:
        return [Begin(tuple(vm.name for vm in vms))]
    return []


def _under_way(job: JobState, state: ClusterState, now: float) -> list[Decision]:
    gone = [name for name in job.vms if (vm := state.vms.get(name)) is None or not vm.living]
    runs = [name for name in job.vms if name not in job.exits and name not in gone]
    taken = [name for name in job.vms if _was_taken(name, job, state)]
    failures = [exit for exit in job.exits.values() if _counts_as_failure(exit, now)]
    failures.sort(key=lambda exit: exit.noticed)
    failed = next(iter(failures), None)
    if runs:
        if job.stop and now - job.stopping_at > STOP_SECONDS:
            return [_stopped(job)]
        if job.stop or taken or failed:
            return [StopOn(name) for name in runs]
        return list(_warned(job, runs, state, now))
    noticed = any(each.noticed for each in job.exits.values())
    if job.stop and (taken or failed or noticed):
        return [_stopped(job)]
    if taken:  # before any failure: where one rank goes, the others may fail for want of it
        return [Interrupt(f"{taken[0]} {_what_became(state, taken[0])}")]
    leaves = next(
        (name for name in job.vms if name in gone or state.vms[name].state == "leaving"), ""
    )
    if (
        noticed and leaves
    ):  # a rank had finished on the VM that leaves, and others were warned before they had
        return [Interrupt(f"{leaves} {_what_became(state, leaves)}")]
    if failed and any(
        each.preempted and now - each.at <= LEAVING_SECONDS for each in job.exits.values()
    ):
        return []  # the VM of one leaves by its own word, and others may have failed for want of it
    if failed:
        why = said(failed)
        if job.failures < job.spec.retries:
            return [Interrupt(why, failed=True)]
        return [End("failed", why)]
    if noticed:
        return []  # its VM is to leave now
    return [End("finished")]


def _warned(job: JobState, runs: list[str], state: ClusterState, now: float) -> Iterator[Warn]:
    """Warn every rank where the VM of one leaves: a collective fails as soon as the first of them
    has ended.

    The rank on that VM reads the notice itself; the warning has it told at the same moment as the
    others.
    """
    leaving = [state.vms[name] for name in runs if state.vms[name].state == "leaving"]
    if leaving and len(job.vms) > 1:
        first = min(leaving, key=lambda vm: vm.noticed_at + vm.notice_seconds)
        left = first.notice_seconds - (now - first.noticed_at)
        for name in runs:
            yield Warn(name, min(max(left, 0.0), first.notice_seconds))


def _counts_as_failure(exit: JobExited, now: float) -> bool:
    """Whether the command failed, or ended by a notice after which its VM stayed. `exit` has the
    moment at which a notice was heard of here.
    """
    if exit.noticed:
        return now - exit.at > LEAVING_SECONDS
    return exit.code != 0


def said(exit: JobExited) -> str:
    """How a command ended that failed, a clause."""
    if exit.noticed:
        return "its command was told to end, and its VM stayed"
    if exit.reason:
        return exit.reason
    if exit.code is None:
        return "nobody knows how its command ended"
    if exit.code < 0:
        return f"its command was ended by signal {-exit.code}"
    return f"its command ended with code {exit.code}"


def _stopped(job: JobState) -> End:
    assert job.stop
    return End(job.stop.state, job.stop.reason)


def _was_taken(name: str, job: JobState, state: ClusterState) -> bool:
    """Whether the VM goes, or is gone, with a part of the job that had not ended by itself: where
    that was told to end, or ended badly while its VM goes, it has not.
    """
    vm = state.vms.get(name)
    ended = job.exits.get(name)
    if vm is None or not vm.living:
        return ended is None or ended.noticed or ended.code != 0
    return vm.state == "leaving" and ended is not None and (ended.noticed or ended.code != 0)


def _what_became(state: ClusterState, name: str) -> str:
    vm = state.vms.get(name)
    if vm is None or vm.state in ("revoked", "leaving"):
        return "was revoked"
    if vm.reason:
        return f"was deleted: {vm.reason}"
    return "is gone"
