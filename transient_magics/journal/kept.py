"""The state of a journal, kept in memory: asked again, only what was written meanwhile is read and
folded.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from .. import places
from ..protocol import jsonl, layout
from .folding import replay
from .follow import decode_lines
from .state import ClusterState


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
