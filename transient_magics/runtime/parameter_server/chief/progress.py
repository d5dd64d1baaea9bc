"""How far a run is: its speed and loss, and the judgement of its evaluations. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from ....protocol.objective import Best
from ....protocol.run import RunSpec
from ....protocol.step_parts import part_words, step_parts
from ....protocol.vm_events import TrainBest, TrainEvaluated, TrainProgress, TrainUnjudged
from .events import Emit, Instruction, KeepBest

EVERY = 10.0
"""Seconds between two reports of the speed."""
_FIRST = 1.0, 3.0
"""Seconds before the first and the second report.

The first is imprecise if a worker hands its steps over once a second, and plans need the time at
which the run ends.
"""
_NOT_FINITE = 3
"""Lines of metrics of a worker without a finite loss after which the run has diverged."""


class Progress:
    """The progress of one run."""

    def __init__(self, run: str) -> None:
        self._run = run
        self.loss: float | None = None
        """Last loss."""
        self.speed = 0.0
        """Last reported speed, in steps per second; 0 before the first report."""
        self.diverged = 0, ""
        """Step at which the loss was first not finite, and the worker; (0, "") before."""
        self._not_finite = 0
        self._reports = 0
        # Since the last report:
        self._time: float | None = None
        self._step = 0
        self._samples = 0
        self._waited = 0.0
        """Seconds of steps that waited for mini-batches."""
        self._stepping = 0.0
        """Seconds of steps in all."""

    def start(self, step: int, now: float) -> None:
        """Start with the first worker's first step, which is made on top of `step`."""
        if self._time is None:
            self._time = now
            self._step = step + 1

    def add_first_step(self, loss: float | None, samples: int) -> None:
        """Add a worker's first step."""
        if loss is not None:
            self.loss = loss
        self._samples += samples

    def add_metrics(self, line: Mapping[str, Any]) -> bool:
        """Add a line of metrics; return False once the loss has stopped being finite."""
        self._samples += int(line.get("samples") or 0)
        if split := step_parts(line.get("split")):
            self._waited += split.input
            self._stepping += split.step
        loss = line.get("loss")
        if loss is not None:
            self.loss = loss
            self._not_finite = 0
        elif line.get("steps"):
            if not self._not_finite:
                self.diverged = int(line.get("step") or 0), str(line.get("worker"))
            self._not_finite += 1
        return self._not_finite < _NOT_FINITE

    def report(self, step: int, active: int, now: float, last: bool = False) -> list[Emit]:
        """Return the event about the speed since the last report, if it is due at `step`."""
        if self._time is None or self.loss is None or step <= self._step:
            return []
        pause = _FIRST[self._reports] if self._reports < len(_FIRST) else EVERY
        seconds = now - self._time
        if not last and seconds < pause:
            return []
        seconds = max(seconds, 1e-3)
        self.speed = (step - self._step) / seconds
        waiting = 0.0
        if self._stepping:
            waiting = min(self._waited / self._stepping, 1.0)
        progress = TrainProgress(
            run=self._run,
            step=step,
            loss=self.loss,
            steps_per_second=round(self.speed, 3),
            samples_per_second=round(self._samples / seconds, 3),
            active=active,
            waiting=round(waiting, 3),
        )
        self._reports += 1
        self._time = now
        self._step = step
        self._samples = 0
        self._waited = 0.0
        self._stepping = 0.0
        return [Emit(progress)]


class Judge:
    """The judgement of a run's evaluations: which is the best, and when training should end.

    Earlier evaluations follow from `events`, the run's events so far, so a chief on another VM
    continues where the last one was. Which checkpoint is the best stands in a file beside the
    checkpoints (files/checkpoints.py), which moves with them. After a lost parameter server a run
    makes some steps again: an evaluation that is made again counts once.
    """

    def __init__(self, spec: RunSpec, events: Iterable[Mapping[str, Any]] = ()) -> None:
        self._run = spec.name
        self._objective = spec.objective
        self._patience = spec.patience
        self._best: Best | None = None
        self._reported: tuple[int, float] | None = None
        """Step and value of the best evaluation, as last reported."""
        self._unjudged = set[str]()
        """Metrics that were reported missing."""
        self._evaluations: list[tuple[int, float, str]] = []
        """Step, value and part of the split of each evaluation."""
        for event in events:
            if event["kind"] == TrainEvaluated.kind:
                self._add(event["step"], event["metrics"], _part(event))
            elif event["kind"] == TrainBest.kind:
                self._reported = event["step"], event["value"]
            elif event["kind"] == TrainUnjudged.kind:
                self._unjudged.add(event["metric"])

    def start(self, best: Best | None) -> list[Instruction]:
        """Start beside the checkpoint `best`, of this run or of the one that it resumes from."""
        self._best = None
        if best is None or best.objective != str(self._objective):
            return []
        self._best = best
        if (best.step, best.value) == self._reported:
            return []
        return [KeepBest(best)]

    def evaluated(self, event: TrainEvaluated) -> list[Instruction]:
        """Judge an evaluation."""
        self._add(event.step, event.metrics, _part(event.values))
        return [*self._report_missing(event), *self._keep(event)]

    @property
    def verdict(self) -> str:
        """Why training should end, a clause; "" while it may get better."""
        if self._patience is None or not self._evaluations:
            return ""
        objective = self._patience.objective
        best = 0
        for place, (_, value, _) in enumerate(self._evaluations):
            best_value = self._evaluations[best][1]
            if math.isnan(best_value) or objective.better(value, best_value):
                best = place
        count = self._patience.evaluations
        if len(self._evaluations) - 1 - best < count:
            return ""
        step, value, part = self._evaluations[best]
        evaluations = f"{count} evaluations" if count > 1 else "1 evaluation"
        reference = f"{value:.4g} at step {step:,}"
        if part:
            reference += f" ({part})"
        return f"{objective.metric} was no better in {evaluations} than {reference}"

    def _add(self, step: int, metrics: Mapping[str, float], part: str) -> None:
        """Add an evaluation; those of this and later steps are made again, and replaced."""
        if self._patience is None:
            return
        value = metrics.get(self._patience.objective.metric, math.nan)
        before = [evaluation for evaluation in self._evaluations if evaluation[0] < step]
        self._evaluations = [*before, (step, value, part)]

    def _report_missing(self, event: TrainEvaluated) -> list[Instruction]:
        """Report metrics that should be judged and are missing in evaluations, each once."""
        judged = set[str]()
        if self._objective:
            judged.add(self._objective.metric)
        if self._patience:
            judged.add(self._patience.objective.metric)
        present = tuple(sorted({*event.metrics, *event.undefined}))
        missing = sorted(judged - {*present} - self._unjudged)
        self._unjudged.update(missing)
        return [
            Emit(TrainUnjudged(run=self._run, step=event.step, metric=metric, metrics=present))
            for metric in missing
        ]

    def _keep(self, event: TrainEvaluated) -> list[Instruction]:
        """Keep the checkpoint if its evaluation is the best so far."""
        if self._objective is None:
            return []
        value = event.metrics.get(self._objective.metric)
        if value is None:
            return []
        if self._best and not self._objective.better(value, self._best.value):
            return []
        self._best = Best(str(self._objective), value, event.step)
        return [KeepBest(self._best, _part(event.values))]


def _part(evaluated: Mapping[str, Any]) -> str:
    """Return in words which part of the dev split an evaluation had; "" for all of it."""
    size = {name: evaluated[name] for name in ("of", "endless") if name in evaluated}
    return part_words(evaluated.get("examples", 0), evaluated.get("complete", True), **size)
