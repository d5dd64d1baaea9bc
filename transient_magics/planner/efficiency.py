"""How many examples a model needs to get as good as wanted: statistical efficiency, as a function of the batch alone.

Scavenger (Tyagi, Sharma, CCGrid 2023, arXiv 2303.06659) fits epochs to the noise of gradients. Its normalised noise
depends on the number of workers; from the same two norms the noise scale (McCandlish et al., arXiv 1812.06162) does
not: with g_k the gradients of K workers of batch b, B = K b, loc = mean |g_k|^2 and agg = |mean g_k|^2,

    |G|^2 = (B agg - b loc) / (B - b)      tr = (loc - agg) / (1/b - 1/B)      noise scale = tr / |G|^2

The sign of the slope of epochs over the batch is the job's own and is fitted; below an R^2 of 0.8, or with fewer than
three batches, no other batch is predicted. Runs do not measure the norms of their gradients yet: what is used to plan
are their evaluations.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import DeclarationError, PlanError
from .measured import Record

LEAST_R2 = 0.8
_TARGET = re.compile(r"\s*(?P<metric>[A-Za-z_][\w/-]*)\s*(?P<sign>>=|<=)\s*(?P<value>[-+]?[\d.]+(?:[eE][-+]?\d+)?)\s*")
_SIGNS = {">=": operator.ge, "<=": operator.le}


@dataclass(frozen=True, slots=True)
class Target:
    """How good a model is to get: `accuracy>=0.9`."""

    metric: str
    sign: str
    value: float

    @classmethod
    def parse(cls, text: str) -> Target:
        """Raises DeclarationError that shows how it is written."""
        match = _TARGET.fullmatch(text)
        if not match:
            raise DeclarationError(f"'{text}' is no target", where="--target", fix="For example: accuracy>=0.9.")
        return cls(match["metric"], match["sign"], float(match["value"]))

    def __str__(self) -> str:
        return f"{self.metric}{self.sign}{self.value:g}"

    def reached(self, evaluations: Iterable[tuple[int, Mapping[str, float]]]) -> float | None:
        """At which step a run got there, evenly between two evaluations; None where it never did."""
        before: tuple[float, float] | None = None
        for step, metrics in evaluations:
            if (value := metrics.get(self.metric)) is None:
                continue
            if _SIGNS[self.sign](value, self.value):
                if before is None or value == before[1]:
                    return float(step)
                part = (self.value - before[1]) / (value - before[1])
                return before[0] + part * (step - before[0])
            before = (float(step), value)
        return None


@dataclass(frozen=True, slots=True)
class Need:
    """`examples` to the target with this batch, its relative `error`, and a sentence on where it comes from."""

    examples: float
    error: float
    source: str


@dataclass(frozen=True, slots=True)
class ExamplesModel:
    """Examples to the target as a line over the batch, and the R^2 of its fit."""

    at_zero: float
    per_batch: float
    r2: float
    smallest: int
    largest: int

    @classmethod
    def fit(cls, batches: Sequence[float], examples: Sequence[float]) -> ExamplesModel:
        """The least squares line. Raises PlanError for fewer than three different batches."""
        if len(set(batches)) < 3:
            raise PlanError(f"{len(set(batches))} mini-batch sizes do not show how the steps depend on them",
                            fix="Three are needed, or plan with a mini-batch that was run.")  # fmt: skip
        x, y = np.array(batches, dtype=float), np.array(examples, dtype=float)
        slope, at_zero = np.polyfit(x, y, 1)
        left, all_of_it = float(((y - at_zero - slope * x) ** 2).sum()), float(((y - y.mean()) ** 2).sum())
        r2 = 1 - left / all_of_it if all_of_it > 0 else 1.0
        return cls(float(at_zero), float(slope), r2, int(min(batches)), int(max(batches)))

    def predict(self, batch: float) -> float:
        """Raises PlanError below an R^2 of 0.8, and outside of the batches that were run."""
        if self.r2 < LEAST_R2:
            raise PlanError(f"The batch explains too little of how long it takes (R² {self.r2:.2f}, {LEAST_R2} needed)",
                            fix="Plan with a mini-batch that was run.")  # fmt: skip
        if not self.smallest <= batch <= self.largest:
            raise PlanError(f"A mini-batch of {batch:g} lies outside of what was run ({self.smallest} to "
                            f"{self.largest})", fix="Plan within that.")  # fmt: skip
        return self.at_zero + self.per_batch * batch


def noise_scale(local: float, aggregated: float, batch: float, workers: int) -> float:
    """The noise scale, in examples, from both means of squared norms; independent of the number of workers.

    Infinite where the gradient itself drowns in its noise.
    """
    whole = batch * workers
    signal = (whole * aggregated - batch * local) / (whole - batch)
    trace = (local - aggregated) / (1 / batch - 1 / whole)
    return max(trace, 0.0) / signal if signal > 0 else float("inf")


def need(records: Iterable[Record], target: Target, batch: int) -> Need:
    """How many examples it takes to the target with this batch, from runs that got there. Raises PlanError."""
    found = [
        (record.batch_size, step * record.batch_size)
        for record in records
        if record.batch_size and (step := target.reached(record.evaluations)) is not None
    ]
    if not found:
        raise PlanError(
            f"No run is known that got to {target}",
            fix=f"Let one get there with --eval-every N, so that {target.metric} is known on the way.",
        )
    same = [examples for size, examples in found if size == batch]
    if same:
        spread = float(np.std(same, ddof=1) / np.mean(same)) if len(same) > 1 else 0.1
        runs = f"{len(same)} run{'' if len(same) == 1 else 's'}"
        return Need(float(np.mean(same)), spread, f"{runs} with a mini-batch of {batch} got to {target}")
    model = ExamplesModel.fit(*zip(*found, strict=True))
    return Need(model.predict(batch), (1 - model.r2) ** 0.5, f"a line over {len(found)} runs, R² {model.r2:.2f}")
