"""What the controller makes of the lines of its agents, which each controller reads from the first on."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from transient_magics.client.text import event_words
from transient_magics.cloud import Vm
from transient_magics.controller.cluster import Controller
from transient_magics.controller.decisions.core import BeginDeletion, DeleteVm, Situation, decide
from transient_magics.controller.metering import Metering
from transient_magics.controller.record import Recorder
from transient_magics.controller.tasks import Tasks
from transient_magics.controller.vms import fleet as vms_fleet
from transient_magics.controller.vms.access import Access
from transient_magics.controller.vms.boots import Boots
from transient_magics.controller.vms.fleet import Fleet
from transient_magics.controller.vms.link import Link
from transient_magics.journal import Journal, bill, events, read, replay
from transient_magics.protocol.vm_events import TrafficCounted, TrainStarted, WorkerJoined, from_agent
from transient_magics.spec import ClusterSpec, PriceLine, WorkerGroup
from transient_magics.spec.cluster import place
from transient_magics.works.runs.conduct import Runs
from transient_magics.works.runs.training import Training

ZONE, AWAY = "us-west1-b", "us-east1-c"
PRICE = PriceLine("n1-standard-4", 0.256, 0.723, "test")
SPEC = ClusterSpec(
    name="one", groups=(WorkerGroup("k80", 1),), zones=(ZONE, AWAY), prices={"k80": PRICE, "parameter-server": PRICE},
    transfer_prices={AWAY: 0.01},
)  # fmt: skip
SECOND = 10**9
WORKER: dict[str, Any] = {
    "vm": "worker-0", "role": "worker", "slot": 0, "zone": AWAY, "accelerator": "k80", "machine_type": "n1-standard-4",
    "provisioning_model": "spot", "hourly": 1.0, "on_demand_hourly": 3.0,
}  # fmt: skip


@contextmanager
def in_charge(directory: Path) -> Iterator[Controller]:
    """A controller that has just taken charge of what the journal says."""
    controller = Controller(directory)
    with Journal(directory / "journal.jsonl") as journal:
        controller._recorder = Recorder(journal, replay(read(journal.path)))
        yield controller


def tell(controller: Controller, line: dict[str, Any], vm: str = "worker-0") -> None:
    """As the link of the VM does."""
    controller._agent_line(vm, from_agent(json.dumps(line).encode(), 0, time.time_ns()))


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    """The folder of a cluster with a worker far away from its parameter servers."""
    (tmp_path / "spec.json").write_text(json.dumps(SPEC.to_dict()), encoding="utf-8")
    with Journal(tmp_path / "journal.jsonl") as journal:
        journal.append(events.ClusterDeclared(spec=SPEC.to_dict()))
        journal.append(events.VmRequested(**WORKER, time=SECOND))
        journal.append(events.VmRunning(vm="worker-0", address="10.0.0.1", time=100 * SECOND))
        journal.append(events.VmReady(vm="worker-0", time=110 * SECOND))
    return tmp_path


SERVER: dict[str, Any] = {**WORKER, "vm": "ps-0", "role": "ps", "zone": ZONE, "provisioning_model": "standard"}


def exchanged(number: int, total: int) -> dict[str, Any]:
    """What an agent says of its VM's traffic, every ten seconds."""
    return {"kind": "vm.traffic", "time": (100 + 10 * number) * SECOND, "sent": total, "received": 0}


@pytest.fixture
def served(cluster: Path) -> Path:
    """The same cluster with its parameter server."""
    with Journal(cluster / "journal.jsonl") as journal:
        journal.append(events.VmRequested(**SERVER, time=SECOND))
        journal.append(events.VmRunning(vm="ps-0", address="10.0.0.2", time=100 * SECOND))
        journal.append(events.VmReady(vm="ps-0", time=110 * SECOND))
    return cluster


