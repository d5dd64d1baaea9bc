"""Archives of the folder that a job keeps, as they come to the job's folder here.

An archive counts once all of it is here, on disk, with the digest that was told, and nothing but plain files in it;
until then the one before does.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path

from ...errors import ForeignError, RoomError
from ...journal.events import JobKept, JobPacked
from ...protocol.job import MOST_KEPT_BYTES
from ...remote import room
from ...runtime.jobs.archive import look_through, numbers, path_of

MOST_BYTES = MOST_KEPT_BYTES + 64 * 2**20
"""Of an archive: what is kept, and the names of its files."""


async def bring(folder: Path, told: JobPacked | JobKept, get: Callable[[Path], Awaitable[bool]]) -> bool:
    """Have the archive that was told of in the folder of its job; False where `get`, which writes it to a path, finds
    none.

    Raises ForeignError or ValueError where it is not what was told, and RoomError where this machine has no room.
    """
    target = path_of(folder, told.number)
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if told.bytes > room(target.parent):
        what = f"this machine's disk has no room for {told.bytes:,} bytes more"
        raise RoomError(what, where=str(target.parent), fix="Free some of it.")
    arriving = target.with_name(f".{target.name}")
    try:
        if not await get(arriving):
            return False
        await asyncio.to_thread(_look_at, arriving, told.digest)
        arriving.replace(target)
    finally:
        arriving.unlink(missing_ok=True)
    return True


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
