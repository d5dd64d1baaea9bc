"""The time of day without the jumps of this machine's clock, to count hours, dollars and limits by.

A wall clock may be set to another time at any moment: by hand, by a network that told it wrongly,
by a machine that wakes up. What it shows in such minutes would end clusters and write bills. So it
is followed as long as it goes as fast as the clock that counts the seconds since the machine
started (which goes on while it sleeps); a jump is believed when it has lasted ten minutes.
"""

from __future__ import annotations

import time
from collections.abc import Callable

BELIEVED_SECONDS = 600.0
_JUMP_SECONDS = 5.0
_COUNTING = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def counted() -> float:
    """Seconds since this machine started, those in which it slept too: no jump is seen in them."""
    return time.clock_gettime(_COUNTING)


class SteadyClock:
    """`wall` gives seconds since 1970 and may jump; `counting` gives seconds and does not."""

    def __init__(
        self,
        wall: Callable[[], float] = time.time,
        counting: Callable[[], float] = counted,
    ) -> None:
        self._wall = wall
        self._counting = counting
        self._ahead = wall() - counting()
        self._other = self._ahead
        self._since = 0.0
        """Where the wall clock has jumped to, and when by the counting one."""

    def now(self) -> float:
        """Seconds since 1970."""
        counted = self._counting()
        ahead = self._wall() - counted
        if abs(ahead - self._ahead) < _JUMP_SECONDS:
            self._ahead = self._other = ahead  # as it is set right by and by
        elif abs(ahead - self._other) >= _JUMP_SECONDS:
            self._other = ahead
            self._since = counted
        elif counted - self._since >= BELIEVED_SECONDS:
            self._ahead = ahead
        return counted + self._ahead


_clock = SteadyClock()


def now() -> float:
    """Seconds since 1970, by the clock of this process."""
    return _clock.now()
