"""Small charts as SVG paths: values over time go in, a path and the places of revocations come out.

Coordinates lie in a box of WIDTH by HEIGHT that whoever draws it stretches to the room there is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..snapshot.thinning import pieces

WIDTH = 300
HEIGHT = 40


def chart(
    title: str,
    points: Sequence[tuple[float, float | None]],
    marks: Iterable[float] = (),
    *,
    from_zero: bool,
) -> dict[str, object]:
    """A chart of (time, value) `points` with vertical `marks` at moments; empty `path` with fewer
    than two values.

    The path is interrupted where a value is None.
    """
    known = [(time, value) for time, value in points if value is not None]
    if len(known) < 2:
        return {"title": title, "path": "", "marks": [], "low": "", "high": ""}
    first = known[0][0]
    last = known[-1][0]
    values = [value for _, value in known]
    if from_zero:
        low = 0.0
    else:
        low = min(values)
    high = max(values)
    width = (last - first) or 1.0
    height = (high - low) or 1.0

    def place(time: float, value: float) -> str:
        x = (time - first) / width * WIDTH
        y = HEIGHT - 2 - (value - low) / height * (HEIGHT - 4)
        return f"{x:.0f} {y:.1f}"

    path = "".join(
        "M"
        + "L".join(place(time, value) for time, value in line)
        + ("h0" if len(line) == 1 else "")
        for line in pieces(points, len(known))
    )
    inside = [round((time - first) / width * WIDTH, 1) for time in marks if first <= time <= last]
    return {"title": title, "path": path, "marks": inside, "low": _short(low), "high": _short(high)}


def _short(value: float) -> str:
    return f"{value:.3g}"
