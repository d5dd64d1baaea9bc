"""Runs that have to be done in time, as pure decisions: never late under the conditions, cheap, calm, and replayed."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from statistics import stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.controller.test_core import START, Story
from tests.deadlines.deadline_world import HOURLY, KEPT, ON_DEMAND_HOURLY, spells, world
from tests.examples import examples
from transient_magics.controller.decisions.core import RequestVm
from transient_magics.deadlines.decisions import Verdict, decide
from transient_magics.deadlines.simulation import Simulation, band, end
from transient_magics.deadlines.situation import ON_DEMAND, SPOT, Kind, Market, Situation, zones_for
from transient_magics.deadlines.speeds import Speeds
from transient_magics.journal import Event, RunState, events, replay
from transient_magics.journal.deadlines import Block, DeadlineState
from transient_magics.protocol.vm_events import TrainFinished, TrainProgress, TrainStarted, WorkerJoined, WorkerLeft
from transient_magics.spec import PriceLine, RunSpec, WorkerGroup
from transient_magics.works.runs.deadline_situation import seen


@pytest.mark.slow
@examples(20)
@given(
    st.lists(st.floats(60, 4000), min_size=1, max_size=20), st.floats(1.05, 2.5), st.sampled_from([0.0, 0.1, 0.5]),
    st.sampled_from([1, 2, 4]), st.sampled_from([1, 2]), st.sampled_from([60.0, 300.0, 900.0]), st.integers(0, 1000),
)  # fmt: skip
def test_no_trace_of_capacity_makes_it_late(
    lengths: list[float], slack: float, shared: float, declared: int, room: int, save_every: float, seed: int
) -> None:
    """It begins with capacity for long enough to measure its speed: 20 minutes. The conditions hold from there on."""
    most = room * declared
    made = world(spells(1200.0, *lengths), 0.0, 1, 2.0, shared, declared, most=most, save_every=save_every, seed=seed)
    made.work = int(5000 * made.speed({"cpu": declared}))
    bound = made.work / (0.8 * made.speed({"cpu": declared}))  # what its lower bound is at the beginning, at worst
    made.deadline = 1200 + made.begin + slack * bound
    assert made.run().now <= made.deadline


def test_with_capacity_all_along_nothing_is_ever_rented_on_demand() -> None:
    made = world(spells(1e9), 20_000.0, 20_000).run()
    assert made.most_on_demand == 0
    assert made.now < made.deadline


@pytest.mark.slow
def test_on_demand_comes_late_and_says_why() -> None:
    """Two workers make four steps a second; nothing is there after an hour, and half of the work is left."""
    made = world(spells(3600.0), 4 * 3600.0, 28_800, save_every=60.0).run()
    first = next(verdict for _, verdict in made.acts if any(terms == ON_DEMAND for _, terms in verdict.workers))
    at = next(at for at, verdict in made.acts if verdict is first)
    assert at > 1.4 * 3600, "as long as it can, it waits for Spot"
    assert made.now <= made.deadline
    assert "on demand from now on" in first.reason
    assert "steps after the last checkpoint" in first.reason


def test_capacity_that_comes_back_ends_what_is_on_demand() -> None:
    made = world(spells(3600.0, 5400.0, 1e9), 4 * 3600.0, 60_000, save_every=60.0).run()
    assert made.most_on_demand
    assert not any(terms == ON_DEMAND for _, terms in made.acts[-1][1].workers)
    assert "no on-demand workers" in "".join(verdict.reason for _, verdict in made.acts)
    assert made.now <= made.deadline


def test_it_waits_where_a_market_is_slow_and_pays_less_than_on_demand_alone() -> None:
    lengths = [4000.0, 2000.0] * 10
    made = world(spells(*lengths), 6 * 3600.0, 40_000, save_every=120.0).run()
    alone = 40_000 / made.speed({"cpu": 2}) / 3600 * (2 * ON_DEMAND_HOURLY + KEPT)
    assert made.now <= made.deadline
    assert made.cost < 0.6 * alone


@pytest.mark.slow
def test_money_wins_over_time_and_that_is_told() -> None:
    made = world(spells(3600.0), 2.5 * 3600.0, 30_000, save_every=60.0, money=6.0).run()
    assert made.most_on_demand == 0
    assert made.reported_late, "what Spot alone cannot do in time is late"


def test_a_deadline_that_nothing_meets_is_told_as_soon_as_the_speed_is_known() -> None:
    made = world(spells(1e9), 3600.0, 60_000).run()
    assert made.reported_late < 600
    assert made.now > made.deadline


def test_without_capacity_from_the_beginning_one_on_demand_tells_the_speed() -> None:
    made = world(spells(0.0, 1e9), 4 * 3600.0, 20_000, save_every=60.0).run()
    assert made.acts[0][1].workers["cpu", ON_DEMAND] == 1
    assert made.acts[0][1].reason.startswith("1 CPU on demand from now on: there is no Spot capacity")
    assert made.now <= made.deadline


def crowded(*lengths: float) -> tuple[Simulation, list[Situation]]:
    """One worker of at most one, with eight hours for six hours' work, through these spells; and what was seen."""
    sights = list[Situation]()

    def told(seen: Situation) -> Verdict:
        sights.append(seen)
        return decide(seen)

    made = world(spells(*lengths), 8 * 3600.0, 43_200, declared=1, most=1, save_every=60.0, decide=told).run()
    assert made.now <= made.deadline
    return made, sights


