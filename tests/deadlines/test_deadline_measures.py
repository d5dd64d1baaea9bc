"""What the benchmark of deadlines measures against: bounds bound, and policies that must not be late are not."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import _deadline_clusters as clusters
import _deadline_zones as zones
from _deadline_policies import Problem, optimum, values

from transient_magics.catalog.traces import Trace
from transient_magics.planner.deadlines.cost import published

PROBLEM = Problem(30, 45)
MARKET = np.repeat(np.random.default_rng(4).random((12, 9, 3)) < 0.4, 5, axis=1)


def test_the_optimum_of_one_zone_is_that_of_a_run_that_cannot_move_and_more_zones_cost_less() -> None:
    alone = [optimum(PROBLEM, MARKET[:, :, zone]) for zone in range(3)]
    assert zones.optimum(PROBLEM, MARKET[:, :, :1]) == pytest.approx(alone[0])
    assert (zones.optimum(PROBLEM, MARKET) <= np.min(alone, axis=0) + 1e-4).all()


def test_no_policy_is_late_or_cheaper_than_the_optimum_where_moves_are_paid() -> None:
    chains = published()
    judged = zones.judge(PROBLEM, MARKET, chains, values(PROBLEM, chains, zones.lost([*MARKET])))
    assert set(judged.late.values()) == {0}
    for costs in judged.costs.values():
        assert (costs >= judged.best - 1e-5).all()
        assert costs.mean() < 1


@pytest.mark.slow
def test_clusters_are_in_time_and_cost_no_less_than_the_bound() -> None:
    hours = np.arange(0, 75, 5)
    numbers = np.random.default_rng(5).choice([0, 2, 9, 16], len(hours))
    trace = Trace("z", "v100", 1, tuple(3600.0 * hours), tuple(map(int, numbers)), 75 * 3600.0)
    judged = clusters.judge([trace], 60, 12)
    assert len(judged.block) == 2
    assert judged.late["ours"] == 0
    for costs in judged.costs.values():
        assert (costs >= judged.bound).all()


def test_a_cluster_without_any_spot_capacity_is_in_time_and_pays_what_on_demand_costs() -> None:
    """Eight workers are hardly faster than four, which nothing tells before they are measured."""
    judged = clusters.judge([Trace("z", "v100", 1, (0.0,), (0,), 61 * 3600.0)], 60, 12)
    assert judged.late["ours"] == 0
    assert judged.costs["ours"] == pytest.approx(1.0, abs=0.1)


def test_one_governed_worker_is_spot_where_there_is_some_and_on_demand_where_there_is_none() -> None:
    costs, late = clusters.alone(np.array([[True] * 300, [False] * 300]))
    assert late == 0
    assert costs == pytest.approx([1 / 3, 1.0], abs=0.03)
