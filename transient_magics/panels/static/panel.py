"""The static picture of a panel: a snapshot as plain HTML, for stored notebooks, exports and mail.

No script, no style sheet, nothing from the network; colours that read on light and dark. All text
is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..sections import Sections, sections_html
from ..snapshot.curves import bar_words
from .charts import SPARKLINE_HEIGHT, SPARKLINE_WIDTH, sparkline
from .markup import COLOURS, FAINT, FONT, attribute, escape, row, table

TONES = {
    "ready": "good",
    "deflated": "good",
    "training": "good",
    "running": "good",
    "finished": "good",
    "requested": "busy",
    "booting": "busy",
    "stopping": "busy",
    "stopped": "busy",
    "provisioning": "busy",
    "declared": "busy",
    "starting": "busy",
    "unknown": "busy",
    "evaluating": "good",
    "leaving": "warn",
    "deleting": "warn",
    "refused": "warn",
    "revoked": "bad",
    "failed": "bad",
}
_EVENTS = 7
_LANE = 160
_MOST_LANES = 12
_HEIGHTS = {
    "requested": 2,
    "stopped": 1,
    "booting": 4,
    "ready": 8,
    "deflated": 4,
    "leaving": 12,
    "revoked": 14,
    "refused": 14,
}
_FULL = "fill"
_OUTLINE = "fill='none' stroke"
_CALM = ("ready", "training")
_IN_SENTENCE = ("steps/s", "workers", "loss")
"""Facts that the run's sentence has already."""

PART_COLOURS = {
    "input": "#d98e04",
    "pull": "#3f83c8",
    "compute": "#2a9d5c",
    "push": "#a05fc7",
    "barrier": "#cf4436",
    "rest": "#7d8186",
}
"""The colours of the parts of a step, the same as in widgets/split.js."""
_WIDTH = 240
_HEIGHT = 10


def html(
    view: Mapping[str, Any],
    curves: Mapping[str, Any] | None = None,
    sections: Sections | None = None,
) -> str:
    """Return the picture of a snapshot, the curves of its run, and its sections."""
    parts = [_head(view), f"<div style='{FAINT};font-size:12px'>{escape(view['as_of'])}</div>"]
    if view["trouble"]:
        parts.append(f"<div>{_dot('refused')}{escape(view['trouble'])}</div>")
    if view["proposal"]:
        parts.append(_proposal(view["proposal"]))
    if view["training"]:
        parts.append(_training(view["training"], curves or {}))
    parts += [_beside(work_line) for work_line in _work_lines(view)]
    parts.append(sections_html(sections or {}))
    if not view["focus"]:
        parts.append(_vms(view["vms"], view["since"], view["until"] or view["at"]))
        parts.append(_cost(view))
    parts.append(_events(view["events"][:_EVENTS]))
    body = "".join(parts)
    return f"<div style='{FONT}'>{body}</div>"


