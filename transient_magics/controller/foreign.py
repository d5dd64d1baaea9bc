"""The lines of a VM that are not taken: passed over, counted, and told once.

User code runs on VMs, and whoever is let in by it. So lines from there are read as those of a
stranger.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

log = logging.getLogger(__name__)

_FIRST = 10
_EACH = 1000


class RefusedError(Exception):
    """An event of a VM does not fit what it reported before."""


class Refusals:
    """Lines that were not taken. `source` is who wrote them, `tell` takes one sentence, once."""

    def __init__(self, source: str, tell: Callable[[str], object]) -> None:
        self.count = 0
        self._source = source
        self._tell = tell

    def add(self, line: bytes, error: Exception) -> None:
        """One more. Not every one is in the log, so that nobody fills it."""
        self.count += 1
        if self.count <= _FIRST or self.count % _EACH == 0:
            log.warning(
                "%s: line %d that is not taken: %s: %r", self._source, self.count, error, line[:200]
            )
        if self.count == 1:
            self._tell(f"{self._source} wrote lines that are not taken, the first one: {error}")
