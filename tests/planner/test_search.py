"""The search: its front, its knee, its limits."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from transient_magics.catalog import PriceList
from transient_magics.client import plan
from transient_magics.errors import DeclarationError, PlanError
from transient_magics.planner.plan import Plan
from transient_magics.planner.search import Search, Sketches, knee, notes, pareto, search, shown
from transient_magics.planner.speeds.workloads import PUBLISHED


@cache  # several tests look at one
def searched(**more: object) -> Search:
    found = plan(**{"workload": "icac19/resnet-32", "train_steps": 64_000, **more})  # type: ignore[arg-type]
    assert isinstance(found, Search)
    return found


@pytest.mark.slow
def test_nothing_that_was_simulated_beats_the_front() -> None:
    found = searched()
    times, bills = [each.hours for each in found.front], [each.dollars for each in found.front]
    assert times == sorted(times)
    assert bills == sorted(bills, reverse=True)
    for each in found.plans:
        assert not any(each.hours < 0.99 * best.hours and each.dollars < 0.99 * best.dollars for best in found.front)
    assert found.best is found.knee
    assert found.considered > 500
    assert not any("k80" in kinds(each) for each in found.plans), "Google sells none"


@pytest.mark.slow
def test_the_line_of_a_plan_plans_the_same_again() -> None:
    best = searched().best
    words = best.line.split()
    again = plan(words[1], workload="icac19/resnet-32", train_steps=64_000, ps=int(words[words.index("--ps") + 1]))
    assert again.hours == pytest.approx(best.hours, rel=0.05)
    assert again.dollars == pytest.approx(best.dollars, rel=0.05)


@pytest.mark.slow
def test_objectives_and_limits() -> None:
    fastest, cheapest = searched(objective="time").best, searched(objective="cost").best
    assert fastest.hours < cheapest.hours
    assert fastest.dollars > cheapest.dollars
    limited = searched(max_hours=1.2 * cheapest.hours, max_cost=1.2 * cheapest.dollars)
    assert all(each.hours <= 1.2 * cheapest.hours for each in limited.front)
    assert all(each.dollars <= 1.2 * cheapest.dollars for each in limited.front)
    with pytest.raises(PlanError, match="the cheapest"):
        searched(max_cost=cheapest.dollars / 2)
    with pytest.raises(DeclarationError, match="needs a SPEC"):
        searched(revocations=2)


def narrowed() -> Search:
    """Return a search with a zone, a number of parameter servers and a model, which takes half as long."""
    return searched(zone=("us-west1-b",), ps=2, provisioning_model="standard")


def test_zones_can_be_chosen() -> None:
    assert {each.choice.home_zone for each in narrowed().plans} == {"us-west1-b"}


def test_what_is_said_is_not_searched() -> None:
    plans = narrowed().plans
    assert {(each.choice.servers, each.choice.provisioning) for each in plans} == {(2, "standard")}
    assert {each.choice.groups[0].count for each in searched(ps=0).plans} == {1}


@pytest.mark.slow
def test_what_is_said_of_one_cluster_among_several_names_it() -> None:
    found = searched(gpus=("k80", "p100"))
    said, rows = notes(found), shown(found)
    bound = [(each, note) for each in rows for note in each.notes if "hold the workers back" in note]
    assert len(bound) > 1
    for each, note in bound:
        assert f"{each.line.split()[1]}: {note}" in said
        assert note not in said
    assert any(note.startswith("The speeds of unequal GPUs") for note in said), "said of several"


def kinds(plan: Plan) -> set[str]:
    return {group.accelerator for group in plan.choice.groups}


def test_two_gpus_are_mixed_where_no_single_one_does_as_well() -> None:
    found = searched(gpus=("k80", "p100"))
    assert {len(kinds(each)) for each in found.plans} == {1, 2}
    assert set().union(*map(kinds, found.plans)) == {"k80", "p100"}
    mixed = [each for each in found.front if len(kinds(each)) == 2]
    pure = [each for each in found.plans if len(kinds(each)) == 1]
    assert mixed
    for each in mixed:
        assert not any(one.hours < 0.99 * each.hours and one.dollars < 0.99 * each.dollars for one in pure)
        assert len({group.zone for group in each.choice.groups}) == 1
        assert any("--batching dynamic" in note for note in each.notes)
    spec, zone = mixed[0].line.split()[1], mixed[0].choice.home_zone
    assert f"--zone {zone}" in mixed[0].line
    again = plan(
        spec, zone=(zone,), workload="icac19/resnet-32", train_steps=64_000, ps=mixed[0].choice.servers,
        provisioning_model=mixed[0].choice.provisioning,
    )  # fmt: skip
    assert again.hours == pytest.approx(mixed[0].hours, rel=0.05)
    with pytest.raises(DeclarationError, match="Unknown GPU 'k81'"):
        searched(gpus=("k81",))


def test_what_is_reckoned_at_once_is_what_each_cluster_would_be_reckoned_at() -> None:
    workload, steps = PUBLISHED["icac19/resnet-32"], 64_000
    every = Sketches(
        workload, dict.fromkeys(range(1, 17), steps), ("k80", "p100"), (), (0, 1, 2), 4, ("spot", "standard")
    )
    numbers = every.near_front(10, 10)
    assert {len(every.choice(number).groups) for number in numbers} == {1, 2}
    for number in numbers:
        choice = every.choice(number)
        hours = steps / choice.steps_per_second(workload) / 3600
        workers = [(group.count, choice.worker_price(workload, group)) for group in choice.groups]
        hourly = sum(count * (price.transient if choice.transient else price.on_demand) for count, price in workers)
        hourly += choice.servers * workload.prices.parameter_server(4, choice.home_zone)
        assert every.hours_and_dollars(number) == pytest.approx((hours, hours * hourly))


def test_the_knee_lies_farthest_from_the_chord() -> None:
    front = searched(gpus=("k80", "p100")).front
    chosen = knee(front)
    assert front.index(chosen) not in (0, len(front) - 1)
    assert pareto(front) == front
    assert knee(front[:1]) is front[0]


def test_what_is_sold_as_spot_only_is_not_planned_on_demand() -> None:
    today = replace(PUBLISHED["icac19/resnet-32"], prices=PriceList(), from_first_step=False)
    steps = dict.fromkeys(range(1, 17), 64_000)
    every = Sketches(today, steps, ("h100", "v100"), ("us-central1-a",), (0, 1), 4, ("spot", "standard"))
    chosen = [every.choice(number) for number in every.near_front(50, 50)]
    rented = {(group.accelerator, choice.provisioning) for choice in chosen for group in choice.groups}
    assert rented == {("h100", "spot"), ("v100", "spot"), ("v100", "standard")}
    with pytest.raises(PlanError):
        search(today, 64_000, gpus=("h100",), zones=("us-central1-a",), models=("standard",))


def test_today_every_living_gpu_is_looked_at() -> None:
    today = replace(PUBLISHED["icac19/resnet-32"], prices=PriceList(), from_first_step=False)
    found = search(today, 64_000, zones=("us-central1-a",))
    gpus = {each.choice.groups[0].accelerator for each in found.plans}
    assert gpus - {"k80", "p100", "v100"}
    assert "h100" not in gpus or found.front[0].hours <= min(each.hours for each in found.plans) * 1.01
