"""Where the time of a step goes, worker by worker: bars of its parts, and the same in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...client import text
from ...journal import RunSeries
from ...journal.series import LATELY_SECONDS, Spent
from ...protocol.measures.step_parts import EXPOSED
from .contract import Bar, Figure, Split

_MOST_BARS = 8
_WORTH_WORDS = 0.005


def split(series: RunSeries, *, whole: bool = False) -> Split | None:
    """The bars of those workers that made steps lately, the slowest first where there are many;
    `whole`: since the run began. None where no step was split.
    """
    spent = {
        name: each
        for name, each in series.spent(whole=whole).items()
        if each.steps > 0 and each.parts.step > 0
    }
    if not spent:
        return None
    slowest = sorted(
        spent, key=lambda name: spent[name].parts.step / spent[name].steps, reverse=True
    )[:_MOST_BARS]
    return {
        "names": list(EXPOSED),
        "words": " · ".join([_when(whole), *_served(spent)]),
        "bars": [
            _bar(name, each)
            for name, each in sorted(spent.items(), key=_counted)
            if name in slowest
        ],
        "more": len(spent) - len(slowest),
    }


def lines(split: Split | None) -> list[str]:
    """The same for a terminal."""
    if not split:
        return []
    if split["more"]:
        more = [f"  and {split['more']} more"]
    else:
        more = []
    return [
        f"where a step's time goes, {split['words']}",
        *(f"  {sentence(each)}" for each in split["bars"]),
        *more,
    ]


def _when(whole: bool) -> str:
    if whole:
        return "over the whole run"
    return f"over the last {LATELY_SECONDS:.0f} s"


def _served(spent: Mapping[str, Spent]) -> list[str]:
    """How busy the busiest parameter server was, where it is told."""
    lines = sum(each.lines for each in spent.values())
    if lines:
        share = sum(each.shares for each in spent.values()) / lines
    else:
        share = 0.0
    if lines:
        return [f"the busiest parameter server took {share:.0%} of its cores"]
    return []


def _bar(worker: str, spent: Spent) -> Bar:
    parts = [getattr(spent.parts, name) / spent.steps for name in EXPOSED]
    step = sum(parts)
    shares = [
        f"{name} {part / step:.0%}"
        for name, part in zip(EXPOSED, parts, strict=True)
        if part >= _WORTH_WORDS * step
    ]
    told: list[Figure] = [float(f"{part:.4g}") for part in parts]
    return {"worker": worker, "step": milliseconds(step), "parts": told, "words": ", ".join(shares)}


def sentence(bar: Mapping[str, Any]) -> str:
    """All that a bar says."""
    return f"{bar['worker']}: {bar['step']} a step: {bar['words']}"


def milliseconds(seconds: float) -> str:
    """`84 ms`, or seconds from one on."""
    if seconds >= 1:
        return f"{text.number(seconds)} s"
    return f"{text.number(1000 * seconds)} ms"


def _counted(item: tuple[str, Spent]) -> tuple[str, int]:
    """Names as people count: worker-9 before worker-10."""
    name, _, number = item[0].rpartition("-")
    if number.isdecimal():
        return (name, int(number))
    return (item[0], 0)
