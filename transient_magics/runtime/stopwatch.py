"""How long the parts of a start take."""

from __future__ import annotations

import time


class Stopwatch:
    """Names and seconds of the parts of a start, in order."""

    def __init__(self, started: float, goal: str = "first gradient") -> None:
        self._started = self._last = started
        self._goal = goal
        self.parts: dict[str, float] = {}

    def lap(self, name: str) -> None:
        """Everything since the last lap was `name`."""
        now = time.time()
        self.parts[name] = self.parts.get(name, 0.0) + now - self._last
        self._last = now

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in self.parts.items())
        return f"{self._goal} after {self._last - self._started:.1f} s: {parts}"
