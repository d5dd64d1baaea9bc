"""Many runs at once through their windows under one policy, step by step, and what they cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .market import Open
from .problem import SPOT, WAIT, Acts, Problem

_DONE = 1e-9
Market = Callable[[int, Acts], Open]
"""Which runs' zones have a Spot VM at the beginning of a step; given the step and what each run holds."""


@dataclass(frozen=True)
class Seen:
    """All that a policy may know at the beginning of a step: nothing of what comes.

    `left` steps until the deadline, and of each run the `work` left, what is `held` (a Spot VM that was taken is not),
    and whether its zone has a Spot VM now (`open`).
    """

    left: int
    work: NDArray[np.float64]
    held: Acts
    open: Open


class Policy(Protocol):
    """Decides. Called once for each step, from the first one on, always for the same runs."""

    def __call__(self, seen: Seen) -> Acts: ...


@dataclass(frozen=True)
class Course:
    """How runs went, one value each: the cost in steps of Spot, whether late, and how often a VM was started."""

    cost: NDArray[np.float64]
    late: NDArray[np.bool_]
    starts: NDArray[np.int64]


def run(problem: Problem, market: Open | Market, policy: Policy, runs: int | None = None) -> Course:
    """Send a policy through windows, a run each, or so many `runs` against a market that answers what they do.

    Where a policy takes Spot and there is none, it waits.
    """
    if not callable(market):
        given = market
        market, runs = (lambda step, held: given[:, step]), len(given)
    assert runs is not None
    work, held = np.full(runs, float(problem.work)), np.full(runs, WAIT)
    cost, starts = np.zeros(runs), np.zeros(runs, int)
    for step in range(problem.deadline):
        now = market(step, held)
        held = np.where((held == SPOT) & ~now, WAIT, held)
        act = policy(Seen(problem.deadline - step, work, held, now))
        act = np.where((work <= _DONE) | ((act == SPOT) & ~now), WAIT, act)
        made = problem.made(held, act)
        cost += problem.paid(work, made) * np.array(problem.rates)[act] * (work > _DONE)
        starts += (act != held) & (act != WAIT)
        work, held = np.maximum(work - made, 0.0), act
    return Course(cost, work > _DONE, starts)
