"""Lifetimes of VMs in a notebook: survival with its band, fitted laws, the hazard, and notes.

Plain HTML and SVG: no script, no style sheet, colours that read on light and dark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..client import Lifetimes
from ..client.planning.lifetimes import LEVEL
from ..client.text import number
from .static.markup import COLOURS, FAINT, FONT, escape, row, table

_LEFT = 44
_TOP = 8
_WIDTH = 560
_HEIGHT = 190
_BARS_TOP = _TOP + _HEIGHT + 34
_BARS = 44
_TOTAL_WIDTH = _LEFT + _WIDTH + 24
_TOTAL_HEIGHT = _BARS_TOP + _BARS + 20
_FIT_STYLES = tuple(
    f"fill='none' stroke='{colour}' stroke-width='1.4' stroke-dasharray='{dashes}'"
    for colour, dashes in (
        (COLOURS["warn"], "7 3"),
        (COLOURS["good"], "2 2"),
        ("#8a5fc8", "9 3 2 3"),
        (COLOURS["bad"], "4 4"),
        (COLOURS["quiet"], "12 4 2 2 2 4"),
    )
)
_TICKS = (0.1, 0.25, 0.5, 1, 2, 4, 6, 12, 24, 48, 96, 192)

_Points = Sequence[tuple[float, float]]


def lifetimes_html(answer: Lifetimes) -> str:
    """Return the figure with its tables as HTML."""
    drawing = answer.drawing
    names = list(drawing["fits"])
    styles = dict(zip(names, _FIT_STYLES, strict=False))
    changed = ""
    if answer.alarm:
        words = "the latest VMs have other lifetimes"
        changed = f"<div style='color:{COLOURS['bad']}'>● {words}</div>"
    notes = "".join(f"<div>{escape(note)}</div>" for note in answer.notes)
    return (
        "<div "
        f"style='{FONT}'><div><b>{escape(answer.title)}</b></div><div>{escape(answer.counted)}.</div>"
        f"<div>{escape(answer.summary)}</div>{changed}"
        f"{_figure(drawing, styles)}{_legend(answer.fits, styles)}"
        f"<div style='{FAINT};font-size:12px;margin-top:4px'>{notes}</div></div>"
    )


def _figure(drawing: Mapping[str, Any], styles: Mapping[str, str]) -> str:
    end = drawing["end"]
    place = _Scale(end)
    steps = drawing["stepwise"]
    band = place.path(
        [*_level(drawing["low"], end, steps), *reversed(_level(drawing["high"], end, steps))]
    )
    fits = "".join(
        f"<path d='{place.path(curve)}' {styles[name]}/>" for name, curve in drawing["fits"].items()
    )
    observed = place.path(_level(drawing["observed"], end, steps))
    return (
        f"<svg viewBox='0 0 {_TOTAL_WIDTH} {_TOTAL_HEIGHT}' width='{_TOTAL_WIDTH}' "
        "style='max-width:100%' role='img' font-size='11' fill='currentColor' aria-label='The "
        f"share of VMs still alive, by age, and their hazard'>{_axes(place)}<path d='{band}Z' "
        f"fill='{COLOURS['busy']}' opacity='.18'/>{fits}"
        f"<path d='{observed}' fill='none' stroke='{COLOURS['busy']}' "
        f"stroke-width='2'/>{_hazard(drawing, place)}</svg>"
    )


class _Scale:
    """Hours and shares as places in the drawing."""

    def __init__(self, end: float) -> None:
        self.end = end or 1.0

    def x(self, hours: float) -> float:
        return _LEFT + min(hours / self.end, 1.0) * _WIDTH

    def path(self, points: Iterable[tuple[float, float]]) -> str:
        """Return a line through (hours, share)."""
        return "M" + "L".join(
            f"{self.x(hours):.1f} {_TOP + (1 - share) * _HEIGHT:.1f}" for hours, share in points
        )


def _level(points: _Points, end: float, stepwise: bool) -> list[tuple[float, float]]:
    """Return the points with the corners of steps, extended to the end."""
    drawn: list[tuple[float, float]] = []
    for hours, share in points:
        if stepwise and drawn:
            drawn.append((hours, drawn[-1][1]))
        drawn.append((hours, share))
    return [*drawn, (end, drawn[-1][1])]


def _axes(place: _Scale) -> str:
    parts = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = _TOP + (1 - share) * _HEIGHT
        parts.append(
            f"<path d='M{_LEFT} {y:.1f}H{_LEFT + _WIDTH}' stroke='currentColor' opacity='.15'/>"
        )
        parts.append(
            f"<text x='{_LEFT - 6}' y='{y + 4:.1f}' text-anchor='end' "
            f"opacity='.7'>{share:.0%}</text>"
        )
    step = next((tick for tick in _TICKS if place.end / tick <= 8), _TICKS[-1])
    for index in range(int(place.end / step + 1e-9) + 1):
        x = place.x(index * step)
        label = f"{index * step:g}{' h' if index * step + step > place.end else ''}"
        parts.append(f"<path d='M{x:.1f} {_TOP + _HEIGHT}v4' stroke='currentColor' opacity='.5'/>")
        parts.append(
            f"<text x='{x:.1f}' y='{_TOP + _HEIGHT + 17}' text-anchor='middle' "
            f"opacity='.7'>{label}</text>"
        )
    label = (
        f"<text x='{_LEFT + _WIDTH}' y='{_TOP + 12}' text-anchor='end' opacity='.7'>VMs still "
        "alive, by age</text>"
    )
    return "".join([*parts, label])


def _hazard(drawing: Mapping[str, Any], place: _Scale) -> str:
    bars = drawing["hazard"]
    most = max((hazard for *_, hazard in bars), default=0.0) or 1.0
    parts = []
    for low, high, hazard in bars:
        x = place.x(low)
        height = hazard / most * _BARS
        width = max(place.x(high) - x - 1, 1)
        parts.append(
            f"<rect x='{x:.1f}' y='{_BARS_TOP + _BARS - height:.1f}' width='{width:.1f}' "
            f"height='{height:.1f}' "
            f"fill='{COLOURS['quiet']}'><title>{low:g} to {number(high)} h: {hazard:.2%} per "
            "hour</title></rect>"
        )
    for share, y in (("0", _BARS_TOP + _BARS), (f"{most:.1%}", _BARS_TOP)):
        parts.append(
            f"<path d='M{_LEFT} {y}H{_LEFT + _WIDTH}' stroke='currentColor' opacity='.15'/>"
        )
        parts.append(
            f"<text x='{_LEFT - 6}' y='{y + 4}' text-anchor='end' opacity='.7'>{share}</text>"
        )
    title = "revoked per hour of those alive"
    label = f"<text x='{_LEFT}' y='{_BARS_TOP + _BARS + 14}' opacity='.7'>{title}</text>"
    return "".join(parts) + label


def _legend(fits: Sequence[Mapping[str, Any]], styles: Mapping[str, str]) -> str:
    best = min((fit["aic"] for fit in fits), default=0.0)
    observed = (
        f"<span style='color:{COLOURS['busy']}'>━</span> observed (Kaplan-Meier), {LEVEL:.0%} band"
    )
    rows = [row([observed, "AIC above best", "largest gap (KS)", "parameters"])]
    for fit in fits:
        values = ", ".join(
            f"{escape(name)} {number(value)}" for name, value in fit["parameters"].items()
        )
        line = (
            "<svg width='36' height='8' aria-hidden='true'><path d='M0 4H36' "
            f"{styles[fit['name']]}/></svg>"
        )
        name = f"{line} {escape(fit['name'])}"
        rows.append(row([name, f"{fit['aic'] - best:.1f}", f"{fit['distance']:.1%}", values]))
    return table(rows, "font-size:12px;margin:2px 0")
