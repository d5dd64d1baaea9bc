"""A worker's VM is stopped, made a smaller machine and started again: its worker leaves and joins the run again, with
fewer examples; nobody takes its place, and nothing of it is forgotten, whatever fails meanwhile."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.faults.conftest import CELL, PATIENCE, Patient, said, take_away
from tests.faults.test_controller_on_a_vm import api, governed_by_its_vm, on_vm, place, until, vms
from transient_magics import client, emulator
from transient_magics.catalog import disk_hourly
from transient_magics.client import commands, text
from transient_magics.controller.decisions.machine_change import MOST_REFUSED
from transient_magics.errors import ClusterError, DeclarationError
from transient_magics.journal import events, now
from transient_magics.protocol.vm_events import WorkerBatchResized, WorkerJoined, WorkerLeft

CHANGED, RENTED, SMALL = "worker-1", "n1-standard-16", "n1-standard-1"


def part(patient: Patient) -> float:
    """Of the examples of a step, those of the worker whose VM became smaller."""
    sizes = dict.fromkeys(patient.workers(), 64)
    for event in patient.since(0, WorkerBatchResized):
        assert isinstance(event, WorkerBatchResized)
        sizes[event.worker] = event.new
    return sizes[CHANGED] / sum(sizes[name] for name in patient.workers())


def kinds(patient: Patient, mark: int, vm: str = CHANGED) -> list[str]:
    """What happened to a VM since then."""
    return [each.kind for each in patient.cluster.events() if each.seq > mark and getattr(each, "vm", "") == vm]


def has_become(patient: Patient, mark: int, machine_type: str, name: str = CHANGED) -> None:
    """Wait until the VM answers again as this machine, and see that nobody took its place."""
    patient.until(
        lambda state: (vm := state.vms[name]).state == "ready" and vm.machine_type == machine_type, machine_type
    )
    steps = ["vm.machine_asked", "vm.stopped", "vm.machine_changed", "vm.started", "vm.ready"]
    assert kinds(patient, mark, name) == steps
    assert not patient.since(mark, events.VmRequested)
    assert not patient.since(mark, events.WorkerReplaced)


@pytest.mark.training
@pytest.mark.nightly
def test_a_worker_whose_vm_becomes_smaller_leaves_joins_again_and_has_fewer_examples(home: Path) -> None:
    declaration = client.Declaration(
        "cpux2", name="smaller", zone=("us-central1-a",), machine_type=RENTED, max_hours=2.0
    )
    cluster = client.declare(declaration)
    run = client.train(
        source=CELL, cluster=cluster, model="resnet", hparams_set="resnet_digits", problem="image_digits",
        train_steps=10**7, check=False, batching="dynamic", hparams="batch_size=64",
    )  # fmt: skip
    patient = Patient(cluster, run)
    patient.whole()
    patient.goes_on()
    with pytest.raises(DeclarationError, match="n1-standard-32 is larger than n1-standard-16"):
        said(f"deflate smaller {CHANGED} --machine-type n1-standard-32")
    with pytest.raises(ClusterError, match="ps-0 has the variables that every worker needs"):
        said("deflate smaller ps-0 --machine-type n1-standard-1")

    mark = patient.mark()
    assert said(f"deflate smaller {CHANGED} --machine-type {SMALL}").startswith(f"{CHANGED} is being restarted")
    has_become(patient, mark, SMALL)
    left = patient.event(mark, WorkerLeft, worker=CHANGED)
    patient.event(mark, WorkerJoined, worker=CHANGED)
    assert isinstance(left, WorkerLeft)
    assert left.at < patient.event(mark, events.VmStopped).at, "before its VM was stopped"
    patient.sees(lambda: part(patient) < 0.4, "fewer examples")
    patient.ends_at_once(CHANGED, hours=2.0)
    vm = cluster.state.vms[CHANGED]
    assert vm.hourly < vm.stretches[0].hourly / 4
    assert [each.runs for each in vm.stretches] == [True, False, True]
    assert vm.stretches[1].hourly == disk_hourly(vm.zone), "its disk alone"
    cluster.delete()


def lone(name: str, **more: object) -> Patient:
    """A cluster of one worker that is ready and has nothing to do."""
    cluster = client.declare(
        client.Declaration("cpux1", name=name, zone=("us-central1-a",), machine_type=RENTED, **more)  # type: ignore[arg-type]
    )
    patient = Patient(cluster)
    patient.until(lambda state: state.phase == "ready", "ready")
    return patient


def test_a_killed_controllers_successor_goes_on_and_tries_a_start_without_capacity_again(home: Path) -> None:
    patient = lone("goes-on")
    cluster = patient.cluster
    cluster.weather(stockout=["us-central1-a:cpu"])
    try:
        mark = patient.mark()
        cluster.deflate("worker-0", machine_type=SMALL)
        patient.event(mark, events.VmStopped, vm="worker-0")
        os.kill(patient.controller(), signal.SIGKILL)
        refused = patient.event(mark, events.VmStartRefused, vm="worker-0")
        assert isinstance(refused, events.VmStartRefused)
        assert refused.cause == "stockout"
        assert "stopped, to become n1-standard-1" in text.vm_words(cluster.state, cluster.state.vms["worker-0"], now())
    finally:
        cluster.weather(reset=True)
    patient.until(lambda state: state.vms["worker-0"].state == "ready" and not state.vms["worker-0"].change, "ready")
    assert cluster.state.vms["worker-0"].machine_type == SMALL
    assert patient.since(mark, events.ControllerRecovered)
    assert not patient.since(mark, events.VmRequested)
    assert not patient.since(mark, events.VmRevoked)
    patient.ends_at_once("worker-0")

    mark = patient.mark()
    assert "restarted as n1-standard-16" in said("deflate goes-on worker-0 --restore")
    has_become(patient, mark, RENTED, "worker-0")
    vm = cluster.state.vms["worker-0"]
    assert vm.hourly == vm.stretches[0].hourly
    cluster.delete()


@pytest.mark.nightly
@pytest.mark.parametrize("moment", [events.VmMachineAsked, events.VmMachineChanged, events.VmStarted])
def test_a_controller_may_die_at_every_step(home: Path, moment: type[events.Event]) -> None:
    patient = lone(f"dies-{moment.kind.partition('.')[2].replace('_', '-')}")
    cluster = patient.cluster
    mark = patient.mark()
    cluster.deflate("worker-0", machine_type=SMALL)
    patient.event(mark, moment, vm="worker-0")
    os.kill(patient.controller(), signal.SIGKILL)
    patient.event(mark, events.ControllerRecovered)
    patient.until(
        lambda state: state.vms["worker-0"].state == "ready" and state.vms["worker-0"].machine_type == SMALL, "ready"
    )
    assert not patient.since(mark, events.VmRequested)
    patient.ends_at_once("worker-0")
    cluster.delete()


@pytest.mark.nightly
def test_a_worker_that_cannot_be_started_again_is_replaced_and_nothing_of_it_is_left(home: Path) -> None:
    patient = lone("no-capacity")
    cluster = patient.cluster
    cluster.weather(stockout=["us-central1-a:cpu"])
    try:
        mark = patient.mark()
        cluster.deflate("worker-0", machine_type=SMALL)
        lost = patient.event(mark, events.VmRevoked, vm="worker-0")
        assert isinstance(lost, events.VmRevoked)
        assert lost.signal == "start"
        assert len(patient.since(mark, events.VmStartRefused)) == MOST_REFUSED
    finally:
        cluster.weather(reset=True)
    patient.event(mark, events.WorkerReplaced, worker="worker-0")  # the first may be refused, too
    workers = lambda state: [vm for vm in state.living if (vm.role, vm.state) == ("worker", "ready")]  # noqa: E731
    patient.until(workers, "a worker in its place")
    assert [vm.machine_type for vm in workers(cluster.state)] == [RENTED]
    patient.sees(lambda: "no-capacity-worker-0" not in names("no-capacity"), "end of the VM that was stopped")
    cluster.delete()


@pytest.mark.nightly
def test_a_vm_that_is_deleted_while_it_is_stopped_is_replaced(home: Path) -> None:
    patient = lone("deleted")
    cluster = patient.cluster
    cluster.weather(stockout=["us-central1-a:cpu"])
    try:
        mark = patient.mark()
        cluster.deflate("worker-0", machine_type=SMALL)
        patient.event(mark, events.VmStartRefused, vm="worker-0")
        take_away("deleted-worker-0")
        patient.event(mark, events.VmRevoked, vm="worker-0")
    finally:
        cluster.weather(reset=True)
    patient.event(mark, events.WorkerReplaced, worker="worker-0")
    cluster.delete()


@pytest.mark.nightly
def test_the_end_of_a_cluster_whose_worker_is_stopped_leaves_nothing(home: Path) -> None:
    patient = lone("ends", max_hours=0.03)
    cluster = patient.cluster
    cluster.weather(stockout=["us-central1-a:cpu"])
    try:
        mark = patient.mark()
        cluster.deflate("worker-0", machine_type=SMALL)
        patient.event(mark, events.VmStartRefused, vm="worker-0")
        patient.until(lambda state: state.over, "deleted")
        assert names("ends") == set()
    finally:
        cluster.weather(reset=True)


@pytest.mark.nightly
def test_with_the_controller_on_a_vm_a_stopped_worker_is_started_once_or_deleted(home: Path) -> None:
    cluster = client.declare(
        client.Declaration(
            "cpux1", name="afar-smaller", zone=("us-central1-a",), machine_type=RENTED, controller="cluster"
        )
    )
    patient, worker = governed_by_its_vm(cluster), place(cluster, "worker-0")

    # This machine is away, and the controller on the VM is killed: its successor there goes on.
    mark = patient.mark()
    cluster.weather(stockout=["us-central1-a:cpu"])
    try:
        cluster.deflate("worker-0", machine_type=SMALL)
        patient.event(mark, events.VmStopped, vm="worker-0")
        os.kill(patient.controller(), signal.SIGKILL)
        until(lambda: not commands.in_charge(cluster.directory), "killed")
        followed = cluster.state.seq
        os.kill(on_vm("afar-smaller")[0], signal.SIGKILL)
        until(lambda: api(worker)["machineType"].endswith(f"/{SMALL}"), "another machine")
    finally:
        cluster.weather(reset=True)
    until(lambda: api(worker)["status"] == "RUNNING", "started from its VM")
    assert not commands.in_charge(cluster.directory)
    assert cluster.state.seq == followed, "somebody here has followed it"
    patient.until(lambda state: state.vms["worker-0"].state == "ready" and not state.vms["worker-0"].change, "ready")
    done = [kind for kind in kinds(patient, mark, "worker-0") if kind != "vm.start_refused"]
    assert done == ["vm.machine_asked", "vm.stopped", "vm.machine_changed", "vm.started", "vm.ready"]
    assert cluster.state.vms["worker-0"].machine_type == SMALL
    assert not patient.since(mark, events.VmRequested)

    # The controller's VM is lost meanwhile. What it wrote rents nothing here: another worker comes, as it was declared.
    mark = patient.mark()
    cluster.weather(stockout=["us-central1-a:cpu"])
    try:
        cluster.deflate("worker-0", restore=True)
        patient.event(mark, events.VmStopped, vm="worker-0")
        api(place(cluster, "controller-0"), "DELETE")
        patient.event(mark, events.ControllerMoved, 2 * PATIENCE, vm="")
        patient.event(mark, events.VmDeleted, vm="worker-0")
    finally:
        cluster.weather(reset=True)
    patient.until(lambda state: state.seat not in ("", "controller-0"), "in the charge of another VM", 2 * PATIENCE)
    ready = lambda state: [vm for vm in state.living if (vm.role, vm.state) == ("worker", "ready")]  # noqa: E731
    patient.until(ready, "a worker in its place")
    [another] = ready(cluster.state)
    assert another.machine_type == RENTED
    assert not patient.since(mark, events.VmStarted)
    until(lambda: "worker-0" not in vms("afar-smaller"), "end of the VM that was stopped")
    until(lambda: len(on_vm("afar-smaller")) == 1, "one controller")
    assert set(vms("afar-smaller").values()) == {"RUNNING"}
    patient.ends_at_once(another.name)
    cluster.delete(PATIENCE)
    assert not vms("afar-smaller")


def names(cluster: str) -> set[str]:
    """The VMs that there are of a cluster, whatever their state."""
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import compute_v1

    instances = compute_v1.InstancesClient(
        credentials=AnonymousCredentials(), client_options={"api_endpoint": emulator.running()}
    )
    scopes = instances.aggregated_list(project="emulated-project")
    return {each.name for _, scope in scopes for each in scope.instances if each.name.startswith(f"{cluster}-")}
