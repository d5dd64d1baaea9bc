"""A study as plain HTML: how far it is, its best trial, the trials' curves over each other, and a
table of trials.
"""

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
_GOING = (COLOURS["busy"], "")
_DOTS = {"complete": "good", "running": "busy", "failed": "bad"}


def study_html(study: Mapping[str, Any]) -> str:
    """The twin of a study's snapshot (contract.Study); of its trials `MOST_ROWS` rows, the best
    first.
    """
    return f"<div style='margin:6px 0'>{_head(study)}{study_plot(study)}{_trials(study)}</div>"


def study_plot(study: Mapping[str, Any]) -> str:
    """The curves of the trials over each other, and the best value so far by trial; empty before
    the first value.
    """
    lines = [
        Line(
            f"trial {each['number']}",
            each["curve"],
            _look(each),
            faint=not (each["best"] or each["stoppable"]),
        )
        for each in study["trials"]
        if each["curve"]
    ]
    several = (
        len({step for line in lines for step, _ in line.points}) > 1
    )  # one step makes no curve
    if several:
        drawn = [figure(study["curves_of"], "steps", lines, _legend(study))]
    else:
        drawn = []
    so_far = study["best_so_far"]
    values = [
        (float(each["number"]), each["value"])
        for each in study["trials"]
        if each["value"] is not None
    ]
    if so_far and len(values) > 1:
        every = Line("trials", values, OTHER, points_only=True, faint=True)
        best = Line("best so far", so_far, _BEST, best=so_far[-1], held=True)
        drawn.append(
            figure(f"{study['metric']} by trial", "trial", [every, best], [("best so far", _BEST)])
        )
    return "".join(drawn)


def _head(study: Mapping[str, Any]) -> str:
    if study["planned"]:
        share = study["ended"] / study["planned"]
    else:
        share = 0.0
    tone = {"running": "busy", "declared": "busy", "finished": "good"}.get(study["phase"], "quiet")
    bar = (
        f"<div style='height:6px;border-radius:3px;background:rgba(128,128,128,.25)'><div style='height:6px;"
        f"border-radius:3px;width:{share:.1%};background:{COLOURS['good']}'></div></div>"
    )
    if study["best_words"]:
        best = f"<div>Best so far: {escape(study['best_words'])}.</div>"
    else:
        best = ""
    if study["cost_words"]:
        cost = f"This study {study['cost_words']}."
    else:
        cost = ""
    about = f"<span style='{FAINT}'>{escape(study['about'])}</span>"
    return (
        f"<div><span style='color:{COLOURS[tone]}'>●</span> <b>{escape(study['name'])}</b>: {escape(study['words'])} "
        f"{about}{bar}</div>{best}<div style='{FAINT}'>{escape(cost)}</div>"
    )


def _look(trial: Mapping[str, Any]) -> tuple[str, str]:
    if trial["best"]:
        return _BEST
    return _GOING if trial["stoppable"] else OTHER


def _legend(study: Mapping[str, Any]) -> list[tuple[str, tuple[str, str]]]:
    trials = [each for each in study["trials"] if each["curve"]]
    best = next((trial for trial in trials if trial["best"]), None)
    known: list[tuple[str, tuple[str, str]]] = []
    if best:
        known.append((f"trial {best['number']}, the best", _BEST))
    if any(each["stoppable"] and not each["best"] for each in trials):
        known.append(("training", _GOING))
    if any(not each["stoppable"] and not each["best"] for each in trials):
        known.append(("other trials", OTHER))
    return known


def _trials(study: Mapping[str, Any]) -> str:
    sign = -1.0 if study["direction"] == "max" else 1.0

    def order(each: Mapping[str, Any]) -> tuple[bool, bool, float]:
        value = each["value"]
        if value is None:
            place = math.inf
        else:
            place = sign * value
        return each["state"] != "running", each["state"] != "complete", place

    ordered = sorted(study["trials"], key=order)
    best = [each for each in ordered if each["best"]]
    shown = [*best, *(each for each in ordered if not each["best"])][:MOST_ROWS]
    if not shown:
        return ""
    head = ["trial", *study["params"], "state", study["metric"], "time", "dollars", "revocations"]
    lines = [row(map(escape, head), "th"), *(row(_cells(each)) for each in shown)]
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
            escape(each if isinstance(each, str) else text.value_words(each))
            for each in trial["params"]
        ),
        f"<span style='color:{tone}'>●</span> {escape(trial['words'])}",
        f"<b>{value}</b> <span style='white-space:nowrap'>◎ best</span>"
        if trial["best"]
        else value,
        escape(render_duration(3600 * trial["hours"])),
        escape(text.money(trial["dollars"])),
        str(trial["revocations"]),
    ]
