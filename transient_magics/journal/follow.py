"""Reading a journal: all at once, or from any offset on as it grows.

On Linux the kernel's file notifications (inotify) wake the follower, so that an event is seen within a millisecond and
an idle journal costs nothing; elsewhere, and where the user's programs have as many watches as the kernel allows, the
file's size is looked at four times a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

from ..errors import JournalError
from .events import Event, decode

_POLL_SECONDS = 0.25
_CHECK_SECONDS = 5.0
_NO_MORE = (errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.ENOMEM)
"""What inotify says where the user has as many watchers (128 by default, editors take some) or watches as may be."""


def read(path: Path) -> list[Event]:
    """All whole events of the journal at `path` (none where there is no file); unreadable lines are passed over."""
    try:
        return decode_lines(path.read_bytes())[0]
    except FileNotFoundError:
        return []


async def follow_lines(
    path: Path, offset: int = 0, anew: Callable[[], None] | None = None
) -> AsyncIterator[tuple[int, bytes]]:
    """Yield (offset behind it, block of whole lines) as the file at `path` grows; waits for a file not there yet.

    Another file, or one that was shortened, is read from its start if there is `anew`, which is called before.
    """
    known = 0
    async with _changes(path) as changes:
        while True:
            number, size = _identity(path)
            if anew and number and (size < offset or number != (known or number)):
                offset = 0
                anew()
            known = number or known
            block = _read_from(path, offset)
            whole = block[: block.rfind(b"\n") + 1]
            if whole:
                offset += len(whole)
                yield offset, whole
            else:
                await changes.wait()


async def follow(path: Path, anew: Callable[[], None] = lambda: None) -> AsyncIterator[list[Event]]:
    """Yield the events in batches, first all that are there (perhaps none), then new ones for ever.

    Where the file is shortened or replaced, `anew` is called, and it is read from its first line on.
    """
    first = True
    if not path.exists():
        first = False
        yield []
    async for end, block in follow_lines(path, anew=anew):
        events, _ = decode_lines(block)
        if events or first or end == len(block):
            first = False
            yield events


def decode_lines(block: bytes) -> tuple[list[Event], int]:
    """The events of the whole lines in `block`, and where these end; unreadable lines are passed over."""
    end = block.rfind(b"\n") + 1
    events: list[Event] = []
    for line in block[:end].splitlines():
        try:
            events.append(decode(line))
        except JournalError:
            continue  # a line that a crash tore apart; what it said was never acted upon
    return events, end


def _identity(path: Path) -> tuple[int, int]:
    """Which file it is, and its size; zeros where there is none."""
    try:
        known = path.stat()
    except FileNotFoundError:
        return 0, 0
    return known.st_ino, known.st_size


def _read_from(path: Path, offset: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read()
    except FileNotFoundError:
        return b""


class _Changes(Protocol):
    async def wait(self) -> None: ...


class _Polled:
    async def wait(self) -> None:
        await asyncio.sleep(_POLL_SECONDS)


@asynccontextmanager
async def _changes(path: Path) -> AsyncGenerator[_Changes]:
    if not sys.platform.startswith("linux"):
        yield _Polled()
        return
    from asyncinotify import Inotify, Mask

    class _Notified:
        async def wait(self) -> None:
            # Woken by the kernel; the time-out covers file systems that send no notifications (as some network ones).
            try:
                async with asyncio.timeout(_CHECK_SECONDS):
                    await inotify.get()
            except TimeoutError:
                return

    with contextlib.ExitStack() as watching:
        changes: _Changes = _Notified()
        try:
            inotify = watching.enter_context(Inotify())
            # The folder is watched, not the file: it is there before the file is, and sees it replaced.
            inotify.add_watch(path.parent, Mask.MODIFY | Mask.CREATE | Mask.MOVED_TO)  # pyright: ignore[reportUnknownMemberType]
        except OSError as error:
            if error.errno not in _NO_MORE:
                raise
            changes = _Polled()
        yield changes