@pytest.mark.slow
def test_without_room_for_both_no_second_is_lost_when_spot_takes_over_from_on_demand() -> None:
    """Capacity goes for half an hour, again and again."""
    made, sights = crowded(3600.0, *[1800.0, 3600.0] * 9)
    first = next(index for index, each in enumerate(sights) if each.working.get(("cpu", ON_DEMAND)))
    changes = [(before, after) for before, after in pairwise(sights[first:])
               if before.working.get(("cpu", ON_DEMAND)) and not after.workers.get(("cpu", ON_DEMAND))]  # fmt: skip
    assert changes, "it comes back to Spot"
    assert all(after.working.get(("cpu", SPOT)) for _, after in changes)
    assert all(sum(each.workers.values()) <= 2 for each in sights), "one more than --max-workers, as long as it starts"
    assert all(count <= 1 for each in sights for count in each.workers.values())
    said = " ".join(verdict.reason for _, verdict in made.acts)
    assert "of slack are kept for later shortages" in said


@pytest.mark.slow
def test_many_short_spells_without_capacity_are_waited_for_a_while_and_a_long_one_is_not() -> None:
    made, _ = crowded(3600.0, *[120.0, 1800.0] * 8, 1e5)
    taken = [at for at, verdict in made.acts if ("cpu", ON_DEMAND) in verdict.workers]
    assert taken[0] > 3600 + 8 * 1920 - 1800, "two minutes are waited for"
    assert taken[0] < 3600 + 8 * 1920 + 3600, "slack for later ones is kept"


def test_acts_are_few() -> None:
    made = world(spells(*[3000.0, 1500.0] * 12), 8 * 3600.0, 60_000, save_every=120.0).run()
    assert len(made.acts) < 16


# The parts


def speeds_of(**steps_per_second: float) -> Speeds:
    """Speeds of workers that were measured for ten minutes each, as `cpux2=4.0`."""
    return Speeds([Block(600.0, 600.0, 600 * speed, name) for name, speed in steps_per_second.items()], 0.95)


def sight(**changes: object) -> Situation:
    base = Situation(
        0.0, 20_000.0, 20_000, 0, speeds_of(cpux2=4.0), Market(True),
        (Kind("cpu", HOURLY / 3600, ON_DEMAND_HOURLY / 3600),), {("cpu", SPOT): 2}, {("cpu", SPOT): 2}, 200.0, 200.0,
        150.0, 3 * 3600.0, KEPT / 3600, 4, float("inf"),
    )  # fmt: skip
    return replace(base, **changes)  # type: ignore[arg-type]


