"""The emulated clock: time passes faster for the cloud, and at the usual rate for the work.

It equals this machine's clock until `hours_per_minute` is set, and runs faster from then on. It
never jumps. These follow the emulated clock:

- lifetimes of VMs: published ones, those of a file, the 24 hours of preemptible VMs;
- boot times;
- time limits: `maxRunDuration`, and what is left of `terminationTime` when a VM is created;
- bills, and the limits on hours and cost.

These follow this machine's clock: preemption notices (unless notices scale), the work, idle times,
`every=`, delays and ends of stockouts, the API's latency, and all timestamps of the API, because
clients compare them with their own clocks. Times on either clock are seconds since 1970. On Google
Cloud the two clocks are the same.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

SECONDS_PER_HOUR = 3600.0
_SECONDS_PER_MINUTE = 60.0

BELIEVED_SECONDS = 600.0
_JUMP_SECONDS = 5.0
_COUNTING = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def rate_of(hours_per_minute: float | None) -> float:
    """Return the emulated seconds per second."""
    if hours_per_minute is None:
        return 1.0
    return hours_per_minute * SECONDS_PER_HOUR / _SECONDS_PER_MINUTE


@dataclass(frozen=True)
class Clock:
    """The emulated clock, a piecewise linear function of this machine's clock."""

    anchors: tuple[tuple[float, float, float], ...] = ((0.0, 0.0, 1.0),)
    """The changes of the rate, oldest first: the time on this machine's clock and on the emulated
    one, and the rate from then on.
    """

    @property
    def rate(self) -> float:
        """The emulated seconds per second, now."""
        return self.anchors[-1][2]

    def at(self, moment: float) -> float:
        """Return the emulated time at a time of this machine's clock."""
        place = bisect_right(self.anchors, (moment, float("inf"), 0.0)) - 1
        here, there, rate = self.anchors[max(place, 0)]
        return there + (moment - here) * rate

    def between(self, earlier: float, later: float) -> float:
        """Return the emulated seconds between two times of this machine's clock."""
        return self.at(later) - self.at(earlier)

    def now(self) -> float:
        """Return the emulated time now."""
        return self.at(time.time())

    def when(self, emulated: float) -> float:
        """Return this machine's time at an emulated time, at the present rate."""
        here, there, rate = self.anchors[-1]
        return here + (emulated - there) / rate

    def running_at(self, rate: float, moment: float) -> Clock:
        """Return the clock with another rate from this time on."""
        if rate == self.rate:
            return self
        return Clock((*self.anchors, (moment, self.at(moment), rate)))


# The time of day without the jumps of this machine's clock, to count hours, dollars and limits by.
#
# A wall clock may be set to another time at any moment: by hand, by a network that told it wrongly, by a machine that
# wakes up. What it shows in such minutes would end clusters and write bills. So it is followed as long as it goes as
# fast as the clock that counts the seconds since the machine started (which goes on while it sleeps); a jump is
# believed when it has lasted ten minutes.


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
