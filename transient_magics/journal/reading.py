"""Read a journal: all of it, as it grows, or as the state that it adds up to."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator
from functools import lru_cache
from pathlib import Path

from .. import places
from ..errors import JournalError
from ..protocol import jsonl, layout
from .events import Event, decode
from .folding import replay
from .state import ClusterState


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


class KeptState:
    """The state that the journal at `path` adds up to. Any thread may ask."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._position = jsonl.Position(path)
        self._state = ClusterState()

    def read(self) -> ClusterState:
        """The state now; the empty one where there is no journal."""
        with self._lock:
            if not self._path.exists():
                return ClusterState()
            lines, is_other = self._position.read()
            if is_other:  # another cluster of that name, or another history of this one
                self._state = ClusterState()
            events, _ = decode_lines(lines)
            self._state = replay(events, self._state)
            return self._state


@lru_cache(maxsize=64)
def kept(path: Path) -> KeptState:
    """The kept state of the journal at `path`, one for all who ask."""
    return KeptState(path)


def known_states() -> Iterator[ClusterState]:
    """What is known of all clusters of this machine, deleted ones too; one that cannot be read is
    passed over.
    """
    for folder in (places.clusters(), places.past()):
        for journal in folder.glob(f"[a-z]*/{layout.JOURNAL}"):
            try:
                yield kept(journal).read()
            except OSError:
                continue
