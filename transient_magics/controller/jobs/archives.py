"""What a job leaves: the folder that it keeps, as an archive, and what its command printed.

An archive counts once all of it is here; until then the one before does.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

from ...errors import ForeignError
from ...journal import JobState
from ...journal.events import JobKept, JobPacked
from ...protocol import layout
from ...runtime.jobs.archive import look_through, newest, numbers, overlay, path_of
from ..artifacts import MOST_ARCHIVE, MOST_OUTPUT, Artifact, look_for_room

Get = Callable[[Path], Awaitable[bool]]
MOST_BYTES = MOST_ARCHIVE


def archive(told: JobPacked | JobKept) -> Artifact:
    """The archive that was told of: of plain files, with the digest that was told."""
    file = f"{layout.JOBS}/{told.job}/{layout.KEPT}/{layout.archive(told.number)}"
    return Artifact(f"folder of {told.job}", (file,), MOST_ARCHIVE, told.digest, told.bytes, look_through)


def output(job: str, attempt: int, rank: int) -> Artifact:
    """What the command printed in an attempt on the VM of that rank. It grows while the attempt goes on."""
    file = f"{layout.JOBS}/{job}/{layout.OUTPUT}/{layout.output(attempt, rank)}"
    return Artifact(f"output of {job}", (file,), MOST_OUTPUT, version=attempt)


def left(job: JobState) -> Iterator[Artifact]:
    """All that a job has left so far: what it printed in attempts that are over, and its newest archive."""
    over = job.attempt if job.over or not job.vms else job.attempt - 1
    for attempt in range(1, over + 1):
        for rank in range(job.spec.workers):
            yield output(job.name, attempt, rank)
    if job.kept:
        yield archive(job.kept)


async def fetch(arrived: Path, told: JobPacked | JobKept, get: Get) -> bool:
    """Bring the archive that was told of to the path `arrived`, where it does not count yet. As `bring`."""
    arrived.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    look_for_room(arrived.parent, told.bytes)
    if not await get(arrived):
        return False
    await asyncio.to_thread(_look_at, arrived, told.digest)
    return True


async def combine(
    folder: Path, arrived: Path, told: JobPacked, kept: JobKept | None, rank: int, alone: bool
) -> JobKept:
    """Put what a rank packed, which is at `arrived`, into the folder of its job, together with what is kept there.

    The folder of rank 0 replaces the one before where it is `alone`: no other rank's is in it. Else it and what other
    ranks changed are laid over each other, and a file that both have comes from the one that saved last. Raises
    ValueError where that is too much, RoomError where this machine has no room.
    """
    number = max(told.number, kept.number + 1 if kept else 0)
    target = path_of(folder, number)
    before = newest(folder, kept.number) if kept else 0
    about = JobKept(
        job=told.job, attempt=told.attempt, number=number, files=told.files, bytes=told.bytes, digest=told.digest,
        rank=rank, packed=told.number, saved=told.saved,
    )  # fmt: skip
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


def _look_at(path: Path, digest: str) -> None:
    """Raises ForeignError or ValueError where the archive is not what was told of it, or holds what no folder may."""
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != digest:
            raise ForeignError("it is not what the VM said that it is", where=str(path))
    look_through(path)
