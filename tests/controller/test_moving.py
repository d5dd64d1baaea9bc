"""A cluster moves whole: to where it is to be, or not at all, whatever goes wrong on the way."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from transient_magics.client import Declaration
from transient_magics.client.declaring import Relocation, relocated, specify
from transient_magics.client.text import event_words, phase_words
from transient_magics.controller.decisions.core import (
    CancelMove,
    Decision,
    DeleteVm,
    FinishMove,
    RequestVm,
    Situation,
    decide,
)
from transient_magics.controller.decisions.relocation import CAPACITY_SECONDS, meant, patience
from transient_magics.controller.vms.machines import requested
from transient_magics.errors import ClusterError, DeclarationError
from transient_magics.journal import ClusterState, Event, VmState, at_the_end, bill, events, replay
from transient_magics.protocol.space import parse_space
from transient_magics.protocol.vm_events import TrainStarted
from transient_magics.spec import ClusterSpec
from transient_magics.works.bags.spec import BagSpec
from transient_magics.works.dask.spec import DaskSpec

HOME, THERE = "us-west1-b", "us-east1-c"
BAG = BagSpec("bag-1", parse_space("x=0:1"), 2, max_cost=1.0, max_hours=2.0)


class World:
    """A cluster that is ready, its controller's rounds, what Compute Engine does to it; the journal has all of it."""

    def __init__(self, spec: str = "k80x2", **options: Any) -> None:
        declared = specify(Declaration(f"{spec}@{HOME}", name="one", **{"ps": 1, **options}))
        self.now = declared.declared_at
        self._seq = itertools.count(1)
        self.journal: list[Event] = []
        self.state = ClusterState()
        self.happens(events.ClusterDeclared(spec=declared.to_dict()))
        self.all_come()
        self.happens(events.ClusterReady(workers=2, seconds=1.0))
        self.happens(
            events.WorkDeclared(of="run", work="run-1", spec={"train_steps": 10**6}),
            TrainStarted(run="run-1", step=0),
        )

    def happens(self, *told: Event) -> None:
        for event in told:
            event = replace(event, seq=next(self._seq), time=int(self.now * 1e9))
            self.journal.append(event)
            self.state = replay([event], self.state)

    @property
    def spec(self) -> ClusterSpec:
        assert self.state.spec
        return self.state.spec

    def move(self, zone: str = THERE, gpu: str = "", servers: int | None = None) -> ClusterSpec:
        new = meant(self.state, relocated(self.spec, zone, gpu, servers), self.now)
        self.happens(events.ClusterRelocating(spec=new.to_dict()))
        return new

    def round(self) -> list[Decision]:
        """What the controller decides now is carried out; who asks for a VM hears nothing yet."""
        decisions = decide(Situation(self.now, self.state))
        rented_as = self.state.relocation.spec if self.state.relocation else self.spec
        for each in decisions:
            match each:
                case RequestVm():
                    self.happens(requested(rented_as, each))
                case DeleteVm():
                    self.happens(events.VmDeleted(vm=each.vm, reason=each.reason))
                case FinishMove():
                    self.happens(events.ClusterRelocated(leaves=each.leaves, transferred=2**20, dollars=0.01))
                case CancelMove():
                    self.happens(events.ClusterStayed(reason=each.why))
                case _:
                    pass
        return decisions

    def comes(self, vm: str) -> None:
        self.happens(events.VmRunning(vm=vm, address="10.128.0.9"), events.VmReady(vm=vm))

    def all_come(self, *, rounds: int = 3) -> None:
        for _ in range(rounds):
            self.round()
            for vm in [each.name for each in self.state.living if each.state == "requested"]:
                self.comes(vm)

    def is_whole(self) -> None:
        """One VM in each declared place, of what is declared, and nothing else that is paid."""
        spec, living = self.spec, self.state.living
        assert not self.state.relocation
        assert sorted((vm.role, vm.slot) for vm in living) == [
            *(("ps", slot) for slot in range(spec.parameter_servers)),
            *(("worker", slot) for slot in range(spec.worker_count)),
        ]
        assert living == self.state.serving
        assert all(vm.zone in spec.all_zones for vm in living)
        kinds = [group.accelerator for group in spec.groups for _ in range(group.count)]
        assert sorted(vm.accelerator for vm in living if vm.role == "worker") == sorted(kinds)


