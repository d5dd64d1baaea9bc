"""The barrier of synchronous training, decided: how many gradients a step waits for, and how often to look.

The number is asked anew at every look, so a worker that dies or joins changes the step that is being waited for, not
the next one, and no step waits for somebody who is gone. Nothing here knows TensorFlow, a clock or a thread.
"""

from __future__ import annotations

_SHORTEST, _LONGEST = 0.001, 0.05
_SHARE = 0.1


def needed(live: int, backup: int) -> int:
    """How many gradients complete a step while `live` workers train and the slowest `backup` are not waited for.

    Never fewer than one: the first worker of a run takes its first step before it counts as live, and the last one
    left goes on however many backups were declared.
    """
    return max(1, live - backup)


class Looks:
    """When to look again for something that happens once in every step."""

    def __init__(self) -> None:
        self._usual = 0.0

    def pause(self, waited: float) -> float:
        """Seconds until the next look, after `waited` seconds.

        A look takes a parameter server 0.3 ms, and every worker looks: a fixed millisecond would cost it a third of a
        core for each. So nobody looks for half of the usual time; then in proportion, so that a look comes late by a
        tenth of a step and their number does not grow with its length. A sudden change is seen within _LONGEST.
        """
        return min(max(_SHARE * waited, self._usual / 2 - waited, _SHORTEST), _LONGEST)

    def happened(self, waited: float) -> None:
        """It happened after `waited` seconds."""
        self._usual += 0.2 * (waited - self._usual)
