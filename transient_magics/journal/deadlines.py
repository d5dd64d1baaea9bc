"""What is known of a run that has to be done in time: which machines it has, what is likely, how
fast it is.

How fast its workers are together follows from its own progress alone: from blocks between two
reports of it in which no worker joined or left.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from . import events as e

BLOCK_SECONDS = 600.0
"""How long a block is, unless its workers change, on the cloud's clock."""
_BLOCKS = 18  # three hours: what is older says little of how fast the run is now
_JOINS = 20


class Block(NamedTuple):
    """Progress of one set of workers: it ended `at`, took `seconds` and made `steps`.

    `fresh`: how many of its VMs are new to the run.
    """

    at: float
    seconds: float
    steps: float
    machines: str
    fresh: int = 0


@dataclass(frozen=True, slots=True)
class DeadlineState:
    """Of one run. `acted`: what holds now (None: the declared workers do); `outlook`: what was told
    last; `proposed`: what waits to be agreed to; `late`: since when it is known that it cannot be
    in time.
    """

    acted: e.DeadlineActed | None = None
    outlook: e.DeadlineOutlook | None = None
    proposed: e.DeadlineProposed | None = None
    late: e.DeadlineLate | None = None
    durable: int = 0
    """The step of the last durable save; all after it may be lost with a parameter server."""
    began: tuple[float, int] | None = None
    """When the run began to train, and from which step."""
    blocks: tuple[Block, ...] = ()
    """The latest ones, oldest first, and the last one of each set of machines."""
    joins: tuple[float, ...] = ()
    """Seconds that each of the last workers took from its VM's readiness, or the run's declaration,
    until then.
    """
    save_seconds: float = 0.0
    """How long the longest save took."""
    mark: tuple[float, int] | None = None
    """When progress was told last, and the step, where nobody joined or left since."""
    met: frozenset[str] = frozenset()
    """Names of all VMs that have worked."""
    fresh: int | None = 0
    """The new VMs of the block that begins with the next progress; None: the last block continues.
    """

    def started(self, at: float, step: int) -> Self:
        """Training starts at a step that is saved."""
        return replace(self.changed().saved(step), began=self.began or (at, step))

    def told(self, at: float, step: int, machines: str, rate: float = 1.0) -> Self:
        """With one more report of progress, of these workers; the cloud's clock outpaces this one
        `rate` times.
        """
        if self.blocks:
            back = self.blocks[-1].at - at
        else:
            back = 0.0
        if (
            back > 0
        ):  # the clock was set back, and ages of blocks are counted from the latest report
            earlier = tuple(block._replace(at=block.at - back) for block in self.blocks)
            return replace(self, blocks=earlier, mark=(at, step))
        if not (self.mark and machines and at > self.mark[0] and step >= self.mark[1]):
            return replace(self, mark=(at, step))
        seconds = at - self.mark[0]
        steps = float(step - self.mark[1])
        if self.blocks:
            last = self.blocks[-1]
        else:
            last = None
        # A stall is a part of the block before it: a block without a step has no logarithm.
        short = last is not None and (
            last.seconds < BLOCK_SECONDS / rate or not steps or not last.steps
        )
        if self.fresh is None and last and last.machines == machines and short:
            longer = Block(at, last.seconds + seconds, last.steps + steps, machines, last.fresh)
            return replace(self, blocks=(*self.blocks[:-1], longer), mark=(at, step))
        blocks = (*self.blocks, Block(at, seconds, steps, machines, self.fresh or 0))
        if len(blocks) > _BLOCKS:
            later = [block.machines for block in blocks[1:]]
            oldest = next(
                (i for i, block in enumerate(blocks[:-1]) if block.machines in later[i:]), 0
            )
            blocks = blocks[:oldest] + blocks[oldest + 1 :]
        return replace(self, blocks=blocks, mark=(at, step), fresh=None)

    def saved(self, step: int, seconds: float = 0.0) -> Self:
        """With all up to `step` saved, which took so many seconds, or begun from there."""
        return replace(self, durable=step, save_seconds=max(self.save_seconds, seconds))

    def joined(self, vm: str, seconds: float) -> Self:
        """With one more worker, which took so long."""
        fresh = (self.fresh or 0) + (vm not in self.met)
        joins = (*self.joins[1 - _JOINS :], max(seconds, 0.0))
        return replace(self, joins=joins, met=self.met | {vm}, fresh=fresh, mark=None)

    def changed(self) -> Self:
        """With other workers from now on."""
        return replace(self, mark=None, fresh=self.fresh or 0)

    def remade(self) -> Self:
        """With a worker on another machine from now on: what was measured before is worth little."""
        latest = {block.machines: block for block in self.blocks}
        short = [
            block._replace(seconds=1.0, steps=block.steps / block.seconds)
            for block in latest.values()
        ]
        return replace(self.changed(), blocks=tuple(sorted(short)))