@given(
    st.floats(100, 60_000), st.integers(0, 40_000), st.floats(0, 1), st.booleans(), st.floats(0, 10_000),
    st.integers(1, 4), st.floats(10, 1000), st.sampled_from([1, 2, 4]), st.booleans(),
)  # fmt: skip
def test_what_was_decided_is_decided_again(
    left: float, steps: int, unsaved: float, open_: bool, age: float, spots: int, begin: float, most: int, works: bool
) -> None:
    asked = {("cpu", SPOT): min(spots, most)}
    first = sight(deadline=left, steps=steps, unsaved=int(unsaved * steps), market=Market(open_, age=age), begin=begin,
                  begun=begin, workers=asked, working=asked if works else {}, most=most)  # fmt: skip
    then = decide(first)
    again = decide(replace(first, workers=then.workers))
    assert again.workers == then.workers
    assert not again.reason


@given(st.floats(1.0, 1e5), st.floats(0, 1), st.booleans())
def test_a_share_that_is_harder_to_have_is_likelier_lacking(seconds: float, share: float, open_: bool) -> None:
    market = Market(open_)
    assert 0 <= market.lacking(share, seconds) <= market.lacking(min(1.0, share + 0.1), seconds) + 1e-9
    assert Market(True).share(seconds)[0] >= Market(False).share(seconds)[0]


@given(st.floats(0.2, 5.0), st.floats(0.0, 0.5), st.sampled_from([1, 2, 3]), st.integers(1, 12))
def test_the_lower_bound_holds_for_every_concave_speed(alone: float, shared: float, measured: int, asked: int) -> None:
    def speed(workers: int) -> float:
        return workers * alone / (1 + shared * (workers - 1))

    speeds = speeds_of(**{f"cpux{measured}": speed(measured)})
    assert speeds.least({"cpu": asked}) <= speed(asked) + 1e-9
    assert speeds.mean({"cpu": measured}) == pytest.approx(speed(measured))


def test_two_sizes_tell_how_much_a_parameter_server_holds_up() -> None:
    speeds = speeds_of(cpux1=1.0, cpux2=4 / 3)
    assert speeds.mean({"cpu": 4}) == pytest.approx(1.6, rel=1e-3), "half of a step is the server's"
    assert speeds.least({"t4": 2}) == 0.0, "nothing is known of a GPU that never trained"


def test_a_step_that_is_worth_less_than_it_costs_gets_no_worker() -> None:
    flat = speeds_of(cpux1=1.0, cpux2=1.05)
    verdict = decide(sight(speeds=flat, steps=5000, kinds=(Kind("cpu", HOURLY / 3600, 3 * HOURLY / 3600),)))
    assert sum(verdict.workers.values()) == 1
    assert "a step is worth $" in verdict.reason
    assert "makes one for $" in verdict.reason


def test_without_room_for_both_a_spot_worker_works_until_the_one_on_demand_does() -> None:
    speeds = speeds_of(cpux1=2.0)
    one = {("cpu", SPOT): 1}
    deadline = 202 + 5000 / speeds.least({"cpu": 1})
    late = sight(deadline=deadline, steps=5000, speeds=speeds, most=1, workers=one, working=one)
    both = {("cpu", SPOT): 1, ("cpu", ON_DEMAND): 1}
    assert decide(late).workers == both
    assert decide(replace(late, workers=both)).workers == both, "until it works"
    begun = decide(replace(late, workers=both, working=both, begun=0.0))
    assert begun.workers == {("cpu", ON_DEMAND): 1}
    assert "1 CPU on demand alone" in begun.reason


def test_workers_that_only_just_work_together_are_measured_before_others_are_rented_for_it() -> None:
    speeds = speeds_of(cpux1=2.0)
    young = sight(deadline=15_000.0, steps=29_000, speeds=speeds)
    assert ("cpu", ON_DEMAND) not in decide(young).workers
    assert ("cpu", ON_DEMAND) in decide(replace(young, working={("cpu", SPOT): 1}, market=Market(False))).workers
    begun = {("cpu", ON_DEMAND): 2}
    assert ("cpu", ON_DEMAND) in decide(replace(young, workers=begun, working=begun)).workers, "they are to be measured"


