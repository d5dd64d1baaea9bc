"""Axes and lines of charts: places of values, round values, and lines in fewer points.

Round values are found as in widgets/scale.js.
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
"""Maximum number of whole numbers with a place each."""

_MOST_POINTS = 100


def ticks(low: float, high: float) -> list[float]:
    """Return about MANY round values from `low` to `high`, which is larger."""
    step = 10 ** math.floor(math.log10((high - low) / MANY))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= MANY + 1)
    return [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis from `low` to `high`, even or logarithmic, or with a place for each choice."""

    name: str
    kind: Literal["even", "log", "choice"]
    low: float = 0.0
    high: float = 1.0
    choices: tuple[Value, ...] = ()

    @classmethod
    def of(cls, dimension: Dimension) -> Self:
        """Return the axis of a parameter."""
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
        """Return an axis with room for all values, at least one."""
        low = min(values)
        high = max(values)
        margin = 0.05 * (high - low) or abs(0.05 * high) or 1.0
        return cls(name, "even", low - margin, high + margin)

    def place(self, value: Value) -> float:
        """Return the place of a value, from 0 to 1.

        Raises ValueError for an unknown choice, or for a value without a logarithm.
        """
        if self.kind == "choice":
            place = next(
                (place for place, choice in enumerate(self.choices) if _is_at(choice, value)), None
            )
            if place is None:
                raise ValueError(f"{value!r:.80} is not a choice of {self.name}")
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
        """The places of some values, with the values in words."""
        if self.kind == "choice":
            step = -(-len(self.choices) // _MOST_NAMED)
            return [(self.place(value), text.value_words(value)) for value in self.choices[::step]]
        if self.kind == "log":
            return [
                (self.place(value), f"{value:.4g}")
                for value in _round_by_logarithm(self.low, self.high)
            ]
        return [(self.place(value), f"{value:.4g}") for value in ticks(self.low, self.high)]


def _is_at(choice: Value, value: Value) -> bool:
    # 1 is at the place of 1.0, and NaN at that of NaN.
    return choice == value or same(choice, value)


def _round_by_logarithm(low: float, high: float) -> list[float]:
    """Return powers of ten, with 2 and 5 times these if there is room, else round values."""
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
    """Return a line in fewer points if it has many."""
    return [point for thin in pieces(line, len(line)) for point in thin]


def pieces(
    points: Sequence[tuple[float, float | None]], many: int
) -> list[list[tuple[float, float]]]:
    """Return the lines between missing values, with fewer points if there are many in all.

    Parameters
    ----------
    points
        Places and values; None: missing.
    many
        The number of points in all.
    """
    lines = [
        [(time, value) for time, value in line if value is not None]
        for present, line in groupby(points, lambda point: point[1] is not None)
        if present
    ]
    share = max(1.0, many / _MOST_POINTS)
    return [_mean(line, max(1, round(len(line) / share))) for line in lines]


def _mean(line: list[tuple[float, float]], points: int) -> list[tuple[float, float]]:
    """Return a line as a number of means."""
    step = len(line) / points
    groups = [line[int(index * step) : int((index + 1) * step)] for index in range(points)]
    return [
        (sum(time for time, _ in group) / len(group), sum(value for _, value in group) / len(group))
        for group in groups
    ]
