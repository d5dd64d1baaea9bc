"""A VM that is stopped, made another machine and started again: who may be, each step, and a death at each of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from transient_magics.client import Declaration
from transient_magics.client.declaring import specify
from transient_magics.cloud import Vm
from transient_magics.controller.decisions.machine_change import MOST_REFUSED, asked, next_act
from transient_magics.controller.record import Recorder
from transient_magics.controller.tasks import Tasks
from transient_magics.controller.vms import machine_change
from transient_magics.controller.vms.access import Access
from transient_magics.controller.vms.credentials import CredentialStatus
from transient_magics.controller.vms.fleet import Fleet
from transient_magics.errors import (
    AccessError,
    CloudError,
    DeclarationError,
    GoneError,
    StockoutError,
    TransientError,
    UnreachableError,
)
from transient_magics.journal import ClusterState, Event, Journal, events, now, read, replay

NAME, ZONE = "worker-1", "us-central1-a"
SPEC = specify(Declaration("t4x2", name="one", zone=(ZONE,), machine_type="n1-standard-8"))
END = datetime.fromtimestamp(int(SPEC.ends_at), UTC)


def vm_events(role: str = "worker", slot: int = 1, name: str = NAME) -> list[Event]:
    line = SPEC.prices["t4"]
    return [
        events.VmRequested(
            vm=name, role=role, slot=slot, zone=ZONE, accelerator="t4" if role == "worker" else "",
            machine_type=line.machine_type, provisioning_model="spot", hourly=line.hourly,
            on_demand_hourly=line.on_demand_hourly,
        ),
        events.VmRunning(vm=name, address="10.0.0.2", vm_id="7"),
        events.VmReady(vm=name),
    ]  # fmt: skip


BEGIN = [
    events.ClusterDeclared(spec=SPEC.to_dict()), *vm_events("ps", 0, "ps-0"), *vm_events("worker", 0, "worker-0"),
    *vm_events(),
]  # fmt: skip


def state(*more: Event) -> ClusterState:
    return replay([replace(event, time=int(now() * 1e9)) for event in (*BEGIN, *more)])


def asking(machine_type: str = "n1-standard-2", **known: Any) -> events.VmMachineAsked:
    event = asked(state(), NAME, machine_type, now())
    assert event
    return replace(event, **known)


def test_what_is_asked_for_has_its_price_and_its_part_of_what_was_rented() -> None:
    event, rented = asking("N1-standard-2"), SPEC.prices["t4"]
    assert (event.machine_type, event.part) == ("n1-standard-2", 0.25)
    assert 0 < event.disk_hourly < event.hourly < rented.hourly
    assert event.hourly < event.on_demand_hourly < rented.on_demand_hourly
    known = state(event, events.VmStopped(vm=NAME, reason="r"), events.VmMachineChanged(
        vm=NAME, machine_type="n1-standard-2", machine_before="n1-standard-8"),
        events.VmStarted(vm=NAME, address="10.0.0.2"), events.VmReady(vm=NAME))  # fmt: skip
    back = asked(known, NAME, "", now())
    assert back
    assert (back.machine_type, back.hourly, back.on_demand_hourly, back.part) == (
        "n1-standard-8", rented.hourly, rented.on_demand_hourly, 1.0,
    )  # fmt: skip
    assert asked(known, NAME, "n1-standard-4", now()), "up to what was rented"


@pytest.mark.parametrize(
    ("name", "machine_type", "more", "said"),
    [
        (NAME, "n1-standard-16", (), r"n1-standard-16 is larger than n1-standard-8.*n1-standard-4"),
        (NAME, "n1-highmem-8", (), "n1-highmem-8 is larger than n1-standard-8"),
        (NAME, "n1-standrad-4", (), "Unknown machine type 'n1-standrad-4'.*Did you mean n1-standard-4"),
        (NAME, "g2-standard-4", (), "g2-standard-4"),
        (NAME, "n1-standard-8", (), "worker-1 already has the machine type n1-standard-8"),
        ("worker-9", "n1-standard-2", (), r"Unknown VM 'worker-9' \(one\). Name a worker: worker-0, worker-1\."),
        ("ps-0", "n1-standard-2", (), "ps-0 has the variables that every worker needs"),
        (NAME, "n1-standard-2", (events.VmPreemptionNotice(vm=NAME),), "worker-1 is leaving, so"),
        (NAME, "n1-standard-4", (asking(),), "worker-1 is stopping, so"),
        (
            NAME,
            "n1-standard-2",
            (events.ClusterLeased(ports={}, workers={"1": "job-1"}),),
            "A change of worker-1 would interrupt job-1",
        ),
    ],
)
def test_what_cannot_be_is_one_clear_sentence(name: str, machine_type: str, more: Any, said: str) -> None:
    with pytest.raises(TransientError, match=said):
        asked(state(*more), name, machine_type, now())


def test_a_command_that_comes_twice_is_no_mistake() -> None:
    assert asked(state(asking()), NAME, "n1-standard-2", now()) is None


class Killed(BaseException):
    """A controller is at a call, and no more."""


class Cloud:
    """A VM at Compute Engine, and a death of its controller after so many calls. What `failing` says is refused."""

    def __init__(self, dies_after: int = 10**9, **failing: list[CloudError]) -> None:
        self.vm: Vm | None = Vm(
            "one-worker-1",
            ZONE,
            "7",
            "RUNNING",
            "10.0.0.2",
            "",
            {},
            None,
            True,
            datetime.now(UTC),
            "n1-standard-8",
            END,
        )
        self.power, self.dies_after, self.failing = self, dies_after, failing
        self.done: list[str] = []
        self.forgets_end = 0

    async def get(self, zone: str, name: str) -> Vm | None:
        await self._called("get")
        return self.vm

    async def endings(self, zone: str) -> dict[str, datetime]:
        await self._called("endings")
        return {}

    async def stop(self, zone: str, name: str) -> None:
        await self._act("stop", status="TERMINATED")

    async def set_machine_type(self, zone: str, name: str, machine_type: str) -> None:
        assert self.vm
        assert self.vm.status == "TERMINATED", "Compute Engine changes no other"
        await self._act("set machine type", machine_type=machine_type)

    async def set_end(self, zone: str, name: str, moment: datetime) -> None:
        assert self.vm
        assert self.vm.status == "TERMINATED", "Compute Engine changes no other"
        await self._act("set end", ends=moment)

    async def start(self, zone: str, name: str) -> None:
        forgotten: dict[str, Any] = {"ends": None} if self.forgets_end else {}
        self.forgets_end -= bool(forgotten)
        await self._act("start", status="RUNNING", last_start=datetime.now(UTC), **forgotten)

    async def _act(self, what: str, **becomes: Any) -> None:
        await self._called(what)
        if waiting := self.failing.get(what.replace(" ", "_")):
            raise waiting.pop(0)
        assert self.vm
        self.vm = replace(self.vm, **becomes)
        self.done.append(what)
        await self._called(f"{what} done")

    async def _called(self, what: str) -> None:
        self.dies_after -= 1
        if self.dies_after <= 0:
            self.dies_after = 10**9
            raise Killed(what)
        await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No pause between two looks, nor before another start."""
    monkeypatch.setattr(machine_change, "_LOOK_SECONDS", 0.0)
    monkeypatch.setattr(machine_change, "_AGAIN_SECONDS", 0.0)
    monkeypatch.setattr("transient_magics.controller.decisions.machine_change._FIRST_PAUSE", 0.0)


