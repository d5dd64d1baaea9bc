"""What a kernel sends to the page of a cluster's panel: snapshots of these forms, and the number of
their version.

The page's code is checked against them as `widgets/snapshot.d.ts`, which `tools/page_types.py`
writes from this module. Whoever changes a form so that an older page would misread it raises
VERSION here and in `widgets/contract.js`. Page and kernel are of one version as a rule, because the
page gets its code from the kernel; where they are not (a page that was open while the package was
renewed), it says so. A figure that is not known is None and never NaN, which is no JSON.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NotRequired, TypedDict

from ...client import text
from ...protocol import literals

VERSION = 1
Figure = float | None
"""A measured or computed value, None where it is not known."""
Part = tuple[str, str, float, float]
"""A part of a VM's life: its name, its state, from and to in seconds since 1970, to 0 for what goes
on.
"""
Mark = tuple[str, float, int | None, str] | tuple[str, float, int | None, str, Figure]
"""On the curves: `revoked`, `checkpoint` or `evaluation`, when, at which step, in words; of an
evaluation its loss.
"""

Parameter = float | str
"""The value of a parameter: a finite number, whole ones among them, or the text of any other value.
"""


class Lane(TypedDict):
    """A VM. `first`: it has a lane before all are asked for; `runs`: in which it trains, several
    where trials share it; `leaves_at`: when it is taken, 0 without a notice.
    """

    name: str
    first: bool
    runs: list[str]
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
    """US dollars, per hour where it says so; `pace`: seconds of the bill's clock per second;
    `limit_used`: 0 to 1.
    """

    limit_words: str
    limit_used: float
    total: Figure
    hourly: Figure
    pace: float
    on_demand: Figure
    on_demand_hourly: Figure
    total_words: str
    hourly_words: str
    on_demand_words: str
    saved_words: str
    lines_words: str
    transfer_words: str
    source: str


class End(TypedDict):
    """Where the curves of a run end by its figures: seconds since 1970, step, loss, steps per
    second.
    """

    time: float
    step: int
    loss: Figure
    speed: Figure


class Proposal(TypedDict):
    """Other workers for a run with a deadline, or those that are to be given up: the `number` by
    which it is agreed to, what and why, how it is agreed to in a cell, and until when it can be, in
    seconds since 1970.
    """

    number: int
    text: str
    how: str
    until: float


class Training(TypedDict):
    """A run. `counted`: how far it is, in words; `facts`: names and values in words; `data`: how it
    reads records that come in blocks, empty for others; `proposal`: what can be agreed to; `end`:
    where the curves end (`curves.end_of`).
    """

    name: str
    title: str
    phase: str
    phase_words: str
    words: str
    step: int
    steps: int
    counted: str
    forecast: str
    facts: list[tuple[str, str]]
    data: str
    proposal: Proposal | None
    end: End | None
    stoppable: bool


class WorkLine(TypedDict):
    """A piece of work that has one line: a run beside the one whose curves are shown, a job, a Dask
    cluster.

    `step` of `steps` is its progress (`steps` 0: none is shown). Without a `name` it counts further
    work.
    """

    name: str
    phase: str
    words: str
    step: int
    steps: int
    stoppable: bool


class WorkGroup(TypedDict):
    """The lines of all work of one kind; `title` is what the list is called."""

    kind: str
    title: str
    lines: list[WorkLine]


class EventLine(TypedDict):
    """An event, or several alike ones. `at`: seconds since 1970."""

    at: float
    clock: str
    text: str
    tone: str
    family: str


class View(TypedDict):
    """A snapshot; `at`, `since` and `until` in seconds since 1970, `until` 0 as long as the cluster
    goes on.

    `proposal`: which workers are to be given up, where that can be agreed to.
    """

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
    proposal: Proposal | None
    spec: str
    since: float
    until: float
    vms: list[Lane]
    training: Training | None
    beside: list[WorkLine]
    work: list[WorkGroup]
    cost: Cost
    ending: str
    events: list[EventLine]


class Notice(TypedDict):
    """What became of something that the page asked for."""

    text: NotRequired[str]
    tone: NotRequired[str]


class Question(TypedDict):
    """What a change of the workers means; empty where none is asked."""

    spec: NotRequired[str]
    text: NotRequired[str]


class Frame(View):
    """A snapshot as it is sent. `heard`: the name of the page's wish that was taken up last."""

    notice: Notice
    question: Question
    heard: str


class OfWorker(TypedDict):
    """Columns of one worker: steps per second; where a run is shown by itself also examples or
    tokens per step, and steps of others meanwhile.
    """

    speed: list[Figure]
    batch: NotRequired[list[Figure]]
    staleness: NotRequired[list[Figure]]


class Bar(TypedDict):
    """A worker's step: seconds of its `parts`, in the order of their names; `step` and `words` say
    it and its parts.
    """

    worker: str
    step: str
    parts: list[Figure]
    words: str


class Split(TypedDict):
    """Where the time of a step goes. `names` of the parts; `words`: of when it is; `more` workers
    have no bar.
    """

    names: list[str]
    words: str
    bars: list[Bar]
    more: int


class Columns(TypedDict):
    """Rows over time: seconds since 1970, step, loss, steps per second, and how fast the workers
    could be.
    """

    time: list[float]
    step: list[float]
    loss: list[Figure]
    speed: list[Figure]
    expected: list[Figure]
    workers: dict[str, OfWorker]


class Curves(Columns):
    """What the charts of `run` are drawn from.

    `below`: the share of the expected speed below which the run is called slow (0: never); `width`:
    seconds of a row (0: not told); `unnamed`: there are more workers than are told apart; `split`:
    None before a step was split.
    """

    run: str
    below: float
    width: float
    unnamed: bool
    end: End | None
    split: Split | None
    marks: list[Mark]


class Base(Curves):
    """Curves that are sent now and then; the latest has the highest `number`."""

    number: int


class Tail(Columns):
    """What came behind a base since: rows that take the place of those of the base of that number
    from row `keep` on.

    `expected` has all rows and not those alone, `split` is that of now; `marks` are there if they
    are others than the base's.
    """

    base: int
    keep: int
    unnamed: bool
    end: End | None
    split: Split | None
    marks: NotRequired[list[Mark]]


class Speeds(TypedDict):
    """Of a run whose curves are not drawn: steps per second of its workers, for their lanes;
    `width`: seconds of a row.
    """

    run: str
    width: float
    time: list[float]
    workers: dict[str, list[Figure]]


class Log(TypedDict):
    """The last lines that a worker wrote; empty before anybody asked."""

    worker: NotRequired[str]
    text: NotRequired[str]


def parameter(value: literals.Value) -> Parameter:
    """A parameter's value as a page sorts and shows it."""
    if isinstance(value, int | float) and math.isfinite(literals.as_number(value)):
        return value
    return text.value_words(value)


def sound(value: Any) -> Any:
    """The same without what a page cannot read: words are plain text, a figure that is none is
    None.
    """
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