def test_traffic_is_counted_once_however_often_it_is_read(served: Path) -> None:
    lines = [exchanged(number, 1000 * number) for number in range(1, 6)]
    with in_charge(served) as controller:
        for line in lines[:3]:
            tell(controller, line, "ps-0")
            tell(controller, line)
    with in_charge(served) as later:
        for line in lines:  # two of them were written while nobody was in charge
            tell(later, line, "ps-0")
            tell(later, line)
    history = read(served / "journal.jsonl")
    assert sum(event.kind == "vm.traffic" for event in history) == 5
    vm = replay(history).vms["worker-0"]
    assert (vm.traffic_bytes, vm.traffic_rate) == (5000, 100.0)


def test_a_vm_that_is_stopped_and_started_again_counts_its_traffic_anew_and_all_of_it_is_billed(served: Path) -> None:
    lines = [exchanged(1, 1000), exchanged(2, 5000), exchanged(5, 300), exchanged(6, 700)]
    with Journal(served / "journal.jsonl") as journal:
        for number, each in enumerate((
            events.VmMachineAsked(vm="worker-0", machine_type="n1-standard-2", hourly=0.5, on_demand_hourly=1.0,
                                  disk_hourly=0.01, part=0.5, reason="asked by the user"),
            events.VmStopped(vm="worker-0", reason="to become n1-standard-2"),
            events.VmStarted(vm="worker-0", address="10.0.0.1"),
        )):  # fmt: skip
            journal.append(replace(each, time=(125 + 5 * number) * SECOND))
    for _ in range(2):  # by the next controller, too
        with in_charge(served) as controller:
            for line in (*lines, *lines):  # over a second connection, too
                tell(controller, {**line, "sent": 2 * line["sent"]}, "ps-0")
                tell(controller, line)
            assert controller._state.vms["worker-0"].traffic_bytes == 5700


def test_a_vm_that_makes_its_traffic_up_is_billed_what_the_other_end_counted(served: Path) -> None:
    with in_charge(served) as controller:
        state = controller._recorder.state
        cost = lambda: bill(controller._state, 200.0).transfer  # noqa: E731
        tell(controller, exchanged(2, 10**15))
        assert cost() == 0, "nobody else has counted anything"
        tell(controller, exchanged(3, 2**30), "ps-0")
        assert cost() == pytest.approx(0.01), "one GiB"
        tell(controller, {**exchanged(3, 10**16), "time": int(controller._state.vms["worker-0"].traffic_at * 1e9) + 1})
        assert cost() == pytest.approx(0.01)
        tell(controller, exchanged(5, 2**31), "ps-0")
        assert cost() == pytest.approx(0.02)
        tell(controller, exchanged(6, 5))
        assert cost() == pytest.approx(0.02), "nor is anything taken back"
        assert controller._state.vms["worker-0"].traffic_rate <= 2**30 / 10
        assert state.spec
        limited = replace(controller._state, spec=replace(state.spec, max_cost=100.0, max_seconds=1e12))
        assert not [each for each in decide(Situation(200.0, limited)) if isinstance(each, BeginDeletion)]


def test_nobody_is_billed_more_than_a_link_carries_though_both_ends_say_so(served: Path) -> None:
    with in_charge(served) as controller:
        metering = Metering(controller._recorder)
        for sent in (10**12, 10**9):
            for vm in ("ps-0", "worker-0"):  # ten seconds after they were started
                metering.counted(vm, TrafficCounted(time=110 * SECOND, sent=sent, received=0), 110.0)
            assert controller._state.vms["worker-0"].traffic_bytes == (0 if sent == 10**12 else sent)


def test_what_was_billed_before_a_parameter_server_was_lost_stays_and_what_comes_is_added(served: Path) -> None:
    with in_charge(served) as controller:
        tell(controller, exchanged(1, 1000), "ps-0")
        tell(controller, exchanged(1, 1000))
        controller._recorder.record(events.VmDeleted(vm="ps-0", reason="lost"))
        controller._recorder.record(events.VmRequested(**{**SERVER, "vm": "ps-1"}))
        controller._recorder.record(events.VmRunning(vm="ps-1", address="10.0.0.3"))
    with in_charge(served) as later:  # the lost one's agent tells nothing any more
        tell(later, exchanged(1, 1000))
        tell(later, exchanged(2, 300), "ps-1")
        tell(later, exchanged(2, 1300))
        assert later._state.vms["worker-0"].traffic_bytes == 1300


