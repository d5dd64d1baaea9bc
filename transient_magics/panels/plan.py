"""A plan or a search of the catalog: a snapshot for the page, and its static picture.

The scatter has each simulated cluster (faint), the front with its ranges, and the knee. The table
has the front with the line that declares each cluster.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .. import client
from ..errors import TransientError
from .show import current_shell, has_front_end, is_jupyterlab, publisher, show_live
from .snapshot.axes import MANY, ticks
from .static.markup import COLOURS, FAINT, FONT, escape, row, table

if TYPE_CHECKING:
    from ..planner.deadlines.cost import DeadlineCost
    from ..planner.plan import Plan
    from ..planner.search import Search


CHOICES = ("train_steps", "max_hours", "max_cost", "objective", "revocations")
"""The options that can be changed in the panel of a search."""
WIDTH = 460
HEIGHT = 230
_LEFT = 52
_BOTTOM = 30
_ROOM = 12


def search_view(search: Search) -> dict[str, Any]:
    """Return the snapshot of a search.

    `points` and `front` have hours and dollars, the front also intervals. `legend` has tones, signs
    and words.
    """
    from ..planner import search as search_words
    from ..planner.plan import lasts
    from ..planner.plan import row as cells_of

    front = [_point(plan, search) for plan in search.front]
    return {
        "title": search_words.steps_of(search),
        "about": f"{len(front)} of {search.considered:,} clusters that no other beats in time and "
        "in cost" + lasts(search.front),
        "points": [{"hours": plan.hours, "dollars": plan.dollars} for plan in search.plans],
        "front": front,
        "legend": _legend(search),
        "header": list(search_words.header(search)),
        "rows": [
            {
                "cells": list(cells_of(plan, judged=search.judged)),
                "line": plan.line,
                "best": plan is search.best,
                "knee": plan is search.knee,
            }
            for plan in search_words.shown(search)
        ],
        "reach": {
            name: [min(values), max(values)]
            for name, values in (
                ("hours", [point["hours"] for point in front]),
                ("dollars", [point["dollars"] for point in front]),
            )
        },
        "notes": search_words.notes(search),
    }


def show_search(search: Search) -> None:
    """Show a search in the running cell: a panel that answers "what if", a picture, or text."""
    shell = current_shell()
    if not has_front_end(shell):
        print(search)
        return
    publish = publisher(shell, f"transient-{uuid.uuid4().hex[:12]}")
    data: dict[str, Any] = {"text/plain": str(search), "text/html": search_html(search)}

    def ask(message: Mapping[str, Any]) -> None:
        choices = message.get("choices")
        if message.get("do") != "search" or not isinstance(choices, Mapping):
            return
        try:
            found = client.plan(**asked_again(search, choices))
        except TransientError as error:
            panel.view = {**panel.view, "error": str(error), "asked": message.get("asked", 0)}
            return
        except Exception as error:
            why = f"The search failed because of an internal error: {error!r}"
            panel.view = {**panel.view, "error": why, "asked": message.get("asked", 0)}
            raise
        panel.view = {**search_view(found), "asked": message.get("asked", 0)}  # type: ignore[arg-type]

    view = search_view(search)
    panel: Any = show_live(
        publish,
        data,
        lambda widget: widget.PlanPanel(ask, choices=begun(search), view=view),
        in_place=is_jupyterlab(shell),
    )


def begun(search: Search) -> dict[str, Any]:
    """Return the first choices of the panel: those of the search.

    The steps are those of the best plan, if a target determined them.
    """
    asked = {name: search.asked.get(name) for name in CHOICES}
    return {**asked, "train_steps": asked["train_steps"] or search.best.train_steps}


def asked_again(search: Search, choices: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `client.plan` for other choices.

    A target determines the steps until others are chosen.
    """
    arguments = {**search.asked, **{name: choices[name] for name in CHOICES if name in choices}}
    if arguments.get("target"):
        unchanged = arguments["train_steps"] in (None, begun(search)["train_steps"])
        arguments["train_steps" if unchanged else "target"] = None
    return arguments


