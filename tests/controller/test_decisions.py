"""Decisions in full: every field of all that is decided, to the second at which it is, and the clause that says why."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
from test_core import PRICE, START, WITH_CONTROLLER, Story, requests

from transient_magics.controller.decisions.core import (
    BeginDeletion,
    DeleteVm,
    RequestVm,
    SaveAhead,
    Situation,
    places_now,
    unused_seconds,
)
from transient_magics.journal import bill, events
from transient_magics.protocol.space import parse_space
from transient_magics.protocol.vm_events import TrainFinished
from transient_magics.spec import ClusterSpec, WorkerGroup
from transient_magics.works.bags import events as b
from transient_magics.works.bags import events as bags
from transient_magics.works.bags.spec import BagSpec
from transient_magics.works.dask.spec import DaskSpec

HOME, BESIDE, FAR = "us-west1-b", "us-west1-a", "us-east1-c"
PRICES = dict.fromkeys(("k80", "t4", "cpu", "parameter-server", "controller"), PRICE)
FREE_AND_FIXED = (WorkerGroup("k80", 1), WorkerGroup("t4", 2, HOME))
SPREAD: dict[str, Any] = {
    "groups": FREE_AND_FIXED, "zones": (FAR,), "prices": PRICES, "candidates": {"k80": (FAR, BESIDE)},
}  # fmt: skip


def request(vm: str, slot: int, accelerator: str, zone: str = HOME, model: str = "spot", replaces: str | None = None
            ) -> RequestVm:  # fmt: skip
    return RequestVm(vm, vm.rpartition("-")[0], slot, accelerator, zone, model, replaces)


def workers(*groups: WorkerGroup, **options: Any) -> Story:
    """A cluster of these groups of which all that was declared is there."""
    return Story(**{"groups": groups, "prices": PRICES, **options}).all_ready()


def trains(story: Story, **spec: Any) -> Story:
    return story.happens(events.WorkDeclared(of="run", work="run-1", spec={"train_steps": 9, **spec}))


def trained(story: Story, **spec: Any) -> Story:
    return trains(story, **spec).happens(TrainFinished(run="run-1", step=9))


def test_all_that_is_declared_is_asked_for_in_this_order_in_these_zones_on_these_terms() -> None:
    story = Story(**SPREAD, parameter_servers=2, controller="cluster")
    assert story.decisions() == [
        request("controller-0", 0, "", model="standard"),
        request("ps-0", 0, "", model="standard"),
        request("ps-1", 1, "", model="standard"),
        request("worker-0", 0, "k80", FAR),
        request("worker-1", 1, "t4"),
        request("worker-2", 2, "t4"),
    ]
    assert [
        (place.role, place.slot, place.zones, place.fixed) for place in places_now(Situation(START, story.state))
    ] == [
        ("controller", 0, (HOME, BESIDE, FAR), False),
        ("ps", 0, (HOME, BESIDE, FAR), False),
        ("ps", 1, (HOME, BESIDE, FAR), False),
        ("worker", 0, (FAR, BESIDE), False),
        ("worker", 1, (HOME,), True),
        ("worker", 2, (HOME,), True),
    ], "what serves them is near most of them"


def test_nothing_is_decided_before_a_cluster_is_declared_and_after_it_is_gone() -> None:
    story = Story().all_ready()
    assert story.happens(events.ClusterDeleting(reason="asked"), events.ClusterDeleted()).decisions() == []
    story = Story()
    story.state = type(story.state)()
    assert story.decisions() == []


def test_of_a_cluster_that_is_deleted_each_vm_goes_for_its_reason_and_the_controllers_last() -> None:
    story = Story(**WITH_CONTROLLER).all_ready()
    story.happens(events.ControllerMoved(vm="controller-0"), events.ClusterDeleting(reason="the money is spent"))
    first = [DeleteVm(vm, "the money is spent") for vm in ("ps-0", "worker-0", "worker-1")]
    assert story.decisions() == first
    assert story.carry_out(story.decisions()).decisions() == [DeleteVm("controller-0", "the money is spent")]


def test_a_lost_vm_is_replaced_by_one_that_says_whom_it_replaces() -> None:
    story = workers(WorkerGroup("k80", 3))
    story.happens(events.VmPreemptionNotice(vm="worker-0"), events.VmRevoked(vm="worker-2", signal="api"))
    again = [request("worker-3", 0, "k80", replaces="worker-0"), request("worker-4", 2, "k80", replaces="worker-2")]
    assert story.decisions() == again
    story.carry_out(again).happens(events.VmRefused(vm="worker-3", reason="no", cause="stockout"))
    assert story.decisions() == [request("worker-5", 0, "k80", FAR, replaces="worker-0")], "not whom was refused"
    story.happens(events.VmDeleted(vm="worker-1", reason="silent")).after(1)
    assert story.decisions()[1:] == [request("worker-6", 1, "k80", FAR)], "nobody took that one away"


@pytest.mark.parametrize("first", ["worker", "parameter server"])
def test_one_place_that_has_to_wait_keeps_no_other_waiting(first: str) -> None:
    two = WorkerGroup("k80", 1), WorkerGroup("cpu", 1)
    alone: dict[str, Any] = {"zones": (HOME,), "project": "mine"}
    there = workers(*two, **alone).happens(events.VmRevoked(vm="worker-1", signal="api"))
    lost = [request("worker-2", 1, "cpu", replaces="worker-1")]
    assert there.decisions() == lost, "the first has its VM"

    refused = Story(groups=two, prices=PRICES, **alone)
    refused.carry_out(refused.decisions())
    what = "worker-0" if first == "worker" else "ps-0"
    refused.happens(events.VmRefused(vm=what, reason="x"), events.VmRevoked(vm="worker-1", signal="api"))
    assert refused.decisions() == lost, "the first is asked for later"

    short = workers(*two, **alone, max_seconds=7200.0).after(7200 - 599)
    short.happens(*(events.VmRevoked(vm=vm, signal="api") for vm in ("worker-0", "worker-1")))
    assert short.decisions() == lost, "a GPU's driver would not be there in time"

    given_up = Story(groups=two, prices=PRICES, **alone)
    for vm in ("worker-0", "worker-2"):
        given_up.carry_out(given_up.decisions()).happens(events.VmBootFailed(vm=vm, reason="no driver"))
    given_up.carry_out(given_up.decisions()).happens(events.VmRevoked(vm="worker-1", signal="api"))
    assert given_up.decisions() == [request("worker-3", 1, "cpu", replaces="worker-1")], "others do boot"

    kept = workers(*two, **alone, replace=False).happens(events.VmRevoked(vm="worker-0", signal="api"))
    kept.happens(events.VmDeleted(vm="worker-1", reason="silent"), events.VmRevoked(vm="ps-0", signal="api"))
    assert kept.decisions() == [
        request("ps-1", 0, "", model="standard", replaces="ps-0"), request("worker-2", 1, "cpu"),
    ], "only workers that were revoked stay away"  # fmt: skip


def test_workers_that_wait_for_a_parameter_server_that_never_boots_are_not_paid_for_long() -> None:
    story = trains(workers(WorkerGroup("cpu", 2), project="mine", idle_seconds=600.0))
    for server in ("ps-0", "ps-1"):
        assert not story.state.stranded
        story.happens(events.VmBootFailed(vm=server, reason="no network"))
        story.carry_out(story.decisions()).carry_out(story.decisions())
    assert story.state.stranded
    story.happens(events.VmRevoked(vm="worker-0", signal="api"))
    assert story.decisions() == [], "nobody could use another worker"
    assert story.after(600).decisions() == [DeleteVm("worker-1", "no parameter server for 10 min")]
    assert story.after(600).decisions() == [BeginDeletion("no parameter server for 20 min")]
    spec = story.state.spec
    assert spec
    idle = workers(WorkerGroup("cpu", 1), project="mine", idle_seconds=600.0).after(500)
    for server in ("ps-0", "ps-1"):
        idle.happens(events.VmBootFailed(vm=server, reason="no network"))
        idle.carry_out(idle.decisions()).carry_out(idle.decisions())
    assert idle.after(100).decisions() == [DeleteVm("worker-0", "no run for 10 min")], "it was idle before"
    story.happens(events.ClusterResized(spec=spec.to_dict()))
    assert not story.state.stranded, "a resize has it tried again"
    assert [vm.vm for vm in requests(story.decisions())] == ["ps-2", "worker-2"]


def test_a_vm_is_asked_for_as_long_as_it_can_have_booted_before_the_end() -> None:
    story = workers(WorkerGroup("k80", 1), project="mine", max_seconds=7200.0).after(6600)
    story.happens(events.VmRevoked(vm="worker-0", signal="api"))
    assert requests(story.decisions()) == [request("worker-1", 0, "k80", replaces="worker-0")]
    assert requests(story.after(0.01).decisions()) == []


def test_a_vm_that_is_no_good_is_deleted_with_what_was_wrong_and_one_that_was_not_declared_too() -> None:
    story = Story(**WITH_CONTROLLER)
    story.carry_out(story.decisions()).happens(events.VmBootFailed(vm="ps-0", reason="failed at: a step"))
    assert story.decisions() == [DeleteVm("ps-0", "failed at: a step")]

    def resized(before: tuple[WorkerGroup, ...], *after: WorkerGroup) -> Story:
        story = workers(*before)
        spec = {**story.state.spec.to_dict(), "groups": [asdict(each) for each in after]}  # type: ignore[union-attr]
        return story.happens(events.ClusterResized(spec=spec))

    assert resized((WorkerGroup("k80", 2),), WorkerGroup("t4", 2)).decisions() == [
        DeleteVm("worker-0", "no longer declared"), DeleteVm("worker-1", "no longer declared"),
        request("worker-2", 0, "t4"), request("worker-3", 1, "t4"),
    ]  # fmt: skip
    moved = resized((WorkerGroup("k80", 1, HOME),), WorkerGroup("k80", 1, FAR)).decisions()
    assert moved == [DeleteVm("worker-0", "no longer declared"), request("worker-1", 0, "k80", FAR)]
    fewer = resized((WorkerGroup("k80", 1), WorkerGroup("t4", 2)), WorkerGroup("t4", 1))
    assert fewer.decisions() == [DeleteVm("worker-0", "no longer needed"), DeleteVm("worker-2", "no longer needed")]


def slots(*living: tuple[int, str, str], lost: tuple[tuple[int, str], ...] = (), groups: tuple[WorkerGroup, ...]
          ) -> list[tuple[int, str]]:  # fmt: skip
    """Which slots are wanted where workers live in these (slot, GPU, state), and were revoked in those (slot, GPU)."""
    spec = ClusterSpec("one", groups, (HOME, FAR), PRICES, declared_at=START, idle_seconds=1e6)
    story = Story(**{name: getattr(spec, name) for name in ("groups", "zones", "prices")})
    for number, (slot, gpu, state) in enumerate([*((*each, "revoked") for each in lost), *living]):
        vm = f"worker-{number}"
        story.carry_out([request(vm, slot, gpu)])
        if state == "leaving":
            story.happens(events.VmPreemptionNotice(vm=vm))
        if state == "revoked":
            story.happens(events.VmRevoked(vm=vm, signal="api"))
        if state == "deleted":
            story.happens(events.VmDeleted(vm=vm, reason="silent"))
    places = places_now(Situation(story.now, story.state))
    return [(place.slot, place.accelerator) for place in places if place.role == "worker"]


def test_a_resize_numbers_places_so_that_whoever_fits_stays_where_it_is() -> None:
    k80, t4 = WorkerGroup("k80", 1), WorkerGroup("t4", 1)
    assert slots(groups=(k80, t4)) == [(0, "k80"), (1, "t4")]
    assert slots((0, "k80", ""), groups=(k80, t4)) == [(0, "k80"), (1, "t4")]
    assert slots((0, "t4", ""), groups=(k80, t4)) == [(1, "k80"), (0, "t4")], "each has what fits it"
    assert slots((0, "t4", ""), (1, "k80", ""), groups=(k80, t4)) == [(1, "k80"), (0, "t4")]
    assert slots((5, "t4", ""), groups=(k80, t4)) == [(0, "k80"), (5, "t4")]
    for other in (0, 4):
        assert slots((other, "t4", ""), (1, "t4", ""), groups=(k80, t4)) == [(0, "k80"), (1, "t4")], (
            "its own, if it fits"
        )
    assert slots((4, "t4", ""), (3, "t4", ""), groups=(k80, t4)) == [(0, "k80"), (3, "t4")], "else the lowest"
    # Of two in one place, the one that stays counts.
    assert slots((0, "t4", ""), (0, "k80", "leaving"), groups=(k80, t4)) == [(1, "k80"), (0, "t4")]
    assert slots((0, "k80", "leaving"), (0, "t4", ""), groups=(k80, t4)) == [(1, "k80"), (0, "t4")]
    # Who was lost has its successor in its place.
    assert slots((0, "t4", ""), lost=((2, "k80"),), groups=(k80, t4)) == [(2, "k80"), (0, "t4")]
    two = WorkerGroup("k80", 2)
    assert slots((0, "t4", ""), lost=((2, "k80"),), groups=(two, t4)) == [(2, "k80"), (1, "k80"), (0, "t4")]
    assert slots((0, "t4", ""), lost=((2, "t4"),), groups=(two, t4)) == [(1, "k80"), (2, "k80"), (0, "t4")]
    gone = (2, "k80", "deleted")
    assert slots((0, "t4", ""), gone, groups=(two, t4)) == [(1, "k80"), (2, "k80"), (0, "t4")], "nobody took it away"
    # A place with a zone has the VM of that zone, though one without comes first.
    assert slots((1, "k80", ""), groups=(k80, WorkerGroup("k80", 1, HOME))) == [(0, "k80"), (1, "k80")]
    assert slots((0, "k80", ""), (5, "t4", ""), groups=(k80, WorkerGroup("k80", 1, HOME), t4)) == [
        (1, "k80"), (0, "k80"), (5, "t4"),
    ]  # fmt: skip


def test_idle_workers_go_home_at_the_second_and_the_rest_twice_as_late() -> None:
    assert unused_seconds(Situation(START + 9, Story().state)) == 0.0, "it is not ready yet"
    story = workers(WorkerGroup("k80", 2), idle_seconds=600.0)
    assert story.after(599.9).decisions() == []
    story.now = START + 600
    home = [DeleteVm("worker-0", "no run for 10 min"), DeleteVm("worker-1", "no run for 10 min")]
    assert story.decisions() == home
    assert story.carry_out(home).after(599.9).decisions() == []
    story.now = START + 1200
    assert story.decisions() == [BeginDeletion("no run for 20 min")]


def test_when_a_run_is_done_there_follows_what_was_said_and_no_sooner() -> None:
    for what in ("workers", "cluster", "nothing"):
        assert trains(workers(WorkerGroup("k80", 1)), when_done=what).decisions() == [], "it trains"
    home, all_of_it = (trained(workers(WorkerGroup("k80", 1)), when_done=what) for what in ("workers", "cluster"))
    assert home.decisions() == [DeleteVm("worker-0", "no longer needed")]
    assert all_of_it.decisions() == [BeginDeletion("run-1 is over")]
    assert trained(workers(WorkerGroup("k80", 1))).decisions() == []
    assert workers(WorkerGroup("k80", 1)).decisions() == []


def dear(limit: float) -> Story:
    """A cluster that costs six dollars an hour, and was declared for less than one."""
    story = workers(WorkerGroup("k80", 1), max_cost=limit)
    story.happens(events.VmRequested(
        vm="worker-7", role="worker", slot=0, zone=HOME, accelerator="k80", machine_type="", provisioning_model="spot",
        hourly=6.0 - 2 * 0.256, on_demand_hourly=9.0,
    ), events.VmRunning(vm="worker-7", address="10.0.0.1"))  # fmt: skip
    return trained(story)


def test_the_limits_of_time_and_money_hold_to_the_second() -> None:
    story = trained(workers(WorkerGroup("k80", 1), max_seconds=7200.0))
    assert story.after(7199.9).decisions() == []
    story.now = START + 7200
    assert story.decisions() == [BeginDeletion("the limit of 2 h is reached")]
    # At the declared rate, whatever has been spent: so do the VMs end by themselves.
    story = trained(workers(WorkerGroup("k80", 1), max_cost=0.979))  # 0.256 + 0.723 an hour
    assert story.after(3599.0).decisions() == []
    story.now = START + 3600
    assert story.decisions() == [BeginDeletion("the limit of $0.98 is reached")]
    # And what was spent, where that is more, as with a VM on demand in the place of a Spot one.
    spent = bill(dear(1.0).state, START + 600).total
    assert spent == pytest.approx(1.0)
    story = dear(spent)
    assert story.after(599.9).decisions() == []
    story.now = START + 600
    assert story.decisions() == [BeginDeletion("the limit of $1.00 is reached")]


@pytest.mark.parametrize(("hours", "ahead"), [(2.0, 600.0), (0.5, 450.0)])
def test_the_chief_saves_so_long_before_the_end_and_once(hours: float, ahead: float) -> None:
    story = trains(workers(WorkerGroup("k80", 1), max_seconds=hours * 3600))
    assert story.after(hours * 3600 - ahead - 0.1).decisions() == []
    story.now = START + hours * 3600 - ahead
    assert story.decisions() == [SaveAhead(ahead)]
    assert story.decisions(save_requested=True) == []
    story.happens(events.VmRevoked(vm="worker-0", signal="api"))
    assert story.decisions() == [SaveAhead(ahead), request("worker-1", 0, "k80", replaces="worker-0")]
    idle = workers(WorkerGroup("k80", 1), max_seconds=hours * 3600).after(hours * 3600 - ahead)
    assert idle.decisions() == [], "there is nothing to save"


def test_advice_of_compute_engine_decides_in_which_zone_workers_are_asked_for() -> None:
    advised = events.ClusterAdvised(time=int(START * 1e9), accelerator="k80", zones={HOME: (0.1, 0.0), FAR: (0.9, 0.0)})
    story = Story().happens(advised)
    assert [each.zone for each in requests(story.decisions())] == [HOME, FAR, FAR]


def test_numbers_go_on_from_the_highest_whoever_gave_the_names() -> None:
    story = Story(workers=3)
    for vm in ("worker-9", "worker-x", "my-worker-12"):
        story.happens(events.VmRequested(
            vm=vm, role="worker", slot=7, zone=HOME, accelerator="k80", machine_type="", provisioning_model="spot",
            hourly=1.0, on_demand_hourly=1.0,
        ), events.VmDeleted(vm=vm, reason=""))  # fmt: skip
    assert [each.vm for each in requests(story.decisions())] == ["ps-0", "worker-13", "worker-14", "worker-15"]


def _with_a_bag(jobs: int, **spec: Any) -> Story:
    """Two workers that a bag of so many jobs has, of which the first one's has begun."""
    story = workers(WorkerGroup("k80", 2), **spec)
    bag = BagSpec("bag-1", parse_space("x=0:1"), jobs, spare=0.0)
    story.happens(
        events.WorkDeclared(of="bag", work="bag-1", spec=bag.to_dict()), bags.BagBegan(bag="bag-1", dask="bag-1-1"),
        events.WorkDeclared(of="dask", work="bag-1-1", spec=DaskSpec("bag-1-1", 2, bag="bag-1").to_dict()),
        events.ClusterLeased(ports={}, workers={"0": "bag-1-1", "1": "bag-1-1"}),
        *(b.BagProposed(bag="bag-1", job=job, point={"x": job / jobs}) for job in range(jobs)),
        b.BagStarted(bag="bag-1", job=0, attempt=1, vm="worker-0", age=0.0),
    )  # fmt: skip
    return story


