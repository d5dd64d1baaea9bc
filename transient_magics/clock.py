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
from dataclasses import dataclass

SECONDS_PER_HOUR = 3600.0
_SECONDS_PER_MINUTE = 60.0


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
