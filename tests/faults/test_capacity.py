"""Clusters where capacity is short: the emulated zones refuse, and the controller finds another way."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import transient_magics as tm
from tests.faults.conftest import PATIENCE, Patient
from tests.faults.healing import healed
from tests.faults.test_controller_on_a_vm import vms
from transient_emulator.project.program import ask
from transient_magics import client, emulator, places
from transient_magics.client import commands
from transient_magics.errors import ClusterError, DeclarationError
from transient_magics.journal import ClusterState, events
from transient_magics.protocol.cluster_commands import Delete, Ping
from transient_magics.spec.project import CONTROLLER_ROLE, USER_ROLE

MIXED = "k80x2@us-west1-b+p100@us-central1-c+v100"


@pytest.fixture(scope="module")
def witness(home: Path) -> Iterator[client.Cluster]:
    """A small cluster that keeps the emulator there, through which its weather is set."""
    cluster = client.declare(client.Declaration("cpu", name="witness"))
    cluster.wait(PATIENCE)
    yield cluster
    cluster.weather(stockout="none", api_errors="0")
    cluster.delete()


def test_a_mixed_cluster_does_not_even_ask_in_a_zone_that_advice_calls_sold_out(witness: client.Cluster) -> None:
    first = client.preview(client.Declaration(MIXED)).spec.zones_for("v100")[0]
    witness.weather(stockout=f"{first}:v100")
    patient = Patient(client.declare(client.Declaration(MIXED, name="mixed")))
    try:
        state = patient.cluster.wait(PATIENCE)
        ready = {vm.accelerator: vm.zone for vm in state.living if vm.role == "worker"}
        assert (ready["k80"], ready["p100"]) == ("us-west1-b", "us-central1-c")
        assert ready["v100"] not in ("", first)
        assert not patient.since(0, events.VmRefused)
        assert state.advice["v100"].zones[first][0] < 0.1 < state.advice["v100"].zones[ready["v100"]][0]
        assert state.vms["ps-0"].zone == "us-west1-b", "beside most of the workers"
    finally:
        patient.cluster.delete()
        witness.weather(stockout="none")


@pytest.mark.parametrize("role", [pytest.param(USER_ROLE, marks=pytest.mark.nightly), CONTROLLER_ROLE])
def test_under_each_documented_role_workers_are_rented_on_demand_where_spot_has_no_capacity(
    witness: client.Cluster, role: str
) -> None:
    """The quota allows one of two, and the other is refused for the quota, not for a right that is missing."""
    zone = "us-west1-b"
    url = emulator.running()
    assert url
    witness.weather(stockout=f"{zone}:p100,spot")
    ask(url, {"lack": ["NVIDIA_P100_GPUS", "PREEMPTIBLE_NVIDIA_P100_GPUS"]})
    ask(url, {"role": role})
    name, options = f"dear-{role.lower()}", {"firewall": role == USER_ROLE, "fallback_seconds": 0.0}
    try:
        with (
            contextlib.suppress(KeyError),
            tm.declare("p100x2", name=name, zone=(zone,), **options) as cluster,
        ):
            patient = Patient(cluster)
            refused: dict[str, str] = {}

            def told(state: ClusterState) -> bool:
                refused.update((event.cause, event.reason) for event in patient.since(0, events.VmRefused))  # type: ignore[attr-defined]
                ready = [vm for vm in state.living if vm.role == "worker" and vm.state == "ready"]
                return len(ready) == 1 and "quota" in refused

            state = patient.until(told, "one comes, and why the other does not is told")
            (worker,) = [vm for vm in state.living if vm.role == "worker" and vm.state == "ready"]
            assert worker.provisioning_model == "standard"
            assert worker.hourly == worker.on_demand_hourly
            assert set(refused) == {"stockout", "quota"}, refused
            assert "NVIDIA_P100_GPUS" in refused["quota"]
            raise KeyError("whatever goes wrong in the block")
        assert client.cluster(name).state.over
    finally:
        ask(url, {"whole": True})
        witness.weather(stockout="none")
    with pytest.raises(DeclarationError, match="Unknown option of a cluster 'zones'"):
        tm.declare("p100", zones=(zone,))


def test_where_vms_do_not_boot_two_are_bought_and_what_they_wrote_is_kept(witness: client.Cluster) -> None:
    witness.weather(boot="fails")
    patient = Patient(client.declare(client.Declaration("k80", name="bootless", zone=("us-west1-b",))))
    try:
        state = patient.until(lambda state: "2 VMs in a row did not boot" in state.trouble, "given up")
        assert "installing what the weather wants to be missing" in state.trouble
        failed = patient.since(0, events.VmBootFailed)
        assert {each.reason for each in failed} == {"failed at: installing what the weather wants to be missing"}  # type: ignore[attr-defined]
        assert all("the weather is `boot fails`" in each.lines for each in failed)  # type: ignore[attr-defined]
        patient.until(lambda state: not state.living, "all gone, the first ones too")
        asked = [each.vm for each in patient.since(0, events.VmRequested)]  # type: ignore[attr-defined]
        assert sorted(asked) == ["ps-0", "ps-1", "worker-0", "worker-1"]

        witness.weather(boot="2s")
        patient.cluster.resize("k80")
        patient.until(lambda state: state.phase == "ready" and not state.trouble, "tried again")
    finally:
        witness.weather(boot="2s")
        patient.cluster.delete()


@pytest.mark.nightly
def test_an_api_that_fails_every_fifth_time_changes_nothing_but_the_time(witness: client.Cluster) -> None:
    witness.weather(api_errors="0.2", seed="7")
    patient = Patient(client.declare(client.Declaration("k80x3", name="rough")))
    try:
        patient.cluster.wait(PATIENCE)
        patient.cluster.revoke("worker-1")
        patient.until(lambda state: "worker-3" in state.vms and state.vms["worker-3"].state == "ready", "replaced")
        slots = sorted(vm.slot for vm in patient.cluster.state.living if vm.role == "worker" and vm.state != "leaving")
        assert slots == [0, 1, 2]
    finally:
        patient.cluster.delete()
        witness.weather(api_errors="0")


@pytest.mark.nightly
def test_while_no_credentials_are_accepted_vms_stay_and_what_is_wanted_waits(witness: client.Cluster) -> None:
    patient = Patient(client.declare(client.Declaration("k80", name="expired", max_workers=2)))
    try:
        before = patient.cluster.wait(PATIENCE)
        mark = patient.mark()
        witness.weather(credentials="expired")
        state = patient.until(lambda state: state.trouble, "told")
        assert "gcloud auth application-default login" in state.trouble
        patient.cluster.resize("k80x2")
        number = patient.controller()
        for _ in range(8):  # seconds in which it lives, knows what is wanted, and is not let in
            time.sleep(1)
            answer = client.commands.send(patient.cluster.directory, Ping())
            assert (answer["pid"], "gcloud auth" in answer["trouble"]) == (number, True)
        state = patient.cluster.state
        assert state.spec
        assert state.spec.spec == "k80x2"
        assert [vm.name for vm in patient.cluster.state.living] == [vm.name for vm in before.living]
        witness.weather(credentials="accepted")
        patient.until(lambda state: sum(vm.state == "ready" for vm in state.living) == 3, "made then")
        patient.until(lambda state: not state.trouble, "over")
        told = [event.what for event in patient.since(mark, events.ControllerTrouble)]  # type: ignore[attr-defined]
        assert (len(told), told[-1]) == (2, ""), "once that it began, once that it is over"
        assert not patient.since(mark, events.VmRefused)
        assert not patient.since(mark, events.VmDeleted)
    finally:
        witness.weather(credentials="accepted")
        patient.cluster.delete()


@pytest.mark.parametrize("killed", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["lives", "killed"])
def test_credentials_that_expire_in_the_middle_of_a_deletion_are_told_and_the_next_one_finishes(
    witness: client.Cluster, killed: bool
) -> None:
    cluster = client.declare(client.Declaration("k80", name="halfway-gone", max_workers=2))
    patient = Patient(cluster)
    exist = lambda: {path.name for path in (places.emulator() / "vms").glob("halfway-gone-*")}  # noqa: E731
    try:
        cluster.wait(PATIENCE)
        witness.weather(boot="15s")
        cluster.resize("k80x2")
        asked = patient.event(0, events.VmRequested, vm="worker-1").at
        mark = patient.mark()
        commands.send(cluster.directory, Delete())
        patient.event(mark, events.VmDeleted, vm="worker-0")
        witness.weather(credentials="expired")
        assert not cluster.state.over
        patient.sees(lambda: "halfway-gone-worker-1" in exist(), "the VM that was asked for")
        if killed:
            os.kill(patient.controller(), signal.SIGKILL)
        told = "is not deleted and costs money until you type `gcloud auth application-default login`"
        patient.until(lambda state: told in state.trouble, "told")
        with pytest.raises(ClusterError) as raised:
            cluster.delete(5)
        assert told in str(raised.value)
        assert "halfway-gone-worker-1" in exist()
        assert not patient.since(mark, events.ClusterDeleted)
        time.sleep(max(0.0, asked + 20 - time.time()))  # until it runs, and nobody of ours may see it
        witness.weather(credentials="accepted")
        runs = vms("halfway-gone").get("worker-1") == "RUNNING"
        began = time.monotonic()
        cluster.delete(PATIENCE)
        seconds = time.monotonic() - began
        healed("credentials expire", f"deletion{', controller killed' if killed else ''}", seconds)
        assert seconds < 120, "credentials are looked for every half minute"
        assert not exist()
        assert cluster.cost().by_vm["worker-1"] > 0 or not runs
    finally:
        witness.weather(credentials="accepted", boot="2s")
        cluster.delete()
