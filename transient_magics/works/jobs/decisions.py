"""Decide what happens to a job: pure functions of the cluster's state and the time.

A job runs in attempts. Each attempt has one command on each of its VMs, numbered by rank:

1. An attempt begins once `workers` VMs are ready in the slots that the ledger leases to the job.
2. It is over once its command has ended on all of its VMs. If one rank is lost, the others are
   ended, because a command on several VMs does not continue without one of its ranks.
3. A preemption notice of one VM is passed to all ranks as a warning, so that each can save its work
   while the others still answer.
4. After a revocation another attempt follows, however often. After a failure another one follows
   while `retries` are left. Otherwise the job ends.

A command reports whether it ended because of a notice. That comes from the VM, which runs user code
and could lie to get unlimited attempts. The report therefore counts only if the VM then leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ...journal import ClusterState
from ...spec import ClusterSpec, render_duration
from .events import JobExited
from .state import JobState

END_AHEAD_SECONDS = 60.0
"""Time before the limits of a cluster at which jobs stop, so that their folders are received.

When Compute Engine ends a VM at its time limit, it gives no more notice than at a preemption, and
only small folders are copied in that time.
"""
STOP_SECONDS = 90.0
"""A stopped job whose VMs have not reported the end of its command after this time is over."""
LEAVING_SECONDS = 180.0
"""A VM whose command reports a preemption notice leaves within this time, or there was no notice.

