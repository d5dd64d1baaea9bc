"""The events of jobs: what their VMs report, and what the controller records."""

from __future__ import annotations

from ...protocol.checks import Amount, Count, Name
from ...protocol.events import FACT, Event, event, read_foreign
from ...protocol.vm_events import VM

# What VMs report


@event("job.started", FACT)
class JobStarted(Event):
    """The command of a job runs on this rank's VM, in this attempt.

    `kept` is the number of the archive that its folder was restored from (0: none).
    """

    job: Name
    attempt: Count
    rank: Count
    kept: Count = 0


@event("job.packed", FACT)
class JobPacked(Event):
    """A VM packed the folder of a job as archive `number`, with its `files`, `bytes` and SHA-256.

    It is kept (`job.kept`) once the controller has it. Rank 0 packs its folder, other ranks the
    changes in theirs since the attempt started. `saved` is the time of the last change, in seconds
    since 1970 by the VM's estimate of the controller's clock (0: older than any other).
    """

    job: Name
    attempt: Count
    number: Count
    files: Count
    bytes: Count
    digest: str
    saved: Amount = 0.0


@event("job.unkept", FACT)
class JobUnkept(Event):
    """The folder of a job cannot be packed completely (`reason`, a clause).

    The previous archive is kept. Consecutive failures are reported once; an empty reason reports
    their end.
    """

    job: Name
    attempt: Count
    reason: str


@event("job.gpu_unused", FACT)
class JobGpuUnused(Event):
    """No process of a job has used the GPU (`gpu`) of this rank's VM since the command started.

    `seconds` is the time since then. Zero seconds report that a process uses it now.
    """

    job: Name
    attempt: Count
    rank: Count
    gpu: str
    seconds: Amount


@event("job.exited", FACT)
class JobExited(Event):
    """The command of a job ended on this rank's VM, `seconds` after its start.

    `code` is its exit code (None: unknown; negative: the signal). `noticed` is whether it was
    requested to end before, by a preemption notice or by the controller. `preempted` is whether its
    VM had a preemption notice. `reason`, a clause, is why it was ended, if it was. `tail` is its
    last lines.
    """

    job: Name
    attempt: Count
    rank: Count
    code: int | None
    seconds: Amount = 0.0
    noticed: bool = False
    preempted: bool = False
    reason: str = ""
    tail: str = ""


_OF_JOB: dict[str, type[Event]] = {
    event_type.kind: event_type
    for event_type in (JobStarted, JobPacked, JobUnkept, JobGpuUnused, JobExited)
}


def from_job(line: bytes, job: str, attempt: int, rank: int, since: int, until: int) -> Event:
    """Return the event of a line about this attempt from a VM, checked as in `from_chief`."""
    found = read_foreign(line, _OF_JOB, VM, since, until)
    about = found.values
    if (about["job"], about["attempt"], about.get("rank", rank)) != (job, attempt, rank):
        raise ValueError(f"the {found.kind} event belongs to another job")
    return found


# What the controller records


@event("job.began", FACT)
class JobBegan(Event):
    """The job was assigned to these VMs, rank 0 first; `attempt` counts from 1."""

    job: Name
    attempt: Count
    vms: tuple[Name, ...]


@event("job.kept", FACT)
class JobKept(Event):
    """The folder of a job was received, as archive `number` with SHA-256 `digest`.

    The VM of `rank` packed it under the number `packed` in the attempt. `saved` is the time of the
    last change in it, in seconds since 1970 (0: unknown).
    """

    job: Name
    attempt: Count
    number: Count
    files: Count
    bytes: Count
    digest: str
    rank: Count = 0
    packed: Count = 0
    saved: Amount = 0.0


@event("job.interrupted", FACT)
class JobInterrupted(Event):
    """An attempt is over and another one follows.

    `reason` is a clause. `failed` is whether the command failed, so the next attempt is one of its
    retries. A revocation is not a failure.
    """

    job: Name
    attempt: Count
    reason: str
    failed: bool = False
