"""The epochs of a run that the cell's `model.fit` declares: metrics, and the wait for callbacks. Pure.

Workers report what their steps add to the training metrics of each epoch
(user_model/training_metrics.py). With callbacks (user_model/callbacks.py), a run is exact about
epochs: its workers wait at the end of each (`limit`) until the callbacks were called, as `fit`
does, because they may stop the run or change its learning rate (`rate`). Without callbacks workers
wait as well, so that each epoch is evaluated, but only as long as evaluations are quick. Otherwise,
and without validation data, they train on: an epoch is reported a moment after its last step.

Epochs count from the first step of the run's phase here. A run that goes back to a checkpoint makes some steps
again: each epoch is reported once, and its training metrics are those of the steps made last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeGuard

from ....protocol.chief_messages import EPOCHS, Called, Proceed
from ....protocol.run import RunSpec
from ....protocol.vm_events import TrainEpoch, TrainStarted
from ...role import log
from .events import EndedEpoch, EpochOver

LATE = 1.5
"""Seconds after the last step of an epoch in which workers report their part of it."""
PATIENCE = 2.0
FIRST_PATIENCE = 15.0
"""Seconds for which workers wait for an evaluation without callbacks, and for the first one.

The first one includes the start of its process.
"""


class Epochs:
    """The epochs of one run.

    Parameters
    ----------
    spec
        The declaration of the run.
    events
        Its events so far.
    kept
        What `to_dict` returned before the chief restarted.
    """

    def __init__(
        self,
        spec: RunSpec,
        events: Iterable[Mapping[str, Any]] = (),
        kept: Mapping[str, Any] | None = None,
    ) -> None:
        self._spec = spec
        self._steps = spec.epoch_steps
        self._begin = spec.phase_begin
        self.holds = spec.ends_epochs
        """Whether workers wait at the end of each epoch."""
        self.rate = 1.0
        """The factor of the learning rate that callbacks have set."""
        self.stop = ""
        """Why callbacks end the run, a clause; "" while they do not."""
        self._begun = not spec.callbacks
        """Whether the callbacks were called at the beginning."""
        self._restarted = False
        self._evaluated = False
        """Whether an epoch was evaluated."""
        self._last = -1
        """The last epoch; -1: there are none."""
        if self._steps:
            self._last = (spec.train_steps - self._begin - 1) // self._steps
        self._numbers = 0
        """How many numbers a step adds to the training metrics of its epoch."""
        self._ignored = False
        """Whether something that a worker reported was ignored."""
        self._ended = 0
        """Number of epochs that were reported."""
        self._reached: dict[int, float] = {}
        """When the last step of each epoch was seen that was not reported."""
        saved: Mapping[str, list[float]] = (kept or {}).get("epochs", {})
        self._sums = {int(epoch): list(sums) for epoch, sums in saved.items()}
        for event in events:
            if event["kind"] == TrainStarted.kind:
                self._restarted = True
            elif event["kind"] == TrainEpoch.kind:
                self._ended = event["epoch"] - spec.first_epoch + 1
                self.rate = event.get("rate", 1.0)
                self.stop = event.get("stop", "")

    @property
    def limit(self) -> int | None:
        """The global step at which workers wait; None: they do not."""
        if not self.holds:
            return None
        if not self._begun or self.stop:
            return self._begin + self._ended * self._steps
        return self._begin + (self._ended + 1) * self._steps

    @property
    def proceed(self) -> Proceed:
        """The message with the limit and the rate."""
        return Proceed(limit=self.limit, rate=self.rate)

    def start(self, step: int, numbers: int) -> None:
        """Start training.

        Parameters
        ----------
        step
            The first step, which is not 0 in a run that resumes another one.
        numbers
            How many numbers a step adds to the training metrics of its epoch.
        """
        self._numbers = numbers
        if self._steps and not self._restarted:
            self._ended = max(self._ended, (step - self._begin) // self._steps)

    def begin(self, called: Called) -> None:
        """Let the workers begin: the callbacks were called."""
        self._begun = True
        self.rate = called.rate
        self.stop = self.stop or called.stop

    def add(self, line: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add what a worker's line of metrics has of epochs; return the line without it."""
        if EPOCHS not in line:
            return line
        rest = dict(line)
        parts = rest.pop(EPOCHS)
        if not isinstance(parts, Mapping):
            self._ignore("", parts)
            return rest
        for name, part in parts.items():
            epoch = self._open_epoch(name)
            if epoch is None or not self._is_part(part):
                self._ignore(name, part)
                continue
            numbers = [value or 0.0 for value in part[1:]]
            sums = self._sums.get(epoch, [0.0] * self._numbers)
            self._sums[epoch] = [one + other for one, other in zip(sums, numbers, strict=True)]
        return rest

    def rewind(self, step: int) -> None:
        """Forget metrics of steps that will be made again."""
        if self._steps:
            first = (step - self._begin) // self._steps
            self._sums = {epoch: sums for epoch, sums in self._sums.items() if epoch < first}

    def reached(self, step: int, now: float) -> bool:
        """Return whether workers wait at the end of an epoch now."""
        if self.limit is None or not self._begun or step < self.limit or self.stop:
            return False
        self._reached.setdefault(self._ended, now)
        return True

    def is_late(self, now: float) -> bool:
        """Return whether the epoch at whose end workers wait ends without their last reports."""
        return now - self._reached.get(self._ended, now) >= LATE

    def give_up(self, waited: float) -> bool:
        """Let workers train on from now on if they waited too long, in seconds, for an evaluation.

        Returns whether they do.
        """
        patience = FIRST_PATIENCE
        if self._evaluated:
            patience = PATIENCE
        if not self.holds or self._spec.callbacks or waited < patience:
            return False
        self.holds = False
        return True

    def ending(self, step: int, last: bool) -> EndedEpoch | None:
        """Return the epoch that the evaluation at `step` belongs to, if it was not reported.

        `last`: no step follows.
        """
        if not self._steps or self.stop:
            return None
        epoch = (step - self._begin) // self._steps - 1
        if last:
            made = min(step, self._spec.train_steps) - self._begin
            epoch = (max(made, 1) - 1) // self._steps
        if epoch < self._ended:
            return None
        return self._epoch(epoch)

    def due(self, step: int, now: float, evaluated: EndedEpoch | None) -> list[EpochOver]:
        """Return the epochs that are over, in order, up to the one that is being evaluated."""
        if self.holds or not self._steps:
            return []
        found: list[EpochOver] = []
        for epoch in range(self._ended, (step - self._begin) // self._steps):
            over = now - self._reached.setdefault(epoch, now) >= LATE
            if not over or (evaluated and epoch >= evaluated.index):
                break
            found.append(self.over(self._epoch(epoch)))
        return found

    def before(self, ended: EndedEpoch) -> list[EpochOver]:
        """Return the epochs before `ended` that were not reported."""
        return [self.over(self._epoch(epoch)) for epoch in range(self._ended, ended.index)]

    def over(
        self,
        ended: EndedEpoch,
        metrics: Mapping[str, float] | None = None,
        called: Called | None = None,
    ) -> EpochOver:
        """Count an epoch as reported; return the instruction that reports it.

        Parameters
        ----------
        ended
            The epoch.
        metrics
            The metrics of the evaluation at its end.
        called
            What its callbacks returned.
        """
        self._ended = ended.index + 1
        self._evaluated = self._evaluated or bool(metrics)
        for epoch in [epoch for epoch in self._sums if epoch <= ended.index]:
            del self._sums[epoch]
        self._reached.pop(ended.index, None)
        if called:
            self.rate = called.rate
            self.stop = called.stop
        return EpochOver(ended, metrics or {}, called)

    def to_dict(self) -> dict[str, Any]:
        """Return what a restarted chief must know."""
        if not self.holds or not self._sums:
            return {}
        return {"epochs": {str(epoch): sums for epoch, sums in self._sums.items()}}

    def _open_epoch(self, name: str) -> int | None:
        """Return the epoch of this name; None for one that does not exist or was reported."""
        with suppress(ValueError):
            epoch = int(name)
            if self._ended <= epoch <= self._last:
                return epoch
        return None

    def _is_part(self, part: object) -> TypeGuard[Sequence[float | None]]:
        """Return whether a worker's part of an epoch has the form of its training metrics."""
        return (
            isinstance(part, list)
            and len(part) == 1 + self._numbers
            and all(value is None or isinstance(value, (int, float)) for value in part)
        )

    def _ignore(self, name: str, part: object) -> None:
        """Log the first part of an epoch that is not added."""
        if not self._ignored:
            self._ignored = True
            log(f"training metrics of a worker are ignored: {part!r:.60} of epoch {name!r:.20}")

    def _epoch(self, epoch: int) -> EndedEpoch:
        end = min(self._begin + (epoch + 1) * self._steps, self._spec.train_steps)
        number = epoch + self._spec.first_epoch
        return EndedEpoch(epoch, number, end, tuple(self._sums.get(epoch, ())))
