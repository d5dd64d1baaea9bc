"""The forms of snapshots of bags, which a kernel sends to the page of a panel."""

from __future__ import annotations

from typing import TypedDict

from ...panels.snapshot.contract import Figure, Parameter

BagPoint = tuple[str, int, list[Parameter], list[Figure], list[Figure]]
"""A job of a bag; its index in the list is its number.

The items are its state (waiting, running, lost, done, failed, skipped), its attempts, the values of
its parameters and outputs, and the errors of the outputs (empty: none).
"""


class BagAxis(TypedDict):
    """An axis on which points are placed: a parameter, or an output.

    `kind` is even, log or choice. A choice has `choices`, the others run from `low` to `high`.
    `named` are labels: a place from 0 to 1, and the value there.
    """

    name: str
    output: bool
    kind: str
    low: float
    high: float
    choices: list[Parameter]
    named: list[tuple[float, str]]


class BagTried(TypedDict):
    """The quality of a surrogate for one output, judged by its last batch.

    `coverage` is the share of results inside the 90% intervals, `residual` the median residual in
    units of its own standard deviation, `largest` the largest standard deviation, and `until` the
    one at which the bag stops.
    """

    output: str
    coverage: Figure
    residual: Figure
    largest: Figure
    until: Figure
    good: bool


class BagVm(TypedDict):
    """A VM of a bag: its age, and the number of the job that it runs (None: no job).

    `at` has the parameters of that job in words, `words` its duration.
    """

    name: str
    age: str
    state: str
    job: int | None
    at: str
    words: str


class Bag(TypedDict):
    """A bag.

    `results` of `planned` results are there. `per_result` is in US dollars. `counts` has the number
    of points in each state. `more` VMs have no row. `tried_words` is empty without a surrogate.
    """

    name: str
    phase: str
    words: str
    about: str
    results: int
    planned: int
    cost_words: str
    per_result: Figure
    ends: str
    counts: list[tuple[str, int]]
    tried_words: str
    tried: list[BagTried]
    axes: list[BagAxis]
    points: list[BagPoint]
    vms: list[BagVm]
    more: int
    stoppable: bool