async def controlled(folder: Path, cloud: Cloud, over: Callable[[ClusterState], bool]) -> ClusterState:
    """What becomes of the VM under one controller after the other, until it is `over`."""
    path = folder / "journal.jsonl"
    first = not path.exists()
    while True:
        with Journal(path) as journal:
            recorder = Recorder(journal, replay(read(path)))
            if first:
                for event in (*BEGIN, asking()):
                    recorder.record(event)
                first = False
            try:
                await _one(recorder, cloud, over)
            except BaseExceptionGroup as group:
                if not group.subgroup(Killed):
                    raise
            else:
                return recorder.state


async def _one(recorder: Recorder, cloud: Cloud, over: Callable[[ClusterState], bool]) -> None:
    async def told_to_stop(vm: Any) -> int:
        await cloud.endings(ZONE)
        return 0

    async with asyncio.TaskGroup() as group, asyncio.timeout(60):
        tasks = Tasks(group, recorder.changed.set, recorder.note)
        carried_out = machine_change.Restarts(
            recorder, cast(Access, SimpleNamespace(engine=cloud)), tasks, CredentialStatus(recorder), lambda name: None,
            lambda error: "stockout" if isinstance(error, StockoutError) else "other",
            lambda moment: int(moment.timestamp() * 1e9) if moment else 0, told_to_stop,
        )  # fmt: skip
        while not over(recorder.state):
            carried_out.advance()
            await asyncio.sleep(0)
        tasks.cancel_all()


