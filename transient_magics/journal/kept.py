"""The state of a journal, kept in memory: asked again, only what was written meanwhile is read and folded."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from .. import places
from ..protocol import layout
from .folding import replay
from .follow import decode_lines
from .state import ClusterState

_HEAD_BYTES = 512


class KeptState:
    """The state that the journal at `path` adds up to. Any thread may ask."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._head, self._offset, self._state = b"", 0, ClusterState()
        self._file = 0

    def read(self) -> ClusterState:
        """The state now; the empty one where there is no journal."""
        with self._lock:
            try:
                with self._path.open("rb") as file:
                    head = file.read(_HEAD_BYTES)
                    size = file.seek(0, 2)
                    known, self._file = self._file, os.fstat(file.fileno()).st_ino
                    # Another cluster of that name, or another history of this one.
                    if known != self._file or not head.startswith(self._head) or size < self._offset:
                        self._head, self._offset, self._state = b"", 0, ClusterState()
                    file.seek(self._offset)
                    block = file.read()
            except FileNotFoundError:
                return ClusterState()
            events, end = decode_lines(block)
            self._head = head if len(head) == _HEAD_BYTES else self._head
            self._offset, self._state = self._offset + end, replay(events, self._state)
            return self._state


@lru_cache(maxsize=64)
def kept(path: Path) -> KeptState:
    """The kept state of the journal at `path`, one for all who ask."""
    return KeptState(path)


def known_states() -> Iterator[ClusterState]:
    """What is known of all clusters of this machine, deleted ones too; one that cannot be read is passed over."""
    for folder in (places.clusters(), places.past()):
        for journal in folder.glob(f"[a-z]*/{layout.JOURNAL}"):
            try:
                yield kept(journal).read()
            except OSError:
                continue