def search_html(search: Search) -> str:
    """Return the static picture of a search."""
    view = search_view(search)
    notes = "".join(f"<div>{escape(note)}</div>" for note in view["notes"])
    legend = " &#160; ".join(
        f"<span style='white-space:nowrap'><span style='color:{COLOURS[tone]}'>{sign}</span> "
        f"{escape(words)}</span>"
        for tone, sign, words in view["legend"]
    )
    return (
        f"<div style='{FONT};max-width:1040px;overflow-x:auto'>"
        f"<div><b>{escape(view['title'])}</b> <span style='{FAINT}'>{escape(view['about'])}</span>"
        f"</div>{scatter(view)}<div style='{FAINT};font-size:12px'>{legend}</div>{_table(view)}"
        f"<div style='{FAINT};font-size:12px'>{notes}</div></div>"
    )


def plan_html(plan: Plan) -> str:
    """Return the static picture of one cluster's plan."""
    drawn = deadline_curve(plan.deadline) if plan.deadline else ""
    first, *rest = str(plan).splitlines()
    lines = "".join(f"<div>{escape(line)}</div>" for line in rest[:3])
    notes = "".join(f"<div>{escape(line)}</div>" for line in rest[3:])
    return (
        f"<div style='{FONT}'><code>{escape(first)}</code>{lines}{drawn}"
        f"<div style='{FAINT};font-size:12px'>{notes}</div></div>"
    )


def deadline_curve(cost: DeadlineCost) -> str:
    """Return dollars over deadlines as SVG, with the range of simulated runs; one is marked."""
    points = cost.curve
    across = _Scale([point.hours for point in points], _LEFT, WIDTH - _ROOM)
    up = _Scale(
        [dollars for point in points for dollars in (point.low, point.high)],
        HEIGHT - _BOTTOM,
        _ROOM,
    )
    edge = [(point.hours, point.high) for point in points] + [
        (point.hours, point.low) for point in reversed(points)
    ]
    band, line = (
        "L".join(f"{across(hours):.1f} {up(dollars):.1f}" for hours, dollars in path)
        for path in (edge, [(point.hours, point.dollars) for point in points])
    )
    x = across(cost.requested.hours)
    y = up(cost.requested.dollars)
    return (
        f"<svg viewBox='0 0 {WIDTH} {HEIGHT}' width='{WIDTH}' height='{HEIGHT}' role='img' "
        "style='display:block;max-width:100%' aria-label='Dollars over "
        f"deadlines'>{_axes(across, up)}"
        f"<path d='M{band}Z' fill='{COLOURS['busy']}' opacity='.15'/>"
        f"<path d='M{line}' fill='none' stroke='{COLOURS['busy']}'/>"
        f"<circle cx='{x:.1f}' cy='{y:.1f}' r='4' fill='{COLOURS['good']}'/></svg>"
        f"<div style='{FAINT};font-size:12px'>"
        "dollars over deadlines: estimates; the band is the range of simulated runs</div>"
    )


def scatter(view: Mapping[str, Any]) -> str:
    """Return time against cost as SVG: circles, the front with error bars, the knee in a ring."""
    front = view["front"]
    across = _Scale(
        [hours for point in front for hours in point["hours_interval"]], _LEFT, WIDTH - _ROOM
    )
    up = _Scale(
        [dollars for point in front for dollars in point["dollars_interval"]],
        HEIGHT - _BOTTOM,
        _ROOM,
    )
    parts = [_axes(across, up)]
    for point in view["points"]:
        if across.shows(point["hours"]) and up.shows(point["dollars"]):
            x = across(point["hours"])
            y = up(point["dollars"])
            parts.append(
                f"<circle cx='{x:.1f}' cy='{y:.1f}' r='2' fill='none' stroke='{COLOURS['quiet']}'/>"
            )
    path = "L".join(f"{across(point['hours']):.1f} {up(point['dollars']):.1f}" for point in front)
    parts.append(f"<path d='M{path}' fill='none' stroke='{COLOURS['busy']}' opacity='.5'/>")
    parts += [_mark(point, across, up) for point in front]
    return (
        f"<svg viewBox='0 0 {WIDTH} {HEIGHT}' width='{WIDTH}' height='{HEIGHT}' role='img' "
        "style='display:block;max-width:100%' aria-label='Time against "
        f"cost'>{''.join(parts)}</svg>"
    )