def has_changed(known: ClusterState) -> bool:
    return known.vms[NAME].change is None


def is_gone(known: ClusterState) -> bool:
    return not known.vms[NAME].living


@pytest.mark.parametrize("dies_after", range(1, 16))
async def test_a_controller_killed_at_any_call_is_followed_by_one_that_goes_on(tmp_path: Path, dies_after: int) -> None:
    cloud = Cloud(dies_after)
    known = await controlled(tmp_path, cloud, has_changed)
    vm = known.vms[NAME]
    assert (vm.state, vm.machine_type, vm.address) == ("booting", "n1-standard-2", "10.0.0.2")
    assert cloud.vm
    assert (cloud.vm.status, cloud.vm.machine_type, cloud.vm.ends) == ("RUNNING", "n1-standard-2", END)
    assert cloud.done == ["stop", "set machine type", "start"], "nothing is done twice that was done"
    told = [event.kind for event in read(tmp_path / "journal.jsonl")[len(BEGIN) :]]
    assert told == ["vm.machine_asked", "vm.stopped", "vm.machine_changed", "vm.started"]
    assert [each.runs for each in vm.stretches] == [True, False, True]


@pytest.mark.parametrize(
    ("refused", "cause"),
    [(StockoutError("The zone has no capacity"), "stockout"), (GoneError("A disk was not found"), "other")],
)
async def test_a_start_that_is_refused_is_tried_again_and_then_the_vm_is_given_up(
    tmp_path: Path, refused: CloudError, cause: str
) -> None:
    none = [refused] * MOST_REFUSED
    for many, over in ((2, has_changed), (MOST_REFUSED, is_gone)):
        folder = tmp_path / str(many)
        folder.mkdir()
        cloud = Cloud(dies_after=12, start=none[:many])
        known = await controlled(folder, cloud, over)
        history = read(folder / "journal.jsonl")
        told = [each for each in history if isinstance(each, events.VmStartRefused)]
        assert [(each.cause, each.reason) for each in told] == [(cause, str(refused))] * many
        if many == MOST_REFUSED:
            assert isinstance(history[-1], events.VmRevoked)
            assert history[-1].signal == "start"
            assert known.vms[NAME].state == "revoked"
        else:
            assert known.vms[NAME].machine_type == "n1-standard-2"


async def test_an_end_that_was_lost_is_set_again_and_a_vm_without_one_does_not_go_on(tmp_path: Path) -> None:
    cloud = Cloud()
    cloud.forgets_end = 1
    known = await controlled(tmp_path, cloud, has_changed)
    assert known.vms[NAME].state == "booting"
    assert cloud.vm
    assert cloud.vm.ends
    assert abs(cloud.vm.ends - END) < timedelta(seconds=1)
    assert cloud.done == ["stop", "set machine type", "start", "stop", "set end", "start"]
    assert [each.runs for each in known.vms[NAME].stretches] == [True, False, True, False, True]

    (tmp_path / "again").mkdir()
    cloud = Cloud()
    cloud.forgets_end = 99
    known = await controlled(tmp_path / "again", cloud, is_gone)
    assert known.vms[NAME].state == "revoked"
    assert cloud.done.count("start") == 2
    assert cloud.vm
    assert cloud.vm.status == "TERMINATED", "it is deleted as every VM is that nobody knows"


@pytest.mark.parametrize("after", ["stop", "set machine type", "start"])
async def test_a_vm_that_is_deleted_meanwhile_counts_as_lost(tmp_path: Path, after: str) -> None:
    cloud = Cloud()
    called = cloud._called

    async def called_and_gone(what: str) -> None:
        await called(what)
        if what == f"{after} done":
            cloud.vm = None

    cloud._called = called_and_gone  # type: ignore[method-assign]
    known = await controlled(tmp_path, cloud, is_gone)
    assert known.vms[NAME].state == "revoked"