def zones(vms: list[VmState]) -> set[str]:
    return {vm.zone for vm in vms}


def test_whole_new_vms_come_before_any_of_the_old_goes_and_then_the_old_go() -> None:
    world = World()
    old = {vm.name for vm in world.state.living}
    world.move()
    assert "moving to k80x2 with 1 parameter server in us-east1-c: 0 of 0 VMs" in phase_words(world.state)
    asked = [each for each in world.round() if isinstance(each, RequestVm)]
    assert [(each.vm, each.slot, each.zone) for each in asked] == [
        ("ps-1", 0, THERE), ("worker-2", 0, THERE), ("worker-3", 1, THERE),
    ]  # fmt: skip
    for vm in ("ps-1", "worker-3"):
        world.comes(vm)
        assert world.round() == [], "not all of them are there"
    assert {vm.name for vm in world.state.serving} == old
    world.comes("worker-2")
    assert world.round() == [FinishMove(tuple(sorted(old)), save=True)]
    assert {vm.name for vm in world.state.serving} == {"ps-1", "worker-2", "worker-3"}
    assert {each.vm for each in world.round() if isinstance(each, DeleteVm)} == old
    world.is_whole()
    assert zones(world.state.living) == {THERE}
    assert world.round() == [], "and then it is at rest"
    assert replay(world.journal) == world.state


def test_nobody_is_handed_over_before_all_is_prepared_and_that_is_not_waited_for_without_end() -> None:
    world = World()
    world.move()
    world.round()
    for vm in ("ps-1", "worker-2", "worker-3"):
        world.comes(vm)

    def decided(*unprepared: str) -> list[Decision]:
        return decide(Situation(world.now, world.state, unprepared=unprepared))

    assert decided("ps-1", "worker-3") == []
    assert decided("worker-3") == []
    assert [type(each) for each in decided("worker-0")] == [FinishMove], "one that is left anyway"
    world.now += patience(world.state.relocation.spec)  # type: ignore[union-attr]
    (stay,) = decided("worker-3")
    assert isinstance(stay, CancelMove)
    assert "had not all ready within" in stay.why


def test_another_gpu_leaves_the_parameter_server_where_it_is_and_saves_nothing() -> None:
    world = World()
    world.move(zone="", gpu="p100")
    world.round()
    for vm in ("worker-2", "worker-3"):
        world.comes(vm)
    assert world.round() == [FinishMove(("worker-0", "worker-1"), save=False)]
    world.all_come()
    world.is_whole()
    assert "ps-0" in {vm.name for vm in world.state.living}


def test_another_parameter_server_is_the_same_act() -> None:
    world = World()
    world.move("", servers=2)
    assert [each.vm for each in world.round() if isinstance(each, RequestVm)] == ["ps-1"]
    world.comes("ps-1")
    assert world.round() == [FinishMove((), save=True)]
    world.is_whole()
    world.move("", servers=1)
    assert world.round() == [FinishMove(("ps-1",), save=True)]
    world.all_come()
    world.is_whole()


@pytest.mark.parametrize(
    ("cause", "after"), [("stockout", CAPACITY_SECONDS), ("quota", 0.0), ("access", 0.0), ("other", 0.0)]
)
def test_where_nobody_gives_the_vms_it_stays_and_what_had_come_goes(cause: str, after: float) -> None:
    world = World()
    old = {vm.name for vm in world.state.living}
    world.move()
    world.round()
    world.comes("ps-1")
    world.comes("worker-2")
    world.happens(events.VmRefused(vm="worker-3", reason="no capacity.", cause=cause))
    if after:
        world.round()
        assert world.state.relocation, "a zone may have some again"
    world.now += after
    if after:
        (again,) = [each.vm for each in world.round() if isinstance(each, RequestVm)]
        world.happens(events.VmRefused(vm=again, reason="no capacity.", cause=cause))
    (stay,) = [each for each in world.round() if isinstance(each, CancelMove)]
    assert stay.why == "a VM that it needs there cannot be had: no capacity"
    assert event_words(events.ClusterStayed(reason="no")) == "the cluster stays where it is: no"
    world.all_come()
    world.is_whole()
    assert {vm.name for vm in world.state.living} == old
    world.move()
    world.now += CAPACITY_SECONDS
    world.all_come()
    assert not world.state.relocation, "it may be tried again, and has an end again"


