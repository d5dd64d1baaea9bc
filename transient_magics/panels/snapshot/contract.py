"""What a kernel sends to the page of a cluster's panel: a snapshot of these forms, and the number of their version.

Whoever changes a form so that an older page would misread it raises VERSION here and in `widgets/contract.js`. Page and
kernel are of one version as a rule, because the page gets its code from the kernel; where they are not (a page that was
open while the package was renewed), it says so. A figure that is not known is None and never NaN, which is no JSON.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, TypedDict

from ...client import text

VERSION = 1
Part = tuple[str, str, float, float]
"""A part of a VM's life: its name, its state, from and to in seconds since 1970, to 0 for what goes on."""


class Lane(TypedDict):
    """A VM. `first`: it has a lane before all are asked for; `leaves_at`: when it is taken, 0 without a notice."""

    name: str
    first: bool
    role: str
    chief: bool
    machine: str
    zone: str
    terms: str
    state: str
    words: str
    leaves_at: float
    revocable: bool
    life: list[Part]


class Cost(TypedDict):
    """US dollars, per hour where it says so; `pace`: seconds of the bill's clock per second; `limit_used`: 0 to 1."""

    limit_words: str
    limit_used: float
    total: float
    hourly: float
    pace: float
    on_demand: float
    on_demand_hourly: float
    total_words: str
    hourly_words: str
    on_demand_words: str
    saved_words: str
    projected_words: str
    transfer_words: str
    source: str


class Training(TypedDict):
    """A run. `facts`: names and values in words; `end`: where the curves end (`curves.end_of`)."""

    name: str
    title: str
    phase: str
    phase_words: str
    words: str
    step: int
    steps: int
    forecast: str
    facts: list[list[str]]
    end: dict[str, Any] | None
    stoppable: bool


class Said(TypedDict):
    """An event, or several that say the same; `at` in seconds since 1970."""

    at: float
    clock: str
    text: str
    tone: str
    family: str


class View(TypedDict):
    """A snapshot; `at`, `since` and `until` in seconds since 1970, `until` 0 as long as the cluster goes on."""

    version: int
    at: float
    as_of: str
    name: str
    focus: str | None
    phase: str
    phase_words: str
    about: str
    over: bool
    emulated: bool
    trouble: str
    spec: str
    since: float
    until: float
    vms: list[Lane]
    training: Training | None
    cost: Cost
    ending: str
    events: list[Said]


def sound(value: Any) -> Any:
    """The same without what a page cannot read: words are plain text, a figure that is none is None."""
    match value:
        case str():
            return text.plain(value)
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {key: sound(each) for key, each in value.items()}
        case list() | tuple():
            return [sound(each) for each in value]
    return value


def finite(values: Iterable[Any]) -> list[Any]:
    """A column of figures, with None for each that is none."""
    return [value if value is None or math.isfinite(value) else None for value in values]
