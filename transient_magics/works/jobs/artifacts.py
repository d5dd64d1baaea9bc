"""The artifacts of a job: archives of the folder that it keeps, and the output of its command.

An archive counts once it has arrived completely. Until then the one before does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ...controller.artifacts import Artifact, look_for_room
from ...controller.remote_controller.result_sync import Sync
from ...protocol import jsonl, layout
from ...runtime.files.archive import MOST_KEPT_BYTES, check, newest, numbers, overlay, path_of
from .events import JobKept, JobPacked
from .state import JobState

MOST_ARCHIVE = MOST_KEPT_BYTES + 64 * 2**20
"""Limit on an archive in bytes: the folder that a job keeps, and the names of its files."""
MOST_OUTPUT = 24 * 2**20
"""Limit on the output of a command on one VM, in bytes."""
CUT = "[transient] some output is missing here: it was not copied from the VM"


def archive(event: JobPacked | JobKept) -> Artifact:
    """Return the archive that an event reports, with its digest; it has regular files only."""
    file = f"{layout.JOBS}/{event.job}/{layout.KEPT}/{layout.archive(event.number)}"
    return Artifact(
        f"folder of {event.job}", (file,), MOST_ARCHIVE, event.digest, event.bytes, check
    )


def output(job: str, attempt: int, rank: int) -> Artifact:
    """Return the output of a command on one VM, a file that grows during the attempt."""
    file = f"{layout.JOBS}/{job}/{layout.OUTPUT}/{layout.output(attempt, rank)}"
    return Artifact(f"output of {job}", (file,), MOST_OUTPUT, version=attempt)


async def combine(
    folder: Path, arrived: Path, packed: JobPacked, kept: JobKept | None, rank: int, *, alone: bool
) -> JobKept:
    """Put an archive of a rank into the folder of its job, combined with the archive there.

    An archive of rank 0 has the whole folder and replaces the one before, unless other ranks have
    packed in this attempt. Otherwise the two are overlaid: a file that both have comes from the
    rank that saved last.

    Parameters
    ----------
    folder
        The folder of the job on this machine.
    arrived
        The archive of the rank.
    packed
        The event that reported it.
    kept
        The archive in the folder of the job, if there is one.
    rank
        The rank.
    alone
        Whether no other rank has packed in this attempt.

    Returns
    -------
    JobKept
        The event that describes the result.

    Raises
    ------
    ValueError
        The result would exceed the limit.
    RoomError
        This machine's disk is full.
    """
    number = packed.number
    base = 0
    if kept:
        number = max(number, kept.number + 1)
        base = newest(folder, kept.number)
    target = path_of(folder, number)
    result = JobKept(
        job=packed.job,
        attempt=packed.attempt,
        number=number,
        files=packed.files,
        bytes=packed.bytes,
        digest=packed.digest,
        rank=rank,
        packed=packed.number,
        saved=packed.saved,
    )
    if kept is None or not base or (rank == 0 and alone):
        arrived.replace(target)
        return result
    below = path_of(folder, base)
    look_for_room(target.parent, below.stat().st_size + arrived.stat().st_size)
    is_newer = packed.saved > kept.saved
    both = await asyncio.to_thread(overlay, below, arrived, target, newer=is_newer)
    saved = max(packed.saved, kept.saved)
    return replace(result, files=both.files, bytes=both.bytes, digest=both.digest, saved=saved)


def forget_older(folder: Path, number: int) -> None:
    """Delete the archives in the folder of a job that are older than that number."""
    for older in numbers(folder):
        if older < number:
            path_of(folder, older).unlink(missing_ok=True)


def add_tail(path: Path, tail: str) -> None:
    """Append the last lines of a command's output to the file of its output.

    Lines that the file ends with already are not repeated. If the file ends with none of them, a
    line reports that some output is missing. Raises OSError.
    """
    lines = tail.splitlines()
    present: list[str] = []
    if path.exists():
        present = path.read_text(errors="replace", encoding="utf-8").splitlines()
    overlap = min(len(lines), len(present))
    while overlap and present[-overlap:] != lines[:overlap]:
        overlap -= 1
    missing = lines[overlap:]
    if not missing:
        return
    if present and not overlap:
        missing = [CUT, *missing]
    path.parent.mkdir(exist_ok=True, mode=0o700)
    jsonl.append_lines(path, "".join(f"{line}\n" for line in missing).encode())


class JobSync(Sync[JobState]):
    """Copies the output of jobs, and the folders that they keep."""

    kind = "job"
    in_bucket = (f"{layout.JOBS}/*/{layout.KEPT}/*.tar", f"{layout.JOBS}/*/{layout.OUTPUT}/*.log")

    def left(self, work: JobState) -> Iterator[Artifact]:
        """Yield the output of a job's completed attempts, and its newest archive."""
        completed = work.attempt
        if work.vms and not work.over:
            completed -= 1
        for attempt in range(1, completed + 1):
            for rank in range(work.spec.workers):
                yield output(work.name, attempt, rank)
        if work.kept:
            yield archive(work.kept)

    def growing(self, work: JobState) -> Iterator[Artifact]:
        """Yield the output of the attempt under way."""
        if not work.over:
            for rank in range(len(work.vms)):
                yield output(work.name, work.attempt, rank)

    def tidy(self, work: JobState) -> None:
        """Delete archives that a newer one has replaced."""
        folder = self.folder(work.name)
        number = work.kept.number if work.kept else 0
        forget_older(folder, newest(folder, number))


SYNC = JobSync