def test_what_is_made_is_saved_before_anything_is_rented_for_it() -> None:
    near = sight(deadline=200 + 5000 / 3.9, steps=5000, unsaved=3000)
    verdict = decide(replace(near, deadline=near.deadline + 90))
    assert verdict.save
    assert not any(terms == ON_DEMAND for _, terms in verdict.workers)


def test_a_band_has_the_starts_of_those_who_take_over_and_of_a_late_run_it_lies_behind_the_deadline() -> None:
    chance = random.Random(1)
    closed = sight(market=Market(False, age=60.0), working={}, deadline=9000.0, train_steps=20_000)
    share, (low, high) = band([end(closed, chance) for _ in range(20)], closed.deadline)
    assert share > 0.9
    assert 20_000 / closed.speeds.mean({"cpu": 4}) < low < high <= 9000
    share, (low, high) = band([end(replace(closed, deadline=600.0), chance) for _ in range(20)], 600.0)
    assert share == 0
    assert 0.9 * 2500 < low < high < 60_000, "VMs may be faster than those that were measured"


def trained(speed: Callable[[float], float], hours: float, vms: int = 1) -> Speeds:
    """What a run of so many hours shows; `speed`: steps per second by the hour."""
    known = DeadlineState()
    for number in range(vms):
        known = known.joined(f"worker-{number}", 60.0)
    known, step = known.progressed(0.0, 0, f"cpux{vms}"), 0.0
    for second in range(30, int(3600 * hours) + 1, 30):
        step += 30 * speed(second / 3600)
        known = known.progressed(float(second), round(step), f"cpux{vms}")
    return Speeds(known.blocks, 0.95)


def test_a_speed_that_drifts_for_an_hour_is_less_certain_than_one_that_only_jitters() -> None:
    """Both differ by 5 %: for half an hour at a time, and for half a minute."""
    slow = trained(lambda hour: 1000 * (1.05 if hour % 1 < 0.5 else 0.95), 4.0)
    fast = trained(lambda hour: 1000 * (1.05 if hour * 60 % 1 < 0.5 else 0.95), 4.0)
    assert slow.drift() > 0.03
    assert fast.drift() < 0.025
    for speeds in (slow, fast):
        assert speeds.error({"cpu": 1}) >= 0.02


def test_other_vms_differ_and_many_differ_less() -> None:
    one, four = (trained(lambda _: 1000.0, 2.0, vms) for vms in (1, 4))
    assert one.error({"cpu": 1}) > 0.04
    assert four.error({"cpu": 4}) < 0.03


def test_the_end_of_a_run_whose_vm_is_replaced_is_as_uncertain_as_other_vms_are() -> None:
    """Its only VM is measured for two hours and gone: both it and the next one may be far from the mean of VMs."""
    speeds = trained(lambda _: 1000.0, 2.0)
    replaced = sight(
        speeds=speeds, steps=20_000_000, deadline=4e5, most=1, workers={("cpu", SPOT): 1}, working={},
        market=Market(True, lasts=1e9, spells=(1e9, 1e9)), life=1e9, train_steps=30_000_000,
    )  # fmt: skip
    ends = [math.log(end(replaced, random.Random(seed))) for seed in range(100)]
    assert stdev(ends) == pytest.approx(speeds.error({"cpu": 1}), rel=0.15)


def test_how_much_faster_one_worker_is_than_a_quarter_of_four_is_not_certain() -> None:
    four = speeds_of(cpux4=8.0)
    held = four.scaled(1.0, 0.05)
    assert held.mean({"cpu": 4}) == pytest.approx(8.0)
    assert held.mean({"cpu": 1}) == pytest.approx(8.0 * 1.15 / 4)
    assert held.mean({"cpu": 8}) == pytest.approx(16.0 * 1.15 / 1.35)


