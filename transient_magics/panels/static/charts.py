"""Charts as SVG: curves of several runs, sparklines, and axes around a picture.

Plain SVG: no script, no style sheet, colours that read on light and dark. For readers with a
keyboard or a screen reader the values are a table, which opens below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ...client.text import number
from ..snapshot.axes import pieces, thinned, ticks
from .markup import COLOURS, FAINT, attribute, escape, row, table

WIDTH = 364
HEIGHT = 190
_LEFT = 46
_RIGHT = 10
_TOP = 10
_BOTTOM = 34
_COLOURS = (COLOURS["busy"], COLOURS["warn"], COLOURS["good"], COLOURS["bad"], "#8a63c9", "#2a9d9d")
_DASHES = ("", "6 3")
_MOST_ROWS = 24
_FEW = 6
"""Maximum number of points that are drawn individually."""
STYLES = tuple((colour, dashes) for dashes in _DASHES for colour in _COLOURS)
"""The colours and dashes of lines that a reader can distinguish."""
OTHER = COLOURS["quiet"], ""
"""The style of all other lines."""

Point = tuple[float, float]

SPARKLINE_WIDTH = 300
SPARKLINE_HEIGHT = 40

Named = Iterable[tuple[float, str]]
"""Places on an axis, from 0 to 1, and their labels."""


@dataclass(frozen=True, slots=True)
class Line:
    """A curve.

    `best` is the marked point. `faint`: one of many lines. `points_only`: points are not joined.
    `stepped`: each value remains until the next one.
    """

    name: str
    points: Sequence[Point]
    style: tuple[str, str] = OTHER
    best: Point | None = None
    faint: bool = False
    points_only: bool = False
    stepped: bool = False


def sample(style: tuple[str, str]) -> str:
    """Return a piece of line in a style, for legends and tables."""
    return (
        f"<svg width='22' height='8' aria-hidden='true'><path d='M1 4H21' {_stroke(style)}/></svg>"
    )


def figure(
    title: str,
    across: str,
    lines: Sequence[Line],
    legend: Sequence[tuple[str, tuple[str, str]]] = (),
) -> str:
    """Return the lines on axes called `title` and `across`; empty without a point.

    `legend` has names and styles.
    """
    points = [point for line in lines for point in line.points]
    if not points:
        return ""
    (first, last), (low, high) = (
        (min(values), max(values)) for values in zip(*points, strict=True)
    )
    margin = 0.05 * (high - low) or abs(0.05 * high) or 1.0
    low = low - margin
    high = high + margin

    def place(point: Point) -> tuple[float, float]:
        x = (point[0] - first) / ((last - first) or 1.0) * (WIDTH - _LEFT - _RIGHT) + _LEFT
        return x, HEIGHT - _BOTTOM - (point[1] - low) / (high - low) * (HEIGHT - _TOP - _BOTTOM)

    label = (
        f"{title}, {number(low + margin)} to {number(high - margin)}, {across} {first:,.0f} "
        f"to {last:,.0f}"
    )
    faint_first = sorted(lines, key=lambda line: not line.faint)
    drawn = "".join(
        [
            _axes(place, (first, last), (low, high)),
            *(_line(line, place, last) for line in faint_first),
            *(_best(line, place) for line in lines if line.best),
        ]
    )
    means = "".join(
        f"<span style='white-space:nowrap'>{sample(style)} {escape(name)}</span> "
        for name, style in legend
    )
    if any(line.best for line in lines):
        marked = "<span style='white-space:nowrap'>◎ best</span>"
    else:
        marked = ""
    return (
        f"<span style='display:inline-block;vertical-align:top;margin:6px 16px 2px 0'>"
        f"<span style='{FAINT};font-size:12px;display:block'>{escape(title)}</span>"
        f"<svg viewBox='0 0 {WIDTH} {HEIGHT}' width='{WIDTH}' "
        "style='display:block;max-width:100%;height:auto' role='img' font-size='11' "
        f"fill='currentColor' aria-label='{attribute(label)}'>{drawn}"
        f"<text x='{WIDTH - _RIGHT}' y='{HEIGHT - 4}' text-anchor='end' "
        f"opacity='.7'>{escape(across)}</text></svg>"
        "<span "
        f"style='font-size:12px;display:block;max-width:{WIDTH}px'>{means}{marked}</span></span>"
    )


def values(across: str, lines: Sequence[Line]) -> str:
    """Return the points of the lines as a collapsible table, with a column for each line.

    If there are many places, only some have a row.
    """
    places = sorted({place for line in lines for place, _ in line.points})
    if not places:
        return ""
    step = -(-len(places) // _MOST_ROWS)
    # Counted from the end, so that the last place is among them.
    shown = places[::-1][::step][::-1]
    columns = [dict(line.points) for line in lines]
    rows = [row(map(escape, (across, *(line.name for line in lines))), "th")]
    rows += [
        row(
            [
                f"{place:,.0f}",
                *(number(column.get(place)) if place in column else "" for column in columns),
            ]
        )
        for place in shown
    ]
    return (
        "<details><summary "
        f"style='{FAINT};font-size:12px'>values</summary>{table(rows, 'font-size:12px')}</details>"
    )


def _stroke(style: tuple[str, str]) -> str:
    colour, dashes = style
    if dashes:
        dashed = f" stroke-dasharray='{dashes}'"
    else:
        dashed = ""
    return (
        f"fill='none' stroke='{colour}' stroke-width='1.6' stroke-linejoin='round' "
        f"stroke-linecap='round'{dashed}"
    )


def _axes(place: Callable[[Point], Point], across: Point, up: Point) -> str:
    bottom = HEIGHT - _BOTTOM
    parts = []
    for value in ticks(*up):
        _, y = place((across[0], value))
        parts.append(
            f"<path d='M{_LEFT} {y:.1f}H{WIDTH - _RIGHT}' stroke='currentColor' opacity='.15'/>"
        )
        parts.append(
            f"<text x='{_LEFT - 6}' y='{y + 4:.1f}' text-anchor='end' "
            f"opacity='.7'>{number(value)}</text>"
        )
    if across[1] > across[0]:
        whole = [at for at in ticks(*across) if at == round(at)]
    else:
        whole = [across[0]]
    for at in whole:
        x, _ = place((at, up[0]))
        parts.append(f"<path d='M{x:.1f} {bottom}v4' stroke='currentColor' opacity='.5'/>")
        parts.append(
            f"<text x='{x:.1f}' y='{bottom + 16}' text-anchor='middle' "
            f"opacity='.7'>{at:,.0f}</text>"
        )
    return (
        "".join(parts)
        + f"<path d='M{_LEFT} {bottom}H{WIDTH - _RIGHT}' stroke='currentColor' opacity='.4'/>"
    )


def _line(line: Line, place: Callable[[Point], Point], last: float) -> str:
    if line.points_only or line.stepped:
        points = line.points
    else:
        points = thinned(line.points)
    if not points:
        return ""
    places = [place(point) for point in points]
    title = f"<title>{escape(line.name)}</title>"
    opacity = " opacity='.4'" if line.faint else ""
    if line.points_only or (len(places) == 1 and not line.stepped):
        dots = "".join(f"<circle cx='{x:.1f}' cy='{y:.1f}' r='2.2'/>" for x, y in places)
        return f"<g fill='{line.style[0]}'{opacity}>{title}{dots}</g>"
    if line.stepped:
        stairs = "".join(f"H{x:.1f}V{y:.1f}" for x, y in places[1:])
        end, _ = place((last, 0.0))
        path = f"M{places[0][0]:.1f} {places[0][1]:.1f}{stairs}H{end:.1f}"
        return f"<g{opacity}>{title}<path d='{path}' {_stroke(line.style)}/></g>"
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    few = places if len(places) <= _FEW and not line.faint else []
    dots = "".join(
        f"<circle cx='{x:.1f}' cy='{y:.1f}' r='2.2' fill='{line.style[0]}'/>" for x, y in few
    )
    return f"<g{opacity}>{title}<path d='M{path}' {_stroke(line.style)}/>{dots}</g>"


def _best(line: Line, place: Callable[[Point], Point]) -> str:
    assert line.best is not None
    x, y = place(line.best)
    title = f"<title>{escape(line.name)}: {number(line.best[1])} at {line.best[0]:,.0f}</title>"
    return (
        f"<g>{title}<circle cx='{x:.1f}' cy='{y:.1f}' r='2.5' fill='{line.style[0]}'/>"
        f"<circle cx='{x:.1f}' cy='{y:.1f}' r='6' fill='none' stroke='{line.style[0]}' "
        "stroke-width='1.4'/></g>"
    )


# Small charts as SVG paths: values over time go in, a path and the places of revocations come out.
#
# Coordinates lie in a box of WIDTH by HEIGHT, which callers stretch to the available space.


def sparkline(
    title: str,
    points: Sequence[tuple[float, float | None]],
    marks: Iterable[float] = (),
    *,
    from_zero: bool,
) -> dict[str, object]:
    """Return a small chart of (time, value) `points`, with vertical `marks` at moments.

    The path is interrupted where a value is None, and empty with fewer than two values.
    """
    present = [(time, value) for time, value in points if value is not None]
    if len(present) < 2:
        return {"title": title, "path": "", "marks": [], "low": "", "high": ""}
    first = present[0][0]
    last = present[-1][0]
    values = [value for _, value in present]
    if from_zero:
        low = 0.0
    else:
        low = min(values)
    high = max(values)
    width = (last - first) or 1.0
    height = (high - low) or 1.0

    def place(time: float, value: float) -> str:
        x = (time - first) / width * SPARKLINE_WIDTH
        y = SPARKLINE_HEIGHT - 2 - (value - low) / height * (SPARKLINE_HEIGHT - 4)
        return f"{x:.0f} {y:.1f}"

    path = "".join(
        "M"
        + "L".join(place(time, value) for time, value in line)
        + ("h0" if len(line) == 1 else "")
        for line in pieces(points, len(present))
    )
    inside = [
        round((time - first) / width * SPARKLINE_WIDTH, 1)
        for time in marks
        if first <= time <= last
    ]
    return {"title": title, "path": path, "marks": inside, "low": _short(low), "high": _short(high)}


def _short(value: float) -> str:
    return f"{value:.3g}"


# Axes around a picture of points or cells, as SVG: positions of places from 0 to 1, values, names.


@dataclass(frozen=True, slots=True)
class Box:
    """Position and size of a picture, in pixels."""

    left: float
    top: float
    width: float
    height: float

    def x(self, at: float) -> float:
        """Return the horizontal position, in pixels, of a place from 0 (left) to 1."""
        return self.left + at * self.width

    def y(self, at: float) -> float:
        """Return the vertical position, in pixels, of a place from 0 (bottom) to 1."""
        return self.top + (1 - at) * self.height


def frame(
    box: Box, across: Named, up: Named, name: str, over: str = "", *, lines: bool = True
) -> str:
    """Return the axes of a box.

    `name` stands below the right end of the horizontal axis, `over` above the upper end of the
    vertical one. With `lines`, a line crosses the box at the height of each named value.
    """
    bottom = box.top + box.height
    right = box.left + box.width
    parts = [_stroke_path(f"M{box.left:g} {box.top:g}V{bottom:g}H{right:g}", 0.4)]
    for at, words in up:
        y = box.y(at)
        parts += [_stroke_path(f"M{box.left:g} {y:.1f}H{right:g}", 0.15)] if lines else []
        parts.append(_label(box.left - 6, y + 4, words, "end"))
    for at, words in across:
        x = box.x(at)
        parts += [
            _stroke_path(f"M{x:.1f} {bottom:g}v4", 0.5),
            _label(x, bottom + 16, words, "middle"),
        ]
    parts.append(_label(right, bottom + 31, name, "end"))
    parts += [_label(box.left, box.top - 5, over, "start")] if over else []
    return "".join(parts)


def _stroke_path(path: str, opacity: float) -> str:
    return f"<path d='{path}' fill='none' stroke='currentColor' opacity='{opacity:g}'/>"


def _label(x: float, y: float, words: str, anchor: str) -> str:
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' opacity='.7'>{escape(words)}</text>"
    )
