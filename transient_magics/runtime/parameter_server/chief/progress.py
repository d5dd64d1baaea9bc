"""How far a run is, its speed and its loss, and which evaluation is the best.

A part of the chief's state machine (state.py), as pure as that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from ....protocol.measures.objective import Best
from ....protocol.measures.step_parts import part_words, step_parts
from ....protocol.run import RunSpec
from ....protocol.vm_events import TrainBest, TrainEvaluated, TrainProgress, TrainUnjudged
from .events import Emit, Instruction, KeepBest

EVERY = 10.0
_FIRST = 1.0, 3.0
"""Seconds of training before the first speed is told, and before the second: of a worker that hands
its steps over once a second the first one says little, and when the run ends decides when the next
one begins.
"""
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
        self._step = 0
        self._samples = 0
        self._waited = 0.0
        self._stepping = 0.0
        """Seconds of steps: for mini-batches, and in all."""
        self._told = 0
        self._not_finite = 0
        self.diverged = 0, ""
        """At which step, and on which worker, the loss was first no number."""

    def begin(self, step: int, now: float) -> None:
        """The first worker made its first step, after `step`."""
        if self._time is None:
            self._time = now
            self._step = step + 1

    def stepped(self, loss: float | None, samples: int) -> None:
        """A worker made its first step."""
        self.loss = self.loss if loss is None else loss
        self._samples += samples

    def measured(self, line: Mapping[str, Any]) -> bool:
        """A line of metrics; False once the loss has stopped being a number."""
        self._samples += int(line.get("samples") or 0)
        if split := step_parts(line.get("split")):
            self._waited = self._waited + split.input
            self._stepping = self._stepping + split.step
        loss = line.get("loss")
        if loss is not None:
            self.loss = loss
            self._not_finite = 0
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
        steps = step - self._step
        samples = self._samples
        seconds = max(seconds, 1e-3)
        self._time = now
        self._step = step
        self._samples = 0
        self._told = self._told + 1
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
        self._waited = 0.0
        self._stepping = 0.0
        return [Emit(progress)]


# The chief's part in judging: which evaluation is the best, and when a run has learnt what it will.
#
# A part of the state machine (state.py), as pure as that. What was evaluated before follows from
# the events of the run, so that a chief on another VM goes on where the one before was; which
# checkpoint is the best says a file beside them (files/checkpoints.py), which goes wherever they
# go. A run whose parameter server died makes some steps again: what is evaluated again counts once.


class Judge:
    """What is thought of one run; of `told`, its events so far."""

    def __init__(self, spec: RunSpec, told: Iterable[Mapping[str, Any]] = ()) -> None:
        self._run = spec.name
        self._objective = spec.objective
        self._patience = spec.patience
        self._best: Best | None = None
        self._told: tuple[int, float] | None = None
        self._unjudged = set[str]()
        self._seen: list[tuple[int, float, str]] = []
        """Steps, values, and of which part of the split these are."""
        for event in told:
            if event["kind"] == TrainEvaluated.kind:
                self._see(event["step"], event["metrics"], _part(event))
            elif event["kind"] == TrainBest.kind:
                self._told = event["step"], event["value"]
            elif event["kind"] == TrainUnjudged.kind:
                self._unjudged.add(event["metric"])

    def begins(self, best: Best | None) -> list[Instruction]:
        """Training goes on beside `best`, of this run or of the one that it resumes from."""
        if best and best.objective == str(self._objective):
            self._best = best
        else:
            self._best = None
        known = self._best is None or (self._best.step, self._best.value) == self._told
        if known or self._best is None:
            return []
        return [KeepBest(self._best)]

    def evaluated(self, event: TrainEvaluated) -> list[Instruction]:
        """What follows from an evaluation."""
        self._see(event.step, event.metrics, _part(event.values))
        return [*self._missing(event), *self._keep(event)]

    @property
    def verdict(self) -> str:
        """Why the run is to end, a clause; nothing as long as it may get better."""
        if self._patience is None or not self._seen:
            return ""
        objective = self._patience.objective
        best = 0
        for place, (_, value, _) in enumerate(self._seen):
            if math.isnan(self._seen[best][1]) or objective.better(value, self._seen[best][1]):
                best = place
        if len(self._seen) - 1 - best < self._patience.evaluations:
            return ""
        step, value, part = self._seen[best]
        many = self._patience.evaluations
        if many > 1:
            counted = f"{many} evaluations"
        else:
            counted = "1 evaluation"
        than = f"{value:.4g} at step {step:,}{f' ({part})' if part else ''}"
        return f"{objective.metric} was no better in {counted} than {than}"

    def _see(self, step: int, metrics: Mapping[str, float], part: str) -> None:
        if self._patience:
            before = [each for each in self._seen if each[0] < step]
            self._seen = [
                *before,
                (step, metrics.get(self._patience.objective.metric, math.nan), part),
            ]

    def _missing(self, event: TrainEvaluated) -> list[Instruction]:
        judged = {
            each.metric
            for each in (self._objective, self._patience and self._patience.objective)
            if each
        }
        has = tuple(sorted({*event.metrics, *event.undefined}))
        missing = sorted(judged - {*has} - self._unjudged)
        self._unjudged |= {*missing}
        return [
            Emit(TrainUnjudged(run=self._run, step=event.step, metric=each, metrics=has))
            for each in missing
        ]

    def _keep(self, event: TrainEvaluated) -> list[Instruction]:
        if self._objective:
            value = event.metrics.get(self._objective.metric)
        else:
            value = None
        if self._objective is None or value is None:
            return []
        if self._best and not self._objective.better(value, self._best.value):
            return []
        self._best = Best(str(self._objective), value, event.step)
        return [KeepBest(self._best, _part(event.values))]


def _part(evaluated: Mapping[str, Any]) -> str:
    """Which part of the dev split an evaluation saw, if it was one."""
    told = {name: evaluated[name] for name in ("of", "endless") if name in evaluated}
    return part_words(evaluated.get("examples", 0), evaluated.get("complete", True), **told)
