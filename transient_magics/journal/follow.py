"""Read a journal at once, or follow it as it grows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

from ..errors import JournalError
from ..protocol import jsonl
from .events import Event, decode


def read(path: Path) -> list[Event]:
    """All whole events of the journal at `path` (none where there is no file); unreadable lines are
    passed over.
    """
    try:
        return decode_lines(path.read_bytes())[0]
    except FileNotFoundError:
        return []


async def follow(path: Path, anew: Callable[[], None] = lambda: None) -> AsyncIterator[list[Event]]:
    """Yield the events in batches, first all that are there (perhaps none), then new ones for ever.

    Where the file is shortened or replaced, `anew` is called, and it is read from its first line
    on.
    """
    first = True
    if not path.exists():
        first = False
        yield []
    async for end, block in jsonl.follow(path, restarted=anew):
        events, _ = decode_lines(block)
        if events or first or end == len(block):
            first = False
            yield events


def decode_lines(block: bytes) -> tuple[list[Event], int]:
    """The events of the whole lines in `block`, and where these end; unreadable lines are passed
    over.
    """
    end = block.rfind(b"\n") + 1
    events: list[Event] = []
    for line in block[:end].splitlines():
        try:
            events.append(decode(line))
        except JournalError:
            continue  # a line that a crash tore apart; what it said was never acted upon
    return events, end
