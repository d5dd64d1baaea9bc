"""Where the time of a step goes, as measured: a stacked bar for each kind of VM, its parts in a table, and advice.

Plain HTML like the twins of the panels: no script, no style sheet, colours that read on light and dark.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from ..client import Stalls
from .show import current_shell, has_front_end
from .twin.markup import COLOURS as PLAIN
from .twin.markup import FAINT, FONT, attribute, escape, row, table
from .twin.split import COLOURS as OF_A_STEP

if TYPE_CHECKING:
    from ..client.results.stalls import Bar, Report

COLOURS = {
    "compute": OF_A_STEP["compute"], "serialisation": PLAIN["quiet"], "network": OF_A_STEP["pull"],
    "contention": OF_A_STEP["push"], "preparation": OF_A_STEP["input"], "fetch": OF_A_STEP["barrier"],
}  # fmt: skip
_WIDTH, _HEIGHT = 560, 14


def stalls_html(report: Report) -> str:
    """The report as HTML."""
    longest = max((each.stalls.step.mean for each in report.bars), default=0.0)
    bars = "".join(_bar_html(each, longest) for each in report.bars)
    below = "".join(f"<div>{escape(each)}</div>" for each in report.below)
    head = f"<b>{escape(report.name)}</b>: {escape(report.words)}"
    return f"<div style='{FONT}'><div>{head}</div>{bars}<div style='{FAINT}'>{below}</div></div>"


def _bar_html(bar: Bar, longest: float) -> str:
    rows = [
        row([f"<span style='color:{COLOURS[name]}'>■</span> {escape(name)}", *map(escape, told)])
        for name, *told in bar.lines
    ]
    advice = f"<div><b>{escape(bar.advice)}</b></div>"
    drawn = f"<div>{escape(bar.heading)}</div>{_drawn(bar, longest)}{table(rows)}{advice}"
    return f"<div style='margin-top:8px'>{drawn}</div>"


def _drawn(bar: Bar, longest: float) -> str:
    """Parts that are within the noise are drawn faintly: they are in the sum all the same."""
    x, drawn = 0.0, list[str]()
    for part in (bar.stalls.compute, *bar.stalls.parts):
        width = max(part.seconds.mean, 0.0) / longest * _WIDTH if longest else 0.0
        if width >= 0.25:
            place = f"x='{x:.1f}' width='{width:.1f}' height='{_HEIGHT}'"
            drawn.append(f"<rect {place} fill='{COLOURS[part.name]}' opacity='{1 if part.measured else 0.35}'/>")
        x += width
    label = attribute(", ".join(f"{name} {share}" for name, _, share, _ in bar.lines))
    width = max(x, 1.0)
    return (
        f"<svg viewBox='0 0 {width:.1f} {_HEIGHT}' width='{width:.1f}' height='{_HEIGHT}' style='max-width:100%' "
        f"preserveAspectRatio='none' role='img' aria-label='{label}'>{''.join(drawn)}</svg>"
    )


class Drawn:
    """A report as a cell shows it."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def __repr__(self) -> str:
        return str(self._report)

    def _repr_html_(self) -> str:
        return stalls_html(self._report)


def show_stalls(stalls: Stalls) -> None:
    """Show the measure in the cell that runs now; where there is a front end, it follows until all is measured."""
    if stalls.name not in stalls.cluster.state.runs:
        print(f"{stalls.name} is declared on {stalls.cluster.name}.")
        if not has_front_end(current_shell()):
            return
    elif not has_front_end(current_shell()):
        print(stalls)
        return
    from IPython.display import display

    known = stalls.cluster.state.runs.get(stalls.name)
    handle = display(Drawn(stalls.report) if known else "", display_id=True)
    if handle is not None and not (known and known.over):
        threading.Thread(target=_follow, args=(stalls, handle), name=f"{stalls.name} in its cell", daemon=True).start()


def _follow(stalls: Stalls, handle: Any) -> None:
    for report in stalls.changes():
        handle.update(Drawn(report))
