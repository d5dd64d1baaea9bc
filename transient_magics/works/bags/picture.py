"""A bag as plain HTML: how far it is, its points by two of their values, which VM holds what, its
surrogate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...client import text
from ...panels.snapshot.axes import Axis
from ...panels.static.charts import Box, frame
from ...panels.static.markup import COLOURS, FAINT, attribute, escape, row, table

MOST_ROWS = 8
WIDTH = 380
HEIGHT = 250
_STRIP = 20
_TONES = {
    "done": "good",
    "running": "busy",
    "waiting": "quiet",
    "lost": "warn",
    "failed": "bad",
    "skipped": "quiet",
}
_FILLED = ("done", "running")
_BEHIND = ("skipped", "waiting", "done", "lost", "failed", "running")
_OVER = ("done", "skipped")
"""What becomes of most points."""
_MANY = 600


def bag_html(bag: Mapping[str, Any]) -> str:
    """The twin of a bag's snapshot (contract.Bag)."""
    return f"<div style='margin:6px 0'>{_head(bag)}{_points(bag)}{_vms(bag)}{_surrogate(bag)}</div>"


def _head(bag: Mapping[str, Any]) -> str:
    if bag["wanted"]:
        share = bag["results"] / bag["wanted"]
    else:
        share = 0.0
    tone = {"running": "busy", "declared": "busy", "finished": "good", "failed": "bad"}.get(
        bag["phase"], "quiet"
    )
    bar = (
        f"<div style='height:6px;border-radius:3px;background:rgba(128,128,128,.25)'><div style='height:6px;"
        f"border-radius:3px;width:{share:.1%};background:{COLOURS['good']}'></div></div>"
    )
    if bag["per_result"] is not None:
        facts = [f"{text.money(bag['per_result'])} per result"]
    else:
        facts = []
    facts += [f"this bag {bag['cost_words']}"] if bag["cost_words"] else []
    facts += (
        [f"{'all results' if bag['stoppable'] else 'ended'} {bag['ends']}"] if bag["ends"] else []
    )
    legend = "".join(
        f"<span style='white-space:nowrap;margin-right:14px'>{_sample(state)} {many:,} {state}</span>"
        for state, many in bag["counts"]
    )
    return (
        f"<div><span style='color:{COLOURS[tone]}'>●</span> <b>{escape(bag['name'])}</b>: {escape(bag['words'])} "
        f"<span style='{FAINT}'>{escape(bag['about'])}</span>{bar}</div><div>{legend}</div>"
        f"<div style='{FAINT}'>{escape(' · '.join(facts))}</div>"
    )


def _points(bag: Mapping[str, Any]) -> str:
    """The points by two parameters, or by one and the first output; below those that have none of
    it yet.
    """
    points = bag["points"]
    axes = [_axis(each) for each in bag["axes"]]
    if not points or len(axes) < 2:  # nothing to draw, or nothing to draw it over
        return ""
    parameters = sum(not each["output"] for each in bag["axes"])
    across, up = axes[:2]
    output = parameters < 2
    strip = _STRIP if output else 0
    box = Box(52, 18, WIDTH - 62, HEIGHT - 54 - strip)
    bottom = box.top + box.height + strip
    small = 2.0 if len(points) > _MANY else 3.0
    drawn = dict.fromkeys(_BEHIND, "")
    for state, _, values, outputs, _ in points:
        if output:
            if outputs:
                value = outputs[0]
            else:
                value = None
        else:
            value = values[1]
        if value is None:
            y = bottom - strip / 2
        else:
            y = box.y(up.place(value))
        drawn[state] += _form(
            state, box.x(across.place(values[0])), y, small if state in _OVER else 3.2
        )
    whole = Box(box.left, box.top, box.width, box.height + strip)
    share = box.height / whole.height
    named = [(1 - share + at * share, words) for at, words in up.named]
    named += [(strip / whole.height / 2, "none")] if strip else []
    lines = frame(whole, across.named, named, across.name, up.name)
    counts = ", ".join(f"{many} {state}" for state, many in bag["counts"])
    return (
        f"<svg viewBox='0 0 {WIDTH} {HEIGHT}' width='{WIDTH}' style='display:block;max-width:100%;height:auto' "
        f"role='img' font-size='11' fill='currentColor' aria-label='points of {attribute(bag['name'])}: {counts}'>"
        f"{lines}{''.join(_drawn(state, path) for state, path in drawn.items() if path)}</svg>"
    )