Compute Engine deletes a VM 30 seconds after its notice, and lets one that is stopped have 90.
"""


@dataclass(frozen=True, slots=True)
class Begin:
    """Begin the next attempt on these VMs, rank 0 first."""

    vms: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StopOn:
    """End the command on this VM."""

    vm: str


@dataclass(frozen=True, slots=True)
class Warn:
    """Warn the rank on this VM that a VM of the job ends in `seconds`."""

    vm: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Interrupt:
    """End the attempt; another one follows. `failed` is whether it counts as a failure."""

    reason: str
    failed: bool = False


@dataclass(frozen=True, slots=True)
class Stopping:
    """Stop the job: with its cluster, or as failed by a limit of its own."""

    reason: str
    state: Literal["failed", "stopped"] = "stopped"


@dataclass(frozen=True, slots=True)
class End:
    """End the job in this state."""

    state: Literal["finished", "failed", "stopped"]
    reason: str = ""


Decision = Begin | StopOn | Warn | Interrupt | Stopping | End


def decide(job: JobState, state: ClusterState, now: float) -> Sequence[Decision]:
    """Return what is due for a job now.

    Repeated calls return the same decisions until these are carried out: what is recorded changes
    the job's state, and requests to VMs are sent again until the VMs report that they are done.

    Parameters
    ----------
    job
        The job, as the journal has it.
    state
        Its cluster.
    now
        Seconds since 1970, by Compute Engine's clock.
    """
    if job.over:
        return []
    if not job.stop:
        stopping = _reason_to_stop(job, state, now)
        if stopping is not None:
            return [stopping]
    if not job.vms:
        return _between_attempts(job, state)
    running = [vm for vm in job.vms if vm not in job.exits and state.lives(vm)]
    if running:
        return _during_attempt(job, running, state, now)
    return _after_attempt(job, state, now)


def _reason_to_stop(job: JobState, state: ClusterState, now: float) -> Stopping | None:
    if state.phase == "deleting":
        return Stopping(f"the cluster ends: {state.reason}")
    if state.spec is not None:
        left = state.seconds_left(now)
        if left <= _seconds_ahead(state.spec, state.clock.rate):
            return Stopping(f"its cluster's limits end it in {render_duration(max(left, 0.0))}")
    limit = job.spec.timeout_seconds
    if limit is not None and job.ran(now) >= limit:
        reason = f"it has run for {render_duration(limit)}, its limit (--job-timeout)"
        return Stopping(reason, "failed")
    return None


def _seconds_ahead(spec: ClusterSpec, rate: float) -> float:
    """Return how long before the limits of a cluster its jobs stop, on this machine's clock.

    It is at most a quarter of a cluster's time: one that lasts two minutes has jobs, too. `rate` is
    how much faster than this machine's the cluster's clock is.
    """
    lifetime = (spec.ends_at - spec.declared_at) / rate
    return min(END_AHEAD_SECONDS, lifetime / 4)


def _between_attempts(job: JobState, state: ClusterState) -> Sequence[Decision]:
    if job.stop:
        return [_end_of_stopped(job)]
    vms = state.ready_for(job.name)
    if len(vms) < job.spec.workers:
        return []
    return [Begin(tuple(vm.name for vm in vms))]


def _during_attempt(
    job: JobState, running: Sequence[str], state: ClusterState, now: float
) -> Sequence[Decision]:
    """Return what is due while the command still runs on the VMs in `running`."""
    if job.stop and now - job.stopping_at > STOP_SECONDS:
        return [_end_of_stopped(job)]
    if job.stop or _lost_ranks(job, state) or _failures(job, now):
        return [StopOn(vm) for vm in running]
    return _warnings(job, running, state, now)


def _after_attempt(job: JobState, state: ClusterState, now: float) -> Sequence[Decision]:
    """Return what follows an attempt whose command has ended on all VMs, or whose VMs are gone.

    The order of the questions matters. A failure counts only once a revocation is ruled out: when
    one rank is lost, the commands of the others usually fail, too.
    """
    lost = _lost_ranks(job, state)
    failures = _failures(job, now)
    noticed = any(exit.noticed for exit in job.exits.values())
    if job.stop and (lost or failures or noticed):
        return [_end_of_stopped(job)]
    if lost:
        return [Interrupt(state.loss_of(lost[0]))]
    # One rank had finished on a VM that leaves now, and the others ended at the warning before they
    # had finished: the attempt is interrupted, although no rank is lost.
    leaving = [vm for vm in job.vms if not state.lives(vm) or state.vms[vm].state == "leaving"]
    if noticed and leaving:
        return [Interrupt(state.loss_of(leaving[0]))]
    if failures:
        if _awaits_preemption(job, now):
            return []
        reason = failure_words(failures[0])
        if job.failures < job.spec.retries:
            return [Interrupt(reason, failed=True)]
        return [End("failed", reason)]
    if noticed:
        return []  # until its VM leaves, or has not left for `LEAVING_SECONDS`: then it failed
    return [End("finished")]


def _warnings(
    job: JobState, running: Sequence[str], state: ClusterState, now: float
) -> Sequence[Warn]:
    """Return a warning for every rank if the VM of one leaves.

    A collective operation fails as soon as the first rank has ended, so all ranks have to save at
    the same moment. The rank on the leaving VM reads the notice itself. It is warned, too, so that
    it does not end before the others.
    """
    leaving = [state.vms[vm] for vm in running if state.vms[vm].state == "leaving"]
    if not leaving or len(job.vms) == 1:
        return []
    first = min(leaving, key=lambda vm: vm.noticed_at + vm.notice_seconds)
    left = first.noticed_at + first.notice_seconds - now
    seconds = min(max(left, 0.0), first.notice_seconds)
    return [Warn(vm, seconds) for vm in running]


def _lost_ranks(job: JobState, state: ClusterState) -> list[str]:
    """Return the VMs that took a rank with them before its command had done its work."""
    return [vm for vm in job.vms if _is_lost(vm, job, state)]


def _is_lost(vm: str, job: JobState, state: ClusterState) -> bool:
    exit = job.exits.get(vm)
    unfinished = exit is None or exit.noticed or exit.code != 0
    if not state.lives(vm):
        return unfinished
    # A command that still runs on a leaving VM keeps the rest of its notice.
    return state.vms[vm].state == "leaving" and exit is not None and unfinished


def _failures(job: JobState, now: float) -> list[JobExited]:
    """Return the ends of the command that count as failures, the most informative first.

    A failed command is more informative than one that ended by a notice after which its VM stayed.
    """
    failures = [exit for exit in job.exits.values() if _is_failure(exit, now)]
    return sorted(failures, key=lambda exit: exit.noticed)


def _is_failure(exit: JobExited, now: float) -> bool:
    if exit.noticed:
        # `exit.at` is when the controller read the event, not the time that the VM reported.
        return now - exit.at > LEAVING_SECONDS
    return exit.code != 0


def _awaits_preemption(job: JobState, now: float) -> bool:
    """Return whether a rank has recently reported a notice for its VM, which still lives.

    Other ranks may have failed because that one ended. Once its VM leaves, the attempt counts as
    interrupted.
    """
    return any(exit.preempted and now - exit.at <= LEAVING_SECONDS for exit in job.exits.values())


def failure_words(exit: JobExited) -> str:
    """Return how a failed command ended, a clause."""
    if exit.noticed:
        return "its command ended at a notice, and its VM stayed"
    if exit.reason:
        return exit.reason
    if exit.code is None:
        return "the exit code of its command is unknown"
    if exit.code < 0:
        return f"its command was ended by signal {-exit.code}"
    return f"its command ended with code {exit.code}"


def _end_of_stopped(job: JobState) -> End:
    assert job.stop
    return End(job.stop.state, job.stop.reason)
