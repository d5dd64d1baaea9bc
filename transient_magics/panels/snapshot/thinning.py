"""Lines in fewer points, where they have more than a small chart can show."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

_MOST_POINTS = 100


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
