"""A course as text: what happened, and what a user saw at its marks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from html import unescape
from typing import Any

from tests.scenarios.steps import BEGAN, Steps, kind_of
from transient_magics.client import text
from transient_magics.journal import ClusterState, RunState, bill, costs, read
from transient_magics.kinds import KINDS
from transient_magics.panels import html, view
from transient_magics.panels.sections import sections
from transient_magics.works.runs.stalls.report import report
from transient_magics.works.runs.stalls.view import stalls_html, stalls_view

_LEFT_OUT = ("version", "at", "as_of", "events", "vms", "cost", "name", "spec", "emulated", "pace")
"""Of a snapshot: what all courses have in common, and what is written in another form."""
_BLOCK = re.compile(r"</?(?:div|tr|table|svg|p|h\d)[^>]*>")
_CELL = re.compile(r"</?t[dh][^>]*>")
_TAG = re.compile(r"<[^>]*>")


def picture(steps: Steps) -> str:
    """The text of a course that has ended."""
    lines = ["What happened", ""]
    for event in read(steps.journal):
        if event.kind not in text.quiet_kinds():
            lines.append(f"{_moment(event.at)}  {kind_of(event):22} {text.event_words(event)}")
    for name, at, state in steps.looks:
        lines += ["", "", f"{name[0].upper()}{name[1:]}", "", *_seen(state, at)]
        if name == steps.looks[-1][0]:
            lines += _static(state, at)
    return "\n".join(lines) + "\n"


def _seen(state: ClusterState, now: float) -> Iterable[str]:
    spent = bill(state, now)
    yield "Bill"
    for name, cost in costs(state, now).items():
        yield f"    {name}: ${cost.total:.4f} ({cost.words})"
    for name, dollars in spent.lines.items():
        yield f"    of the cluster's: {name} ${dollars:.4f}"
    yield f"    total ${spent.total:.4f}, on demand ${spent.on_demand:.4f}, per hour ${spent.hourly:.4f}"
    yield "Status"
    yield from _indented(text.status(state, spent, now).splitlines())
    shown = view(state, spent, now)
    yield "Panel"
    work = {KINDS[group["kind"]].folder: group["lines"] for group in shown["work"]}
    values: dict[str, Any] = {}
    for name, value in shown.items():
        values |= work if name == "work" else {name: value}
    yield from _indented(_values(values))
    yield from _indented(_lane(lane) for lane in shown["vms"])
    for found in sections(state, now).values():
        for section in found:
            yield from _indented(_values(section))
    for run in state.of(RunState).values():
        if run.spec.stalls:
            yield from _indented(_values(stalls_view(report(state, run))))


def _static(state: ClusterState, now: float) -> Iterable[str]:
    yield "Static panel"
    shown = view(state, bill(state, now), now)
    yield from _indented(_words(html(shown, None, sections(state, now))))
    for run in state.of(RunState).values():
        if run.spec.stalls:
            yield from _indented(_words(stalls_html(report(state, run))))


def _values(snapshot: Mapping[str, Any], prefix: str = "") -> Iterable[str]:
    """A line for each value that is not empty, and for each item of a list of forms."""
    for key, value in snapshot.items():
        if (not prefix and key in _LEFT_OUT) or value in ("", [], None):
            continue
        if isinstance(value, dict):
            yield from _values(value, f"{prefix}{key}.")
        elif isinstance(value, list) and isinstance(value[0], dict):
            yield from (f"{prefix}{key}: {json.dumps(_relative(item), ensure_ascii=False)}" for item in value)
        else:
            yield f"{prefix}{key}: {json.dumps(_relative(value), ensure_ascii=False)}"


def _lane(lane: Mapping[str, Any]) -> str:
    """A VM in one line: all that is not empty, its life last."""
    parts = [f"{name}={json.dumps(value)}" for name, value in _relative(lane).items() if value and name != "life"]
    life = [f"{vm} {state} {_span(begin, end)}" for vm, state, begin, end in lane["life"]]
    return f"vm {' '.join(parts)}; {', '.join(life)}"


def _span(begin: float, end: float) -> str:
    return f"{begin - BEGAN:.0f} to {end - BEGAN:.0f}" if end else f"since {begin - BEGAN:.0f}"


def _relative(value: Any) -> Any:
    """The same with moments as seconds since the cluster's declaration, and figures with four digits."""
    match value:
        case float():
            return round(value - BEGAN, 1) if value >= BEGAN else float(f"{value:.4g}")
        case dict():
            return {key: _relative(each) for key, each in value.items()}
        case list() | tuple():
            return [_relative(each) for each in value]
        case _:
            return value


def _words(page: str) -> Iterable[str]:
    """What is read on a page, a line for each block."""
    for line in _BLOCK.sub("\n", _CELL.sub("  ", page)).split("\n"):
        if words := unescape(_TAG.sub("", line)).strip():
            yield words


def _indented(lines: Iterable[str]) -> Iterable[str]:
    for line in lines:
        yield f"    {line}".rstrip()


def _moment(at: float) -> str:
    seconds = round(at - BEGAN)
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
