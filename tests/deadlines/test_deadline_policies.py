"""Policies for a deadline that benchmarks compare: never late, and no cheaper than the optimum."""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from _deadline_policies import (
    ACTS,
    ON_DEMAND,
    SPOT,
    WAIT,
    Belief,
    Greedy,
    Problem,
    Seen,
    UniformProgress,
    Weighted,
    learnt,
    optimum,
    run,
    windows,
)

from transient_magics.errors import PlanError
from transient_magics.planner.deadlines.cost import AGES, Chains, published

RANDOM = np.random.default_rng(3)


def markets(count: int, steps: int, closes: float = 0.05, opens: float = 0.05) -> np.ndarray:
    """Windows of one two-state chain."""
    found = np.zeros((count, steps), bool)
    found[:, 0] = RANDOM.random(count) < 0.5
    for step in range(1, steps):
        chance = np.where(found[:, step - 1], 1 - closes, opens)
        found[:, step] = RANDOM.random(count) < chance
    return found


@given(
    held=st.sampled_from(ACTS), work=st.floats(0, 300), slack=st.integers(0, 3), start=st.floats(0.01, 1),
    fragile=st.booleans(), act=st.sampled_from(ACTS), keeps=st.booleans(), works=st.booleans(),
)  # fmt: skip
def test_no_allowed_act_and_nothing_that_follows_leaves_the_safety_set(
    held: int, work: float, slack: int, start: float, fragile: bool, act: int, keeps: bool, works: bool
) -> None:
    problem = Problem(300, 1000, start=start, fragile=fragile)
    left, works = int(np.ceil(work)) + slack, works or not (fragile and act == SPOT)
    state = np.array([left]), np.array([work]), np.array([held])
    if left < 1 or not problem.safe(*state)[0]:
        return
    assert problem.allowed(*state, np.array([ON_DEMAND]))[0], "there is always a way home"
    if problem.allowed(*state, np.array([act]))[0]:
        made = float(problem.made(np.array([held]), np.array([act]))[0]) if works else 0.0
        then = act if keeps or act != SPOT else WAIT
        assert problem.safe(np.array([left - 1]), np.array([max(work - made, 0.0)]), np.array([then]))[0]


@pytest.mark.parametrize("fragile", [False, True])
@pytest.mark.parametrize("slack", [1, 3, 15])
def test_nothing_is_late_on_markets_that_mean_harm(slack: int, fragile: bool) -> None:
    problem, steps, runs = Problem(24, 24 + slack, fragile=fragile), np.arange(24 + slack), 20
    shape = (runs, problem.deadline)
    for market in (
        np.zeros(shape, bool), np.broadcast_to(steps % 2 == 0, shape), np.broadcast_to(steps < 12, shape),
        RANDOM.random(shape) < RANDOM.random((runs, 1)),
        lambda step, held: held != SPOT, lambda step, held: held == ON_DEMAND,
    ):  # fmt: skip
        for policy in (Weighted(problem, published(), runs), Greedy(problem), UniformProgress(problem)):
            assert not run(problem, market, policy, runs).late.any()


def test_a_deadline_that_on_demand_alone_would_miss_is_refused() -> None:
    with pytest.raises(PlanError, match="takes 11 steps on demand, and the deadline leaves 10"):
        Problem(10, 10)


@pytest.mark.slow
def test_the_optimum_is_the_cheapest_of_all_ways() -> None:
    problem, market = Problem(3, 6), markets(8, 6, 0.4, 0.4)
    found = optimum(problem, market)
    for window, least in zip(market, found, strict=True):
        costs = []
        for acts in product(ACTS, repeat=6):
            course = run(problem, window[np.newaxis], lambda seen, acts=acts: np.array([acts[6 - seen.left]]))
            costs += [] if course.late[0] else [course.cost[0]]
        assert least == pytest.approx(min(costs))


def test_uniform_progress_waits_ahead_of_its_line_and_stays_on_demand_until_it_is_two_starts_ahead() -> None:
    problem = Problem(10, 20)
    said: list[int] = []

    def watched(seen: Seen) -> np.ndarray:
        act = UniformProgress(problem)(seen)
        said.append(int(act[0]))
        return act

    run(problem, np.array([[1] * 5 + [0] * 8 + [1] * 7], bool), watched)
    assert said[:5] == [SPOT] * 5, "4 steps of work are made"
    assert said[5:9] == [WAIT] * 4, "the line is there at the 8th step"
    assert said[9:13] == [ON_DEMAND] * 4
    assert said[13] == ON_DEMAND, "Spot is back, but the work is not two starts ahead"


def test_ours_costs_less_than_the_baselines_on_markets_like_those_it_learnt_from() -> None:
    problem = Problem(40, 60)
    chains = learnt(list(markets(10, 1000)), 4)
    market = markets(300, 60)
    ours = run(problem, market, Weighted(problem, chains, 300))
    best = optimum(problem, market)
    assert (ours.cost >= best - 1e-3).all()
    for baseline in (Greedy(problem), UniformProgress(problem)):
        assert ours.cost.mean() < 0.97 * run(problem, market, baseline).cost.mean()


def test_where_spot_is_always_there_it_is_all_that_is_paid_and_where_it_never_is_all_is_on_demand() -> None:
    problem = Problem(20.5, 40, start=0.25)
    always = run(problem, np.ones((1, 40), bool), Weighted(problem, published(), 1))
    assert always.cost[0] == pytest.approx(20.75)
    never = run(problem, np.zeros((1, 40), bool), Weighted(problem, published(), 1))
    assert never.cost[0] == pytest.approx(problem.all_on_demand)
    assert (always.starts[0], never.starts[0]) == (1, 1)


def test_a_run_comes_to_believe_in_the_chain_that_its_own_past_fits() -> None:
    calm, wild = np.full((2, len(AGES)), 0.01), np.full((2, len(AGES)), 0.5)
    belief = Belief(Chains(np.array([0.5, 0.5]), np.array([calm, wild])), 2)
    for step in range(12):
        belief.see(np.array([True, step % 2 == 0]))
    assert belief.share[0, 0] > 0.95
    assert belief.share[1, 1] > 0.95


def test_the_published_chains_are_chances_and_weights() -> None:
    chains = published()
    assert chains.weight.sum() == pytest.approx(1, abs=1e-3)
    assert ((chains.ends > 0) & (chains.ends < 1)).all()


def test_windows_are_equally_spaced_and_too_short_traces_are_refused() -> None:
    series = np.arange(50) % 2 == 0
    found = windows([series, series[:30]], 20, 10)
    assert (found.trace == [0, 0, 0, 0, 1, 1]).all()
    assert (found.open == series[:20]).all()
    with pytest.raises(PlanError, match="All traces are shorter than 20 hours"):
        windows([series], 100, 1)