def _work_lines(view: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [*view["beside"], *(line for group in view["work"] for line in group["lines"])]


def offer_html(offered: Mapping[str, Any]) -> str:
    """Return the picture of the declare panel: an offer with the line that makes it."""
    rows = [row(map(escape, cells)) for cells in offered["rows"]]
    facts = " · ".join(f"{escape(name)} {escape(value)}" for name, value in offered["facts"])
    notes = "".join(f"<div>{escape(note)}</div>" for note in offered["notes"])
    return (
        f"<div style='{FONT}'><code>{escape(offered['line'])}</code>{table(rows)}"
        f"<div>{facts}</div><div style='{FAINT};font-size:12px'>{notes}</div></div>"
    )


def _dot(state: str) -> str:
    return f"<span style='color:{COLOURS[TONES.get(state, 'quiet')]}'>●</span> "


def _head(view: Mapping[str, Any]) -> str:
    if view["focus"]:
        return (
            f"<div><b>{escape(view['focus'])}</b> <span "
            f"style='{FAINT}'>{escape(view['about'])}</span></div>"
        )
    return (
        f"<div><b>{escape(view['name'])}</b> {_dot(view['phase'])}{escape(view['phase_words'])} "
        f"<span style='{FAINT}'>{escape(view['about'])}</span></div>"
    )


def _training(training: Mapping[str, Any], curves: Mapping[str, Any]) -> str:
    share = min(1.0, training["step"] / training["steps"]) if training["steps"] else 0.0
    bar = (
        "<div style='height:6px;border-radius:3px;background:rgba(128,128,128,.25)'><div "
        f"style='height:6px;border-radius:3px;width:{share:.1%};background:{COLOURS['good']}'></div></div>"
    )
    facts = " · ".join(
        f"{escape(name)} {escape(value)}"
        for name, value in training["facts"]
        if name not in _IN_SENTENCE
    )
    ends = f"; {escape(training['forecast'])}" if training["forecast"] else ""
    data = ""
    if training["data"]:
        data = f"<div style='{FAINT}'>data: {escape(training['data'])}</div>"
    proposed = ""
    if training["proposal"]:
        proposed = _proposal(training["proposal"], "Proposed for ")
    return (
        f"<div style='margin:6px 0'>{_dot(training['phase'])}{escape(training['name'])}: "
        f"{escape(training['title'])}, "
        f"{escape(training['words'])}{ends}{bar}{proposed}<div style='{FAINT}'>{facts}</div>"
        f"{data}{_curves(curves)}</div>"
    )


def _proposal(proposal: Mapping[str, Any], of: str = "") -> str:
    how = f"<span style='{FAINT}'>{escape(proposal['how'])}</span>"
    return f"<div>{_dot('leaving')}{of}{escape(proposal['text'])} {how}</div>"


def _beside(work: Mapping[str, Any]) -> str:
    """Return the line of another run, a job, or a Dask cluster."""
    name = f"{escape(work['name'])}: " if work["name"] else ""
    return f"<div>{_dot(work['phase'])}{name}{escape(work['words'])}</div>"


def _curves(curves: Mapping[str, Any]) -> str:
    if not curves:
        return ""
    revoked = [mark[1] for mark in curves["marks"] if mark[0] == "revoked"]
    both = ("steps per second", "speed", True), ("loss", "loss", False)
    drawn = []
    for title, name, from_zero in both:
        pairs = zip(curves["time"], curves[name], strict=True)
        drawn.append(
            _chart(sparkline(title, [*pairs, *_end(curves, name)], revoked, from_zero=from_zero))
        )
    metric = _first_metric(curves)
    if metric:
        pairs = [(epoch["time"], epoch["metrics"].get(metric)) for epoch in curves["epochs"]]
        drawn.append(_chart(sparkline(metric, pairs, revoked, from_zero=False)))
    return "".join(drawn) + split_html(curves.get("split"))


def _first_metric(curves: Mapping[str, Any]) -> str:
    """Return the metric of validation data that is drawn, or else of training data; "" for none."""
    names = [name for epoch in curves["epochs"][:1] for name in epoch["metrics"]]
    shown = [name for name in names if not name.endswith("loss") and name != "learning_rate"]
    return next((name for name in shown if name.startswith("val_")), "".join(shown[:1]))


def _end(curves: Mapping[str, Any], name: str) -> list[tuple[float, Any]]:
    """Return the last point of a curve, if it is later than the measured ones."""
    end = curves["end"]
    if end and end["time"] > max(curves["time"], default=0.0):
        return [(end["time"], end[name])]
    return []


def _chart(chart: Mapping[str, Any]) -> str:
    if not chart["path"]:
        return ""
    marks = "".join(
        f"<path d='M{x} 0V{SPARKLINE_HEIGHT}' stroke='{COLOURS['bad']}' stroke-dasharray='2'/>"
        for x in chart["marks"][:20]
    )
    return (
        f"<span style='display:inline-block;margin-right:24px'><svg width='{SPARKLINE_WIDTH}' "
        f"height='{SPARKLINE_HEIGHT}' role='img' aria-label='{attribute(chart['title'])}'>"
        f"<path d='{chart['path']}' fill='none' stroke='{COLOURS['busy']}' stroke-width='1.5' "
        f"stroke-linecap='round'/>{marks}</svg><br/><span style='{FAINT}'>"
        f"{escape(chart['title'])}, {chart['low']} to {chart['high']}</span></span>"
    )


def _vms(vms: Sequence[Mapping[str, Any]], since: float, until: float) -> str:
    chosen = sorted(vms, key=lambda vm: vm["state"] in _CALM and vm["role"] == "worker")[
        :_MOST_LANES
    ]
    lines = [
        row(
            [
                *(escape(vm[name]) for name in ("name", "machine", "zone")),
                _lane(vm, since, until),
                f"{_dot(vm['state'])}{escape(vm['words'])}",
            ]
        )
        for vm in sorted(chosen, key=vms.index)
    ]
    head = row(["VM", "Machine", "Zone", "Life", "State"], "th")
    if not lines:
        return ""
    more = ""
    if len(vms) > len(lines):
        more = f"<div style='{FAINT}'>and {len(vms) - len(lines)} more</div>"
    return table([head, *lines]) + more


def _lane(lane: Mapping[str, Any], since: float, until: float) -> str:
    """Return a VM's life as bars, higher for later states, with its predecessors' in outline.

    A stroke marks where one was revoked.
    """
    scale = _LANE / max(until - since, 1.0)
    paths: dict[tuple[str, bool], str] = {}
    for vm, what, begin, end in lane["life"]:
        x = (begin - since) * scale
        gone = what in ("revoked", "refused")
        if height := _HEIGHTS.get(what):
            width = 2 if gone else max(1, ((end or until) - begin) * scale)
            bar = f"M{x:.0f} {7 - height // 2}h{width:.0f}v{height}h-{width:.0f}z"
            key = what, gone or vm == lane["name"]
            paths[key] = paths.get(key, "") + bar
    drawn = "".join(
        f"<path d='{path}' {_FULL if full else _OUTLINE}='{COLOURS[TONES.get(what, 'quiet')]}'/>"
        for (what, full), path in paths.items()
    )
    return (
        f"<svg width='{_LANE}' height='14' role='img' aria-label='life of "
        f"{attribute(lane['name'])}'>{drawn}</svg>"
    )


def _cost(view: Mapping[str, Any]) -> str:
    cost = view["cost"]
    now = "" if view["phase"] in ("unknown", "provisioning") else " now"
    rate = "" if view["over"] else f", cluster{now} {cost['hourly_words']}"
    spent = f"{cost['total_words']}{rate}; on demand so far {cost['on_demand_words']}."
    sentences = [
        spent[0].upper() + spent[1:],
        cost["saved_words"],
        cost["lines_words"],
        cost["transfer_words"],
    ]
    notes = []
    if view["emulated"]:
        notes.append("Emulated, nothing is billed.")
    if cost["source"]:
        notes.append(f"Prices: {cost['source']}.")
    if view["ending"]:
        notes.append(view["ending"])
    words = escape(" ".join(filter(None, sentences)))
    return (
        f"<div style='margin:4px 0'>{words} <span "
        f"style='{FAINT}'>{escape(' '.join(notes))}</span></div>"
    )


def _events(events: Iterable[Mapping[str, Any]]) -> str:
    lines = "".join(f"<div>{event['clock']} {escape(event['text'])}</div>" for event in events)
    if lines:
        return f"<div style='{FAINT};font-size:12px'>{lines}</div>"
    return ""


# Where the time of a step goes, in a stored notebook: a stacked bar of each worker.


def split_html(split: Mapping[str, Any] | None) -> str:
    """Return the bars of a step's parts on one scale, with a key; empty for none."""
    if not split:
        return ""
    longest = max(sum(bar["parts"]) for bar in split["bars"])
    seen = [
        name
        for at, name in enumerate(split["names"])
        if any(bar["parts"][at] for bar in split["bars"])
    ]
    key = " ".join(
        f"<span style='color:{PART_COLOURS[name]}'>■</span> {escape(name)}" for name in seen
    )
    rows = [
        row([_split_bar(bar, split["names"], longest), escape(bar_words(bar))])
        for bar in split["bars"]
    ]
    if split["more"]:
        more = f" · and {split['more']} more"
    else:
        more = ""
    head = f"Where a step's time goes, {escape(split['words'])}{more}"
    return (
        "<div style='margin-top:4px'><div "
        f"style='{FAINT}'>{head}</div>{table(rows)}<div>{key}</div></div>"
    )


def _split_bar(bar: Mapping[str, Any], names: list[str], longest: float) -> str:
    x = 0.0
    drawn = []
    for name, part in zip(names, bar["parts"], strict=True):
        width = part / longest * _WIDTH
        if width >= 0.25:
            drawn.append(
                f"<rect x='{x:.1f}' width='{width:.1f}' height='{_HEIGHT}' "
                f"fill='{PART_COLOURS[name]}'/>"
            )
        x += width
    label = attribute(bar_words(bar))
    return (
        f"<svg width='{_WIDTH}' height='{_HEIGHT}' role='img' "
        f"aria-label='{label}'>{''.join(drawn)}</svg>"
    )
