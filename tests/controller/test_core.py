"""What the controller decides, from nothing but the journal and the clock."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transient_magics.controller.decisions.core import (
    LEAVE_SECONDS,
    BeginDeletion,
    Decision,
    DeleteVm,
    HandOver,
    ReportReady,
    RequestVm,
    SaveAhead,
    Situation,
    StayHere,
    decide,
)
from transient_magics.journal import ClusterState, Event, events, replay
from transient_magics.protocol.vm_events import TrainFinished
from transient_magics.spec import ClusterSpec, PriceLine, WorkerGroup

START = 1_000_000.0
PRICE = PriceLine("n1-standard-4", 0.256, 0.723, "test")


class Story:
    """A journal written by hand; time passes as told."""

    def __init__(self, workers: int = 2, **options: object) -> None:
        spec = {
            "name": "one", "groups": (WorkerGroup("k80", workers),), "zones": ("us-west1-b", "us-east1-c"),
            "prices": {"k80": PRICE, "parameter-server": PRICE}, "declared_at": START, "idle_seconds": 1e6,
        }  # fmt: skip
        self.now = START
        self.seq = itertools.count(1)
        self.state = ClusterState()
        self.happens(events.ClusterDeclared(spec=ClusterSpec(**{**spec, **options}).to_dict()))

    def happens(self, *what: Event) -> Story:
        for event in what:
            fields = {**event.__dict__, "seq": next(self.seq), "time": int(self.now * 1e9)}
            self.state = replay([type(event)(**fields)], self.state)
        return self

    def after(self, seconds: float) -> Story:
        self.now += seconds
        return self

    def decisions(self, **more: object) -> list[Decision]:
        return decide(Situation(self.now, self.state, **more))  # type: ignore[arg-type]

    def carry_out(self, decisions: list[Decision]) -> Story:
        for decision in decisions:
            if isinstance(decision, RequestVm):
                fields = {name: getattr(decision, name) for name in RequestVm.__slots__}
                self.happens(
                    events.VmRequested(**fields, machine_type="n1-standard-4", hourly=0.256, on_demand_hourly=0.723)
                )
            elif isinstance(decision, DeleteVm):
                self.happens(events.VmDeleted(vm=decision.vm, reason=decision.reason))
        return self

    def all_ready(self) -> Story:
        self.carry_out(self.decisions())
        for vm in self.state.living:
            self.happens(events.VmRunning(vm=vm.name, address="10.128.0.2"), events.VmReady(vm=vm.name))
        return self.happens(events.ClusterReady(workers=2, seconds=1))


def requests(decisions: list[Decision]) -> list[RequestVm]:
    return [each for each in decisions if isinstance(each, RequestVm)]


def test_a_declared_cluster_is_asked_for_whole_with_its_server_on_demand() -> None:
    asked = requests(Story().decisions())
    assert [(each.vm, each.provisioning_model) for each in asked] == [
        ("ps-0", "standard"), ("worker-0", "spot"), ("worker-1", "spot"),
    ]  # fmt: skip


def test_a_cluster_is_ready_once_every_declared_vm_answers_whatever_else_there_is() -> None:
    story = Story()
    story.carry_out(story.decisions())
    for vm, left in (("ps-0", 2), ("worker-1", 1), ("worker-0", 0)):
        assert ReportReady(2) not in story.decisions(), f"{left} do not answer yet"
        story.happens(events.VmRunning(vm=vm, address="10.128.0.2"), events.VmReady(vm=vm))
    assert story.decisions() == [ReportReady(2)]
    story.happens(events.VmPreemptionNotice(vm="worker-0"))
    assert ReportReady(2) not in story.decisions()


def test_a_surplus_worker_does_not_count_for_a_parameter_server_that_is_not_ready() -> None:
    story = Story(3)
    story.carry_out(story.decisions())
    for vm in ("worker-0", "worker-1", "worker-2"):
        story.happens(events.VmRunning(vm=vm, address="10.128.0.2"), events.VmReady(vm=vm))
    assert story.state.spec
    fewer = replace(story.state.spec, groups=(WorkerGroup("k80", 2),))
    story.happens(events.ClusterResized(spec=fewer.to_dict()))
    assert [type(decision) for decision in story.decisions()] == [DeleteVm], "and it is not ready"


def test_a_vm_that_answers_no_more_is_given_up_and_one_that_only_said_it_would_be_taken() -> None:
    story = Story().all_ready()
    assert story.decisions(silent=["worker-0"]) == [DeleteVm("worker-0", "it does not answer")]
    story.happens(events.VmPreemptionNotice(vm="worker-1"))
    story.carry_out(story.decisions()).after(LEAVE_SECONDS)
    assert not [each for each in story.decisions() if isinstance(each, DeleteVm)]
    still = DeleteVm("worker-1", "still running 5 min after its preemption notice")
    assert still in story.after(1).decisions()
    assert still not in story.decisions(clock_ahead=-60.0), "by the clock by which the notice is dated"
    story.happens(
        events.WorkDeclared(of="run", work="run-1", spec={"train_steps": 9}),
        events.ClusterDeleting(reason="asked by the user"),
    )
    assert story.decisions(silent=["worker-0"]) == [DeleteVm("worker-0", "it does not answer"), still]


def test_the_cluster_is_given_to_its_own_vm_once_that_answers() -> None:
    prices = {"k80": PRICE, "parameter-server": PRICE, "controller": PRICE}
    story = Story(controller="cluster", prices=prices).all_ready()
    seat = {"answering": ["controller-0"]}
    assert story.decisions() == [], "the journal may not know yet that it is gone"
    assert story.decisions(**seat) == [HandOver("controller-0")]
    assert story.decisions(**seat, here="controller-0") == []
    here = StayHere("The emulated VMs have no network of their own: the controller stays here")
    assert story.decisions(**seat, isolated=False) == [here]
    earlier = Story(controller="cluster").all_ready().decisions(answering=["ps-0"])
    assert earlier == [StayHere("An earlier version declared it: from now on its controller stays here")]
    assert Story().all_ready().decisions(answering=["ps-0"]) == []
    story.happens(events.ClusterDeleting(reason="asked by the user"))
    assert not [each for each in story.decisions(**seat) if isinstance(each, HandOver)]


def test_a_complete_cluster_needs_nothing() -> None:
    assert Story().all_ready().decisions() == []


def test_a_notice_is_enough_to_ask_for_a_replacement_under_a_new_number() -> None:
    story = Story().all_ready().happens(events.VmPreemptionNotice(vm="worker-1"))
    (asked,) = requests(story.decisions())
    assert (asked.vm, asked.slot, asked.replaces, asked.zone) == ("worker-2", 1, "worker-1", "us-west1-b")


def test_two_lost_at_once_are_two_replacements_and_a_lost_server_is_replaced_too() -> None:
    story = Story().all_ready()
    for vm in ("worker-0", "worker-1", "ps-0"):
        story.happens(events.VmRevoked(vm=vm, signal="api"))
    assert [each.vm for each in requests(story.decisions())] == ["ps-1", "worker-2", "worker-3"]


def test_a_vm_that_does_not_boot_is_replaced_once_and_no_more_of_its_kind_are_bought() -> None:
    story = Story()
    story.carry_out(story.decisions())
    running = [events.VmRunning(vm=vm.name, address="10.128.0.2") for vm in story.state.living]
    story.happens(*running, events.VmReady(vm="ps-0"))
    for number, again in ((0, True), (1, False)):
        story.happens(events.VmBootFailed(vm=f"worker-{number}", reason="failed at: installing the NVIDIA driver"))
        delete, *_ = story.decisions()
        assert isinstance(delete, DeleteVm)
        assert (delete.vm, delete.reason) == (f"worker-{number}", "failed at: installing the NVIDIA driver")
        story.carry_out([delete])
        assert [each.vm for each in requests(story.decisions())] == (["worker-2"] if again else [])
    story.happens(events.VmRevoked(vm="ps-0", signal="api"))
    assert [each.vm for each in requests(story.decisions())] == ["ps-1"], "VMs of another kind do boot"
    story.happens(events.ClusterResized(spec=story.state.spec.to_dict()))  # type: ignore[union-attr]
    assert [each.vm for each in requests(story.decisions())] == ["ps-1", "worker-2", "worker-3"]


def test_a_boot_that_succeeds_makes_up_for_one_that_failed() -> None:
    story = Story(workers=3)
    story.carry_out(story.decisions())
    story.happens(
        events.VmBootFailed(vm="worker-0", reason="failed"),
        events.VmReady(vm="worker-1"),
        events.VmBootFailed(vm="worker-2", reason="failed"),
    )
    story.carry_out([each for each in story.decisions() if isinstance(each, DeleteVm)])
    assert [each.vm for each in requests(story.decisions())] == ["worker-3", "worker-4"]


def test_a_vm_that_runs_after_it_was_given_up_is_deleted_and_its_successor_stays() -> None:
    story = Story(workers=1)
    story.carry_out(story.decisions())
    story.happens(events.VmRefused(vm="worker-0", reason="it did not start within 600 s", cause="other")).after(60)
    (asked,) = requests(story.decisions())
    story.carry_out([asked]).happens(events.VmRunning(vm="worker-0", address=""))
    (delete,) = story.decisions()
    assert isinstance(delete, DeleteVm)
    assert (asked.vm, delete.vm, delete.reason) == ("worker-1", "worker-0", "it came after it was given up")
    assert story.carry_out([delete]).decisions() == []


def test_without_replacement_a_revoked_worker_stays_away() -> None:
    story = Story(replace=False).all_ready().happens(events.VmRevoked(vm="worker-0", signal="ssh"))
    assert story.decisions() == []


def test_a_zone_without_capacity_is_left_for_the_next_and_asked_again_later() -> None:
    story = Story()
    story.carry_out(story.decisions())
    story.happens(events.VmRefused(vm="worker-0", reason="no capacity", cause="stockout"))
    (asked,) = requests(story.decisions())
    assert (asked.slot, asked.zone) == (0, "us-east1-c")
    story.carry_out([asked]).happens(events.VmRefused(vm=asked.vm, reason="no capacity", cause="stockout"))
    assert requests(story.decisions()) == []
    assert [each.zone for each in requests(story.after(60).decisions())] == ["us-west1-b"]


def test_a_place_that_is_refused_for_another_reason_waits_longer_and_longer() -> None:
    story = Story(workers=1)
    story.carry_out(story.decisions())
    waits = []
    for _ in range(12):
        vm = next(each.name for each in story.state.living if each.role == "worker")
        story.happens(events.VmRefused(vm=vm, reason="the credentials do not allow this"))
        began = story.now
        while not requests(story.decisions()):
            story.after(1)
        waits.append(story.now - began)
        story.carry_out(story.decisions())
    assert waits[0] <= 3
    assert 200 <= waits[-1] <= 400


def test_no_vm_is_asked_for_that_would_not_have_booted_when_the_limit_comes() -> None:
    for options, too_late in (({}, 601), ({"image": "family/mine"}, 121)):
        story = Story(max_seconds=7200.0, project="mine", **options).all_ready()
        story.after(7200 - too_late).happens(events.VmRevoked(vm="worker-0", signal="ssh"))
        assert [each.vm for each in requests(story.decisions())] == ["worker-2"]
        assert requests(story.after(2).decisions()) == []
    story = Story(max_seconds=7200.0).all_ready().after(7190).happens(events.VmRevoked(vm="worker-0", signal="ssh"))
    assert requests(story.decisions()), "emulated VMs boot as fast as they do"


@pytest.mark.parametrize(
    ("options", "seconds", "word"),
    [({"max_seconds": 3600.0}, 3601, "60 min"), ({"max_cost": 1.0}, 3600 * 1.4, "$1.00")],
)
def test_limits_end_the_cluster(options: dict[str, float], seconds: float, word: str) -> None:
    story = Story(**options).all_ready().happens(events.WorkDeclared(of="run", work="run-1", spec={"train_steps": 9}))
    (decision,) = story.after(seconds).decisions()
    assert isinstance(decision, BeginDeletion)
    assert word in decision.reason


def test_limits_are_counted_on_the_emulated_clock() -> None:
    story = Story(max_seconds=3600.0).all_ready()
    story.happens(events.ClusterClock(anchors=((0.0, 0.0, 1.0), (START, START, 60.0))))
    assert story.after(55).decisions() == []
    (decision,) = story.after(6).decisions()
    assert isinstance(decision, BeginDeletion)


def test_the_chief_saves_before_the_end() -> None:
    story = Story(max_seconds=3600.0).all_ready()
    story.happens(events.WorkDeclared(of="run", work="run-1", spec={"train_steps": 9}))
    assert any(isinstance(each, SaveAhead) for each in story.after(3100).decisions())
    assert not story.decisions(save_requested=True)


def test_an_idle_cluster_sends_its_workers_home_and_then_ends() -> None:
    story = Story(idle_seconds=60.0).all_ready().after(61)
    assert {each.vm for each in story.decisions() if isinstance(each, DeleteVm)} == {"worker-0", "worker-1"}
    story.carry_out(story.decisions())
    assert story.decisions() == []
    (decision,) = story.after(60).decisions()
    assert isinstance(decision, BeginDeletion)


def test_a_run_calls_the_workers_back() -> None:
    story = Story(idle_seconds=60.0).all_ready().after(61)
    story.carry_out(story.decisions()).happens(events.WorkDeclared(of="run", work="run-1", spec={"train_steps": 9}))
    assert [each.vm for each in requests(story.decisions())] == ["worker-2", "worker-3"]


def test_fewer_declared_workers_means_the_last_ones_go() -> None:
    story = Story().all_ready()
    spec = {**story.state.spec.to_dict(), "groups": [{"accelerator": "k80", "count": 1, "zone": None}]}  # type: ignore[union-attr]
    story.happens(events.ClusterResized(spec=spec))
    assert story.decisions() == [DeleteVm("worker-1", "no longer needed")]


def test_a_cluster_that_is_deleted_gets_rid_of_everything_and_asks_for_nothing() -> None:
    story = Story().all_ready().happens(events.ClusterDeleting(reason="asked by the user"))
    assert {each.vm for each in story.decisions() if isinstance(each, DeleteVm)} == {"ps-0", "worker-0", "worker-1"}
    story.carry_out(story.decisions())
    assert story.decisions() == []


def test_a_cluster_that_is_deleted_waits_for_its_run_to_bring_its_checkpoint_home() -> None:
    story = Story().all_ready().happens(events.WorkDeclared(of="run", work="run-1", spec={"train_steps": 9}))
    story.happens(events.ClusterDeleting(reason="asked by the user"))
    assert story.decisions() == []
    story.happens(TrainFinished(run="run-1", step=5, stopped=True))
    assert len(story.decisions()) == 3


happenings = st.lists(
    st.tuples(st.sampled_from(["notice", "revoked", "refused", "deleted", "ready"]), st.integers(0, 9)), max_size=25
)


@given(happenings)
def test_whatever_happens_no_name_is_used_twice_and_the_cluster_heals(story_of: list[tuple[str, int]]) -> None:
    story = Story(workers=3)
    used: list[str] = []
    for what, which in story_of:
        used += [each.vm for each in requests(story.decisions())]
        story.carry_out(story.decisions()).after(1)
        living = story.state.living
        if not living:
            continue  # nothing is to be had for a while
        vm = living[which % len(living)].name
        story.happens(
            {
                "notice": events.VmPreemptionNotice(vm=vm),
                "revoked": events.VmRevoked(vm=vm, signal="ssh"),
                "refused": events.VmRefused(vm=vm, reason="no capacity", cause="stockout"),
                "deleted": events.VmDeleted(vm=vm, reason="silent"),
                "ready": events.VmReady(vm=vm),
            }[what]
        )
    story.after(3600)  # what was refused may be asked for again
    used += [each.vm for each in requests(story.decisions())]
    story.carry_out(story.decisions())
    assert len(used) == len(set(used))
    present = [(vm.role, vm.slot) for vm in story.state.living if vm.state != "leaving"]
    assert sorted(present) == [("ps", 0), ("worker", 0), ("worker", 1), ("worker", 2)]
    assert story.decisions() == []


WITH_CONTROLLER: dict[str, Any] = {
    "controller": "cluster", "prices": {"k80": PRICE, "parameter-server": PRICE, "controller": PRICE},
}  # fmt: skip


@pytest.mark.parametrize(("options", "seat"), [(WITH_CONTROLLER, "controller-0"), ({"controller": "cluster"}, "ps-0")])
def test_the_vm_on_which_the_controller_runs_is_deleted_last(options: dict[str, Any], seat: str) -> None:
    """Be it one of its own or, as in clusters of earlier versions, a parameter server's."""
    story = Story(**options).all_ready()
    others = {vm.name for vm in story.state.living} - {seat}
    story.happens(events.ControllerMoved(vm=seat), events.ClusterDeleting(reason="asked by the user"))
    first = story.decisions()
    assert {each.vm for each in first if isinstance(each, DeleteVm)} == others
    assert [each.vm for each in story.carry_out(first).decisions() if isinstance(each, DeleteVm)] == [seat]


