"""Which job goes to which VM: expectations against simulated lives, the rule, and what it saves in whole bags."""

from __future__ import annotations

import json
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transient_magics.errors import PlanError
from transient_magics.planner.checkpoints import Planner
from transient_magics.planner.lifetimes.kaplan_meier import Capped
from transient_magics.planner.lifetimes.parametric import Bathtub, EarlyThenSteady, LifetimeModel, Weibull, drawn
from transient_magics.planner.lifetimes.sources import published_lifetimes
from transient_magics.works.bags.policy.placement import (
    Expectations,
    Free,
    Kind,
    Survival,
    Waiting,
    cheapest,
    place,
    takes,
)
from transient_magics.works.bags.policy.simulate import Bag, on_demand, simulate

BATHTUB = Bathtub(0.4137, 24.0, 0.9, 0.76)
WEATHER = Capped(published_lifetimes("cpu", "us-east1"), 24.0)
MODELS = {"bathtub": BATHTUB, "weather": WEATHER, "steady": Weibull(5.0), "early": EarlyThenSteady(0.25, 1.0, 0.02)}
RESTART = 0.05
EXPECTED = {name: Expectations(model, 3.0, restart=RESTART) for name, model in MODELS.items()}


def simulated(model: LifetimeModel, work: float, age: float, runs: int = 40_000) -> float:
    """Hours until the work is done, by lives that are drawn, begun anew after each loss."""
    random = np.random.default_rng(3)
    hours, left = np.zeros(runs), np.arange(runs)
    since = age
    while len(left):
        lived = drawn(model, random, len(left), since) - since
        done = lived > work
        hours[left] += np.where(done, work, lived + RESTART)
        left, since = left[~done], 0.0
    return float(hours.mean())


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("work", "age"), [(1.0, 0.0), (2.0, 5.0), (3.0, 22.0)])
def test_expectations_are_those_of_simulated_lives(name: str, work: float, age: float) -> None:
    assert EXPECTED[name].hours(work, age) == pytest.approx(simulated(MODELS[name], work, age), rel=0.015)


def test_a_job_that_can_be_saved_is_expected_as_its_checkpoint_plan_says() -> None:
    expected = Expectations(BATHTUB, 3.0, restart=RESTART, save=0.01)
    planner = Planner(BATHTUB, 3.0, 0.01, RESTART, piece=3.0 / 60)
    for work, age in ((3.0, 0.0), (1.5, 8.0), (2.0, 21.0)):
        assert expected.hours(work, age) == pytest.approx(planner.plan(age, work).hours, rel=1e-3)
    assert len(expected.saves(3.0, 20.0)) > len(expected.saves(3.0, 8.0)), "near the wall it is saved more often"
    assert all(0 < each < 1.0 for each in expected.saves(1.0, 0.0)), "after a loss only what is left is planned"
    assert Expectations(BATHTUB, 3.0).saves(3.0, 0.0) == ()


@given(st.floats(0.1, 3), st.floats(0, 23.9), st.sampled_from(sorted(MODELS)))
def test_no_job_is_done_sooner_than_its_work_takes(work: float, age: float, name: str) -> None:
    assert EXPECTED[name].hours(work, age) >= min(work, RESTART) - 1e-9
    assert EXPECTED[name].hours(work, 0.0) >= work - 1e-9
    assert 0 <= EXPECTED[name].risk(work, age) <= 1


def test_the_rule_trusts_the_middle_of_a_vms_life_and_not_its_end() -> None:
    expected = EXPECTED["bathtub"]
    assert [takes(expected, 2.0, age) for age in (0.0, 4.0, 12.0, 22.5, 23.5)] == [True, True, True, False, False]
    assert takes(expected, 0.2, 22.0), "a short job still fits"
    assert takes(EXPECTED["early"], 3.0, 150.0), "no contract ends Spot VMs"
    assert takes(EXPECTED["steady"], 3.0, 9.0, boot=0.01), "without memory a fresh one is no better"


@given(
    st.lists(st.floats(0.1, 3), max_size=8),
    st.lists(st.tuples(st.floats(0, 25), st.floats(0, 2)), max_size=8),
    st.sampled_from(["reuse", "memoryless"]),
)
def test_a_placement_gives_no_job_and_no_vm_twice_and_wastes_none(
    works: list[float], vms: list[tuple[float, float]], policy: Literal["reuse", "memoryless"]
) -> None:
    waiting = [Waiting(number, work) for number, work in enumerate(works)]
    free = [Free(f"vm-{number}", age, idle) for number, (age, idle) in enumerate(vms)]
    expected = EXPECTED["bathtub"]
    found = place(waiting, free, expected, policy, boot=0.03)
    used = [vm for _, vm in found.pairs]
    assert len(set(used)) == len(used)
    assert len({job for job, _ in found.pairs}) == len(found.pairs)
    gone = {*found.renew, *found.drop}
    assert not gone & set(used)
    assert len(found.renew) <= len(waiting) - len(found.pairs), "no more are renewed than jobs wait"
    if policy == "memoryless":
        assert len(found.pairs) == min(len(waiting), len(free))
        return
    ages = {vm.vm: vm.age for vm in free}
    assert all(takes(expected, works[job], ages[vm], 0.03) for job, vm in found.pairs)
    if not waiting:
        kept = [vm for vm in free if vm.vm not in gone]
        assert all(vm.idle < 1 and takes(expected, 3.0, vm.age, 0.03) for vm in kept)


