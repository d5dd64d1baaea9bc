"""The clock of a simulation: nobody waits, and of two things at one moment that which was planned first is first."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable


class Clock:
    """`now`: seconds since 1970. What is planned `after` some seconds is done while the clock `runs`."""

    def __init__(self, now: float) -> None:
        self.now = now
        self._planned: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        """Have this done so many seconds from now."""
        heapq.heappush(self._planned, (self.now + seconds, next(self._order), do))

    def run(self, until: float, over: Callable[[], bool] = lambda: False) -> None:
        """Let time pass until that moment, or until it is `over`."""
        while self._planned and self._planned[0][0] <= until and not over():
            self.now, _, do = heapq.heappop(self._planned)
            do()
        if not over():
            self.now = max(self.now, until)
