"""States and events of jobs in words."""

from __future__ import annotations

from ...client.text.words import count, size
from ...journal import ClusterState, Event, VmState
from ...protocol.checks import plain
from .events import (
    JobBegan,
    JobExited,
    JobGpuUnused,
    JobInterrupted,
    JobKept,
    JobPacked,
    JobStarted,
    JobUnkept,
)
from .state import JobState

QUIET = ("job.packed", "job.kept")
TONES = {JobInterrupted: "warn", JobUnkept: "warn", JobGpuUnused: "warn"}
"""Colours of events on a panel."""


def work_words(job: JobState, cluster: ClusterState | None) -> str:
    """Return what a job does, or how it ended."""
    return job_words(job)


def user_of(job: JobState, vm: VmState) -> str:
    """Return the name of a job if its command runs, or begins, on the VM; else nothing."""
    if vm.name in job.vms and vm.name not in job.exits and not job.over:
        return job.name
    return ""


def job_words(job: JobState) -> str:
    """Return `running on worker-1 (attempt 2, after 1 revocation), 12 MB kept`, or its end."""
    kept = f", {size(job.kept.bytes)} kept" if job.kept else ""
    unkept = f"; its folder is not copied here: {plain(job.unkept)}" if job.unkept else ""
    after = ""
    if job.interruptions:
        after = f", after {count(job.interruptions, 'revocation')}"
    if job.failures:
        after += f", after {count(job.failures, 'failure')}"
    match job.phase:
        case "declared":
            return f"waits for {count(job.spec.workers, 'worker')}"
        case "running" if job.stop:
            return f"ends: {job.stop.reason}"
        case "running" if not job.vms:
            return f"waits for {count(job.spec.workers, 'worker')} to continue{after}{kept}"
        case "running":
            verb = "running" if job.started else "begins"
            attempt = f"{verb} on {', '.join(job.vms)} (attempt {job.attempt}{after})"
            unused = f"; GPU not used on {', '.join(job.gpu_unused)}" if job.gpu_unused else ""
            return f"{attempt}{kept}{unkept}{unused}"
        case "finished":
            return f"finished{after}{kept}{unkept}"
    if job.reason:
        return f"{job.phase}: {plain(job.reason)}{kept}{unkept}"
    return f"{job.phase}{kept}{unkept}"


def event_words(event: Event) -> str:
    """Return what happened to a job; an empty text for other events."""
    match event:
        case JobBegan():
            return f"{event.job} begins on {', '.join(event.vms)} (attempt {event.attempt})"
        case JobStarted():
            rank = f" as rank {event.rank}" if event.rank else ""
            kept = f", with what was kept ({event.kept})" if event.kept else ""
            return f"the command of {event.job} runs{rank}{kept}"
        case JobPacked():
            return f"the folder of {event.job} is packed: {_size(event)}"
        case JobKept():
            return f"the folder of {event.job} is here: {_size(event)}"
        case JobUnkept() if event.reason:
            return f"the folder of {event.job} is not copied here: {event.reason}"
        case JobUnkept():
            return f"the folder of {event.job} is copied here again"
        case JobGpuUnused() if event.seconds:
            user = f"rank {event.rank} of {event.job}" if event.rank else event.job
            minutes = f"{event.seconds / 60:.0f} min"
            return f"{user} has not used its GPU ({plain(event.gpu)}) in {minutes}: it is paid for"
        case JobGpuUnused():
            return f"{event.job} uses its GPU ({plain(event.gpu)}) now"
        case JobExited() if event.noticed:
            return f"the command of {event.job} ended at a notice"
        case JobExited():
            return f"the command of {event.job} ended with code {event.code}"
        case JobInterrupted():
            return f"{event.job} continues elsewhere: {event.reason}"
    return ""


def _size(event: JobPacked | JobKept) -> str:
    return f"{count(event.files, 'file')}, {size(event.bytes)}"
