"""Axes: where on one a value lies, from 0 to 1, and which round values are named (as
widgets/scale.js finds them).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, Self

from ...client import text
from ...protocol.literals import as_number, same
from ...protocol.run import Value
from ...protocol.space import Dimension

MANY = 4
_MOST_NAMED = 8
_MOST_WHOLE = 40
"""Whole numbers up to which each has a place of its own."""

_MOST_POINTS = 100


def ticks(low: float, high: float) -> list[float]:
    """About MANY round values from `low` to `high`, which is above it."""
    step = 10 ** math.floor(math.log10((high - low) / MANY))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= MANY + 1)
    return [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


@dataclass(frozen=True, slots=True)
class Axis:
    """From `low` to `high`, evenly or (log) evenly in the logarithm; or `choices`, each with as
    much room.
    """

    name: str
    kind: Literal["even", "log", "choice"]
    low: float = 0.0
    high: float = 1.0
    choices: tuple[Value, ...] = ()

    @classmethod
    def of(cls, dimension: Dimension) -> Self:
        """That of a parameter."""
        if dimension.kind == "choice":
            return cls(dimension.name, "choice", choices=dimension.choices)
        if dimension.kind == "int" and dimension.high - dimension.low < _MOST_WHOLE:
            whole = range(int(dimension.low), int(dimension.high) + 1)
            return cls(dimension.name, "choice", choices=tuple(whole))
        return cls(
            dimension.name,
            "log" if dimension.kind == "log" else "even",
            dimension.low,
            dimension.high,
        )

    @classmethod
    def over(cls, name: str, values: Sequence[float]) -> Self:
        """One with room for all of the values, of which there is one at least."""
        low = min(values)
        high = max(values)
        margin = 0.05 * (high - low) or abs(0.05 * high) or 1.0
        return cls(name, "even", low - margin, high + margin)

    def place(self, value: Value) -> float:
        """Where a value lies, from 0 to 1. Raises ValueError for one that is no choice, or has no
        logarithm.
        """
        if self.kind == "choice":
            place = next(
                (place for place, choice in enumerate(self.choices) if _is_at(choice, value)), None
            )
            if place is None:
                raise ValueError(f"{self.name} has no choice {value!r:.80}")
            return (place + 0.5) / len(self.choices)
        low = self.low
        high = self.high
        at = as_number(value)
        if self.kind == "log":
            low = math.log(low)
            high = math.log(high)
            at = math.log(at)
        return (at - low) / (high - low)

    @property
    def named(self) -> list[tuple[float, str]]:
        """The places of some values, and these in words."""
        if self.kind == "choice":
            each = -(-len(self.choices) // _MOST_NAMED)
            return [(self.place(value), text.value_words(value)) for value in self.choices[::each]]
        if self.kind == "log":
            return [
                (self.place(value), f"{value:.4g}")
                for value in _round_by_logarithm(self.low, self.high)
            ]
        return [(self.place(value), f"{value:.4g}") for value in ticks(self.low, self.high)]


def _is_at(choice: Value, value: Value) -> bool:
    return choice == value or same(choice, value)  # 1 lies where 1.0 does, and NaN where NaN does


def _round_by_logarithm(low: float, high: float) -> list[float]:
    """Powers of ten, with twice and five times these where there is room; where there is not one,
    round values.
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1, 2, 5), (1,)):
        found = [
            digit * 10.0**power
            for power in powers
            for digit in digits
            if low <= digit * 10.0**power <= high
        ]
        if len(found) <= MANY + 2:
            if len(found) > 1:
                return found
            return [tick for tick in ticks(low, high) if tick > 0]
    return found[:: -(-len(found) // MANY)]


# Lines in fewer points, where they have more than a small chart can show.


def thinned(line: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The line in fewer points, where it has many."""
    return [each for thin in pieces(line, len(line)) for each in thin]


def pieces(
    points: Sequence[tuple[float, float | None]], many: int
) -> list[list[tuple[float, float]]]:
    """The lines that lie between missing values, of `many` points in all, each in fewer points
    where they are many.
    """
    lines = [
        [(time, value) for time, value in line if value is not None]
        for known, line in groupby(points, lambda point: point[1] is not None)
        if known
    ]
    share = max(1.0, many / _MOST_POINTS)
    return [_mean(line, max(1, round(len(line) / share))) for line in lines]


def _mean(line: list[tuple[float, float]], points: int) -> list[tuple[float, float]]:
    """The line as so many means."""
    step = len(line) / points
    groups = [line[int(index * step) : int((index + 1) * step)] for index in range(points)]
    return [
        (sum(time for time, _ in group) / len(group), sum(value for _, value in group) / len(group))
        for group in groups
    ]