@pytest.mark.parametrize(
    "refused", [CloudError("Unknown machine type"), GoneError("The zone has no n1-standard-2")], ids=["400", "404"]
)
async def test_what_compute_engine_refuses_leaves_the_vm_what_it_was(tmp_path: Path, refused: CloudError) -> None:
    cloud = Cloud(stop=[AccessError("compute.instances.stop is missing")])
    known = await controlled(tmp_path, cloud, has_changed)
    assert (known.vms[NAME].state, known.vms[NAME].machine_type) == ("ready", "n1-standard-8")
    (tmp_path / "again").mkdir()
    cloud = Cloud(set_machine_type=[UnreachableError("No answer"), *[refused] * 99])
    known = await controlled(tmp_path / "again", cloud, has_changed)
    vm = known.vms[NAME]
    assert (vm.state, vm.machine_type, vm.hourly) == ("booting", "n1-standard-8", SPEC.prices["t4"].hourly)
    assert cloud.done == ["stop", "start"]
    history = read(tmp_path / "again/journal.jsonl")
    told = [each.reason for each in history if isinstance(each, events.VmMachineRefused)]
    assert told == [str(refused)]


async def test_nothing_is_said_of_a_change_any_more_that_a_notice_has_ended(tmp_path: Path) -> None:
    cloud = Cloud(stop=[UnreachableError("No answer")] * 99)
    seen: list[str] = []

    def over(known: ClusterState) -> bool:
        if known.trouble and not seen:
            seen.append(known.trouble)
            recorder.record(events.VmPreemptionNotice(vm=NAME))
        return bool(seen) and not known.trouble

    with Journal(tmp_path / "journal.jsonl") as journal:
        recorder = Recorder(journal, replay([]))
        for event in (*BEGIN, asking()):
            recorder.record(event)
        await _one(recorder, cloud, over)
    assert seen == ["No answer."]
    assert recorder.state.vms[NAME].state == "leaving"


@pytest.mark.parametrize("answered", [False, True])
def test_a_vm_that_boots_again_is_not_silent_before_it_answers(tmp_path: Path, answered: bool) -> None:
    """It has the time that VMs have to boot, and says nothing about the others whose silence may be this machine's."""
    begun = [asking(), events.VmStopped(vm=NAME, reason="r"), events.VmStarted(vm=NAME, address="10.0.0.2")]
    with Journal(tmp_path / "journal.jsonl") as journal:
        recorder = Recorder(journal, state(*begun, *([events.VmReady(vm=NAME)] if answered else [])))
        fleet = Fleet(tmp_path, recorder, cast(Access, None), cast(Tasks, None), lambda *_: None, lambda _: None)
        at = time.monotonic()
        fleet._lost(NAME)
        fleet._silent.polled(at + 100, at + 100.1, answered=True)
        assert fleet.find_silent() == ([NAME] if answered else [])
        for name in ("ps-0", "worker-0"):
            fleet._lost(name)
        fleet._silent.polled(at + 200, at + 200.1, answered=True)
        assert fleet.find_silent() == [], "of those that answered before none does"
        assert fleet._silent.path_closed


def test_a_start_waits_longer_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    stopped = [asking(), events.VmStopped(vm=NAME, reason="r")]
    refusals = [events.VmStartRefused(vm=NAME, reason="no capacity") for _ in range(2)]
    vm = state(*stopped, *refusals).vms[NAME]
    seen = replace(Cloud().vm, status="TERMINATED", machine_type="n1-standard-2")  # type: ignore[type-var]
    assert vm.change
    at = vm.change.refused_at
    assert [next_act(vm, seen, SPEC.ends_at, at + wait) for wait in (9.0, 10.0)] == ["wait", "start"]


def test_a_machine_of_another_family_cannot_be_had_without_a_gpu_either() -> None:
    from transient_magics.catalog import smaller_machine

    with pytest.raises(DeclarationError, match="n2-standard-2 is not of the same family as n1-standard-4"):
        smaller_machine("cpu", "n1-standard-4", "n2-standard-2")
    with pytest.raises(DeclarationError, match=r"larger than n1-standard-1.*no smaller machine type with a T4"):
        smaller_machine("t4", "n1-standard-1", "n1-standard-4")
    assert smaller_machine("l4", "g2-standard-8", "g2-standard-4")[1] == 0.5
