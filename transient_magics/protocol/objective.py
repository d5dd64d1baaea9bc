"""Objectives of `--keep-best` and `--stop-when`: a metric of the evaluations and its direction.

The client that declares a run and the chief that applies it read the texts here: `accuracy`, `min
distance`, and `accuracy no better in 3 evaluations`. Both classes have one written form, which
`str` returns and `parse` reads.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from .checks import Count

_LARGER = frozenset(
    (
        "accuracy",
        "acc",
        "auc",
        "precision",
        "recall",
        "bleu",
        "rouge",
        "fscore",
        "f1",
        "iou",
        "r2",
        "pearson",
        "neg",
    )
)
_SMALLER = frozenset(
    (
        "loss",
        "error",
        "err",
        "perplexity",
        "mse",
        "mae",
        "mape",
        "msle",
        "rmse",
        "entropy",
        "crossentropy",
        "distance",
    )
)
"""Words in the names of metrics for which a larger, or a smaller, value is better."""
_LONGEST = 100
_OBJECTIVE = re.compile(r"(?:(max|min)\s+)?(\S+)", re.ASCII)
_PATIENCE = re.compile(r"(.+?)\s+no\s+better\s+in\s+(\d{1,6})(?:\s+evaluations?)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Objective:
    """A metric name, and whether its largest (`max`) or smallest (`min`) value is the best."""

    metric: str
    direction: Literal["max", "min"]

    def better(self, value: float, than: float) -> bool:
        """Return whether `value` is strictly better than `than`."""
        if self.direction == "max":
            return value > than
        return value < than

    def __str__(self) -> str:
        return f"{self.direction} {self.metric}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `METRIC`, `max METRIC` or `min METRIC`.

        Raises ValueError, a clause that says what to write.
        """
        found = _OBJECTIVE.fullmatch(text.strip())
        if not found or len(text) > _LONGEST:
            raise ValueError(
                f"'{text:.40}' is not a metric: write its name, such as accuracy, or min distance"
            )
        metric = found[2]
        direction = found[1] or _direction(metric)
        if direction not in ("max", "min"):
            raise ValueError(
                f"the direction of {metric} is unknown: write max {metric} or min {metric}"
            )
        return cls(metric, direction)


@dataclass(frozen=True, slots=True)
class Patience:
    """A condition that ends a run: `evaluations` in a row without a new best value."""

    objective: Objective
    evaluations: int

    def __str__(self) -> str:
        return f"{self.objective} no better in {self.evaluations} evaluations"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `[max|min ]METRIC no better in N evaluations`.

        Raises ValueError, a clause that says what to write.
        """
        found = _PATIENCE.fullmatch(text.strip())
        if not found or int(found[2]) < 1:
            raise ValueError(
                f"'{text:.60}' is not a condition: write 'accuracy no better in 3 evaluations'"
            )
        return cls(Objective.parse(found[1]), int(found[2]))


@dataclass(frozen=True, slots=True)
class Best:
    """The best evaluation so far by `objective` (as text): its value, and its checkpoint's step."""

    objective: Annotated[str, objective_or_none]
    value: float
    step: Count


def objective_or_none(text: str) -> str:
    """Check a field: return the written form of an objective, or the empty text."""
    if text:
        return str(Objective.parse(text))
    return ""


def patience_or_none(text: str) -> str:
    """Check a field: return the written form of a stop condition, or the empty text."""
    if text:
        return str(Patience.parse(text))
    return ""


def _direction(metric: str) -> str:
    words = set(re.split(r"[^a-z0-9]+", metric.lower()))
    if "neg" in words or (words & _LARGER and not words & _SMALLER):
        return "max"
    return "min" if words & _SMALLER and not words & _LARGER else ""
