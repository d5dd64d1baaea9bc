"""The clairvoyant optimum, a bound for others: what a run would have cost that knew its window, its starts paid."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...errors import PlanError
from .market import Open
from .problem import ACTS, ON_DEMAND, SPOT, WAIT, Problem

_AT_ONCE = 32  # windows: what fits into a processor's cache


def optimum(problem: Problem, open_: Open) -> NDArray[np.float32]:
    """The least cost of each window, by dynamic programming backwards over (work left, what is held).

    Work is counted in whole steps, and a start takes one: PlanError for another `problem.start`.
    """
    if problem.start != 1 or problem.work % 1:
        raise PlanError("The optimum counts work and starts in whole steps", fix="Take the start as the grid's step.")
    parts = [_optimum(problem, open_[at : at + _AT_ONCE]) for at in range(0, len(open_), _AT_ONCE)]
    return np.concatenate(parts)


def _optimum(problem: Problem, open_: Open) -> NDArray[np.float32]:
    kept, fee, price = (np.float32(rate) for rate in problem.rates)
    costs = np.full((len(ACTS), len(open_), int(problem.work) + 1), np.inf, np.float32)
    costs[:, :, 0] = 0.0
    for step in reversed(range(problem.deadline)):
        spot = np.where(open_[:, step, np.newaxis], fee + costs[SPOT], np.float32(np.inf))
        on_demand = price + costs[ON_DEMAND]
        new = np.minimum(np.minimum(kept + costs[WAIT], on_demand), spot)  # where nothing is held, a start
        costs[:] = new
        costs[SPOT, :, 1:] = np.minimum(new[:, 1:], spot[:, :-1])
        costs[ON_DEMAND, :, 1:] = np.minimum(new[:, 1:], on_demand[:, :-1])
        costs[:, :, 0] = 0.0
    return costs[WAIT, :, int(problem.work)]