def test_vms_there_that_never_boot_are_not_waited_for_and_say_nothing_of_those_here() -> None:
    world = World()
    world.move()
    for vm in ("ps-1", "ps-2"):
        world.round()
        world.happens(events.VmRunning(vm=vm, address="10.0.0.1"), events.VmBootFailed(vm=vm, reason="no network"))
        world.round()
    assert not world.state.relocation
    assert not world.state.given_up
    assert not world.state.stranded
    world.all_come()
    world.is_whole()
    assert zones(world.state.living) == {HOME}


def test_without_the_old_parameter_server_the_move_goes_on_from_what_was_saved_before() -> None:
    world = World()
    world.move()
    world.round()
    world.happens(events.VmRevoked(vm="ps-0", signal="api"))
    assert not [each for each in world.round() if isinstance(each, RequestVm)], "nothing is rented here any more"
    for vm in ("ps-1", "worker-2", "worker-3"):
        world.comes(vm)
    assert world.round() == [FinishMove(("worker-0", "worker-1"), save=False)]


MISHAPS = st.sampled_from(["come", "refuse", "revoke", "fail", "wait", "lose server", "round", "round"])


@pytest.mark.slow
@examples(150)
@given(
    st.lists(st.tuples(MISHAPS, st.integers(0, 20)), max_size=40),
    st.sampled_from([(THERE, "", None), ("", "p100", None), ("", "", 2), ("us-central1-c", "p100", 2)]),
)
def test_whatever_happens_on_the_way_there_is_one_whole_cluster_at_its_end(
    story: list[tuple[str, int]], to: tuple[str, str, int | None]
) -> None:
    world = World()
    was, will = world.spec, world.move(*to)
    for what, number in story:
        living = world.state.living
        vm = living[number % len(living)] if living else None
        moving = world.state.relocation
        match what:
            case "come" if vm and vm.state == "requested":
                world.comes(vm.name)
            case "refuse" if vm and vm.state == "requested":
                world.happens(events.VmRefused(vm=vm.name, reason="no capacity", cause="stockout"))
            case "revoke" if vm and vm.role == "worker" and vm.running_at:
                world.happens(events.VmRevoked(vm=vm.name, signal="api"))
            case "fail" if vm and vm.state == "requested":
                world.happens(events.VmRunning(vm=vm.name, address="x"))
                world.happens(events.VmBootFailed(vm=vm.name, reason="x"))
            case "lose server" if number == 0:
                for each in [each for each in living if each.role == "ps" and each.running_at]:
                    world.happens(events.VmRevoked(vm=each.name, signal="api"))
            case "wait":
                world.now += 10.0 * number
            case _:
                before = {each.name for each in world.state.serving if not each.failure}
                deleted = {each.vm for each in world.round() if isinstance(each, DeleteVm)}
                if moving and world.state.relocation:
                    assert not deleted & before, "who trains is left alone until all have come"
    assert replay(world.journal) == world.state
    began = world.now
    while world.state.relocation and world.now < began + patience(will) + 60:
        world.all_come(rounds=1)
        world.now += 30.0
    assert not world.state.relocation, "it ends"
    for _ in range(80):
        world.all_come(rounds=1)
        world.now += 30.0
    if not world.state.given_up:
        world.is_whole()
    assert world.spec in (was, will)


def test_what_cannot_move_is_refused_in_a_sentence() -> None:
    def refusal(world: World, *to: Any) -> str:
        with pytest.raises((ClusterError, DeclarationError)) as refused:
            world.move(*to)
        return str(refused.value)

    assert "one is already there" in refusal(World(), HOME)
    assert "one is already there" in refusal(World(), "", "k80")
    assert "K80 is not available in us-east1-b (--zone). Use one of these: us-west1-b" in refusal(World(), "us-east1-b")
    assert "unknown zone 'us-east9-c'" in refusal(World(), "us-east9-c")
    world = World()
    world.happens(events.WorkDeclared(of="job", work="job-1", spec={"command": "true", "workers": 1}))
    assert "cannot be relocated while job-1 uses its VMs" in refusal(world, THERE)
    world = World()
    world.happens(events.WorkDeclared(of="dask", work="dask-1", spec=DaskSpec("dask-1", 2).to_dict()))
    assert "cannot be relocated while dask-1 uses its VMs. Wait until it has ended" in refusal(world, THERE)
    world = World()
    world.happens(events.WorkDeclared(of="bag", work="bag-1", spec=BAG.to_dict()))
    assert "cannot be relocated while bag-1 uses its VMs. Wait until it has ended" in refusal(world, THERE)
    world = World()
    world.move()
    assert "one is already being relocated" in refusal(world, "us-central1-c")
    world = World()
    world.happens(events.WorkDeclared(of="run", work="run-2", spec={"train_steps": 9, "finish_by": world.now + 3600}))
    assert "while a run with a deadline chooses its workers" in refusal(world, THERE)
    assert "its controller on a VM" in refusal(World(controller="cluster", bucket="results"), THERE)
    late = World(max_hours=0.5)
    assert "but a relocation may take" in refusal(late, THERE)
    assert "is not ready" in refusal_of(replace(World().state, phase="provisioning"))


