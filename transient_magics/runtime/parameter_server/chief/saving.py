"""When the chief saves, which process writes the checkpoint, and how often. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto

from ....protocol import chief_messages as messages
from ....protocol.run import RunSpec
from ....protocol.vm_events import TrainCheckpoint
from .events import Instruction, Save, SaveDone, Send
from .workers import Member

_RETRY_AFTER = 10.0
"""Pause in seconds after a save that failed."""

SHARE = 0.01
"""Share of the time that saving may take."""
LONGEST = 600.0
SHORTEST = 30.0
"""Least seconds between two saves: copying a checkpoint to another VM takes longer than writing."""


class Why(Enum):
    """The reason for a checkpoint."""

    FIRST = auto()
    DUE = auto()
    ASKED = auto()
    EVALUATION = auto()
    STOP = auto()
    FINAL = auto()


class Saving:
    """The checkpoints of one run: when one is due, and which process writes it. Pure.

    One checkpoint is written at a time. With `--chief worker`, a worker writes them while it trains
    and can, then another one. The chief writes them if no worker trains: before the first worker
    and after the last.
    """

    def __init__(self, spec: RunSpec, now: float) -> None:
        self._spec = spec
        self.why: Why | None = None
        """Reason for the checkpoint in progress; None while there is none."""
        self.step = -1
        """Step of the last checkpoint; -1 if there is none."""
        self.path = ""
        """Path of the last checkpoint."""
        self.requested = False
        """Whether a checkpoint was requested that is not in progress yet."""
        self.failing = False
        """Whether the last save failed."""
        self._saved_at = now
        self._not_before = now
        self._every = spec.checkpoint_seconds
        self._writer: int | None = None
        self._failed_writer: int | None = None

    @property
    def writer(self) -> int | None:
        """Number of the worker that writes the checkpoint in progress; None if none does."""
        return self._writer if self.why else None

    def restored(self, step: int, now: float) -> None:
        """Start from the checkpoint of `step`; 0: there is none."""
        self.step = step if step else -1
        self._saved_at = now

    def due(self, step: int, now: float) -> bool:
        """Return whether the next checkpoint is due at `step`."""
        new = step - self.step
        if not self.may_try(now) or new <= 0:
            return False
        by_steps = self._spec.checkpoint_steps and new >= self._spec.checkpoint_steps
        by_time = self._every and now - self._saved_at >= self._every
        return bool(by_steps or by_time)

    def may_try(self, now: float) -> bool:
        """Return whether enough time has passed since a save failed."""
        return now >= self._not_before

    def begin(self, why: Why, able: Iterable[Member]) -> list[Instruction]:
        """Start a checkpoint unless one is in progress; `able` are workers that can write it."""
        if self.why:
            return []
        self.why = why
        if why is Why.ASKED:
            self.requested = False
        return self.assign(able)

    def assign(self, able: Iterable[Member]) -> list[Instruction]:
        """Choose the writer of the checkpoint in progress, also when the last writer is gone."""
        members = [
            member
            for member in able
            if self._spec.chief == "worker" and member.connection is not None
        ]
        chosen = min(members, key=self._preference, default=None)
        if chosen is None:
            self._writer = None
            return [Save()]
        self._writer = chosen.number
        return [Send(chosen.connection or 0, messages.Save())]

    def _preference(self, member: Member) -> tuple[bool, bool, int]:
        """Sort first who did not fail last, then who wrote the last one, then the oldest."""
        failed = member.number == self._failed_writer
        return failed, member.number != self._writer, member.number

    def done(self, event: SaveDone, now: float) -> tuple[Why | None, TrainCheckpoint]:
        """Return what the written checkpoint was for, and its event."""
        why = self.why
        self.why = None
        self._failed_writer = None
        self.failing = False
        self.step = event.step
        self._saved_at = now
        self.path = event.name
        planned = None
        if self._spec.checkpoint_auto:
            self._every = seconds_between(event.seconds)
            planned = round(self._every, 1)
        checkpoint = TrainCheckpoint(
            run=self._spec.name,
            step=event.step,
            path=event.name,
            seconds=round(event.seconds, 3),
            bytes=event.bytes,
            worker=event.worker,
            next_seconds=planned,
            asked=why is Why.ASKED,
        )
        return why, checkpoint

    def failed(self, now: float) -> Why | None:
        """Return what the checkpoint was for that could not be written."""
        why = self.why
        self.why = None
        self._failed_writer = self._writer
        self.failing = True
        self._not_before = now + _RETRY_AFTER
        return why


def seconds_between(cost: float) -> float:
    """Return the seconds between two checkpoints, if writing one takes `cost` seconds.

    The interval with the least cost of saving and of steps made again is sqrt(2 * cost * mean time
    between losses) (Young 1974, doi 10.1145/361147.361115; Daly 2006, doi
    10.1016/j.future.2004.11.016). Here a lost worker loses nothing. Only a parameter server loses
    steps, and the lifetimes of on-demand VMs are unknown. So both sides that the formula balances
    get a limit: saving takes a hundredth of the time, and at most ten minutes of steps are at risk.

    For a checkpoint of `cost` seconds, that is the formula's result if a server lasts 5000 * cost:
    two hours for 1.5 s. Up to six seconds it is within a hundredth of the time of the best interval
    for each server that lasts five hours or more, so no lifetimes are needed. Above six seconds
    both limits cannot be kept, and the steps at risk count. `planner.checkpoints` plans for steps
    that are lost with a transient VM.
    """
    return min(max(cost / SHARE, SHORTEST), LONGEST)
