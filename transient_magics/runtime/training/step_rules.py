"""Rules that the chief and the workers of a step share: the barrier of synchronous training and the
rate's divisor.

The number is asked anew at every look, so a worker that dies or joins changes the step that is
being waited for, not the next one, and no step waits for somebody who is gone. Nothing here knows
TensorFlow, a clock or a thread.
"""

from __future__ import annotations

import math

_SHORTEST = 0.001
_LONGEST = 0.05
_SHARE = 0.1


def gradients_needed(live: int, backup: int) -> int:
    """How many gradients complete a step while `live` workers train and the slowest `backup` are
    not waited for.

    Never fewer than one: the first worker of a run takes its first step before it counts as live,
    and the last one left goes on however many backups were declared.
    """
    return max(1, live - backup)


class PollSchedule:
    """When to look again for something that happens once in every step."""

    def __init__(self) -> None:
        self._usual = 0.0

    def pause(self, waited: float) -> float:
        """Seconds until the next look, after `waited` seconds.

        A look takes a parameter server 0.3 ms, and every worker looks: a fixed millisecond would
        cost it a third of a core for each. So nobody looks for half of the usual time; then in
        proportion, so that a look comes late by a tenth of a step and their number does not grow
        with its length. A sudden change is seen within _LONGEST.
        """
        return min(max(_SHARE * waited, self._usual / 2 - waited, _SHORTEST), _LONGEST)

    def happened(self, waited: float) -> None:
        """It happened after `waited` seconds."""
        self._usual += 0.2 * (waited - self._usual)


# What divides the learning rate, while the workers come and go.


def divisor(policy: str, *, synchronous: bool, active: int, slots: int) -> float:
    """The divisor of one update's rate: `policy` is `active`, `slots` (the most workers there may
    be) or `fixed`.

    Each of n asynchronous workers applies updates of its own, so `active` divides their rate by the
    square root of how many there are now. A synchronous step applies one update, whoever took part:
    `active` divides by one. `slots` keeps to the declared number in both modes.
    """
    match policy:
        case "active" if not synchronous:
            return math.sqrt(max(1, active))
        case "slots":
            return math.sqrt(max(1, slots))
    return 1.0