def test_a_vm_that_its_bag_gives_up_is_replaced_where_that_can_be_and_a_job_waits() -> None:
    story = _with_a_bag(2).happens(b.BagGaveUp(bag="bag-1", vm="worker-1", age=85_000.0))
    assert story.decisions() == [DeleteVm("worker-1", "bag-1 gave it up")]
    assert _with_a_bag(2, replace=False).happens(b.BagGaveUp(bag="bag-1", vm="worker-1")).decisions() == []
    story.carry_out(story.decisions())
    assert story.decisions() == [request("worker-2", 1, "k80")]
    story.carry_out(story.decisions())
    assert story.decisions() == []
    alone = _with_a_bag(1).happens(b.BagGaveUp(bag="bag-1", vm="worker-1"))
    alone.carry_out(alone.decisions())
    assert alone.decisions() == [], "no job waits for one"
    alone.happens(b.BagLost(bag="bag-1", job=0, attempt=1, why="revoked"))
    assert alone.decisions() == [request("worker-2", 1, "k80")]
    alone.happens(
        events.WorkEnded(work="bag-1", of="bag", state="finished"),
        events.WorkEnded(work="bag-1-1", of="dask", state="finished"),
    )
    assert alone.decisions() == [], "nobody needs it"
    assert trains(alone).decisions() == [request("worker-2", 1, "k80")]


def test_a_bag_gives_up_no_vm_that_is_not_its_own() -> None:
    story = _with_a_bag(2).happens(events.ClusterLeased(ports={}, workers={"0": "bag-1-1", "1": "run-1"}))
    assert story.happens(*(b.BagGaveUp(bag="bag-1", vm=vm) for vm in ("worker-1", "ps-0"))).decisions() == []