def _axis(sent: Mapping[str, Any]) -> Axis:
    return Axis(sent["name"], sent["kind"], sent["low"], sent["high"], tuple(sent["choices"]))


def _form(state: str, x: float, y: float, r: float) -> str:
    """As widgets/bag.js draws it."""
    at = f"M{x:.1f} {y:.1f}m"
    match state:
        case "running":
            return f"{at}{-1.2 * r:g} {r:g}h{2.4 * r:g}l{-1.2 * r:g} {-2.2 * r:g}z"
        case "lost":
            d = 1.2 * r
            return f"{at}0 {-d:g}l{d:g} {d:g}l{-d:g} {d:g}l{-d:g} {-d:g}z"
        case "failed":
            return f"{at}{-r:g} {-r:g}l{2 * r:g} {2 * r:g}m0 {-2 * r:g}l{-2 * r:g} {2 * r:g}"
        case "skipped":
            return f"{at}{-r:g} 0h{2 * r:g}"
    if state == "done":
        d = r
    else:
        d = 0.85 * r
    return f"{at}{-d:g} 0a{d:g} {d:g} 0 1 0 {2 * d:g} 0a{d:g} {d:g} 0 1 0 {-2 * d:g} 0z"


def _drawn(state: str, path: str, *, told: bool = True) -> str:
    colour = COLOURS[_TONES[state]]
    hollow = f"fill='none' stroke='{colour}' stroke-width='1.3'"
    if state in _FILLED:
        look = f"fill='{colour}' fill-opacity='.75'"
    else:
        look = hollow
    if told:
        title = f"<title>{state}</title>"
    else:
        title = ""
    return f"<path d='{path}' {look}>{title}</path>"


def _sample(state: str) -> str:
    return f"<svg width='12' height='11' aria-hidden='true'>{_drawn(state, _form(state, 6, 6, 3.4), told=False)}</svg>"


def _vms(bag: Mapping[str, Any]) -> str:
    vms: Sequence[Mapping[str, Any]] = bag["vms"][:MOST_ROWS]
    if not vms:
        return ""
    cells = [
        [
            vm["name"],
            vm["age"],
            "none" if vm["job"] is None else str(vm["job"]),
            ", ".join(filter(None, (vm["at"], vm["words"]))),
        ]
        for vm in vms
    ]
    more = len(bag["vms"]) + bag["more"] - len(vms)
    if more:
        left = f"<div style='{FAINT}'>and {text.count(more, 'more VM')}</div>"
    else:
        left = ""
    head = row(("VM", "Age", "Job", "Where, and since when"), "th")
    return table([head, *(row(map(escape, cell)) for cell in cells)]) + left


def _surrogate(bag: Mapping[str, Any]) -> str:
    if bag["tried_words"]:
        said = f"<div style='{FAINT}'>Surrogate: {escape(bag['tried_words'])}.</div>"
    else:
        said = ""
    if not bag["tried"]:
        return said
    head = row(("Output", "90% intervals held", "Median residual", "Largest sd", "Until", ""), "th")
    return said + table([head, *(row(_tried(each)) for each in bag["tried"])])


def _tried(found: Mapping[str, Any]) -> list[str]:
    held = found["coverage"]
    residual = found["residual"]
    return [
        escape(found["output"]),
        "-" if held is None else f"{held:.0%}",
        "-" if residual is None else f"{text.number(residual)} sd",
        text.number(found["largest"]),
        text.number(found["until"]),
        "✓ good enough" if found["good"] else "not yet",
    ]
