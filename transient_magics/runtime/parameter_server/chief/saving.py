"""The chief's part in checkpoints: when one is due, and whose duty it is to write it.

A part of the state machine (state.py), as pure as that. One checkpoint is written at a time. With
`--chief worker` a worker writes them, one for as long as it trains and is able to, then another;
the chief does where no worker trains, before the first and after the last.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto

from ....protocol import chief_messages as messages
from ....protocol.run import RunSpec
from ....protocol.vm_events import TrainCheckpoint
from .events import Instruction, Save, SaveDone, Tell
from .workers import Member

_AGAIN_AFTER = 10.0
"""Seconds after a failed save."""

SHARE = 0.01
LONGEST = 600.0
SHORTEST = 30.0
"""Seconds: a checkpoint is also brought away from the VM, which takes longer than writing it."""


class Why(Enum):
    """What a checkpoint is written for."""

    FIRST = auto()
    DUE = auto()
    ASKED = auto()
    EVALUATION = auto()
    STOP = auto()
    FINAL = auto()


class Saving:
    """The checkpoints of one run."""

    def __init__(self, spec: RunSpec, now: float) -> None:
        self._spec = spec
        self.why: Why | None = None
        """What the checkpoint that is being written is for; None while none is."""
        self.step = -1
        self.path = ""
        """Of the last one."""
        self.asked = False
        """Whether somebody wants one that was not begun yet."""
        self.failing = False
        """Whether the last one could not be written."""
        self._time = now
        self._not_before = now
        self._every = spec.checkpoint_seconds
        self._writer: int | None = None
        self._unable: int | None = None

    @property
    def writer(self) -> int | None:
        """The number of the worker that is writing one; None while nobody does, or the chief
        itself.
        """
        return self._writer if self.why else None

    def restored(self, step: int, now: float) -> None:
        """The run goes on from `step`."""
        self.step = step if step else -1
        self._time = now

    def due(self, step: int, now: float) -> bool:
        """Whether it is time for the next one."""
        new = step - self.step
        steps = self._spec.checkpoint_steps
        if not self.may_try(now) or new <= 0:
            return False
        return bool((steps and new >= steps) or (self._every and now - self._time >= self._every))

    def may_try(self, now: float) -> bool:
        """Whether enough time has passed since one failed."""
        return now >= self._not_before

    def begin(self, why: Why, able: Iterable[Member]) -> list[Instruction]:
        """Have one written, by one of those `able` to where that is their duty; nothing while one
        is being written.
        """
        if self.why:
            return []
        self.why = why
        if why is Why.ASKED:
            self.asked = False
        return self.order(able)

    def order(self, able: Iterable[Member]) -> list[Instruction]:
        """Say who writes it, also when the one who did is gone: what it wrote is lost with it."""
        members = [
            member
            for member in able
            if self._spec.chief == "worker" and member.connection is not None
        ]
        # Rather not who failed last, rather who did it last, else the oldest.
        chosen = min(
            members,
            key=lambda member: (
                member.number == self._unable,
                member.number != self._writer,
                member.number,
            ),
            default=None,
        )
        self._writer = chosen.number if chosen else None
        if chosen:
            return [Tell(chosen.connection or 0, messages.Save())]
        return [Save()]

    def done(self, event: SaveDone, now: float) -> tuple[Why | None, TrainCheckpoint]:
        """It is written: what it was for, and what is told about it."""
        why = self.why
        self.why = None
        self._unable = None
        self.failing = False
        self.step = event.step
        self._time = now
        self.path = event.name
        planned = None
        if self._spec.checkpoint_auto:
            self._every = seconds_between(event.seconds)
            planned = round(self._every, 1)
        told = TrainCheckpoint(
            run=self._spec.name,
            step=event.step,
            path=event.name,
            seconds=round(event.seconds, 3),
            bytes=event.bytes,
            worker=event.worker,
            next_seconds=planned,
            asked=why is Why.ASKED,
        )
        return why, told

    def failed(self, now: float) -> Why | None:
        """It could not be written: what it was for."""
        why = self.why
        self.why = None
        self._unable = self._writer
        self.failing = True
        self._not_before = now + _AGAIN_AFTER
        return why


# How long training may go on between two checkpoints, planned from what a checkpoint was measured
# to cost.
#
# The interval that loses least to saving and to work done again is sqrt(2 * cost * mean time
# between losses) (Young 1974, doi 10.1145/361147.361115; Daly 2006, doi
# 10.1016/j.future.2004.11.016). Here nothing is lost with a worker; only a parameter server takes
# work with it, and of an on-demand VM nobody knows how long it lasts. So the two sides that the
# formula balances get a limit each: saving takes one part in a hundred of the time, and ten minutes
# of work are at risk. For a checkpoint of `cost` seconds that is the formula's answer where a
# server lasts 5000 * cost: two hours for 1.5 s. Up to six seconds it stays within a hundredth of
# the time of the best interval for any server that lasts five hours or more, so nobody's lifetimes
# are asked for; work that is lost with a transient VM is planned by `planner.checkpoints`.


def seconds_between(cost: float) -> float:
    """Seconds from one checkpoint to the next when writing one takes `cost` seconds.

    Where both limits cannot be kept, because a checkpoint takes more than six seconds, the work at
    risk counts.
    """
    return min(max(cost / SHARE, SHORTEST), LONGEST)