def test_the_controllers_vm_is_asked_for_with_the_others_on_demand_and_replaced_like_them() -> None:
    story = Story(**WITH_CONTROLLER)
    asked = requests(story.decisions())
    assert [(each.vm, each.role, each.provisioning_model) for each in asked[:2]] == [
        ("controller-0", "controller", "standard"), ("ps-0", "ps", "standard"),
    ]  # fmt: skip
    story.all_ready().happens(events.ControllerMoved(vm="controller-0"), events.VmRevoked(vm="ps-0", signal="api"))
    assert [(each.vm, each.replaces) for each in requests(story.decisions())] == [("ps-1", "ps-0")]
    story.carry_out(story.decisions())
    story.happens(events.VmRevoked(vm="controller-0", signal="api"), events.ControllerMoved(vm=""))
    assert [(each.vm, each.replaces) for each in requests(story.decisions())] == [("controller-1", "controller-0")]


def test_a_zone_without_room_for_one_kind_of_vm_on_demand_may_have_it_for_another() -> None:
    story = Story(**WITH_CONTROLLER)
    story.carry_out(story.decisions()).happens(events.VmRefused(vm="ps-0", reason="no capacity", cause="stockout"))
    story.happens(events.VmRevoked(vm="controller-0", signal="api")).after(1)
    assert [(each.vm, each.zone) for each in requests(story.decisions())] == [
        ("controller-1", "us-west1-b"), ("ps-1", "us-east1-c"),
    ]  # fmt: skip


