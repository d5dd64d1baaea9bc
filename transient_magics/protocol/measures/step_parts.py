"""Where the seconds of a worker's steps went, as its lines of metrics say it: `split`, a list of seconds in this order.

Exposed parts are what the step waited for, one after the other; they add up to the step. What went on beneath another
part is hidden: without it the step would have been no shorter.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, cast

EXPOSED = ("input", "pull", "compute", "push", "barrier", "rest")
_LONGEST = 1e9


class StepParts(NamedTuple):
    """Seconds of one or of several steps.

    Exposed: `input`, until the mini-batch was there; `pull`, from then until the last variable was there; `compute`,
    from then until the last gradient was there; `push`, from then until all were applied; `barrier`, for other workers;
    `rest`, between two steps. Hidden: `hidden_pull`, beneath the wait for the mini-batch; `hidden_push`, beneath the
    backward pass, at most. `own` is computing that nobody else's slowness shows in, part of `compute`: the backward
    pass, when all that it needs is in the worker's memory.
    """

    input: float = 0.0
    pull: float = 0.0
    compute: float = 0.0
    push: float = 0.0
    barrier: float = 0.0
    rest: float = 0.0
    hidden_pull: float = 0.0
    hidden_push: float = 0.0
    own: float = 0.0

    @property
    def step(self) -> float:
        """All exposed parts together."""
        return sum(self[: len(EXPOSED)])

    def plus(self, other: StepParts) -> StepParts:
        """Those of both."""
        return StepParts(*(one + another for one, another in zip(self, other, strict=True)))

    @property
    def told(self) -> list[float]:
        """As in a line of metrics."""
        return [round(seconds, 4) for seconds in self]


def step_parts(told: Any) -> StepParts | None:
    """What a line of metrics says; None where it says none, or nothing that can be counted with.

    A newer worker may tell more, behind these.
    """
    if not isinstance(told, list):
        return None
    seconds: list[Any] = list(cast("list[Any]", told))[: len(StepParts._fields)]
    sound = all(type(each) in (int, float) and math.isfinite(each) and 0 <= each < _LONGEST for each in seconds)
    return StepParts(*map(float, seconds)) if sound and len(seconds) == len(StepParts._fields) else None
