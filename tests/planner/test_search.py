"""The search: its front, its knee, its limits."""

from __future__ import annotations

import pytest

from transient_magics.catalog import PriceList
from transient_magics.client import plan
from transient_magics.errors import DeclarationError, PlanError
from transient_magics.planner.search import Search, knee, pareto


def searched(**more: object) -> Search:
    found = plan(**{"workload": "icac19/resnet-32", "train_steps": 64_000, **more})  # type: ignore[arg-type]
    assert isinstance(found, Search)
    return found


def test_nothing_that_was_simulated_beats_the_front() -> None:
    found = searched()
    times, bills = [each.hours for each in found.front], [each.dollars for each in found.front]
    assert times == sorted(times)
    assert bills == sorted(bills, reverse=True)
    for each in found.plans:
        assert not any(each.hours < 0.99 * best.hours and each.dollars < 0.99 * best.dollars for best in found.front)
    assert found.best is found.knee
    assert found.considered > 500


def test_the_line_of_a_plan_plans_the_same_again() -> None:
    best = searched().best
    words = best.line.split()
    again = plan(words[1], workload="icac19/resnet-32", train_steps=64_000, ps=int(words[words.index("--ps") + 1]))
    assert again.hours == pytest.approx(best.hours, rel=0.05)
    assert again.dollars == pytest.approx(best.dollars, rel=0.05)


def test_objectives_and_limits() -> None:
    fastest, cheapest = searched(objective="time").best, searched(objective="cost").best
    assert fastest.hours < cheapest.hours
    assert fastest.dollars > cheapest.dollars
    limited = searched(max_hours=1.2 * cheapest.hours, max_cost=1.2 * cheapest.dollars)
    assert all(each.hours <= 1.2 * cheapest.hours for each in limited.front)
    assert all(each.dollars <= 1.2 * cheapest.dollars for each in limited.front)
    with pytest.raises(PlanError, match="the cheapest"):
        searched(max_cost=cheapest.dollars / 2)
    with pytest.raises(DeclarationError, match="one cluster"):
        searched(revocations=2)


def test_zones_can_be_chosen() -> None:
    assert {each.choice.home_zone for each in searched(zone=("us-west1-b",)).plans} == {"us-west1-b"}


def test_what_is_said_is_not_searched() -> None:
    found = searched(ps=2, provisioning_model="standard")
    assert {(each.choice.servers, each.choice.provisioning) for each in found.plans} == {(2, "standard")}
    assert {each.choice.groups[0].count for each in searched(ps=0).plans} == {1}


def test_the_knee_lies_farthest_from_the_chord() -> None:
    front = searched().front
    chosen = knee(front)
    assert front.index(chosen) not in (0, len(front) - 1)
    assert pareto(front) == front
    assert knee(front[:1]) is front[0]


def test_today_every_living_gpu_is_looked_at() -> None:
    from dataclasses import replace

    from transient_magics.planner.search import search
    from transient_magics.planner.workloads import PUBLISHED

    today = replace(PUBLISHED["icac19/resnet-32"], prices=PriceList(), from_first_step=False)
    found = search(today, 64_000, zones=("us-central1-a",))
    gpus = {each.choice.groups[0].accelerator for each in found.plans}
    assert gpus - {"k80", "p100", "v100"}
    assert "h100" not in gpus or found.front[0].hours <= min(each.hours for each in found.plans) * 1.01
