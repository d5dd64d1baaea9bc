"""A measure of stalls on its panel: a bar for each kind of VM with its parts, and what a change
would bring.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...errors import DeclarationError, unknown
from .contract import StallAnswer, StallBar, StallPart, Stalls, sound

if TYPE_CHECKING:
    from ...client.results.stalls import Bar, Report
    from ...planner.stalls.terms import Prediction

CHANGES = ("cache", "cores", "disk", "link", "gpu", "batch", "ps")
"""What can be changed on the panel, each as `planner.stalls.terms.Change` has it."""
UNASKED: StallAnswer = {"asked": 0, "error": "", "words": "", "parts": []}


def stalls_view(report: Report) -> Stalls:
    """The report as a page draws it."""
    return sound(
        {
            "name": report.name,
            "words": report.words,
            "bars": [_bar(bar) for bar in report.bars],
            "below": [*report.below],
        }
    )


def declared_view(name: str) -> Stalls:
    """The same of one that the cluster has not heard of yet."""
    return {"name": name, "words": "declared", "bars": [], "below": []}


def wanted(asked: object) -> dict[str, float]:
    """The change that a page asks for. Raises DeclarationError for what is none."""
    if not isinstance(asked, Mapping):
        raise DeclarationError("A change has names and numbers")
    found = dict[str, float]()
    for name, value in asked.items():
        if name not in CHANGES:
            raise unknown("change", str(name), CHANGES)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise DeclarationError(f"{name} takes a number, not {value!r:.80}")
        found[str(name)] = float(value)
    return found


def answer(prediction: Prediction, asked: int) -> StallAnswer:
    """What was predicted, for the page that `asked`."""
    parts = [(name, each.mean) for name, each in prediction.parts.items()]
    return sound({"asked": asked, "error": "", "words": str(prediction), "parts": parts})


def _bar(bar: Bar) -> StallBar:
    made = bar.stalls
    parts: list[StallPart] = [
        {
            "name": name,
            "seconds": part.seconds.mean,
            "words": seconds,
            "share": share,
            "dollar": dollar,
            "sure": part is made.compute or part.measured,
        }
        for part, (name, seconds, share, dollar) in zip(
            (made.compute, *made.parts), bar.lines, strict=True
        )
    ]
    parts[0]["sure"] = True
    return {
        "vm": bar.label,
        "heading": bar.heading,
        "parts": parts,
        "advice": bar.advice,
        "reads": made.bytes > 0,
    }