def test_idle_workers_go_first_and_the_controllers_vm_stays_to_the_end() -> None:
    story = Story(**WITH_CONTROLLER, idle_seconds=600.0).all_ready().happens(events.ControllerMoved(vm="controller-0"))
    gone = [each.vm for each in story.after(601).decisions() if isinstance(each, DeleteVm)]
    assert gone == ["worker-0", "worker-1"]
    assert story.after(600).decisions() == [BeginDeletion("no run for 20 min")]


def test_idle_time_is_measured_by_the_clock_that_dates_the_events() -> None:
    story = Story(idle_seconds=300.0).all_ready().after(299)
    assert story.decisions() == []
    assert story.decisions(clock_ahead=-3600.0) == [], "this machine's clock is an hour behind `now`"
    # `now` is an hour behind the events: the cluster was idle for 10 minutes all the same.
    idle = decide(Situation(story.now - 3600.0 + 301.0, story.state, clock_ahead=3600.0))
    assert [type(decision) for decision in idle] == [BeginDeletion]


def test_a_vm_that_was_replaced_is_not_replaced_again_after_its_replacement_was_deleted() -> None:
    story = Story().all_ready()
    story.happens(events.VmRevoked(vm="worker-1", signal="api"))
    [replacement] = requests(story.decisions())
    assert replacement.replaces == "worker-1"
    story.carry_out([replacement])
    story.happens(events.VmRefused(vm="worker-2", reason="no room", cause="other")).after(3600)
    [again] = requests(story.decisions())
    assert again.replaces == "worker-1", "the first request was refused"
    story.carry_out([again])
    story.happens(
        events.VmRunning(vm="worker-3", address="10.128.0.2"),
        events.VmReady(vm="worker-3"),
        events.VmDeleted(vm="worker-3", reason="no longer needed"),
    )
    [later] = requests(story.decisions())
    assert (later.slot, later.replaces) == (replacement.slot, None)


def test_a_steered_cluster_is_ready_once_the_workers_that_it_may_have_are(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story(2)
    monkeypatch.setattr(ClusterState, "steered", (("k80", "spot", 5), ("v100", "spot", 1)))
    story.happens(events.WorkDeclared(of="run", work="run-1", spec={"train_steps": 9}))
    story.carry_out(story.decisions())
    for vm in story.state.living:
        story.happens(events.VmRunning(vm=vm.name, address="10.128.0.2"), events.VmReady(vm=vm.name))
    assert ReportReady(2) in story.decisions()