def test_mini_batches_that_come_from_another_zone_are_billed_though_no_parameter_server_counted_them(
    served: Path,
) -> None:
    preparer = {**SERVER, "vm": "prep-0", "role": "prep", "accelerator": "cpu", "provisioning_model": "spot"}
    with in_charge(served) as controller:
        controller._recorder.record(events.VmRequested(**preparer))
        controller._recorder.record(events.VmRunning(vm="prep-0", address="10.0.0.4"))
        tell(controller, exchanged(1, 1000), "ps-0")
        tell(controller, exchanged(1, 5000))
        assert controller._state.vms["worker-0"].traffic_bytes == 1000
        tell(controller, exchanged(2, 3500), "prep-0")
        assert controller._state.vms["worker-0"].traffic_bytes == 4500
        assert controller._state.vms["prep-0"].traffic_bytes == 0, "at home; a worker pays both ways"
        controller._recorder.record(events.VmDeleted(vm="prep-0", reason="no longer needed"))
    with in_charge(served) as later:
        tell(later, exchanged(1, 1000), "ps-0")
        tell(later, exchanged(3, 5500))
        assert later._state.vms["worker-0"].traffic_bytes == 5500


@pytest.mark.parametrize("model", ["spot", "standard"])
def test_the_notice_of_a_preemption_is_a_vms_own_word_and_it_is_held_to_it(cluster: Path, model: str) -> None:
    """A second VM is rented at it: one on demand has none to give, and any other goes."""
    journal = cluster / "journal.jsonl"
    journal.write_text(journal.read_text(encoding="utf-8").replace('"spot"', f'"{model}"'), encoding="utf-8")
    asked: list[str] = []
    tasks = cast(Tasks, SimpleNamespace(do=lambda key, _: asked.append(key)))
    with in_charge(cluster) as controller:
        recorder = controller._recorder
        tell(controller, {"kind": "vm.preemption_notice", "time": 1})
        assert recorder.state.vms["worker-0"].state == ("leaving" if model == "spot" else "ready")
        fleet = Fleet(cluster, recorder, cast(Access, None), tasks, lambda *_: None, lambda _: None)
        fleet.update_links()
        assert asked == ["link worker-0"]
        noticed = time.time() - 3600
        vms = {name: replace(vm, noticed_at=noticed) for name, vm in recorder.state.vms.items()}
        recorder.state = replace(recorder.state, vms=vms)
        for decision in decide(Situation(200.0, recorder.state, clock_ahead=time.time() - 200.0)):
            if isinstance(decision, DeleteVm) and "still running" in decision.reason:
                fleet.delete(recorder.state.vms[decision.vm], decision.reason)
        assert ("delete worker-0" in asked) == (model == "spot")


@pytest.mark.parametrize(("told", "longest", "counts"), [(120.0, 120, 120.0), (120.0, 0, 30.0), (30.0, 120, 30.0)])
def test_a_vm_under_notice_has_the_seconds_that_it_reports_and_that_were_requested(
    cluster: Path, told: float, longest: int, counts: float
) -> None:
    with in_charge(cluster) as controller:
        state = controller._recorder.state
        assert state.spec
        controller._recorder.state = replace(state, spec=replace(state.spec, notice_seconds=longest))
        tell(controller, {"kind": "vm.preemption_notice", "time": 1, "seconds": told})
        vm = controller._recorder.state.vms["worker-0"]
        assert (vm.state, vm.notice_seconds) == ("leaving", counts)


def test_a_vm_that_is_stopped_for_another_machine_is_not_taken_for_preempted(cluster: Path) -> None:
    """On Compute Engine a stop may look like a preemption in the VM's metadata."""
    asked = events.VmMachineAsked(
        vm="worker-0", machine_type="n1-standard-2", hourly=0.5, on_demand_hourly=1.5, disk_hourly=0.01, part=0.5,
        reason="asked by the user",
    )  # fmt: skip
    with in_charge(cluster) as controller:
        controller._recorder.record(asked)
        tell(controller, {"kind": "vm.preemption_notice", "time": 1})
        vm = controller._recorder.state.vms["worker-0"]
        assert vm.state != "leaving"
        assert vm.change


