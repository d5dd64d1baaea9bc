"""What is known of a run that has to be done in time: which machines it has, what is likely, how fast it is.

How fast its workers are together is told by its own progress alone: by stretches between two reports of it in which
nobody joined or left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self

from . import events as e

_JOINS = 20


class Pace(NamedTuple):
    """How fast certain workers were together: `steps` in `seconds`, in so many `stretches`; `squares`: the sum of each
    stretch's seconds times its speed squared."""

    seconds: float = 0.0
    steps: float = 0.0
    squares: float = 0.0
    stretches: int = 0

    def longer(self, seconds: float, steps: float) -> Pace:
        """With one more stretch."""
        squares = self.squares + steps**2 / seconds
        return Pace(self.seconds + seconds, self.steps + steps, squares, self.stretches + 1)

    @property
    def once(self) -> Pace:
        """As one stretch of the mean length."""
        return Pace(self.seconds / self.stretches, self.steps / self.stretches, self.squares / self.stretches, 1)


@dataclass(frozen=True, slots=True)
class DeadlineState:
    """Of one run. `acted`: what holds now (None: the declared workers do); `outlook`: what was told
    last; `proposed`: what waits to be agreed to; `late`: since when it is known that it cannot be in time."""

    acted: e.DeadlineActed | None = None
    outlook: e.DeadlineOutlook | None = None
    proposed: e.DeadlineProposed | None = None
    late: e.DeadlineLate | None = None
    durable: int = 0
    """The step of the last durable save; all after it may be lost with a parameter server."""
    paces: Mapping[str, Pace] = field(default_factory=dict[str, Pace])
    """By machines, as `k80x2+t4x1`."""
    joins: tuple[float, ...] = ()
    """Seconds that each of the last workers took from its VM's readiness, or the run's declaration, until then."""
    save_seconds: float = 0.0
    """How long the longest save took."""
    mark: tuple[float, int] | None = None
    """When progress was told last, and the step, where nobody joined or left since."""

    def told(self, at: float, step: int, machines: str) -> Self:
        """With one more report of progress, of these workers."""
        paces = dict(self.paces)
        if self.mark and machines and at > self.mark[0] and step >= self.mark[1]:
            paces[machines] = paces.get(machines, Pace()).longer(at - self.mark[0], step - self.mark[1])
        return replace(self, paces=paces, mark=(at, step))

    def saved(self, step: int, seconds: float = 0.0) -> Self:
        """With all up to `step` saved, which took so many seconds, or begun from there."""
        return replace(self, durable=step, save_seconds=max(self.save_seconds, seconds))

    def joined(self, seconds: float) -> Self:
        """With one more worker, which took so long."""
        return replace(self, joins=(*self.joins[1 - _JOINS :], max(seconds, 0.0)), mark=None)

    def changed(self) -> Self:
        """With other workers from now on."""
        return replace(self, mark=None)

    def remade(self) -> Self:
        """With a worker on another machine from now on: what was measured before tells little of it."""
        return replace(self, paces={machines: pace.once for machines, pace in self.paces.items()}, mark=None)
