"""What a job leaves: the folder that it keeps, as an archive, and what its command printed.

An archive counts once all of it is here; until then the one before does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ...controller.artifacts import Artifact, look_for_room
from ...controller.remote_controller.result_sync import Sync
from ...journal import JobState
from ...journal.events import JobKept, JobPacked
from ...protocol import jsonl, layout
from ...protocol.job import MOST_KEPT_BYTES
from ...runtime.files.archive import look_through, newest, numbers, overlay, path_of

MOST_ARCHIVE = MOST_KEPT_BYTES + 64 * 2**20
"""Bytes of the folder that a job keeps, with the names of its files."""
MOST_OUTPUT = 24 * 2**20
"""Bytes of what a command prints on one VM."""
CUT = "[transient] what was said here did not come from the VM"


def archive(told: JobPacked | JobKept) -> Artifact:
    """The archive that was told of: of plain files, with the digest that was told."""
    file = f"{layout.JOBS}/{told.job}/{layout.KEPT}/{layout.archive(told.number)}"
    return Artifact(
        f"folder of {told.job}", (file,), MOST_ARCHIVE, told.digest, told.bytes, look_through
    )


def output(job: str, attempt: int, rank: int) -> Artifact:
    """What the command printed in an attempt on the VM of that rank. It grows while the attempt
    goes on.
    """
    file = f"{layout.JOBS}/{job}/{layout.OUTPUT}/{layout.output(attempt, rank)}"
    return Artifact(f"output of {job}", (file,), MOST_OUTPUT, version=attempt)


async def combine(
    folder: Path, arrived: Path, told: JobPacked, kept: JobKept | None, rank: int, alone: bool
) -> JobKept:
    """Put what a rank packed, which is at `arrived`, into the folder of its job, together with what
    is kept there.

    The folder of rank 0 replaces the one before where it is `alone`: no other rank's is in it. Else
    it and what other ranks changed are laid over each other, and a file that both have comes from
    the one that saved last. Raises ValueError where that is too much, RoomError where this machine
    has no room.
    """
    number = max(told.number, kept.number + 1 if kept else 0)
    target = path_of(folder, number)
    if kept:
        before = newest(folder, kept.number)
    else:
        before = 0
    about = JobKept(
        job=told.job,
        attempt=told.attempt,
        number=number,
        files=told.files,
        bytes=told.bytes,
        digest=told.digest,
        rank=rank,
        packed=told.number,
        saved=told.saved,
    )
    if not before or (rank == 0 and alone):
        arrived.replace(target)
        return about
    assert kept is not None
    below = path_of(folder, before)
    look_for_room(target.parent, below.stat().st_size + arrived.stat().st_size)
    newer = told.saved > kept.saved
    both = await asyncio.to_thread(overlay, below, arrived, target, newer=newer)
    saved = max(told.saved, kept.saved)
    return replace(about, files=both.files, bytes=both.bytes, digest=both.digest, saved=saved)


def forget_older(folder: Path, number: int) -> None:
    """Delete the archives in the folder of a job that are older than that number."""
    for older in numbers(folder):
        if older < number:
            path_of(folder, older).unlink(missing_ok=True)


def add_tail(path: Path, tail: str) -> None:
    """Have the file at `path` end with `tail`, the last lines that were said; where they do not
    follow on what it has, a line says so. Raises OSError.
    """
    lines = tail.splitlines()
    if path.exists():
        said = path.read_text(errors="replace", encoding="utf-8").splitlines()
    else:
        said = []
    known = next(
        (
            count
            for count in range(min(len(lines), len(said)), 0, -1)
            if said[-count:] == lines[:count]
        ),
        0,
    )
    if known or not said:
        missing = lines[known:]
    else:
        missing = [CUT, *lines]
    if lines and missing:
        path.parent.mkdir(exist_ok=True, mode=0o700)
        jsonl.append_lines(path, "".join(f"{line}\n" for line in missing).encode())


class JobSync(Sync[JobState]):
    """Brings what jobs printed, and the folders that they keep."""

    kind = "job"
    in_bucket = (f"{layout.JOBS}/*/{layout.KEPT}/*.tar", f"{layout.JOBS}/*/{layout.OUTPUT}/*.log")

    def left(self, work: JobState) -> Iterator[Artifact]:
        """Yield what a job printed in attempts that are over, and its newest archive."""
        if work.over or not work.vms:
            over = work.attempt
        else:
            over = work.attempt - 1
        for attempt in range(1, over + 1):
            for rank in range(work.spec.workers):
                yield output(work.name, attempt, rank)
        if work.kept:
            yield archive(work.kept)

    def growing(self, work: JobState) -> Iterator[Artifact]:
        """Yield what a job prints now."""
        if not work.over:
            for rank in range(len(work.vms)):
                yield output(work.name, work.attempt, rank)

    def tidy(self, work: JobState) -> None:
        """Delete archives that a newer one has replaced."""
        folder = self.folder(work.name)
        forget_older(folder, newest(folder, work.kept.number if work.kept else 0))


SYNC = JobSync