def test_a_lasting_drop_is_noticed_within_a_quarter_of_an_hour() -> None:
    drop = 0.1
    for hours in (3.25, 4.0):
        later = trained(
            lambda hour: 1000 * (1 - drop if hour > 3 else 1) * (1.02 if hour * 60 % 1 < 0.5 else 0.98), hours
        )
        assert later.mean({"cpu": 1}) == pytest.approx(1000 * (1 - drop), rel=0.015)


def test_ten_minutes_without_a_step_lower_the_bound_and_an_hour_after_them_it_is_back() -> None:
    def speed(hour: float) -> float:
        return 0.0 if 2 < hour <= 2 + 1 / 6 else 1000.0

    before, stalled, after = (trained(speed, hours) for hours in (2.0, 2 + 1 / 6, 3.5))
    assert stalled.least({"cpu": 1}) < 0.7 * before.least({"cpu": 1})
    assert stalled.mean({"cpu": 1}) < 0.7 * before.mean({"cpu": 1})
    assert after.mean({"cpu": 1}) > 0.9 * before.mean({"cpu": 1})


@pytest.mark.parametrize("days", [0.01, 60.0])
def test_a_clock_that_is_set_back_takes_nothing_from_what_was_measured(days: float) -> None:
    known, step, at = DeadlineState().joined("worker-0", 60.0), 0, 1e9
    for report in range(120):
        at -= days * 86_400 if report == 60 else 0.0
        known = known.progressed(at + 60 * report, step, "cpux1")
        step += 60 * 10
    assert sum(block.seconds for block in known.blocks) == pytest.approx(118 * 60)
    ends = [block.at for block in known.blocks]
    assert ends == sorted(ends)
    assert Speeds(known.blocks, 0.95).mean({"cpu": 1}) == pytest.approx(10.0)


def test_what_other_numbers_of_workers_made_before_a_drop_counts_with_it() -> None:
    known, step = DeadlineState().joined("worker-0", 60.0).joined("worker-1", 60.0), 0
    for block in range(18):
        count = 1 if block < 6 else 2
        known = known.changed().progressed(block * 600.0, step, f"cpux{count}")
        step += 600 * count * (9 if block > 14 else 10)
        known = known.progressed(block * 600.0 + 599, step, f"cpux{count}")
    assert Speeds(known.blocks, 0.95).mean({"cpu": 1}) == pytest.approx(9.0, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 4])
def test_a_lasting_drop_of_the_speed_makes_no_run_late_that_had_time_for_it(count: int) -> None:
    """Capacity goes for good as soon as all time that may be waited is, and then all is 10 % slower."""
    drop, work = 0.1, 6 * 3600.0
    for at in (1.0, 3.0, 5.0):
        made = world(
            spells(*[1800.0, 900.0] * 20), work * (1 / (1 - drop) + 0.02) + 200, 0, declared=count, most=count,
            period=60.0, disturbed=lambda now, at=at: 1 - drop if now > 3600 * at else 1.0,
        )  # fmt: skip
        made.work = int(work * made.speed({"cpu": count}))
        assert made.run().now <= made.deadline


def measured(alone: float, shared: float = 0.0) -> Speeds:
    """Speeds of one to four workers, each of which was measured for ten minutes."""
    steps_per_second = {count: count * alone / (1 + shared * (count - 1)) for count in range(1, 5)}
    return speeds_of(**{f"cpux{count}": speed for count, speed in steps_per_second.items()})


@pytest.mark.parametrize("unsaved", [0, 6000, 9000])
def test_work_that_is_not_saved_does_not_count_for_vms_on_demand_that_do_not_exist_yet(unsaved: int) -> None:
    """At this moment four of them can just make all steps. Two could make those that no worker has made yet."""
    speeds = measured(alone=2.0)
    last_moment = sight(steps=10_000, unsaved=unsaved, speeds=speeds)
    deadline = last_moment.begin + 10_000 / speeds.least({"cpu": 4}) + 1.0
    verdict = decide(replace(last_moment, deadline=deadline))
    assert verdict.workers.get(("cpu", ON_DEMAND)) == 4


