"""The emulated clock: how fast time passes for the cloud, while it passes as ever for the work.

It is this machine's clock, run faster from the moment at which `hours_per_minute` was set; it never
jumps. On it run:

- lifetimes of VMs (published ones, those of a file, the 24 hours of preemptible VMs),
- boot times,
- time limits: `terminationTime` (what is left of it at the insert, counted from there),
  `maxRunDuration`,
- what is billed, and the limits on hours and cost: `anchors` tell how much emulated time lies
  between two moments.

By this machine's own clock go: the notice of a preemption (unless notices scale), the work,
idleness, `every=`, the delays and ends of stockouts, the API's latency, and every timestamp that
the API writes (clients compare them with their own clocks). Moments on either clock are seconds
since 1970. On Google the two are the same.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from dataclasses import dataclass

SECONDS_PER_HOUR = 3600.0
_SECONDS_PER_MINUTE = 60.0


def rate_of(hours_per_minute: float | None) -> float:
    """Emulated seconds per second."""
    if hours_per_minute is None:
        return 1.0
    return hours_per_minute * SECONDS_PER_HOUR / _SECONDS_PER_MINUTE


@dataclass(frozen=True)
class Clock:
    """A piecewise linear function of this machine's time.

    Each anchor is (moment here, moment on the emulated clock, rate from there on), oldest first.
    """

    anchors: tuple[tuple[float, float, float], ...] = ((0.0, 0.0, 1.0),)

    @property
    def rate(self) -> float:
        """Emulated seconds per second, now."""
        return self.anchors[-1][2]

    def at(self, moment: float) -> float:
        """What the emulated clock shows (or showed) at a moment of this machine's clock."""
        here, there, rate = self.anchors[
            max(bisect_right(self.anchors, (moment, float("inf"), 0.0)) - 1, 0)
        ]
        return there + (moment - here) * rate

    def between(self, earlier: float, later: float) -> float:
        """Emulated seconds from one moment of this machine's clock to another."""
        return self.at(later) - self.at(earlier)

    def now(self) -> float:
        """What it shows now."""
        return self.at(time.time())

    def when(self, emulated: float) -> float:
        """At which moment of this machine's clock it will show this, should the rate stay as it is."""
        here, there, rate = self.anchors[-1]
        return here + (emulated - there) / rate

    def running_at(self, rate: float, moment: float) -> Clock:
        """The same clock, with another rate from this moment on."""
        if rate == self.rate:
            return self
        return Clock((*self.anchors, (moment, self.at(moment), rate)))
