"""Small charts as SVG paths: values over time go in, a path and the places of revocations come out.

Coordinates lie in a box of WIDTH by HEIGHT that whoever draws it stretches to the room there is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

WIDTH, HEIGHT = 300, 40
_MOST_POINTS = 100


def chart(
    title: str, points: Sequence[tuple[float, float | None]], marks: Iterable[float] = (), *, from_zero: bool
) -> dict[str, object]:
    """A chart of (time, value) `points` with vertical `marks` at moments; empty `path` with fewer than two values.

    The path is interrupted where a value is None.
    """
    known = [(time, value) for time, value in points if value is not None]
    if len(known) < 2:
        return {"title": title, "path": "", "marks": [], "low": "", "high": ""}
    first, last = known[0][0], known[-1][0]
    values = [value for _, value in known]
    low, high = (0.0 if from_zero else min(values)), max(values)
    width, height = (last - first) or 1.0, (high - low) or 1.0

    def place(time: float, value: float) -> str:
        x = (time - first) / width * WIDTH
        y = HEIGHT - 2 - (value - low) / height * (HEIGHT - 4)
        return f"{x:.0f} {y:.1f}"

    path = "".join(
        "M" + "L".join(place(time, value) for time, value in line) + ("h0" if len(line) == 1 else "")
        for line in _thin(points, len(known))
    )
    inside = [round((time - first) / width * WIDTH, 1) for time in marks if first <= time <= last]
    return {"title": title, "path": path, "marks": inside, "low": _short(low), "high": _short(high)}


def thinned(line: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The line in fewer points, where it has many."""
    return [each for thin in _thin(line, len(line)) for each in thin]


def _thin(points: Sequence[tuple[float, float | None]], many: int) -> list[list[tuple[float, float]]]:
    """The lines that lie between missing values, of `many` points in all, each in fewer points where they are many."""
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
    return [(sum(time for time, _ in each) / len(each), sum(value for _, value in each) / len(each)) for each in groups]


def _short(value: float) -> str:
    return f"{value:.3g}"