@given(
    count=st.integers(1, 4),
    slack=st.floats(0, 30),
    steps=st.integers(100, 40_000),
    unsaved=st.floats(0, 1),
    alone=st.floats(0.5, 5.0),
    shared=st.floats(0.0, 0.5),
    begin=st.floats(10, 1000),
    open_=st.booleans(),
)
def test_vms_on_demand_are_taken_while_they_can_make_all_steps_behind_the_last_save(
    count: int, slack: float, steps: int, unsaved: float, alone: float, shared: float, begin: float, open_: bool
) -> None:
    """Steps that are not saved are lost if all Spot VMs are revoked together.

    `count` VMs on demand would have `slack` seconds to spare.
    """
    speeds = measured(alone, shared)

    def seconds(count: int) -> float:
        return begin + steps / speeds.least({"cpu": count})

    left = seconds(count) + slack
    spots = {("cpu", SPOT): 4}
    situation = sight(
        deadline=left,
        steps=steps,
        unsaved=int(unsaved * steps),
        speeds=speeds,
        begin=begin,
        begun=begin,
        market=Market(open_),
        workers=spots,
        working=spots,
    )
    taken = decide(situation).workers.get(("cpu", ON_DEMAND))
    if taken:
        assert seconds(taken) <= left
    else:
        soonest = min(seconds(count) for count in range(1, 5))
        assert soonest <= left - situation.period, "at the next decision it would be too late"


# The journal


def line() -> PriceLine:
    return PriceLine("n1-standard-4", 0.1, 0.3, "test")


class Told(Story):
    """The same, which keeps its journal."""

    history: tuple[Event, ...] = ()

    def happens(self, *what: Event) -> Story:
        for event in what:
            fields = {**event.__dict__, "seq": next(self.seq), "time": int(self.now * 1e9)}
            self.history = (*self.history, type(event)(**fields))
            self.state = replay(self.history[-1:], self.state)
        return self


def story(**more: object) -> Told:
    """A run that is due in four hours, whose two workers have trained for a while."""
    made = Told(groups=(WorkerGroup("cpu", 2),), prices={"cpu": line(), "parameter-server": line()}, max_workers=4,
                 max_seconds=1e6, **more)  # fmt: skip
    made.carry_out(made.decisions()).after(60)
    for vm in list(made.state.vms):
        made.happens(events.VmRunning(vm=vm, address="10.0.0.1"), events.VmReady(vm=vm))
    spec = RunSpec(name="run-1", train_steps=40_000, finish_by=START + 4 * 3600)
    made.happens(
        events.WorkDeclared(of="run", work="run-1", spec=spec.without_token()),
        events.ClusterLeased(ports={"run-1": 0}, workers={"0": "run-1", "1": "run-1"}),
        TrainStarted(run="run-1", step=0),
    )  # fmt: skip
    made.after(20)
    for number, vm in enumerate(("worker-0", "worker-1")):
        made.happens(WorkerJoined(run="run-1", worker=vm, number=number, active=number + 1))
    for step in range(1, 20):
        made.after(10).happens(TrainProgress(run="run-1", step=40 * step, steps_per_second=4.0, active=2))
    return made


def test_the_speed_is_measured_between_reports_in_which_nobody_came_or_went() -> None:
    made = story()
    known = made.state.of(RunState)["run-1"].deadline
    assert known
    assert [(block.seconds, block.steps, block.machines, block.fresh) for block in known.blocks] == [
        (180.0, 720.0, "cpux2", 2)
    ]
    made.happens(WorkerLeft(run="run-1", worker="worker-1", number=1, active=1, reason="lost"))
    made.after(10).happens(TrainProgress(run="run-1", step=780, steps_per_second=4.0, active=1))
    after = made.state.of(RunState)["run-1"].deadline
    assert after
    assert after.blocks == known.blocks, "what lies across a change tells nothing"


def test_what_was_measured_tells_little_once_a_worker_is_another_machine() -> None:
    made = story()
    made.happens(events.VmMachineChanged(vm="worker-1", machine_type="n1-standard-1", machine_before="n1-standard-4"))
    known = made.state.of(RunState)["run-1"].deadline
    assert known
    assert Speeds(known.blocks, 0.95).least({"cpu": 2}) < 4 * 0.9


