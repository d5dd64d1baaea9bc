"""A measure of stalls in a stored notebook: a stacked bar for each kind of VM, its parts in a
table, and advice.

Plain HTML like the other pictures: no script, no style sheet, colours that read on light and dark.
"""

from __future__ import annotations

from ..snapshot.contract import StallBar, StallPart, Stalls
from .markup import COLOURS as PLAIN
from .markup import FAINT, FONT, attribute, escape, row, table
from .split import COLOURS as OF_A_STEP

COLOURS = {
    "compute": OF_A_STEP["compute"],
    "serialisation": PLAIN["quiet"],
    "network": OF_A_STEP["pull"],
    "contention": OF_A_STEP["push"],
    "preparation": OF_A_STEP["input"],
    "fetch": OF_A_STEP["barrier"],
}
"""As widgets/stalls.js has them."""
_WIDTH = 560
_HEIGHT = 14


def stalls_picture(view: Stalls) -> str:
    """The picture of `snapshot.stalls_view`."""
    longest = max((_step(each) for each in view["bars"]), default=0.0)
    bars = "".join(_bar_html(each, longest) for each in view["bars"])
    below = "".join(f"<div>{escape(each)}</div>" for each in view["below"])
    head = f"<b>{escape(view['name'])}</b>: {escape(view['words'])}"
    return f"<div style='{FONT}'><div>{head}</div>{bars}<div style='{FAINT}'>{below}</div></div>"


def _bar_html(bar: StallBar, longest: float) -> str:
    rows = [
        row(
            [
                f"<span style='color:{COLOURS[each['name']]}'>■</span> {escape(each['name'])}",
                *map(escape, (each["words"], each["share"], each["dollar"])),
            ]
        )
        for each in bar["parts"]
    ]
    if bar["advice"]:
        advice = f"<div><b>{escape(bar['advice'])}</b></div>"
    else:
        advice = ""
    drawn = f"<div>{escape(bar['heading'])}</div>{_drawn(bar, longest)}{table(rows)}{advice}"
    return f"<div style='margin-top:8px'>{drawn}</div>"


def _step(bar: StallBar) -> float:
    return sum(map(_seconds, bar["parts"]))


def _seconds(part: StallPart) -> float:
    return max(part["seconds"] or 0.0, 0.0)


def _drawn(bar: StallBar, longest: float) -> str:
    """Parts that are within the noise are drawn faintly: they are in the sum all the same."""
    x = 0.0
    drawn = list[str]()
    for part in bar["parts"]:
        if longest:
            width = _seconds(part) / longest * _WIDTH
        else:
            width = 0.0
        if width >= 0.25:
            place = f"x='{x:.1f}' width='{width:.1f}' height='{_HEIGHT}'"
            drawn.append(
                f"<rect {place} fill='{COLOURS[part['name']]}' opacity='{1 if part['sure'] else 0.35}'/>"
            )
        x += width
    label = attribute(", ".join(f"{each['name']} {each['share']}" for each in bar["parts"]))
    width = max(x, 1.0)
    return (
        f"<svg viewBox='0 0 {width:.1f} {_HEIGHT}' width='{width:.1f}' height='{_HEIGHT}' style='max-width:100%' "
        f"preserveAspectRatio='none' role='img' aria-label='{label}'>{''.join(drawn)}</svg>"
    )
