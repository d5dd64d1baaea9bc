"""The static picture of a study: progress, the best trial, curves, and a table of trials."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ...client import text
from ...panels.static.charts import OTHER, Line, figure
from ...panels.static.markup import COLOURS, FAINT, escape, row, table
from ...spec import render_duration

MOST_ROWS = 10
_BEST = (COLOURS["good"], "")
_RUNNING = (COLOURS["busy"], "")
_DOTS = {"complete": "good", "running": "busy", "failed": "bad"}


def study_html(study: Mapping[str, Any]) -> str:
    """Return the static picture of a snapshot; the table has `MOST_ROWS` trials, the best first."""
    return f"<div style='margin:6px 0'>{_head(study)}{study_plot(study)}{_trials(study)}</div>"


def study_plot(study: Mapping[str, Any]) -> str:
    """Return the curves of the trials and the best value so far; empty before the first value."""
    lines = [
        Line(
            f"trial {trial['number']}",
            trial["curve"],
            _style(trial),
            faint=not (trial["best"] or trial["stoppable"]),
        )
        for trial in study["trials"]
        if trial["curve"]
    ]
    drawn = []
    # Values at one step alone are not a curve.
    if len({step for line in lines for step, _ in line.points}) > 1:
        drawn.append(figure(study["curves_of"], "steps", lines, _legend(study)))
    so_far = study["best_so_far"]
    values = [
        (float(trial["number"]), trial["value"])
        for trial in study["trials"]
        if trial["value"] is not None
    ]
    if so_far and len(values) > 1:
        every = Line("trials", values, OTHER, points_only=True, faint=True)
        best = Line("best so far", so_far, _BEST, best=so_far[-1], stepped=True)
        drawn.append(
            figure(f"{study['metric']} by trial", "trial", [every, best], [("best so far", _BEST)])
        )
    return "".join(drawn)


def _head(study: Mapping[str, Any]) -> str:
    share = study["ended"] / study["planned"] if study["planned"] else 0.0
    tone = {"running": "busy", "declared": "busy", "finished": "good"}.get(study["phase"], "quiet")
    bar = (
        "<div style='height:6px;border-radius:3px;background:rgba(128,128,128,.25)'><div "
        f"style='height:6px;border-radius:3px;width:{share:.1%};background:{COLOURS['good']}'></div></div>"
    )
    best = ""
    if study["best_words"]:
        best = f"<div>Best so far: {escape(study['best_words'])}.</div>"
    cost = ""
    if study["cost_words"]:
        cost = f"This study {study['cost_words']}."
    about = f"<span style='{FAINT}'>{escape(study['about'])}</span>"
    return (
        f"<div><span style='color:{COLOURS[tone]}'>●</span> <b>{escape(study['name'])}</b>: "
        f"{escape(study['words'])} "
        f"{about}{bar}</div>{best}<div style='{FAINT}'>{escape(cost)}</div>"
    )


def _style(trial: Mapping[str, Any]) -> tuple[str, str]:
    if trial["best"]:
        return _BEST
    return _RUNNING if trial["stoppable"] else OTHER


def _legend(study: Mapping[str, Any]) -> list[tuple[str, tuple[str, str]]]:
    trials = [trial for trial in study["trials"] if trial["curve"]]
    best = next((trial for trial in trials if trial["best"]), None)
    legend: list[tuple[str, tuple[str, str]]] = []
    if best:
        legend.append((f"trial {best['number']}, the best", _BEST))
    if any(trial["stoppable"] and not trial["best"] for trial in trials):
        legend.append(("training", _RUNNING))
    if any(not trial["stoppable"] and not trial["best"] for trial in trials):
        legend.append(("other trials", OTHER))
    return legend


def _trials(study: Mapping[str, Any]) -> str:
    sign = -1.0 if study["direction"] == "max" else 1.0

    def order(trial: Mapping[str, Any]) -> tuple[bool, bool, float]:
        value = trial["value"]
        if value is None:
            place = math.inf
        else:
            place = sign * value
        return trial["state"] != "running", trial["state"] != "complete", place

    ordered = sorted(study["trials"], key=order)
    best = [trial for trial in ordered if trial["best"]]
    shown = [*best, *(trial for trial in ordered if not trial["best"])][:MOST_ROWS]
    if not shown:
        return ""
    head = ["trial", *study["params"], "state", study["metric"], "time", "dollars", "revocations"]
    lines = [row(map(escape, head), "th"), *(row(_cells(trial)) for trial in shown)]
    more = len(ordered) - len(shown)
    return table(lines) + (
        f"<div style='{FAINT}'>and {text.count(more, 'trial')} more</div>" if more else ""
    )


def _cells(trial: Mapping[str, Any]) -> list[str]:
    tone = COLOURS[_DOTS.get(trial["state"], "quiet")]
    value = escape(text.number(trial["value"]))
    return [
        str(trial["number"]),
        *(
            escape(value if isinstance(value, str) else text.value_words(value))
            for value in trial["params"]
        ),
        f"<span style='color:{tone}'>●</span> {escape(trial['words'])}",
        f"<b>{value}</b> <span style='white-space:nowrap'>◎ best</span>"
        if trial["best"]
        else value,
        escape(render_duration(3600 * trial["hours"])),
        escape(text.money(trial["dollars"])),
        str(trial["revocations"]),
    ]