@pytest.mark.parametrize(("answers", "patience", "told"), [(False, 60.0, True), (True, 60.0, False), (True, 0.0, True)])
async def test_a_vm_that_answers_tells_of_its_notice_before_compute_engine_is_believed(
    cluster: Path, monkeypatch: pytest.MonkeyPatch, answers: bool, patience: float, told: bool
) -> None:
    """It knows the moment. Both show it at once, and who is seen first is chance."""
    monkeypatch.setattr(vms_fleet, "_NOTICE_SECONDS", patience)
    taken = Vm("one-worker-0", AWAY, "1", "STOPPING", "10.0.0.1", "", {}, None, preemptible=True, last_start=None)
    with in_charge(cluster) as controller:
        async with asyncio.TaskGroup() as group:
            tasks = Tasks(group, lambda: None, lambda *_: None)
            fleet = Fleet(cluster, controller._recorder, cast(Access, None), tasks, lambda *_: None, lambda _: None)
            fleet._links["worker-0"] = cast(Link, SimpleNamespace(answering=answers))
            fleet._reconcile({"worker-0": taken}, time.time(), {})
        assert (controller._recorder.state.vms["worker-0"].state == "leaving") == told


def conducted_runs(controller: Controller, directory: Path) -> Runs:
    """The runs of a controller whose other work is not asked."""
    runs = Runs(directory, controller._recorder, controller._link)
    controller._works["run"] = runs
    return runs


def test_a_worker_that_keeps_ending_makes_room_for_another_vm(cluster: Path) -> None:
    asked: list[tuple[str, ...]] = []
    training = SimpleNamespace(give_up=lambda vm, role, said: not asked.append((vm, role, said)))
    fleet = SimpleNamespace(delete=lambda vm, reason: asked.append((vm.name, reason)))
    with in_charge(cluster) as controller:
        runs = conducted_runs(controller, cluster)
        runs.take_charge(cast(Fleet, fleet), cast(Tasks, None))
        runs._trainings["run-1"] = cast(Training, training)
        for run in ("run-0", "run-1"):  # the first one is over
            line = {"kind": "process.gave_up", "time": 1, "run": run, "role": "worker", "name": "worker-0"}
            tell(controller, {**line, "said": "Killed"})
    assert asked == [("worker-0", "worker", "Killed"), ("worker-0", "its worker keeps ending: Killed")]


def test_a_worker_without_its_gpu_is_told_once_and_after_two_of_them_no_more_are_bought(cluster: Path) -> None:
    line = {"kind": "process.unfit", "time": 1, "run": "run-1", "role": "worker", "name": "worker-0"}
    reason = "TensorFlow cannot use the GPU (k80): the NVIDIA driver is not loaded"
    for _ in range(2):  # each controller reads it again
        with in_charge(cluster) as controller:
            tell(controller, {**line, "reason": reason})
            (deleted, *_) = decide(Situation(200.0, controller._state))
            assert deleted == DeleteVm("worker-0", reason)
    (told,) = [event for event in read(cluster / "journal.jsonl") if event.kind == "vm.unfit"]
    assert event_words(told) == f"worker-0 is unusable: {reason}"
    with in_charge(cluster) as controller:
        record = controller._recorder.record
        record(events.VmDeleted(vm="worker-0", reason=reason))
        (asked,) = [each for each in decide(Situation(200.0, controller._state)) if each.role == "worker"]
        assert asked.vm == "worker-1"
        record(events.VmRequested(**{**WORKER, "vm": "worker-1"}))
        record(events.VmRunning(vm="worker-1", address="10.0.0.2"))
        record(events.VmReady(vm="worker-1"))  # that it boots is no news
        record(events.VmUnfit(vm="worker-1", reason=reason))
        record(events.VmDeleted(vm="worker-1", reason=reason))
        assert "worker" not in {each.role for each in decide(Situation(200.0, controller._state))}
        trouble = Boots(controller._recorder, cast(Access, None), cast(Tasks, None)).trouble
        assert trouble == (
            f"worker (k80): 2 VMs in a row were of no use, the last one: {reason}; no more are asked for until the "
            "cluster is resized"
        )


