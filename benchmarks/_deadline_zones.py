"""Three zones of one region, of which a run has one VM in one at a time: policies, and the optimum that knows them all.

A run's data lie in the zone of its last VM. A VM in another zone costs the move of them beside its start; one on demand
is where the data are. Costs are in steps of Spot, as those of one zone are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from _deadline_policies import (
    ACTS,
    ON_DEMAND,
    SPOT,
    WAIT,
    Course,
    Greedy,
    Policy,
    Problem,
    Seen,
    UniformProgress,
    Values,
    Weighted,
)
from numpy.typing import NDArray

from transient_magics.planner.deadlines.cost import Chains

MOVE = 0.5
"""Steps of Spot that a move costs: 10 GB at a cent each, where a Spot VM is a dollar an hour."""
Market = NDArray[np.bool_]
"""`[window, step, zone]`."""


def lost(markets: Sequence[NDArray[np.bool_]]) -> float:
    """How likely a zone of these `[step, zone]` has none any more within a step after which another one has some."""
    ends, stays = 0, 0
    for market in markets:
        then = market[1:]
        here = market[:-1] & then.any(axis=1)[:, np.newaxis]
        ends, stays = ends + int((here & ~then).sum()), stays + int((here & then).sum())
    return ends / (ends + stays)


def run(problem: Problem, market: Market, policy: Policy) -> Course:
    """Send a policy through windows. It sees whether any zone has a Spot VM; one begins in the best zone so far, of
    those that have one now the zone that had one for the largest part of the run's own past."""
    runs, _, zones = market.shape
    past = np.zeros((runs, zones))
    every = np.arange(runs)
    work, held, where = np.full(runs, float(problem.work)), np.full(runs, WAIT), np.full(runs, -1)
    cost, starts = np.zeros(runs), np.zeros(runs, int)
    for step in range(problem.deadline):
        now = market[:, step]
        held = np.where((held == SPOT) & ~now[every, where], WAIT, held)
        past += now
        act = policy(Seen(problem.deadline - step, work, held, now.any(axis=1)))
        act = np.where((work <= 1e-9) | ((act == SPOT) & ~now.any(axis=1)), WAIT, act)
        begins = (act == SPOT) & (held != SPOT)
        zone = np.where(begins, np.where(now, past, -1.0).argmax(axis=1), where)
        made = problem.made(held, act)
        cost += problem.paid(work, made) * np.array(problem.rates)[act] * (work > 1e-9)
        cost += MOVE * (begins & (where >= 0) & (zone != where))
        starts += (act != held) & (act != WAIT)
        work, held, where = np.maximum(work - made, 0.0), act, zone
    return Course(cost, work > 1e-9, starts)


def optimum(problem: Problem, market: Market) -> NDArray[np.float32]:
    """The least cost of each window: backwards over (what is held, where, work left); a start takes a whole step."""
    runs, _, zones = market.shape
    kept, fee, price = (np.float32(rate) for rate in problem.rates)
    then = np.full((len(ACTS), zones, runs, int(problem.work) + 1), np.inf, np.float32)
    then[..., 0] = 0.0
    for step in reversed(range(problem.deadline)):
        shut = np.where(market[:, step].T, np.float32(0), np.float32(np.inf))[:, :, np.newaxis]
        begun = fee + then[SPOT] + shut
        moved = np.minimum(begun, begun.min(axis=0) + np.float32(MOVE))
        new = np.minimum(np.minimum(kept + then[WAIT], price + then[ON_DEMAND]), moved)
        now = np.stack([new, new, new])
        now[SPOT, ..., 1:] = np.minimum(new[..., 1:], (fee + then[SPOT] + shut)[..., :-1])
        now[ON_DEMAND, ..., 1:] = np.minimum(new[..., 1:], price + then[ON_DEMAND, ..., :-1])
        now[..., 0] = 0.0
        then = now
    return then[WAIT, :, :, int(problem.work)].min(axis=0)  # the first zone is chosen freely


@dataclass(frozen=True)
class Judged:
    """What each window costs, as a share of on demand alone, by policy; how many were late."""

    costs: dict[str, NDArray[np.float64]]
    best: NDArray[np.float64]
    late: dict[str, int]


def judge(problem: Problem, market: Market, chains: Chains, table: Values) -> Judged:
    """All policies through all windows, each in the best zone so far. `chains`, `table`: what ours knows of a region's
    zones together, in which at least one is open."""
    policies = {
        "greedy": Greedy(problem), "Uniform Progress": UniformProgress(problem),
        "ours": Weighted(problem, chains, len(market), table),
    }  # fmt: skip
    found = {name: run(problem, market, policy) for name, policy in policies.items()}
    whole = problem.all_on_demand
    return Judged(
        {name: course.cost / whole for name, course in found.items()}, optimum(problem, market) / whole,
        {name: int(course.late.sum()) for name, course in found.items()},
    )  # fmt: skip
