"""Networks that fail while VMs run on: who is given up, who is not, and what happens when the network is back."""

from __future__ import annotations

import time

import pytest

from tests.faults.conftest import Patient
from tests.faults.healing import healed
from tests.faults.partition import cut_off
from transient_magics.controller.decisions.heartbeat import SECONDS
from transient_magics.journal import events
from transient_magics.protocol.vm_events import TrainStarted, WorkerLeft

pytestmark = [pytest.mark.training, pytest.mark.nightly]


def numbers(patient: Patient) -> int:
    """How often the training has begun anew, the first time included."""
    return len(patient.cluster.events("train.started"))


def test_a_worker_that_stays_cut_off_is_replaced_while_the_others_step(patient: Patient) -> None:
    worker, mark, began = patient.workers()[0], patient.mark(), time.monotonic()
    started = numbers(patient)
    with cut_off(patient, worker):
        patient.event(mark, WorkerLeft, worker=worker)
        patient.goes_on()
        gone = patient.event(mark, events.VmDeleted, vm=worker)
        silent = time.monotonic() - began
        assert gone.reason == "it does not answer"  # type: ignore[attr-defined]
        assert silent > SECONDS
        patient.whole()
        healed("network partition", "a worker trains, for good", time.monotonic() - began)
    patient.settled()
    assert worker not in patient.workers()
    assert numbers(patient) == started, "nothing was restarted"


def test_a_parameter_server_that_is_cut_off_for_a_while_serves_again_where_it_was(patient: Patient) -> None:
    server, mark, started = patient.server(), patient.mark(), numbers(patient)
    with cut_off(patient, server):
        time.sleep(20)
    began = time.monotonic()
    patient.goes_on()
    patient.whole()
    healed("network partition", "the parameter server serves, 20 s", time.monotonic() - began)
    assert patient.server() == server
    assert numbers(patient) == started, "it went on where it was"
    assert not patient.since(mark, events.VmDeleted)


def test_a_parameter_server_that_stays_cut_off_is_replaced_and_resumes_from_what_is_at_home(patient: Patient) -> None:
    patient.until(lambda _: patient.saved_at_home() > 0, "a checkpoint at home")
    saved, server, mark, began = patient.saved_at_home(), patient.server(), patient.mark(), time.monotonic()
    with cut_off(patient, server):
        gone = patient.event(mark, events.VmDeleted, vm=server)
        assert gone.reason == "it does not answer"  # type: ignore[attr-defined]
        resumed = patient.event(mark, TrainStarted).step  # type: ignore[attr-defined]
        assert resumed >= saved
        patient.whole()
        patient.goes_on()
        healed("network partition", "the parameter server serves, for good", time.monotonic() - began)
    patient.settled()


def test_where_no_vm_can_be_reached_none_is_given_up_and_they_train_on(patient: Patient) -> None:
    everybody = [vm.name for vm in patient.cluster.state.living]
    mark, started = patient.mark(), numbers(patient)
    with cut_off(patient, *everybody):
        patient.until(lambda state: "No VM answers, although Compute Engine lists" in state.trouble, "told")
        time.sleep(15)  # polls in which they could be given up
    began = time.monotonic()
    patient.until(lambda state: "No VM answers" not in state.trouble, "over")
    patient.goes_on()
    patient.whole()
    healed("network partition", "of everybody from everybody", time.monotonic() - began)
    assert not patient.since(mark, events.VmDeleted)
    assert [vm.name for vm in patient.cluster.state.living] == everybody
    assert numbers(patient) == started, "nothing was restarted"