def test_a_dispatcher_that_keeps_ending_is_told_of(served: Path) -> None:
    asked: list[tuple[str, ...]] = []
    training = SimpleNamespace(give_up=lambda vm, role, said: asked.append((vm, role, said)))
    with in_charge(served) as controller:
        runs = conducted_runs(controller, served)
        runs._trainings["run-1"] = cast(Training, training)
        line = {"kind": "process.gave_up", "time": 1, "run": "run-1", "role": "dispatcher", "name": "dispatcher"}
        tell(controller, {**line, "said": "Killed"})
        assert asked == [], "a worker's VM has none"
        tell(controller, {**line, "said": "Killed"}, "ps-0")
    assert asked == [("ps-0", "dispatcher", "Killed")]


def test_a_trial_whose_worker_keeps_ending_beside_others_fails_alone(cluster: Path) -> None:
    failed: list[str] = []
    with in_charge(cluster) as controller:
        for run in ("s-0", "s-1"):
            controller._recorder.record(events.WorkDeclared(of="run", work=run, spec={"name": run, "train_steps": 9}))
            controller._recorder.record(TrainStarted(run=run, step=0))
        controller._recorder.record(WorkerJoined(run="s-1", worker="worker-0", number=0, active=1))
        leased = {"0": "s-1", str(place(0, 1)): "s-0", "1": "own"}
        controller._recorder.record(events.ClusterLeased(ports={"s-0": 0, "s-1": 1, "own": 2}, workers=leased))
        runs = conducted_runs(controller, cluster)
        for run in ("s-0", "own"):
            training = SimpleNamespace(fail=failed.append, give_up=lambda *_: False)
            runs._trainings[run] = cast(Training, training)
        now = {"time": time.time_ns()}
        line = {"kind": "process.gave_up", "time": 1, "run": "s-0", "role": "worker", "name": "worker-0"}
        tell(controller, {**line, **now, "run": "own", "said": "no run of this VM"})
        tell(controller, {**line, "said": "it was made ready, before it had the VM"})
        tell(controller, {**line, **now, "said": "Killed"})
        assert controller._state.vms["worker-0"].living
    assert failed == ["Its worker on worker-0, beside others that train there, keeps ending: Killed"]


def test_a_worker_that_cannot_be_made_ready_takes_nothing_from_the_run_that_has_the_vm(cluster: Path) -> None:
    with in_charge(cluster) as controller:
        controller._recorder.record(events.ClusterLeased(ports={"a": 0, "b": 1}, workers={"0": "a"}, ahead={"0": "b"}))
        runs = conducted_runs(controller, cluster)
        runs._trainings["b"] = cast(Training, SimpleNamespace())  # which is asked nothing
        line = {"kind": "process.gave_up", "run": "b", "role": "worker", "name": "worker-0"}
        tell(controller, {**line, "time": time.time_ns(), "said": "Killed"})


def test_where_what_reads_for_trials_keeps_ending_those_on_its_vm_fail(cluster: Path) -> None:
    failed: list[str] = []
    with in_charge(cluster) as controller:
        for run in ("s-0", "s-1", "s-2"):
            spec = {"name": run, "train_steps": 9, "study": "s"}
            controller._recorder.record(events.WorkDeclared(of="run", work=run, spec=spec))
        leased = {"0": "s-0", str(place(0, 1)): "s-1", "1": "s-2"}
        controller._recorder.record(events.ClusterLeased(ports={"s-0": 0, "s-1": 1, "s-2": 2}, workers=leased))
        runs = conducted_runs(controller, cluster)
        for run in ("s-0", "s-1", "s-2"):
            fail = lambda why, run=run: failed.append(f"{run}: {why}")  # noqa: E731
            runs._trainings[run] = cast(Training, SimpleNamespace(fail=fail))
        line = {"kind": "process.gave_up", "time": 1, "run": "s-input", "role": "input", "name": "input"}
        tell(controller, {**line, "run": "t-input", "said": "Killed"})
        tell(controller, {**line, "said": "Killed"})
    why = "The process on worker-0 that reads for all trials there keeps ending: Killed"
    assert failed == [f"s-0: {why}", f"s-1: {why}"]
