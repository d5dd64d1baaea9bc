"""Archives of the folder that a job keeps, as they come to the job's folder here.

An archive counts once all of it is here, on disk, with the digest that was told, and nothing but plain files in it;
until then the one before does.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from ...errors import ForeignError, RoomError
from ...journal.events import JobKept, JobPacked
from ...protocol.job import MOST_KEPT_BYTES
from ...remote import room
from ...runtime.jobs.archive import look_through, newest, numbers, overlay, path_of

Get = Callable[[Path], Awaitable[bool]]
MOST_BYTES = MOST_KEPT_BYTES + 64 * 2**20
"""Of an archive: what is kept, and the names of its files."""


async def bring(folder: Path, told: JobPacked | JobKept, get: Get) -> bool:
    """Have the archive that was told of in the folder of its job; False where `get`, which writes it to a path, finds
    none.

    Raises ForeignError or ValueError where it is not what was told, and RoomError where this machine has no room.
    """
    target = path_of(folder, told.number)
    arrived = target.with_name(f".{target.name}")
    try:
        if not await fetch(arrived, told, get):
            return False
        arrived.replace(target)
    finally:
        arrived.unlink(missing_ok=True)
    return True


async def fetch(arrived: Path, told: JobPacked | JobKept, get: Get) -> bool:
    """Bring the archive that was told of to the path `arrived`, where it does not count yet. As `bring`."""
    arrived.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    _check_room(arrived.parent, told.bytes)
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
    _check_room(target.parent, below.stat().st_size + arrived.stat().st_size)
    newer = told.saved > kept.saved
    both = await asyncio.to_thread(overlay, below, arrived, target, newer=newer)
    saved = max(told.saved, kept.saved)
    return replace(about, files=both.files, bytes=both.bytes, digest=both.digest, saved=saved)


def _check_room(folder: Path, needed: int) -> None:
    if needed > room(folder):
        what = f"this machine's disk has no room for {needed:,} bytes more"
        raise RoomError(what, where=str(folder), fix="Free some of it.")


def forget_older(folder: Path, number: int) -> None:
    """Delete those from before that number."""
    for each in numbers(folder):
        if each < number:
            path_of(folder, each).unlink(missing_ok=True)


def _look_at(path: Path, digest: str) -> None:
    """Raises ForeignError or ValueError where the archive is not what was told of it, or holds what no folder may."""
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != digest:
            raise ForeignError("it is not what the VM said that it is", where=str(path))
    look_through(path)
