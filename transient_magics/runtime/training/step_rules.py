"""Rules of a step that the chief and the workers share: barrier, polling, learning rate divisor.

The barrier is computed again at each poll. So a worker that dies or joins changes the step in
progress, not only the next one, and no step waits for a lost worker. Pure: without TensorFlow,
clocks and threads.
"""

from __future__ import annotations

import math

SMALLEST_RATE = 1e-12
"""The least factor of a learning rate: 0 would make its divisor infinite."""
_SHORTEST = 0.001
_LONGEST = 0.05
_SHARE = 0.1


def gradients_needed(live: int, backup: int) -> int:
    """Return how many gradients complete a synchronous step.

    Parameters
    ----------
    live
        Number of workers that train.
    backup
        Number of slowest workers that a step does not wait for.

    Returns
    -------
    int
        At least one: the first worker takes its first step before it counts as live, and the last
        one continues however many backup workers were declared.
    """
    return max(1, live - backup)


class PollSchedule:
    """The times at which to poll for an event that happens once in every step."""

    def __init__(self) -> None:
        self._usual = 0.0

    def pause(self, waited: float) -> float:
        """Return the seconds until the next poll, after `waited` seconds.

        A poll costs a parameter server 0.3 ms, and every worker polls: at a fixed interval of a
        millisecond, each worker would cost it a third of a core. So there is no poll during the
        first half of the usual time. Later the interval grows with the time waited: a poll is late
        by at most a tenth of a step, and the number of polls does not grow with the step's length.
        A sudden change is noticed within _LONGEST.
        """
        return min(max(_SHARE * waited, self._usual / 2 - waited, _SHORTEST), _LONGEST)

    def happened(self, waited: float) -> None:
        """Record that the event happened after `waited` seconds."""
        self._usual += 0.2 * (waited - self._usual)


def divisor(policy: str, *, synchronous: bool, active: int, slots: int) -> float:
    """Return the divisor of the learning rate of one update.

    Parameters
    ----------
    policy
        `active`, `slots` or `fixed`. Each of n asynchronous workers applies its own updates, so
        `active` divides their rate by the square root of the current number of workers. A
        synchronous step applies one update, so `active` divides by one. `slots` uses the declared
        number in both modes. `fixed` divides by one.
    synchronous
        Whether steps are synchronous.
    active
        Current number of workers.
    slots
        Largest number of workers.
    """
    match policy:
        case "active" if not synchronous:
            return math.sqrt(max(1, active))
        case "slots":
            return math.sqrt(max(1, slots))
    return 1.0
