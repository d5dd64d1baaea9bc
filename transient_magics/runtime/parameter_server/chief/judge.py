"""The chief's part in judging: which evaluation is the best, and when a run has learnt what it will.

A part of the state machine (state.py), as pure as that. What was evaluated before follows from the events of the run,
so that a chief on another VM goes on where the one before was; which checkpoint is the best says a file beside them
(files/checkpoints.py), which goes wherever they go. A run whose parameter server died makes some steps again: what is
evaluated again counts once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from ....protocol.measures.objective import Best
from ....protocol.measures.split import part_words
from ....protocol.run import RunSpec
from ....protocol.vm_events import TrainBest, TrainEvaluated, TrainUnjudged
from .events import Emit, Instruction, KeepBest


class Judge:
    """What is thought of one run; of `told`, its events so far."""

    def __init__(self, spec: RunSpec, told: Iterable[Mapping[str, Any]] = ()) -> None:
        self._run, self._objective, self._patience = spec.name, spec.objective, spec.patience
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
        self._best = best if best and best.objective == str(self._objective) else None
        known = self._best is None or (self._best.step, self._best.value) == self._told
        return [] if known or self._best is None else [KeepBest(self._best)]

    def evaluated(self, event: TrainEvaluated) -> list[Instruction]:
        """What follows from an evaluation."""
        self._see(event.step, event.metrics, _part(event.values))
        return [*self._missing(event), *self._keep(event)]

    @property
    def verdict(self) -> str:
        """Why the run is to end, a clause; nothing as long as it may get better."""
        if self._patience is None or not self._seen:
            return ""
        objective, best = self._patience.objective, 0
        for place, (_, value, _) in enumerate(self._seen):
            if math.isnan(self._seen[best][1]) or objective.better(value, self._seen[best][1]):
                best = place
        if len(self._seen) - 1 - best < self._patience.evaluations:
            return ""
        step, value, part = self._seen[best]
        many = self._patience.evaluations
        counted = f"{many} evaluations" if many > 1 else "1 evaluation"
        than = f"{value:.4g} at step {step:,}{f' ({part})' if part else ''}"
        return f"{objective.metric} was no better in {counted} than {than}"

    def _see(self, step: int, metrics: Mapping[str, float], part: str) -> None:
        if self._patience:
            before = [each for each in self._seen if each[0] < step]
            self._seen = [*before, (step, metrics.get(self._patience.objective.metric, math.nan), part)]

    def _missing(self, event: TrainEvaluated) -> list[Instruction]:
        judged = {each.metric for each in (self._objective, self._patience and self._patience.objective) if each}
        has = tuple(sorted({*event.metrics, *event.undefined}))
        missing = sorted(judged - {*has} - self._unjudged)
        self._unjudged |= {*missing}
        return [Emit(TrainUnjudged(run=self._run, step=event.step, metric=each, metrics=has)) for each in missing]

    def _keep(self, event: TrainEvaluated) -> list[Instruction]:
        value = event.metrics.get(self._objective.metric) if self._objective else None
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
