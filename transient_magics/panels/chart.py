"""Small charts as SVG paths: values over time go in, a path and the places of revocations come out.

Coordinates lie in a box of WIDTH by HEIGHT that whoever draws it stretches to the room there is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

WIDTH, HEIGHT = 300, 40
_MOST_POINTS = 100


def chart(
    title: str, points: Sequence[tuple[float, float]], marks: Iterable[float] = (), *, from_zero: bool
) -> dict[str, object]:
    """A chart of (time, value) `points` with vertical `marks` at moments; empty `path` with fewer than two points."""
    if len(points) < 2:
        return {"title": title, "path": "", "marks": [], "low": "", "high": ""}
    first, last = points[0][0], points[-1][0]
    values = [value for _, value in points]
    low, high = (0.0 if from_zero else min(values)), max(values)
    width, height = (last - first) or 1.0, (high - low) or 1.0

    def place(time: float, value: float) -> str:
        x = (time - first) / width * WIDTH
        y = HEIGHT - 2 - (value - low) / height * (HEIGHT - 4)
        return f"{x:.0f} {y:.1f}"

    path = "M" + "L".join(place(time, value) for time, value in _thin(points))
    inside = [round((time - first) / width * WIDTH, 1) for time in marks if first <= time <= last]
    return {"title": title, "path": path, "marks": inside, "low": _short(low), "high": _short(high)}


def _thin(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    if len(points) <= _MOST_POINTS:
        return list(points)
    step = len(points) / _MOST_POINTS
    groups = [points[int(index * step) : int((index + 1) * step)] for index in range(_MOST_POINTS)]
    return [
        (sum(time for time, _ in group) / len(group), sum(value for _, value in group) / len(group)) for group in groups
    ]


def _short(value: float) -> str:
    return f"{value:.3g}"
