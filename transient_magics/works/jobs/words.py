"""Jobs in words: how one does, and what happened to it."""

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
"""How a panel colours events."""


def work_words(job: JobState, cluster: ClusterState | None) -> str:
    """Return what a job does, or how it ended."""
    return job_words(job)


def user_of(job: JobState, vm: VmState) -> str:
    """Return the name of a job if its command runs, or begins, on the VM; else nothing."""
    if vm.name in job.vms and vm.name not in job.exits and not job.over:
        return job.name
    return ""


def job_words(job: JobState) -> str:
    """`running on worker-1 (attempt 2, after 1 revocation), 12 MB kept`, or how it ended."""
    if job.kept:
        kept = f", {size(job.kept.bytes)} kept"
    else:
        kept = ""
    if job.unkept:
        unkept = f"; its folder is not brought here: {plain(job.unkept)}"
    else:
        unkept = ""
    if job.interruptions:
        again = f", after {count(job.interruptions, 'revocation')}"
    else:
        again = ""
    again += f", after {count(job.failures, 'failure')}" if job.failures else ""
    match job.phase:
        case "declared":
            return f"waits for {count(job.spec.workers, 'worker')}"
        case "running" if job.stop:
            return f"ends: {job.stop.reason}"
        case "running" if not job.vms:
            return f"waits for {count(job.spec.workers, 'worker')} to go on{again}{kept}"
        case "running":
            does = "running on" if job.started else "begins on"
            if job.gpu_unused:
                unused = f"; GPU not used on {', '.join(job.gpu_unused)}"
            else:
                unused = ""
            return (
                f"{does} {', '.join(job.vms)} (attempt {job.attempt}{again}){kept}{unkept}{unused}"
            )
        case "finished":
            return f"finished{again}{kept}{unkept}"
    if job.reason:
        return f"{job.phase}: {plain(job.reason)}{kept}{unkept}"
    return f"{job.phase}{kept}{unkept}"


def event_words(event: Event) -> str:
    """What happened to a job; nothing of other events."""
    match event:
        case JobBegan():
            return f"{event.job} begins on {', '.join(event.vms)} (attempt {event.attempt})"
        case JobStarted():
            if event.kept:
                kept = f", with what was kept ({event.kept})"
            else:
                kept = ""
            return f"the command of {event.job} runs{f' as rank {event.rank}' if event.rank else ''}{kept}"
        case JobPacked():
            return f"the folder of {event.job} is packed: {count(event.files, 'file')}, {size(event.bytes)}"
        case JobKept():
            return f"the folder of {event.job} is here: {count(event.files, 'file')}, {size(event.bytes)}"
        case JobUnkept():
            if event.reason:
                why = f" is not brought here: {event.reason}"
            else:
                why = " is brought here again"
            return f"the folder of {event.job}{why}"
        case JobGpuUnused() if event.seconds:
            if event.rank:
                where = f"rank {event.rank} of {event.job}"
            else:
                where = event.job
            return f"{where} has not used its GPU ({plain(event.gpu)}) in {event.seconds / 60:.0f} min: it is paid for"
        case JobGpuUnused():
            return f"{event.job} uses its GPU ({plain(event.gpu)}) now"
        case JobExited():
            if event.noticed:
                how = "was told to end"
            else:
                how = f"ended with code {event.code}"
            return f"the command of {event.job} {how}"
        case JobInterrupted():
            return f"{event.job} goes on elsewhere: {event.reason}"
    return ""
