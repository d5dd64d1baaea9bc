"""State of a run with a deadline: its machines, its outlook and its speed.

The joint speed of its workers follows only from its own progress: from blocks between two reports
in which no worker joined or left.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from . import events as e

BLOCK_SECONDS = 600.0
"""The duration of a block, unless its workers change, on the cloud's clock."""
_BLOCKS = 18  # Three hours: older blocks do not reflect the present speed.
_JOINS = 20


class Block(NamedTuple):
    """Progress of one set of workers: it ended `at`, took `seconds` and made `steps`.

    `fresh`: the number of its VMs that are new to the run.
    """

    at: float
    seconds: float
    steps: float
    machines: str
    fresh: int = 0


@dataclass(frozen=True, slots=True)
class DeadlineState:
    """Deadline state of one run.

    `acted`: the present machines (None: the declared workers). `outlook`: the latest report.
    `proposed`: the open proposal. `late`: the finding that it cannot be in time, if so.
    """

    acted: e.DeadlineActed | None = None
    outlook: e.DeadlineOutlook | None = None
    proposed: e.DeadlineProposed | None = None
    late: e.DeadlineLate | None = None
    durable: int = 0
    """The step of the last durable save; later steps may be lost with a parameter server."""
    began: tuple[float, int] | None = None
    """When the run began to train, and from which step."""
    blocks: tuple[Block, ...] = ()
    """The latest blocks, oldest first, and the last one of each set of machines."""
    joins: tuple[float, ...] = ()
    """Seconds from the last VMs' readiness, or the declaration, to their workers' start."""
    save_seconds: float = 0.0
    """The duration of the longest save."""
    mark: tuple[float, int] | None = None
    """The time and step of the latest progress, if no worker joined or left since."""
    met: frozenset[str] = frozenset()
    """Names of all VMs that have worked."""
    fresh: int | None = 0
    """New VMs of the block that begins with the next progress; None: the last block continues."""

    def started(self, at: float, step: int) -> Self:
        """Return the state after training starts at a saved step."""
        return replace(self.changed().saved(step), began=self.began or (at, step))

    def progressed(self, at: float, step: int, machines: str, rate: float = 1.0) -> Self:
        """Return the state after a progress report of these workers.

        `rate` is the rate of the cloud's clock relative to this one.
        """
        if self.blocks:
            back = self.blocks[-1].at - at
        else:
            back = 0.0
        # The clock was set back, and ages of blocks count from the latest report.
        if back > 0:
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
        """Return the state after `step` was saved in `seconds`, or after a start from there."""
        return replace(self, durable=step, save_seconds=max(self.save_seconds, seconds))

    def joined(self, vm: str, seconds: float) -> Self:
        """Return the state after a worker joined, `seconds` after it could."""
        fresh = (self.fresh or 0) + (vm not in self.met)
        joins = (*self.joins[1 - _JOINS :], max(seconds, 0.0))
        return replace(self, joins=joins, met=self.met | {vm}, fresh=fresh, mark=None)

    def changed(self) -> Self:
        """Return the state after a change of the workers."""
        return replace(self, mark=None, fresh=self.fresh or 0)

    def remade(self) -> Self:
        """Return the state after a worker changed its machine: earlier measurements lose weight."""
        latest = {block.machines: block for block in self.blocks}
        short = [
            block._replace(seconds=1.0, steps=block.steps / block.seconds)
            for block in latest.values()
        ]
        return replace(self.changed(), blocks=tuple(sorted(short)))