def test_short_jobs_go_to_young_vms() -> None:
    found = place(
        [Waiting(0, 3.0), Waiting(1, 0.5)], [Free("old", 8.0), Free("young", 0.1)], EXPECTED["bathtub"], "reuse"
    )
    assert dict(found.pairs) == {0: "old", 1: "young"}


def test_the_type_is_the_one_whose_jobs_cost_least_revocations_counted() -> None:
    safe, risky = Expectations(Weibull(500.0), 4.0), Expectations(Weibull(2.0), 4.0)
    assert cheapest([Kind("safe", 8, 0.1, safe, 4.0), Kind("risky", 8, 0.07, risky, 4.0)]).name == "safe"
    assert cheapest([Kind("safe", 8, 0.1, safe, 0.2), Kind("risky", 8, 0.07, risky, 0.2)]).name == "risky"


@pytest.mark.parametrize("name", MODELS)
def test_a_table_of_numbers_lives_as_the_model_does(name: str) -> None:
    model = MODELS[name]
    table = Survival.from_dict(json.loads(json.dumps(Survival.of(model).to_dict())))
    hours = np.array([0.0, 0.25, 1.0, 6.0, 12.3, 20.0, 23.95, 25.0, 40.0, 100.0])
    assert table.survival(hours) == pytest.approx(model.survival(hours), abs=0.02)
    shares = np.array([0.99, 0.7, 0.5, 0.2])
    found, wanted = table.quantile(shares, 2.0), shares * model.survival(np.array(2.0))
    assert (model.survival(found - 0.15) >= wanted - 0.02).all()
    assert (model.survival(found + 0.15) <= wanted + 0.02).all()
    for wrong in ({"ages": [0, 1], "shares": [1]}, {"ages": [0, 1], "shares": [0.5, 1]}, {"ages": [1], "shares": [1]}):
        with pytest.raises(ValueError, match=r"."):
            Survival.from_dict(wrong)


def test_reuse_halves_the_failed_jobs_of_a_long_bag_and_changes_little_in_a_short_one() -> None:
    long = Bag(jobs=120, shortest=1, longest=3, vms=4, hourly=0.06, model=WEATHER)
    reuse, memoryless = (simulate(long, policy, courses=8, uncertain=False) for policy in ("reuse", "memoryless"))
    assert reuse.failed.sum() < memoryless.failed.sum() / 2
    short = Bag(jobs=40, shortest=1, longest=3, vms=8, hourly=0.06, model=WEATHER)
    one, other = (simulate(short, policy, courses=4, uncertain=False) for policy in ("reuse", "memoryless"))
    assert one.failed.sum() == pytest.approx(other.failed.sum(), abs=4), "no VM gets near its end"


def test_what_a_course_adds_up_to() -> None:
    bag = Bag(jobs=30, shortest=1, longest=2, vms=4, hourly=0.1, model=WEATHER, server_hourly=0.05, save=0.01)
    found = simulate(bag, "reuse", courses=5, uncertain=False)
    assert found.dollars == pytest.approx(found.rented * 0.1 + found.hours * 0.05)
    assert (found.rented <= found.hours * 4 + 1e-6).all()
    assert (found.rented >= found.computed + found.lost).all()
    assert (found.started >= 4).all()
    assert simulate(bag, "reuse", courses=5, uncertain=False).dollars.tolist() == found.dollars.tolist()
    safe = simulate(on_demand(bag, 0.4), "reuse", courses=5, uncertain=False)
    assert not safe.failed.any()
    noticed = simulate(
        Bag(30, 1, 2, 4, 0.1, BATHTUB, save=0.002, notice=True), "memoryless", courses=5, uncertain=False
    )
    assert noticed.failed.any()
    assert not noticed.lost.any(), "what is saved at the notice is not computed again"


@pytest.mark.slow
def test_a_bag_that_never_ends_is_said_to_be_one() -> None:
    with pytest.raises(PlanError, match="does not finish in any simulation"):
        simulate(Bag(10, 3, 3, 2, 0.1, Weibull(0.1)), "memoryless", courses=1, uncertain=False)
    with pytest.raises(PlanError, match="needs at least one job"):
        simulate(Bag(0, 1, 1, 2, 0.1, BATHTUB), "reuse")
