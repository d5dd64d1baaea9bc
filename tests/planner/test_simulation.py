"""The simulation against what can be reckoned by hand, and against a plain one that takes one course at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from transient_magics.client import plan
from transient_magics.planner.lifetimes.kaplan_meier import KaplanMeier, continued
from transient_magics.planner.lifetimes.observations import Observations
from transient_magics.planner.lifetimes.parametric import EarlyThenSteady, drawn
from transient_magics.planner.lifetimes.sources import published_lifetimes
from transient_magics.planner.ranges import middle
from transient_magics.planner.simulate import Course, Startup, Workers, rent, simulate
from transient_magics.planner.speeds.throughput import capacity, cluster_speed, worker_speed
from transient_magics.works.studies.plans import hours_until_trained

HOUR = 3600.0


class Exponential:
    """Memoryless lifetimes, for tests only."""

    name = "exponential"

    def __init__(self, hours: float) -> None:
        self.hours = hours

    def survival(self, hours: np.ndarray) -> np.ndarray:
        return np.exp(-np.asarray(hours) / self.hours)

    def quantile(self, share: np.ndarray, age: Any = 0.0) -> np.ndarray:
        return np.asarray(age) - self.hours * np.log(share)


def course(count: int = 4, *, steps: float = 14_400, **more: Any) -> Course:
    """Workers of one step a second for a dollar an hour (three on demand): four of them take an hour."""
    group = Workers(count, 1.0, hourly=1.0, on_demand_hourly=3.0, **more.pop("workers", {}))
    return Course((group,), steps, server_hourly=0.5, **more)


def test_without_chance_time_and_bill_are_exact() -> None:
    outcome = simulate(course(from_first_step=True), runs=5)
    assert outcome.hours == pytest.approx(1.0)
    assert outcome.dollars == pytest.approx(4 * 1.0 + 0.5)
    assert (outcome.revocations == 0).all()


def test_start_up_is_waited_for_and_billed_from_running_on() -> None:
    slow = course(workers={"startup": Startup(600, 240), "join_seconds": 60}, server_startup=Startup(300, 0))
    outcome = simulate(slow, runs=1)
    assert outcome.hours[0] == pytest.approx(1 + 900 / HOUR)
    assert outcome.dollars[0] == pytest.approx(4 * (1 + 300 / HOUR) + 0.5 * (1 + 600 / HOUR))


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_lost_workers_are_missed_from_their_moment_on(lost: int) -> None:
    """One of n lost at a moment u of the run, evenly: n - 1 make the rest, which adds 1 / 2(n - 1) in the mean."""
    outcome = simulate(course(from_first_step=True, replace=False), runs=20_000, revocations=lost)
    assert (outcome.revocations == lost).all()
    assert outcome.finished == 1
    if lost == 1:
        assert outcome.hours.mean() == pytest.approx(1 + 1 / 6, abs=0.005)
        # The three do all that the fourth leaves undone: as many hours of workers are paid, and the server's are more.
        assert outcome.dollars == pytest.approx(4.0 + 0.5 * outcome.hours)
    assert outcome.hours.min() >= 1


def test_a_run_that_loses_all_its_workers_never_ends() -> None:
    outcome = simulate(course(from_first_step=True, replace=False), runs=50, revocations=4)
    assert np.isinf(outcome.hours).all()
    assert outcome.finished == 0


def plainly(one: Course, random: np.random.Generator) -> tuple[float, float]:
    """The same course, second by second of events, for one run."""
    group = one.groups[0]
    boot = group.startup.running + group.startup.usable + group.join_seconds
    vms = []
    for _ in range(group.count):
        requested = 0.0
        while requested < 2e5:
            running = requested + group.startup.running
            end = running + float(drawn(group.lifetimes, random, 1)[0]) * HOUR if group.lifetimes else np.inf
            vms.append((running, requested + boot, end))
            requested = end
    moments = sorted({moment for vm in vms for moment in vm if moment < 2e5})
    done, now = 0.0, 0.0
    for moment in moments:
        speed = sum(ready <= now < end for _, ready, end in vms)
        if done + speed * (moment - now) >= one.steps:
            break
        done, now = done + speed * (moment - now), moment
    finish = now + (one.steps - done) / sum(ready <= now < end for _, ready, end in vms)
    paid = sum(max(0.0, min(end, finish) - running) for running, _, end in vms)
    return finish / HOUR, (paid * group.hourly + finish * one.server_hourly) / HOUR


@pytest.mark.slow
def test_it_agrees_with_a_plain_simulation() -> None:
    risky = course(steps=4 * 14_400, workers={"lifetimes": Exponential(1.0), "startup": Startup(120, 60)})
    outcome = simulate(risky, runs=4000)
    random = np.random.default_rng(1)
    hours, dollars = np.array([plainly(risky, random) for _ in range(400)]).T
    assert outcome.hours.mean() == pytest.approx(hours.mean(), rel=0.01)
    assert outcome.dollars.mean() == pytest.approx(dollars.mean(), rel=0.015)
    assert outcome.hours.std() == pytest.approx(hours.std(), rel=0.2)
    assert outcome.revocations.mean() == pytest.approx(4 * outcome.hours.mean(), rel=0.05)


@examples(30)
@given(st.integers(1, 12), st.floats(0.3, 50), st.floats(0.0, 0.2), st.integers(0, 9))
def test_more_risk_never_makes_a_run_faster(count: int, hours: float, service: float, seed: int) -> None:
    calm = course(count, service_seconds=service)
    risky = replace(calm, groups=(replace(calm.groups[0], lifetimes=Exponential(hours)),))
    assert simulate(risky, 20, seed).hours.mean() >= simulate(calm, 20, seed).hours.mean() - 1e-9


def test_in_the_middle_of_a_run_only_what_is_left_counts() -> None:
    wall = published_lifetimes("k80", "us-east1")  # nearly half died within the first hour, none later
    young = course(workers={"lifetimes": wall, "ages": (0.01,) * 4, "ready_in": (0.0,) * 4})
    old = course(workers={"lifetimes": wall, "ages": (2.0,) * 4, "ready_in": (0.0,) * 4}, spent=7.0)
    assert simulate(young, 2000).revocations.mean() > 1.5
    calm = simulate(old, 200)
    assert (calm.revocations == 0).all()
    assert calm.hours == pytest.approx(1.0)
    assert calm.dollars == pytest.approx(7.0 + 4.5)


def test_emulated_time_passes_faster_for_vms_than_for_work() -> None:
    slow = course(workers={"lifetimes": Exponential(10.0)}, from_first_step=True)
    fast = replace(slow, rate=60.0)
    assert simulate(fast, 2000).revocations.mean() > 30 * simulate(slow, 2000).revocations.mean()
    assert simulate(replace(course(from_first_step=True), rate=60.0), 1).dollars[0] == pytest.approx(60 * 4.5)


def test_sampled_lifetimes_are_those_of_the_table() -> None:
    model, random = published_lifetimes("k80", "us-west1"), np.random.default_rng(0)
    hours = np.array([1.0, 3.0, 12.0, 24.0, 48.0])
    for age in (0.0, 2.5, 30.0):
        lived = drawn(model, random, 40_000, age)
        assert (lived > age).all()
        alive = np.minimum(model.survival(hours) / model.survival(np.array(age)), 1.0)
        assert (lived[:, np.newaxis] > np.maximum(hours, age)).mean(axis=0) == pytest.approx(alive, abs=0.01)
    assert model.survival(np.array([0.0, 3.0])) == pytest.approx([1.0, 1 - 7 / 48])


def test_places_that_are_filled_again_are_mostly_in_use() -> None:
    revoked, up = rent(Exponential(10.0), Startup(1800, 1800), 500, 30)
    assert revoked == pytest.approx(500 * 720 / 10.5, rel=0.03)  # half an hour of each life is yet to be booted
    assert up == pytest.approx(9.5 / 10.5, abs=0.01)


def test_speeds_add_up_until_the_servers_are_busy() -> None:
    limit = capacity(0.02, 1)
    assert limit == pytest.approx(50)
    assert cluster_speed([1.0, 10.0], limit) == pytest.approx([1.0, 10.0], rel=1e-3)
    assert cluster_speed(1000.0, limit) == pytest.approx(50, rel=1e-3)
    assert worker_speed(0.18, 0.02, 1) == pytest.approx(5)
    assert worker_speed(0.18, 0.02, 2) > 5
    assert cluster_speed(100.0, capacity(0.0, 1)) == 100


def test_steps_that_are_taken_together_take_as_long_as_the_slowest() -> None:
    quick, slow = (Workers(count, seconds, hourly=1.0, on_demand_hourly=3.0) for count, seconds in ((3, 1.0), (1, 2.0)))
    mixed = Course((quick, slow), 3600, server_hourly=0.5, from_first_step=True, synchronous=True)
    assert simulate(mixed, 1).hours == pytest.approx(2.0)
    assert simulate(replace(mixed, groups=(quick,)), 1).hours == pytest.approx(1.0)
    assert simulate(replace(mixed, backup_workers=1), 1).hours == pytest.approx(1.0)
    assert simulate(replace(mixed, backup_workers=9), 1).hours == pytest.approx(1.0)  # the first one's is enough
    busy = simulate(replace(mixed, service_seconds=0.1), 1)  # served one after the other
    assert busy.hours == pytest.approx(2.0 + 4 * 0.1)
    moved = replace(mixed, groups=(replace(quick, transfer_dollars=0.01),))
    assert simulate(moved, 1).dollars == pytest.approx(3 * 1.0 + 0.5 + 3600 * 3 * 0.01)


def test_a_synchronous_run_loses_no_time_with_a_worker_but_with_the_last() -> None:
    together = course(from_first_step=True, replace=False, synchronous=True)
    assert simulate(together, 100, revocations=3).hours == pytest.approx(4.0)
    assert simulate(together, 50, revocations=4).finished == 0
    risky = course(2, steps=14_400, workers={"lifetimes": Exponential(1.0), "startup": Startup(120, 60)},
                   synchronous=True)  # fmt: skip
    hours = simulate(risky, 2000).hours
    assert hours.min() == pytest.approx(4.0 + 180 / HOUR)
    both_away = (180 / (HOUR + 180)) ** 2
    assert hours.mean() == pytest.approx((4.0 + 180 / HOUR) / (1 - both_away), abs=0.004)


def test_waves_take_several_and_leave_each_lifetime_what_it_is() -> None:
    """Of two VMs of which one is revoked the other goes at that moment in 6 % of the cases: a quarter squared."""
    risky = course(2, steps=1e5, from_first_step=True, replace=False, workers={"lifetimes": Exponential(100.0)})
    alone, together = simulate(risky, 20_000), simulate(replace(risky, waves=0.25), 20_000)
    assert together.revocations.mean() == pytest.approx(alone.revocations.mean(), rel=0.03)
    assert (together.revocations == 2).mean() > 1.1 * (alone.revocations == 2).mean()
    sure = simulate(replace(risky, waves=1.0), 2000)
    assert set(np.unique(sure.revocations)) == {0.0, 2.0}


def test_a_young_vm_in_a_wave_with_an_old_one_keeps_its_own_risk() -> None:
    """Of 30 % that go early: most of those of three minutes are still to go, those of ten hours are gone long since."""
    early = EarlyThenSteady(0.3, 1.0, 0.005)
    left = {"lifetimes": early, "ages": (0.05, 10.0), "ready_in": (0.0, 0.0)}
    risky = course(2, steps=2 * 2 * HOUR, replace=False, workers=left, spent=1.0)
    gone = [float(1 - early.survival(np.array(age + 2)) / early.survival(np.array(age))) for age in (0.05, 10.0)]
    for waves in (0.0, 1.0):
        soon = simulate(replace(risky, waves=waves), 20_000)  # two hours, or a little more where one is lost
        assert soon.revocations.mean() == pytest.approx(sum(gone), rel=0.1)


def spread_of(one: Course) -> float:
    """The standard deviation of the logarithm of the hours."""
    return float(np.log(simulate(one, 10_000).hours).std())


def test_an_error_of_the_work_is_one_for_all_workers_and_their_servers() -> None:
    """However many groups there are, and also where the servers are what limits the speed."""
    calm = course(from_first_step=True, work_error=0.2)
    busy = replace(calm, service_seconds=10.0)  # a tenth of a step per second
    many = replace(calm, groups=tuple(replace(calm.groups[0], count=1) for _ in range(4)))
    for one in (calm, busy, many):
        assert spread_of(one) == pytest.approx(0.2, rel=0.05)


def test_a_gpu_in_two_zones_is_off_by_one_error_and_two_gpus_by_two() -> None:
    calm = course(2, from_first_step=True, workers={"accelerator": "k80", "error": 0.2})
    alike = replace(calm, groups=(calm.groups[0], calm.groups[0]))
    unlike = replace(calm, groups=(calm.groups[0], replace(calm.groups[0], accelerator="p100")))
    assert spread_of(alike) == pytest.approx(0.2, rel=0.05)
    assert spread_of(unlike) == pytest.approx(0.2 / 2**0.5, rel=0.07)


def test_courses_that_lose_all_are_begun_again_in_time_and_bill() -> None:
    """One worker, alive for an hour with a chance of 1/e: e attempts, of which all but the last end before an hour."""
    hopeless = course(1, steps=HOUR, from_first_step=True, replace=False, workers={"lifetimes": Exponential(1.0)})
    once = simulate(hopeless, 20_000)
    assert once.finished == pytest.approx(np.exp(-1), abs=0.01)
    done = once.until_done()
    assert done.finished == 1
    # The attempts fail after 1 - 1 / (e - 1) hours in the mean, and there are e - 1 of them.
    assert done.hours.mean() == pytest.approx(1 + (np.e - 1) * (1 - 1 / (np.e - 1)), rel=0.03)
    assert done.dollars.mean() == pytest.approx(1.5 * done.hours.mean(), rel=0.01)
    assert simulate(course(), 3).until_done().hours == pytest.approx(simulate(course(), 3).hours)


def test_a_vm_costs_a_minute_at_least_and_nothing_where_it_is_taken_in_its_first() -> None:
    brief = course(1, steps=30, workers={"startup": Startup(100, 0)}, server_startup=Startup(100, 0))
    assert simulate(brief, 1).dollars[0] == pytest.approx((60 * 1.0 + 30 * 0.5) / HOUR)
    doomed = course(1, steps=HOUR, replace=False, workers={"lifetimes": Exponential(0.001), "startup": Startup(100, 0)})
    gone = simulate(replace(doomed, server_hourly=0.0), 2000)
    assert gone.finished == 0
    assert (gone.dollars == 0).mean() == pytest.approx(1 - np.exp(-60 / 3.6), abs=0.01)


def test_intervals_know_how_few_vms_lifetimes_were_learned_from() -> None:
    """Of 12 h of four workers that are not replaced: with lifetimes from 30 VMs nine of ten of the true courses lie in
    the interval, and the share that comes to its end is told with a band."""
    random, law = np.random.default_rng(6), EarlyThenSteady(0.3, 1.0, 0.02)

    def risky(model: Any) -> Course:
        return course(steps=12 * 14_400, from_first_step=True, replace=False, workers={"lifetimes": model})

    came = simulate(risky(law), 10_000)
    held, within, widths = [], [], []
    for seed in range(24):
        lived = law.quantile(1 - random.random(30))
        observed = Observations.of(np.minimum(lived, 48.0), lived <= 48)
        outcome = simulate(risky(continued(KaplanMeier(observed), 48.0)), 2000, seed)
        low, high = np.quantile(outcome.until_done().hours, [0.05, 0.95])
        held.append(((low <= came.until_done().hours) & (came.until_done().hours <= high)).mean())
        least, most = outcome.finished_between()
        within.append(least <= came.finished <= most)
        widths.append(most - least)
    assert 0.85 <= np.mean(held) <= 0.97
    assert np.mean(within) >= 0.7
    least, most = came.finished_between()
    assert most - least < np.mean(widths) / 2, "a law is known"


def test_what_none_of_few_vms_did_may_still_happen() -> None:
    """None of thirty was revoked in a day: of twelve hours some courses are lost, and how many is told with a band."""
    calm, many = (continued(KaplanMeier(Observations.of([24.0] * vms, [False] * vms)), 24.0) for vms in (30, 30_000))
    risky, sure = (
        simulate(course(1, steps=12 * HOUR, replace=False, workers={"lifetimes": model}), 10_000)
        for model in (calm, many)
    )
    assert 0.98 < risky.finished < 1
    least, most = risky.finished_between()
    assert 0.9 < least < 0.99 < 0.9999 < most
    assert sure.finished == pytest.approx(1, abs=2e-4)


def test_none_of_many_courses_lost_does_not_say_that_none_can_be() -> None:
    least, most = simulate(course(4), 1000).finished_between()
    assert 0.997 < least < 0.999
    assert most == pytest.approx(1.0, abs=1e-5)


def test_a_plan_says_where_few_old_vms_tell_of_its_risk() -> None:
    more = {"workload": "icac19/resnet-32", "zone": ("us-central1-a",)}
    long, short = (plan("v100x2", train_steps=steps, **more) for steps in (12_000_000, 64_000))
    said = "Beyond 24 h the risk of the V100 in us-central1 rests on 0 revocations, and on its other regions."
    assert said in long.notes
    assert said not in short.notes


def test_the_middle_leaves_out_at_one_end_what_it_cannot_at_the_other() -> None:
    """Of a run that is not revoked in every fifth course no hours lie below the undisturbed ones."""
    hours = np.append(np.full(20, 5.0), 5 + np.arange(1, 81) / 10)
    assert middle(hours) == pytest.approx((5.0, np.quantile(hours, 0.9)))
    assert middle(-hours) == pytest.approx((-np.quantile(hours, 0.9), -5.0))
    even = np.arange(1001)
    assert middle(even) == pytest.approx((50, 950), abs=0.1)
    assert middle(even, 0.5) == pytest.approx((250, 750), abs=0.5)
    assert middle([3.0, 3.0]) == (3.0, 3.0)


def test_runs_of_a_study_differ_each_by_itself_and_the_slowest_place_decides() -> None:
    run = Course((Workers(2, 1.0, 1.0, 3.0),), 2 * HOUR, from_first_step=True, work_error=0.1)

    def off(course: Course, runs: int, at_once: int) -> float:
        low, high = middle(hours_until_trained(course, runs, at_once))
        return (high - low) * at_once / runs

    by_vms = 1 / 3  # of the variance: of two VMs that differ as far as runs
    shared = (by_vms + (1 - by_vms) / 16) ** 0.5
    assert off(run, 16, 1) == pytest.approx(shared * off(run, 1, 1), rel=0.05), "the VMs stay, the runs do not"
    unknown = replace(run, work_error=0.0, groups=(Workers(2, 1.0, 1.0, 3.0, error=0.1),))
    assert off(unknown, 16, 1) == pytest.approx(off(unknown, 1, 1)), "what is not known of the GPU is the same for all"
    hours = {
        (runs, at_once): hours_until_trained(run, runs, at_once).mean() for runs, at_once in ((1, 1), (8, 8), (9, 8))
    }
    assert 1.05 < hours[8, 8] / hours[1, 1] < 1.2
    assert hours[9, 8] == pytest.approx(2 * hours[1, 1], rel=0.01), "one place trains two, the others wait"
