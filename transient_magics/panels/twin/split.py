"""Where the time of a step goes, in a stored notebook: a stacked bar of each worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..snapshot.split import sentence
from .markup import FAINT, attribute, escape, row, table

COLOURS = {
    "input": "#d98e04",
    "pull": "#3f83c8",
    "compute": "#2a9d5c",
    "push": "#a05fc7",
    "barrier": "#cf4436",
    "rest": "#7d8186",
}
"""As widgets/split.js has them."""
_WIDTH = 240
_HEIGHT = 10


def split_html(split: Mapping[str, Any] | None) -> str:
    """The bars of `snapshot.split`, all by one scale, with a key of the parts that are seen; empty
    for none.
    """
    if not split:
        return ""
    longest = max(sum(bar["parts"]) for bar in split["bars"])
    seen = [
        name
        for at, name in enumerate(split["names"])
        if any(bar["parts"][at] for bar in split["bars"])
    ]
    key = " ".join(f"<span style='color:{COLOURS[name]}'>■</span> {escape(name)}" for name in seen)
    rows = [
        row([_bar(bar, split["names"], longest), escape(sentence(bar))]) for bar in split["bars"]
    ]
    if split["more"]:
        more = f" · and {split['more']} more"
    else:
        more = ""
    head = f"Where a step's time goes, {escape(split['words'])}{more}"
    return f"<div style='margin-top:4px'><div style='{FAINT}'>{head}</div>{table(rows)}<div>{key}</div></div>"


def _bar(bar: Mapping[str, Any], names: list[str], longest: float) -> str:
    x = 0.0
    drawn = []
    for name, part in zip(names, bar["parts"], strict=True):
        width = part / longest * _WIDTH
        if width >= 0.25:
            drawn.append(
                f"<rect x='{x:.1f}' width='{width:.1f}' height='{_HEIGHT}' fill='{COLOURS[name]}'/>"
            )
        x += width
    label = attribute(sentence(bar))
    return f"<svg width='{_WIDTH}' height='{_HEIGHT}' role='img' aria-label='{label}'>{''.join(drawn)}</svg>"
