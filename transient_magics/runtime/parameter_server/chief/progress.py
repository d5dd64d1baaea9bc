"""How far a run is: its speed and its loss, told now and then, and a loss that is no number any more.

A part of the chief's state machine (state.py), as pure as that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....protocol.measures.step_parts import step_parts
from ....protocol.vm_events import TrainProgress
from .events import Emit

EVERY = 10.0
_FIRST = 1.0, 3.0
"""Seconds of training before the first speed is told, and before the second: of a worker that hands its steps over
once a second the first one says little, and when the run ends decides when the next one begins."""
_NOT_FINITE = 3
"""Seconds of a worker without a loss that is a number."""


class Progress:
    """The progress of one run."""

    def __init__(self, run: str) -> None:
        self._run = run
        self.loss: float | None = None
        self.speed = 0.0
        """In steps per second, as it was told last; 0 before that."""
        self._time: float | None = None
        self._step, self._samples = 0, 0
        self._waited, self._stepping = 0.0, 0.0
        """Seconds of steps: for mini-batches, and in all."""
        self._told = 0
        self._not_finite = 0
        self.diverged = 0, ""
        """At which step, and on which worker, the loss was first no number."""

    def begin(self, step: int, now: float) -> None:
        """The first worker made its first step, after `step`."""
        if self._time is None:
            self._time, self._step = now, step + 1

    def stepped(self, loss: float | None, samples: int) -> None:
        """A worker made its first step."""
        self.loss = self.loss if loss is None else loss
        self._samples += samples

    def measured(self, line: Mapping[str, Any]) -> bool:
        """A line of metrics; False once the loss has stopped being a number."""
        self._samples += int(line.get("samples") or 0)
        if split := step_parts(line.get("split")):
            self._waited, self._stepping = self._waited + split.input, self._stepping + split.step
        loss = line.get("loss")
        if loss is not None:
            self.loss, self._not_finite = loss, 0
        elif line.get("steps"):
            if not self._not_finite:
                self.diverged = int(line.get("step") or 0), str(line.get("worker"))
            self._not_finite += 1
        return self._not_finite < _NOT_FINITE

    def tell(self, step: int, active: int, now: float, last: bool = False) -> list[Emit]:
        """What is told at `step`: speed since the last time; often nothing."""
        if self._time is None or self.loss is None or step <= self._step:
            return []
        seconds = now - self._time
        if not last and seconds < (_FIRST[self._told] if self._told < len(_FIRST) else EVERY):
            return []
        steps, samples, seconds = step - self._step, self._samples, max(seconds, 1e-3)
        self._time, self._step, self._samples, self._told = now, step, 0, self._told + 1
        self.speed = steps / seconds
        progress = TrainProgress(
            run=self._run,
            step=step,
            loss=self.loss,
            steps_per_second=round(steps / seconds, 3),
            samples_per_second=round(samples / seconds, 3),
            active=active,
            waiting=round(min(self._waited / self._stepping, 1.0), 3) if self._stepping else 0.0,
        )
        self._waited, self._stepping = 0.0, 0.0
        return [Emit(progress)]