class _Scale:
    """A scale from values to coordinates, logarithmic if they span more than a factor of five."""

    def __init__(self, values: Sequence[float], begin: float, end: float) -> None:
        low = min(values)
        high = max(values)
        margin = 0.06 * (high - low) or 0.1 * high or 1.0
        self.low = max(low - margin, 0.5 * low)
        self.high = high + margin
        self._begin = begin
        self._end = end
        self._log = self.low > 0 and self.high / self.low > 5

    def __call__(self, value: float) -> float:
        low, high, value = (
            math.log(number) if self._log else number for number in (self.low, self.high, value)
        )
        return self._begin + (value - low) / (high - low) * (self._end - self._begin)

    def shows(self, value: float) -> bool:
        return self.low <= value <= self.high

    def ticks(self, unit: float = 1.0) -> list[float]:
        """Return about MANY values for labels, round when they are counted in `unit`."""
        low = self.low / unit
        high = self.high / unit
        if self._log:
            shares = [(index + 0.5) / MANY for index in range(MANY)]
            return [float(f"{low * (high / low) ** share:.2g}") * unit for share in shares]
        return [value * unit for value in ticks(low, high)]


def _axes(across: _Scale, up: _Scale) -> str:
    from ..planner.plan import hours
    from ..spec import render_money

    style = "font:11px system-ui,sans-serif"
    bottom = HEIGHT - _BOTTOM
    lines = (
        f"<path d='M{_LEFT} {_ROOM}V{bottom}H{WIDTH - _ROOM}' fill='none' "
        "stroke='currentColor' opacity='.4'/>"
    )
    below = "".join(
        f"<text x='{across(tick):.0f}' y='{bottom + 16}' text-anchor='middle' style='{style}' "
        f"fill='currentColor' opacity='.7'>{hours(tick)}</text>"
        for tick in across.ticks(1 / 60 if across.high < 1 else 1.0)
    )
    beside = "".join(
        f"<text x='{_LEFT - 6}' y='{up(tick) + 4:.0f}' text-anchor='end' style='{style}' "
        f"fill='currentColor' opacity='.7'>{render_money(tick)}</text>"
        for tick in up.ticks()
    )
    return lines + below + beside


def _mark(point: Mapping[str, Any], across: _Scale, up: _Scale) -> str:
    x = across(point["hours"])
    y = up(point["dollars"])
    (left, right), (low, high) = (
        map(across, point["hours_interval"]),
        map(up, point["dollars_interval"]),
    )
    if point["best"]:
        colour = COLOURS["good"]
    else:
        colour = COLOURS["busy"]
    if point["knee"]:
        ring = f"<circle cx='{x:.1f}' cy='{y:.1f}' r='8' fill='none' stroke='{colour}'/>"
    else:
        ring = ""
    return (
        f"<g><title>{escape(point['words'])}</title><path d='M{left:.1f} "
        f"{y:.1f}H{right:.1f}M{x:.1f} {low:.1f}"
        f"V{high:.1f}' stroke='{colour}' opacity='.6'/><circle cx='{x:.1f}' cy='{y:.1f}' r='4' "
        f"fill='{colour}'/>"
        f"{ring}</g>"
    )


def _legend(search: Search) -> list[tuple[str, str, str]]:
    """Return the tone, the sign and the words of each sign of the picture."""
    from ..planner.search import marked

    beaten = len(search.plans) > len(search.front)
    apart = search.knee is not search.best
    return [
        ("good", "●", marked(search)),
        *([("busy", "◎", "the knee")] if apart else []),
        ("busy", "●", "no other is faster and cheaper; lines are the ranges of estimates"),
        *([("quiet", "○", "another is faster and cheaper")] if beaten else []),
    ]


def _point(plan: Plan, search: Search) -> dict[str, Any]:
    from ..planner.plan import hours
    from ..spec import render_money

    return {
        "hours": plan.hours,
        "hours_interval": list(plan.interval("hours")),
        "dollars": plan.dollars,
        "dollars_interval": list(plan.interval("dollars")),
        "best": plan is search.best,
        "knee": plan is search.knee,
        "line": plan.line,
        "words": f"{plan.line}: {hours(plan.hours)}, {render_money(plan.dollars)}",
    }


def _table(view: Mapping[str, Any]) -> str:
    rows = [row(map(escape, ("", *view["header"])), "th")]
    for plan in view["rows"]:
        mark = ""
        if plan["best"]:
            mark = f"<span style='color:{COLOURS['good']}'>●</span>"
        *cells, line = plan["cells"]
        rows.append(row([mark, *map(escape, cells), f"<code>{escape(line)}</code>"]))
    return table(rows, "font-size:13px;margin:4px 0;white-space:nowrap")