def test_a_journal_that_is_replayed_decides_the_same() -> None:
    made = story()
    again = replay(made.history)
    sights = [seen(state, state.of(RunState)["run-1"], made.now) for state in (made.state, again)]
    assert decide(sights[0]) == decide(sights[1])
    assert sights[0].steps == 40_000
    assert sights[0].unsaved == 760
    assert 2 < sights[0].speeds.least({"cpu": 2}) < 4


def test_what_was_acted_is_what_the_cluster_asks_for_and_its_declaration_holds_again_afterwards() -> None:
    made = story()
    machines = (("cpu", "standard", 2), ("cpu", "spot", 1))
    made.happens(events.DeadlineActed(run="run-1", machines=machines, reason="it is late"))
    asked = [each for each in made.decisions() if isinstance(each, RequestVm)]
    assert [each.provisioning_model for each in asked] == ["standard", "standard"]
    gone = [each for each in made.decisions() if not isinstance(each, RequestVm)]
    assert [each.vm for each in gone] == ["worker-1"]  # type: ignore[union-attr]
    made.carry_out(made.decisions())
    made.happens(TrainFinished(run="run-1", step=40_000))
    assert made.state.steered == (("cpu", "spot", 1),), "what is on demand is not wanted any more"
    made.happens(
        events.WorkDeclared(of="run", work="run-2", spec=RunSpec(name="run-2", train_steps=10).without_token())
    )
    assert made.state.steered is None


def test_a_run_that_takes_one_worker_at_most_has_none_beside_it() -> None:
    """Its places are no more, and its worker computes on copies of its own."""
    made = story()
    run = made.state.of(RunState)["run-1"]
    alone = seen(made.state, replace(run, spec=replace(run.spec, most_workers=1)), made.now)
    assert seen(made.state, run, made.now).overlaps
    assert not alone.overlaps
    left = alone.end + alone.begin + alone.steps / alone.speeds.least({"cpu": 1})
    assert decide(replace(alone, deadline=made.now + left)).workers == {("cpu", ON_DEMAND): 1}


def test_refusals_and_revocations_are_what_the_market_is_known_by() -> None:
    made = story()
    market = seen(made.state, made.state.of(RunState)["run-1"], made.now).market
    assert market.open
    for vm in ("worker-0", "worker-1"):
        made.happens(events.VmRevoked(vm=vm, signal="api"))
    later = seen(made.state, made.state.of(RunState)["run-1"], made.now + 60).market
    assert not later.open
    assert later.age == pytest.approx(60)


def test_a_worker_that_was_stopped_and_started_again_counts_from_its_latest_answer() -> None:
    """For its whole life before that nobody waited: else it takes hours to begin, and the run pays on demand."""
    made = story()
    known = seen(made.state, made.state.of(RunState)["run-1"], made.now)
    made.after(3600).happens(
        events.VmMachineAsked(
            vm="worker-1", machine_type="n1-standard-2", hourly=0.1, on_demand_hourly=0.2, disk_hourly=0.01, part=0.5,
            reason="asked by the user",
        ),
        WorkerLeft(run="run-1", worker="worker-1", number=1, active=1, reason="stopped"),
        events.VmStopped(vm="worker-1", reason="to become n1-standard-2"),
    ).after(30).happens(events.VmStarted(vm="worker-1", address="10.0.0.1")).after(30).happens(
        events.VmReady(vm="worker-1")
    )  # fmt: skip
    coming = seen(made.state, made.state.of(RunState)["run-1"], made.now + 5)
    made.after(20).happens(WorkerJoined(run="run-1", worker="worker-1", number=2, active=2))
    joined = seen(made.state, made.state.of(RunState)["run-1"], made.now)
    assert (coming.start, coming.begin) == (known.start, known.begin)
    assert joined.start == pytest.approx(known.start, abs=20)
    assert joined.begin <= known.begin + 20


