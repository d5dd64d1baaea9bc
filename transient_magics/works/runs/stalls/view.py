"""The panel of a measurement of stalls: its snapshot, its static picture, and its "what if".

A bar for each kind of VM shows the parts of a step, the table below has them as numbers. The page
asks what a change would bring. Such a question arrives on the kernel's thread for widgets and is
answered there, from the journal as it is at that moment.

The static picture is plain HTML: no script, no style sheet, colours that read on light and dark.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ....errors import DeclarationError, TransientError, unknown
from ....panels.display import live_view
from ....panels.show import (
    current_shell,
    has_front_end,
    is_jupyterlab,
    publisher,
    show_live,
    shown_in_this_cell,
)
from ....panels.snapshot.contract import sound
from ....panels.static.markup import COLOURS as PLAIN
from ....panels.static.markup import FAINT, FONT, attribute, escape, picture, row, table
from ....panels.static.panel import PART_COLOURS
from .snapshot import StallAnswer, StallBar, StallPart, Stalls

if TYPE_CHECKING:
    from ....panels.widget import StallsPanel
    from ....planner.stalls.terms import Prediction
    from .handle import Stalls as Handle
    from .report import Bar, Report

COLOURS = {
    "compute": PART_COLOURS["compute"],
    "serialisation": PLAIN["quiet"],
    "network": PART_COLOURS["pull"],
    "contention": PART_COLOURS["push"],
    "preparation": PART_COLOURS["input"],
    "fetch": PART_COLOURS["barrier"],
}
"""The colours of the parts, the same as in widgets/stalls.js."""
CHANGES = ("cache", "cores", "disk", "link", "gpu", "batch", "ps")
"""The fields of `planner.stalls.terms.Change`, which can be changed on the panel."""
UNASKED: StallAnswer = {"asked": 0, "error": "", "words": "", "parts": []}
_WIDTH = 560
_HEIGHT = 14
_THINNEST = 0.25


def show_stalls(stalls: Handle) -> None:
    """Show a measurement in the running cell, once per cell.

    A front end follows the measurement until all is measured.
    """
    shell = current_shell()
    begun = stalls.name in stalls.cluster.state.works
    if shown_in_this_cell(shell, stalls.cluster.identity, stalls.name):
        return
    if begun:
        words = str(stalls)
    else:
        words = f"{stalls.name} is declared on {stalls.cluster.name}."
    if not has_front_end(shell):
        print(words)
        return
    publish = publisher(shell, f"transient-{uuid.uuid4().hex[:12]}")
    in_place = is_jupyterlab(shell)
    view = stalls_view(stalls.report) if begun else declared_view(stalls.name)

    def ask(message: Mapping[str, Any]) -> None:
        if panel and message.get("do") == "what-if":
            panel.answer = dict(answered(stalls, message))

    panel: StallsPanel | None = show_live(
        publish,
        {"text/plain": words, "text/html": stalls_picture(view)},
        lambda widget: widget.StallsPanel(ask, view=dict(view), answer=dict(UNASKED)),
        in_place=in_place,
    )  # type: ignore[assignment]

    def follow() -> None:
        for report in stalls.changes():
            view = stalls_view(report)
            drawn = stalls_picture(view)
            live = {}
            if panel:
                panel.view = dict(view)
                drawn = picture(drawn, panel.place)
                if not in_place:
                    live = live_view(panel)
            publish({"text/plain": str(report), "text/html": drawn, **live}, update=True)

    if not (begun and stalls.is_over(stalls.cluster.state)):
        threading.Thread(target=follow, name=f"{stalls.name} in its cell", daemon=True).start()


def answered(stalls: Handle, message: Mapping[str, Any]) -> StallAnswer:
    """Return the predicted step with the change that a page asks for, or an error in words."""
    number = message.get("asked")
    asked = number if isinstance(number, int) else 0
    vm = message.get("vm")
    try:
        change = parse_change(message.get("change"))
        prediction = stalls.what_if(vm=vm if isinstance(vm, str) else "", **change)
    except TransientError as error:
        return {**UNASKED, "asked": asked, "error": str(error)}
    return answer(prediction, asked)


def parse_change(message: object) -> dict[str, float]:
    """Return the change in a message of a page. Raises DeclarationError for an invalid one."""
    if not isinstance(message, Mapping):
        raise DeclarationError("A change must be an object with numbers")
    change = dict[str, float]()
    for name, value in message.items():
        if name not in CHANGES:
            raise unknown("change", str(name), CHANGES)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise DeclarationError(f"{name} must be a number, not {value!r:.80}")
        change[str(name)] = float(value)
    return change


def answer(prediction: Prediction, asked: int) -> StallAnswer:
    """Return the answer to question number `asked` of a page."""
    parts = [(name, part.mean) for name, part in prediction.parts.items()]
    return sound({"asked": asked, "error": "", "words": str(prediction), "parts": parts})


def stalls_view(report: Report) -> Stalls:
    """Return the snapshot of a report."""
    return sound(
        {
            "name": report.name,
            "words": report.words,
            "bars": [_bar_view(bar) for bar in report.bars],
            "below": [*report.below],
        }
    )


def declared_view(name: str) -> Stalls:
    """Return the snapshot of a measurement that is not in the journal yet."""
    return {"name": name, "words": "declared", "bars": [], "below": []}


def stalls_html(report: Report) -> str:
    """Return the static picture of a report."""
    return stalls_picture(stalls_view(report))


def stalls_picture(view: Stalls) -> str:
    """Return the static picture of a snapshot."""
    longest = max((_step_seconds(bar) for bar in view["bars"]), default=0.0)
    bars = "".join(_bar_html(bar, longest) for bar in view["bars"])
    below = "".join(f"<div>{escape(note)}</div>" for note in view["below"])
    head = f"<b>{escape(view['name'])}</b>: {escape(view['words'])}"
    return f"<div style='{FONT}'><div>{head}</div>{bars}<div style='{FAINT}'>{below}</div></div>"


def _bar_view(bar: Bar) -> StallBar:
    stalls = bar.stalls
    parts: list[StallPart] = []
    for part, (name, seconds, share, dollar) in zip(
        (stalls.compute, *stalls.parts), bar.lines, strict=True
    ):
        parts.append(
            {
                "name": name,
                "seconds": part.seconds.mean,
                "words": seconds,
                "share": share,
                "dollar": dollar,
                # The first part is the computation, which is not a stall.
                "sure": not parts or part.measured,
            }
        )
    return {
        "vm": bar.label,
        "heading": bar.heading,
        "parts": parts,
        "advice": bar.advice,
        "reads": stalls.bytes > 0,
    }


def _bar_html(bar: StallBar, longest: float) -> str:
    rows = []
    for part in bar["parts"]:
        name = f"<span style='color:{COLOURS[part['name']]}'>■</span> {escape(part['name'])}"
        rows.append(row([name, *map(escape, (part["words"], part["share"], part["dollar"]))]))
    advice = ""
    if bar["advice"]:
        advice = f"<div><b>{escape(bar['advice'])}</b></div>"
    drawn = f"<div>{escape(bar['heading'])}</div>{_bar_svg(bar, longest)}{table(rows)}{advice}"
    return f"<div style='margin-top:8px'>{drawn}</div>"


def _step_seconds(bar: StallBar) -> float:
    return sum(map(_part_seconds, bar["parts"]))


def _part_seconds(part: StallPart) -> float:
    return max(part["seconds"] or 0.0, 0.0)


def _bar_svg(bar: StallBar, longest: float) -> str:
    """Draw a bar of stacked parts; parts within the noise are drawn faintly."""
    x = 0.0
    drawn = list[str]()
    for part in bar["parts"]:
        width = _part_seconds(part) / longest * _WIDTH if longest else 0.0
        if width >= _THINNEST:
            place = f"x='{x:.1f}' width='{width:.1f}' height='{_HEIGHT}'"
            opacity = 1 if part["sure"] else 0.35
            drawn.append(f"<rect {place} fill='{COLOURS[part['name']]}' opacity='{opacity}'/>")
        x += width
    label = attribute(", ".join(f"{part['name']} {part['share']}" for part in bar["parts"]))
    width = max(x, 1.0)
    return (
        f"<svg viewBox='0 0 {width:.1f} {_HEIGHT}' width='{width:.1f}' height='{_HEIGHT}' "
        f"style='max-width:100%' preserveAspectRatio='none' role='img' aria-label='{label}'>"
        f"{''.join(drawn)}</svg>"
    )
