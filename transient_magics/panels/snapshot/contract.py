"""The forms of what a kernel sends to the page of a cluster's panel, and their version.

The page's code is checked against `widgets/snapshot.d.ts`, which `tools/page_types.py` writes from
this module and from the modules `snapshot` of kinds of work. Raise VERSION here and in
`widgets/contract.js` when an older page would misread a changed form. Page and kernel usually have
the same version, because the page gets its code from the kernel. If they differ, because a page was
open while the package was upgraded, the page reports it. Unknown figures are None, never NaN, which
JSON does not have.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NotRequired, TypedDict

from ...client import text
from ...protocol import literals

VERSION = 1
Figure = float | None
"""A measured or computed value; None: unknown."""
Part = tuple[str, str, float, float]
"""A part of a VM's life: name, state, from and to in seconds since 1970 (to 0: until now)."""
Mark = tuple[str, float, int | None, str] | tuple[str, float, int | None, str, Figure]
"""A mark on curves: `revoked`, `checkpoint` or `evaluation`, the time, the step, and words.

An evaluation has its loss, too.
"""

Parameter = float | str
"""The value of a parameter: a finite number, or the text of any other value."""


class Lane(TypedDict):
    """A VM.

    `first` says whether its lane is shown before all are asked for. `runs` are the runs that it
    trains. `leaves_at` is when it is revoked, 0 without a notice.
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
    """The cost of a cluster in US dollars, and per hour.

    `pace` is the seconds of the bill's clock per second. `limit_used` is a share, 0 to 1.
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
    """The end of a run's curves: seconds since 1970, step, loss, and steps per second."""

    time: float
    step: int
    loss: Figure
    speed: Figure


class Proposal(TypedDict):
    """Proposed workers for a run with a deadline, or workers to give up.

    `number` identifies the proposal when the user agrees. `text` says what and why, `how` what to
    type in a cell. `until` is when it expires, in seconds since 1970.
    """

    number: int
    text: str
    how: str
    until: float


class Training(TypedDict):
    """The run that a panel shows.

    `counted` is its progress in words. `facts` are names and values. `data` says how it reads
    records in blocks; it is empty for other runs. `end` is the end of the curves (`curves.end_of`).
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
    """Work that has one line: another run, a job, a Dask cluster.

    `step` of `steps` is its progress (`steps` 0: not shown). Without a `name` the line counts
    further work.
    """

    name: str
    phase: str
    words: str
    step: int
    steps: int
    stoppable: bool


class WorkGroup(TypedDict):
    """The lines of all work of one kind, and the title of their list."""

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
    """A snapshot.

    `at`, `since` and `until` are seconds since 1970; `until` is 0 while the cluster lives.
    `proposal` has the workers to give up, if that can be agreed to.
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
    """The result of an action of the page."""

    text: NotRequired[str]
    tone: NotRequired[str]


class Question(TypedDict):
    """The question before a change of the workers; empty without one."""

    spec: NotRequired[str]
    text: NotRequired[str]


class Frame(View):
    """A snapshot as it is sent. `received`: the latest action that the kernel received."""

    notice: Notice
    question: Question
    received: str


class OfWorker(TypedDict):
    """The columns of one worker: steps per second.

    A run that is shown alone also has examples or tokens per step, and steps of others during a
    step.
    """

    speed: list[Figure]
    batch: NotRequired[list[Figure]]
    staleness: NotRequired[list[Figure]]


class Bar(TypedDict):
    """The step of a worker: the seconds of its `parts`, in the order of their names.

    `step` and `words` are the step and its parts in words.
    """

    worker: str
    step: str
    parts: list[Figure]
    words: str


class Split(TypedDict):
    """The parts of a step.

    `names` are the names of the parts. `words` says which time they are from. `more` workers have
    no bar.
    """

    names: list[str]
    words: str
    bars: list[Bar]
    more: int


class Columns(TypedDict):
    """Rows over time: seconds since 1970, step, loss, steps per second, and the possible speed."""

    time: list[float]
    step: list[float]
    loss: list[Figure]
    speed: list[Figure]
    expected: list[Figure]
    workers: dict[str, OfWorker]


class Epoch(TypedDict):
    """The end of an epoch of `model.fit`: seconds since 1970, step, and metrics as Keras names them."""

    time: float
    step: int
    metrics: dict[str, Figure]


class Curves(Columns):
    """The data of a run's charts.

    Below the share `below` of the possible speed the run is called slow (0: never). `width` is the
    seconds of a row (0: unknown). `unnamed` says that there are too many workers to show each.
    `split` is None before a step was split.
    """

    run: str
    below: float
    width: float
    unnamed: bool
    end: End | None
    split: Split | None
    marks: list[Mark]
    epochs: list[Epoch]


class Base(Curves):
    """Curves that are sent now and then; the latest has the highest `number`."""

    number: int


class Tail(Columns):
    """Rows since a base, which replace its rows from row `keep` on.

    `expected` has all rows. `split` is the present one. `marks` and `epochs` are there if they
    differ from the base's.
    """

    base: int
    keep: int
    unnamed: bool
    end: End | None
    split: Split | None
    marks: NotRequired[list[Mark]]
    epochs: NotRequired[list[Epoch]]


class Speeds(TypedDict):
    """The speeds of a run whose curves are not drawn, for the lanes of its workers.

    `width` is the seconds of a row.
    """

    run: str
    width: float
    time: list[float]
    workers: dict[str, list[Figure]]


class Log(TypedDict):
    """The last lines of a worker's log; empty until the user asks for them."""

    worker: NotRequired[str]
    text: NotRequired[str]


def parameter(value: literals.Value) -> Parameter:
    """Return a parameter's value as a page sorts and shows it."""
    if isinstance(value, int | float) and math.isfinite(literals.as_number(value)):
        return value
    return text.value_words(value)


def sound(value: Any) -> Any:
    """Return a value that a page can read: plain text, and None for figures that are not finite."""
    match value:
        case str():
            return text.plain(value)
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {key: sound(item) for key, item in value.items()}
        case list() | tuple():
            return [sound(item) for item in value]
    return value


def finite(values: Iterable[Any]) -> list[Any]:
    """Return a column of figures with None for each that is not finite."""
    return [value if value is None or math.isfinite(value) else None for value in values]