def test_one_on_demand_that_is_stopped_and_started_again_does_not_work_within_a_second() -> None:
    made = story()
    made.happens(events.DeadlineActed(run="run-1", machines=(("cpu", "standard", 1),), reason="it is late"))
    made.carry_out(made.decisions())
    vm = next(
        name for name, each in made.state.vms.items() if each.role == "worker" and each.provisioning_model == ON_DEMAND
    )
    made.happens(events.VmRunning(vm=vm, address="10.0.0.1"), events.VmReady(vm=vm))
    made.happens(WorkerJoined(run="run-1", worker=vm, number=2, active=1))
    assert seen(made.state, made.state.of(RunState)["run-1"], made.now).begun == 0
    made.after(3600).happens(
        events.VmMachineAsked(vm=vm, machine_type="n1-standard-2", hourly=0.1, on_demand_hourly=0.2, disk_hourly=0.01,
                              part=0.5, reason="asked by the user"),
        WorkerLeft(run="run-1", worker=vm, number=2, active=0, reason="stopped"),
        events.VmStopped(vm=vm, reason="to become n1-standard-2"),
    )  # fmt: skip
    later = seen(made.state, made.state.of(RunState)["run-1"], made.now + 10)
    assert later.begun == pytest.approx(later.begin - 10)


def test_a_journal_that_asks_for_more_than_was_declared_rents_no_more() -> None:
    """A controller on a VM wrote it, beside which users' code runs."""
    made = story()
    machines = (("cpu", "spot", 500), ("cpu", "standard", 500), ("h100", "standard", 8))
    made.happens(events.DeadlineActed(run="run-1", machines=machines, reason="it says so"))
    asked = [each for each in made.decisions() if isinstance(each, RequestVm)]
    assert {each.accelerator for each in asked} == {"cpu"}
    assert Counter(each.provisioning_model for each in asked) == {"standard": 4, "spot": 2}, "on either terms four"


def test_a_fallback_of_the_cluster_does_not_rent_on_demand_beside_the_deadline() -> None:
    for due, terms in ((False, "standard"), (True, "spot")):
        made = story(fallback_seconds=60.0)
        if due:
            made.happens(events.DeadlineActed(run="run-1", machines=(("cpu", "spot", 3),), reason="cheap"))
        else:
            made.happens(TrainFinished(run="run-1", step=1))
        made.happens(*(events.VmRevoked(vm=f"worker-{number}", signal="api") for number in (0, 1)))
        for _ in range(3):
            asked = [each for each in made.decisions() if isinstance(each, RequestVm)]
            made.carry_out(asked).after(30)
            made.happens(*(events.VmRefused(vm=each.vm, reason="none", cause="stockout") for each in asked)).after(3600)
        assert {each.provisioning_model for each in made.decisions() if isinstance(each, RequestVm)} == {terms}


def test_what_was_waited_for_before_the_run_counts_from_its_start() -> None:
    made = story()
    run = made.state.of(RunState)["run-1"]
    waits = replace(run, spec=replace(run.spec, on_demand_wait=5400.0))
    at_once, later = (seen(made.state, each, made.now) for each in (run, waits))
    assert later.begin == pytest.approx(at_once.begin + 5400.0)
    near = at_once.begin + at_once.steps / at_once.speeds.least({"cpu": 2}) + 600
    for sight_, taken in ((at_once, False), (later, True)):
        verdict = decide(replace(sight_, deadline=made.now + near))
        assert any(terms == ON_DEMAND for _, terms in verdict.workers) is taken


def test_workers_are_in_the_zones_that_were_named() -> None:
    made = story()
    run = replace(
        made.state.of(RunState)["run-1"], spec=replace(made.state.of(RunState)["run-1"].spec, zones=("us-east1-c",))
    )
    assert made.state.spec
    assert zones_for(made.state.spec, run.spec, "cpu") == ("us-east1-c",)
    assert zones_for(made.state.spec, made.state.of(RunState)["run-1"].spec, "cpu") == ("us-west1-b", "us-east1-c")
