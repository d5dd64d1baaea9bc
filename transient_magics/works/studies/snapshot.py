"""The forms of snapshots of studies, which a kernel sends to the page of a panel."""

from __future__ import annotations

from typing import TypedDict

from ...panels.snapshot.contract import Figure, Parameter

Point = tuple[float, float]
"""A point of a curve of a study: the step, or the number of a trial, and the value."""


class TrialLine(TypedDict):
    """A trial of a study.

    `params` are in the order of the study's parameters. `value` is the objective's latest value.
    `hours`, `dollars` and `revocations` are sums over the runs of the trial. `curve` has pairs of
    step and value; it is empty if the curve is not drawn.
    """

    number: int
    state: str
    words: str
    params: list[Parameter]
    value: Figure
    best: bool
    hours: float
    dollars: float
    revocations: int
    stoppable: bool
    curve: list[Point]


class Study(TypedDict):
    """A study.

    `ended` of `planned` trials have ended. `metric` and `direction` (max or min) are those of the
    objective. `curves_of` names what the curves of the trials show. `best_so_far` has the number
    and the value of each trial that was better than all before it.
    """

    name: str
    phase: str
    words: str
    about: str
    ended: int
    planned: int
    metric: str
    direction: str
    curves_of: str
    best_words: str
    cost_words: str
    emulated: bool
    stoppable: bool
    params: list[str]
    trials: list[TrialLine]
    best_so_far: list[Point]
