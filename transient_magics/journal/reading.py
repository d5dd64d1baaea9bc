"""Readers of a journal: all events, new events, or the state that they add up to."""

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
    """Read all whole events of the journal at `path`; none if there is no file.

    Unreadable lines are skipped.
    """
    try:
        return decode_lines(path.read_bytes())[0]
    except FileNotFoundError:
        return []


async def follow(
    path: Path, restarted: Callable[[], None] = lambda: None
) -> AsyncIterator[list[Event]]:
    """Yield the events in batches: first all present ones (perhaps none), then new ones.

    If the file is shortened or replaced, `restarted` is called and the file read from its start.
    """
    first = True
    if not path.exists():
        first = False
        yield []
    async for end, block in jsonl.follow(path, restarted=restarted):
        events, _ = decode_lines(block)
        if events or first or end == len(block):
            first = False
            yield events


def decode_lines(block: bytes) -> tuple[list[Event], int]:
    """Read the events of the whole lines in `block`, and return them with the end of these lines.

    Unreadable lines are skipped.
    """
    end = block.rfind(b"\n") + 1
    events: list[Event] = []
    for line in block[:end].splitlines():
        try:
            events.append(decode(line))
        except JournalError:
            continue  # A crash tore this line, and no process acted on it.
    return events, end


class KeptState:
    """The current state of the journal at `path`. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._position = jsonl.Position(path)
        self._state = ClusterState()

    def read(self) -> ClusterState:
        """Return the current state; the empty one if there is no journal."""
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
    """Return the shared KeptState of the journal at `path`."""
    return KeptState(path)


def known_states() -> Iterator[ClusterState]:
    """Yield the states of all clusters of this machine, also deleted ones.

    Unreadable journals are skipped.
    """
    for folder in (places.clusters(), places.past()):
        for journal in folder.glob(f"[a-z]*/{layout.JOURNAL}"):
            try:
                yield kept(journal).read()
            except OSError:
                continue
