"""Programs that stand still (SIGSTOP), as on a machine that swaps or sleeps, and later go on."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.conftest import Patient, processes
from tests.faults.healing import healed
from tests.faults.test_controller_on_a_vm import api, governed_by_its_vm, on_vm, place, until, vms
from tests.faults.test_more_hands import nothing_is_doubled
from transient_magics import client
from transient_magics.client import commands
from transient_magics.errors import ControllerError
from transient_magics.journal import RunState, events
from transient_magics.protocol.cluster_commands import Ping
from transient_magics.protocol.vm_events import TrainStarted

pytestmark = [pytest.mark.training, pytest.mark.nightly]


@contextlib.contextmanager
def frozen(*numbers: int) -> Iterator[None]:
    """As long as it lasts, these processes stand still."""
    for number in numbers:
        os.kill(number, signal.SIGSTOP)
    try:
        yield
    finally:
        for number in numbers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGCONT)


def test_a_parameter_server_that_stood_still_serves_on_where_it_was(patient: Patient) -> None:
    mark, server = patient.mark(), patient.process(patient.server(), "parameter_server")
    with frozen(server):
        time.sleep(20)
    began = time.monotonic()
    patient.goes_on()
    patient.whole()
    healed("SIGSTOP for 20 s", "parameter server, training", time.monotonic() - began)
    assert patient.process(patient.server(), "parameter_server") == server
    assert not patient.since(mark, TrainStarted), "it was started again"
    assert not patient.since(mark, events.VmDeleted)


def test_an_agent_that_stands_still_is_followed_by_one_that_adopts_its_worker(patient: Patient) -> None:
    vm, mark = patient.workers()[0], patient.mark()
    worker, old = patient.process(vm, "worker"), patient.process(vm, "agent")
    with frozen(old):
        began = time.monotonic()
        patient.sees(lambda: set(processes(str(patient.home(vm)), "runtime.agent ")) - {old}, f"new agent on {vm}")
        seconds = time.monotonic() - began
        healed("SIGSTOP for good", "agent, training", seconds)
        assert seconds < 90, "a question every second that waits 15 s, another one for its successor"
        patient.goes_on()
    patient.sees(lambda: old not in processes(str(patient.home(vm)), "runtime.agent "), "end of the old one")
    assert patient.process(vm, "worker") == worker, "the worker was not adopted"
    assert not patient.since(mark, events.VmDeleted)


def test_a_controller_that_stood_still_carries_out_what_was_to_be_done(patient: Patient) -> None:
    lost, mark, number = patient.workers()[0], patient.mark(), patient.controller()
    patient.cluster.revoke(lost)
    with frozen(number):  # as on a laptop that sleeps
        with pytest.raises(ControllerError, match="did not answer within 5 s"):
            commands.send(patient.cluster.directory, Ping(), timeout=5)
        time.sleep(150)  # longer than the notice, and than anybody may be silent
    began = time.monotonic()
    patient.event(mark, events.WorkerReplaced, worker=lost)
    patient.settled()
    healed("SIGSTOP for 155 s", "controller, a worker is revoked", time.monotonic() - began)
    patient.goes_on()
    assert patient.controller() == number
    assert not patient.since(mark, TrainStarted)
    assert {each.vm for each in patient.since(mark, events.VmDeleted)} <= {lost}, "VMs that were never silent"  # type: ignore[attr-defined]
    assert len(patient.since(mark, events.VmRequested)) == 1
    nothing_is_doubled(patient.cluster)


def test_a_controller_that_stands_still_on_its_vm_is_started_again_once_this_machine_is_back(home: Path) -> None:
    cluster = client.declare(client.Declaration("k80", name="still", controller="cluster"))
    patient = governed_by_its_vm(cluster)
    os.kill(patient.controller(), signal.SIGKILL)
    until(lambda: not commands.in_charge(cluster.directory), "killed")
    mark, (stands,) = patient.mark(), on_vm("still")
    with frozen(stands):
        api(f"{place(cluster, 'worker-0')}/simulateMaintenanceEvent", "POST")
        until(lambda: vms("still").get("worker-0") != "RUNNING", "taken away")
        patient.ends_at_once("controller-0", "ps-0")  # Compute Engine's own limits hold, whoever stands still
        began = time.monotonic()
        patient.event(mark, events.WorkerReplaced, worker="worker-0")  # this machine is back, for it follows
        patient.until(lambda state: "worker-1" in state.vms and state.vms["worker-1"].state == "ready", "replaced")
        healed("SIGSTOP for good", "controller on its VM, a worker is revoked", time.monotonic() - began)
        assert stands not in on_vm("still")
    assert len(patient.since(mark, events.VmRequested)) == 1
    assert not patient.since(mark, events.ControllerMoved)
    nothing_is_doubled(cluster)
    cluster.delete()
    assert not vms("still")


def test_while_the_emulator_stands_still_training_goes_on_and_nobody_is_given_up(patient: Patient) -> None:
    living, mark, number = {vm.name for vm in patient.cluster.state.living}, patient.mark(), patient.emulator()
    step = patient.cluster.state.of(RunState)["run-1"].step
    with frozen(number):
        time.sleep(100)
    began = time.monotonic()
    patient.goes_on()
    patient.settled()
    healed("SIGSTOP for 100 s", "emulator, training", time.monotonic() - began)
    assert {vm.name for vm in patient.cluster.state.living} == living
    assert not patient.since(mark, events.VmDeleted)
    assert not patient.since(mark, TrainStarted)
    assert patient.cluster.state.of(RunState)["run-1"].step > step
