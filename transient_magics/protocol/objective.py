"""What `--keep-best` and `--stop-when` judge a run by: a metric of its evaluations, and which way
is better.

Their texts are read here, for whoever declares a run and for the chief that keeps to it:
`accuracy`, `min distance`, and `accuracy no better in 3 evaluations`. Both have one written form,
which `str` gives and is read again.
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
"""Words in the names of metrics of which more, or less, is better."""
_LONGEST = 100
_OBJECTIVE = re.compile(r"(?:(max|min)\s+)?(\S+)", re.ASCII)
_PATIENCE = re.compile(r"(.+?)\s+no\s+better\s+in\s+(\d{1,6})(?:\s+evaluations?)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Objective:
    """A metric by its name, and whether its largest (`max`) or its smallest (`min`) value is the
    best.
    """

    metric: str
    direction: Literal["max", "min"]

    def better(self, value: float, than: float) -> bool:
        """Whether `value` is better; an equal one is not."""
        if self.direction == "max":
            return value > than
        return value < than

    def __str__(self) -> str:
        return f"{self.direction} {self.metric}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `METRIC`, `max METRIC` or `min METRIC`. Raises ValueError, a clause that says what
        to write.
        """
        found = _OBJECTIVE.fullmatch(text.strip())
        if not found or len(text) > _LONGEST:
            raise ValueError(
                f"'{text:.40}' is no metric: write its name, as accuracy, or min distance"
            )
        metric = found[2]
        direction = found[1] or _direction(metric)
        if direction not in ("max", "min"):
            raise ValueError(
                f"whether {metric} is to be large or small is not known: write max {metric} or min {metric}"
            )
        return cls(metric, direction)


@dataclass(frozen=True, slots=True)
class Patience:
    """A run ends when so many `evaluations` in a row were no better than the best before."""

    objective: Objective
    evaluations: int

    def __str__(self) -> str:
        return f"{self.objective} no better in {self.evaluations} evaluations"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `[max|min ]METRIC no better in N evaluations`. Raises ValueError, a clause that says
        what to write.
        """
        found = _PATIENCE.fullmatch(text.strip())
        if not found or int(found[2]) < 1:
            raise ValueError(
                f"'{text:.60}' is no condition: write 'accuracy no better in 3 evaluations'"
            )
        return cls(Objective.parse(found[1]), int(found[2]))


@dataclass(frozen=True, slots=True)
class Best:
    """The best evaluation so far, by `objective` (as `str` of one): its value, and the step of its
    checkpoint.
    """

    objective: Annotated[str, objective_or_none]
    value: float
    step: Count


def objective_or_none(text: str) -> str:
    """A check of a field: an objective in its written form, or the empty text."""
    if text:
        return str(Objective.parse(text))
    return ""


def patience_or_none(text: str) -> str:
    """The same for the condition under which a run ends."""
    if text:
        return str(Patience.parse(text))
    return ""


def _direction(metric: str) -> str:
    words = set(re.split(r"[^a-z0-9]+", metric.lower()))
    if "neg" in words or (words & _LARGER and not words & _SMALLER):
        return "max"
    return "min" if words & _SMALLER and not words & _LARGER else ""