def refusal_of(state: ClusterState) -> str:
    assert state.spec
    with pytest.raises(ClusterError) as refused:
        meant(state, relocated(state.spec, THERE), state.spec.declared_at)
    return str(refused.value)


def test_the_money_lasts_for_both_places_or_the_end_is_earlier_or_it_does_not_move() -> None:
    free = World()
    assert free.move().ends_at == free.spec.ends_at
    rich = World(max_cost=1000.0)
    assert rich.move().ends_at == pytest.approx(rich.spec.ends_at)
    world = World(max_cost=3.0)
    new = world.move()
    assert new.ends_at < world.spec.ends_at - 60
    offer = Relocation.of(
        world.spec, new, {"bytes": 0, "dollars": 0.0, "ends_at": new.ends_at, "ends_at_before": world.spec.ends_at},
        begun=False,
    )  # fmt: skip
    assert "sooner, because its limit on cost covers both" in str(offer)
    assert "--yes" in str(offer)
    world.round()
    for vm in [each.name for each in world.state.living if each.state == "requested"]:
        world.comes(vm)
    world.now += patience(new)  # as late as it may be
    world.happens(events.ClusterRelocated(leaves=("ps-0", "worker-0", "worker-1")))
    world.round()
    assert bill(world.state, new.ends_at).total <= 3.0 + 1e-6
    poor = World(max_cost=0.5)
    with pytest.raises(ClusterError, match=r"VMs in both places cost money during the relocation"):
        poor.move()


@pytest.mark.parametrize(("hours", "move"), [(24.0, {"gpu": "v100"}), (24.0, {"gpu": "p100"}), (28.0, {"servers": 3})])
def test_the_money_lasts_for_vms_that_stay_and_end_when_they_would_have_without_the_move(
    hours: float, move: dict[str, Any]
) -> None:
    world = World(max_cost=20.0, max_hours=hours)
    before, there = world.spec.ends_at, {vm.name for vm in world.state.living}
    new = world.move(zone="", **move)
    world.all_come(rounds=1)
    world.now += patience(new) - 60  # as late as it may be
    world.round()
    world.round()
    world.is_whole()
    assert new.ends_at < before - 600
    stayed = [vm for vm in world.state.living if vm.name in there]
    assert stayed
    assert {vm.ends for vm in stayed} == {before}
    later = sum(vm.hourly for vm in stayed) * (before - new.ends_at) / 3600
    assert 19.0 < bill(world.state, new.ends_at).total + later <= 20.0 + 1e-6, "though nobody is in charge any more"
    whole = bill(world.state, new.ends_at).total + later
    assert at_the_end(world.state, world.spec, world.now) == pytest.approx(whole, abs=0.01), "a resize knows of them"


def test_a_move_is_refused_where_vms_that_stay_will_have_spent_the_money() -> None:
    with pytest.raises(ClusterError, match=r"VMs that stay keep their end, which Compute Engine cannot"):
        World("k80x4", max_cost=20.0).move(zone="", servers=3)


def test_data_that_were_exchanged_before_a_move_keep_the_price_that_they_had() -> None:
    world = World("k80x2")
    world.happens(events.VmTraffic(vm="worker-0", sent=2**30, received=2**30))
    assert bill(world.state, world.now).transfer == 0.0, "within one zone"
    world.move()
    world.all_come()
    world.is_whole()
    assert bill(world.state, world.now).transfer == pytest.approx(0.01), "what followed it, and nothing else"
    assert bill(world.state, world.now).total == pytest.approx(sum(bill(world.state, world.now).by_vm.values()) + 0.01)
