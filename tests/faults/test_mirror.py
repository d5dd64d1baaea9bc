"""A controller on a VM of its own and the machine that follows it: cut off from each other, or it stands still."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.conftest import PATIENCE, Patient
from tests.faults.healing import healed
from tests.faults.partition import cut_off, cut_off_from_here
from tests.faults.test_controller_on_a_vm import api, governed_by_its_vm, on_vm, place, until, vms
from tests.faults.test_frozen import frozen
from tests.faults.test_more_hands import nothing_is_doubled
from transient_magics import client
from transient_magics.client import commands
from transient_magics.controller.decisions.heartbeat import SECONDS
from transient_magics.errors import ControllerError
from transient_magics.journal import ClusterState, events

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def seated(home: Path) -> Iterator[Patient]:
    """A small cluster in the charge of its own VM."""
    cluster = client.declare(client.Declaration("k80", name="seated", controller="cluster"))
    yield governed_by_its_vm(cluster)
    cluster.delete(PATIENCE)
    assert not vms("seated")


def worker(patient: Patient, lost: str = "") -> str:
    """The worker that is there, ready, and not the one that was lost."""

    def there(state: ClusterState) -> list[str]:
        return [vm.name for vm in state.living if vm.role == "worker" and vm.state == "ready" and vm.name != lost]

    (name,) = there(patient.until(lambda state: len(there(state)) == 1, "one worker, ready"))
    return name


def taken_and_replaced(patient: Patient, lost: str) -> str:
    """Have the worker taken, behind everybody's back, and wait for the one that is made in its place; its name."""
    name, number = lost.rpartition("-")[::2]
    follows = f"{name}-{int(number) + 1}"
    api(f"{place(patient.cluster, lost)}/simulateMaintenanceEvent", "POST")
    until(lambda: vms(patient.cluster.name).get(follows) == "RUNNING", "replaced")
    return follows


def test_a_machine_cut_off_from_its_controller_says_so_decides_nothing_and_catches_up(seated: Patient) -> None:
    cluster, lost = seated.cluster, worker(seated)
    process, mark = on_vm("seated"), seated.mark()
    with cut_off_from_here(seated, "controller-0", process[0]):
        began = time.monotonic()
        seated.until(lambda state: "controller-0 cannot be reached" in state.trouble, "told")
        told = time.monotonic() - began
        assert told < 90, "some seconds of silence, and one attempt of 20 s"
        heard = cluster.state.seq
        follows = taken_and_replaced(seated, lost)
        with pytest.raises(ControllerError, match="controller-0, on which the controller runs, does not answer"):
            cluster.resize("k80x2")
        number = seated.controller()
        os.kill(number, signal.SIGKILL)  # another one begins as this one went on: in charge of nothing
        seated.until(lambda _: commands.in_charge(cluster.directory) and seated.controller() != number, "another")
        seated.until(lambda state: "controller-0 cannot be reached" in state.trouble, "told by another")
        assert (cluster.state.seq, cluster.state.seat) == (heard, "controller-0")
        assert on_vm("seated") == process
    began = time.monotonic()
    seated.until(lambda state: state.seq > heard and "cannot be reached" not in state.trouble, "heard again")
    seconds = time.monotonic() - began
    healed("network partition", "the machine that mirrors a controller on a VM", seconds)
    assert seconds < 90, "a pause of 10 s, and one attempt of 20 s"
    assert worker(seated, lost) == follows
    assert not seated.since(mark, events.ControllerMoved)
    assert not seated.since(mark, events.ControllerRecovered)
    assert [each.vm for each in seated.since(mark, events.VmRequested)] == [follows]  # type: ignore[attr-defined]
    nothing_is_doubled(cluster)


def test_a_controllers_vm_cut_off_from_everybody_gives_nobody_up(seated: Patient) -> None:
    worker(seated)
    mark, living = seated.mark(), [vm.name for vm in seated.cluster.state.living]
    with cut_off(seated, "controller-0"):
        seated.until(lambda state: "controller-0 cannot be reached" in state.trouble, "told")
        time.sleep(SECONDS + 15)
    began = time.monotonic()
    seated.until(lambda state: state.trouble == "" and state.seq > mark, "over")
    healed("network partition", "the VM of a controller from everybody", time.monotonic() - began)
    told = [each.what for each in seated.since(mark, events.ControllerTrouble)]  # type: ignore[attr-defined]
    assert any("No VM answers, although Compute Engine lists" in what for what in told), (
        "by the controller there, and heard afterwards"
    )
    assert [vm.name for vm in seated.cluster.state.living] == living
    assert not seated.since(mark, events.VmDeleted)
    assert not seated.since(mark, events.ControllerMoved)
    worker(seated)


def test_a_controller_that_stands_still_on_its_vm_is_ended_and_another_goes_on_there(seated: Patient) -> None:
    lost, mark = worker(seated), seated.mark()
    (old,) = on_vm("seated")
    with frozen(old):
        began = time.monotonic()
        api(f"{place(seated.cluster, lost)}/simulateMaintenanceEvent", "POST")
        seated.event(mark, events.ControllerRecovered)
        seconds = time.monotonic() - began
    healed("SIGSTOP for good", "controller on its VM", seconds)
    assert seconds < 120, "asked every 10 s, waited for 30 s"
    assert worker(seated, lost)
    until(lambda: len(on_vm("seated")) == 1, "one controller")
    assert on_vm("seated") != [old]
    assert len(seated.since(mark, events.VmRequested)) == 1
    assert not seated.since(mark, events.ControllerMoved)
    nothing_is_doubled(seated.cluster)


def test_a_cluster_whose_controller_cannot_be_reached_is_ended_from_here_and_never_by_two(home: Path) -> None:
    cluster = client.declare(client.Declaration("k80", name="unreached", controller="cluster"))
    patient = governed_by_its_vm(cluster)
    (process,) = on_vm("unreached")
    mark = patient.mark()
    with cut_off_from_here(patient, "controller-0", process):
        began = time.monotonic()
        cluster.delete(timeout=0)
        os.kill(patient.controller(), signal.SIGKILL)  # it was said, whoever follows now

        def over(state: ClusterState) -> bool:
            assert state.seat or not on_vm("unreached"), "two are in charge"
            return state.over

        patient.until(over, "deleted")
        seconds = time.monotonic() - began
    healed("network partition", "the machine that mirrors a controller, deletion", seconds)
    assert seconds < 240, "two minutes of silence, and the deletions"
    assert [each.vm for each in patient.since(mark, events.ControllerMoved)] == [""]  # type: ignore[attr-defined]
    assert not vms("unreached")
