"""A run with a deadline on a real cluster: its Spot capacity ends, its controller is killed, and it is done in time."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.faults.conftest import PATIENCE, Patient
from tests.faults.test_two_runs import CELL
from tests.homes import own_home
from transient_magics import client
from transient_magics.client import text
from transient_magics.errors import ClusterError, DeclarationError
from transient_magics.journal import ClusterState, Event, RunState, events
from transient_magics.panels.snapshot.view import view
from transient_magics.protocol.vm_events import TrainMade, WorkerJoined

STEPS, PACE, SECONDS = 140, 0.25, 180.0  # alone it takes 35 s
ZONE = "us-central1-a"
MARKET = f"zone,gpu,gpus_per_vm,seconds,available\n{ZONE},cpu,1,0,9\n{ZONE},cpu,1,3600,0\n{ZONE},cpu,1,9000000,\n"


@pytest.fixture
def home() -> Iterator[Path]:
    """Of its own, for time passes faster on its emulator, and there is no capacity in the end."""
    with own_home() as folder:
        yield folder


@pytest.mark.training
@pytest.mark.nightly
def test_it_is_done_in_time_though_spot_capacity_ends_and_the_controller_dies(home: Path, tmp_path: Path) -> None:
    """Six hours of the cloud pass in a minute; an hour after its speed is known there is no Spot VM any more."""
    cluster = client.declare(
        client.Declaration("cpux1", name="due", zone=(ZONE,), max_workers=2, max_hours=200.0, idle=1e6)
    )
    patient = Patient(cluster)
    try:
        cluster.weather(hours_per_minute=6, notice="scaled", boot="0.5s")
        with pytest.raises(DeclarationError, match=r"due reaches its limits in .*, before the deadline"):
            client.train(source=CELL, cluster=cluster, train_steps=STEPS, finish_by=500.0)
        asked = time.time()
        run = client.train(
            source=CELL, cluster=cluster, train_steps=STEPS, pace_seconds=PACE, check=False, finish_by=SECONDS / 10,
            eval_batches=1,
        )  # fmt: skip
        due = run.declared.finish_by
        assert asked <= due - SECONDS <= time.time(), "eighteen hours of the cluster's clock"
        assert "Its deadline is" in text.declared_words("run", run.declared, time.time())
        patient.until(
            lambda state: state.of(RunState)["run-1"].deadline and state.of(RunState)["run-1"].deadline.outlook,
            "an outlook",
        )
        with pytest.raises(ClusterError, match="due is reserved for run-1, which has a deadline"):
            client.train(source=CELL, cluster=cluster, train_steps=1)
        os.kill(patient.controller(), signal.SIGKILL)
        file = tmp_path / "market.csv"
        file.write_text(MARKET, encoding="utf-8")
        cluster.weather(availability=f"{ZONE}:cpu={file}:{ZONE}")
        state = patient.until(lambda state: _on_demand(state.steered), "a worker on demand")
        facts = dict(view(state, cluster.cost(), time.time())["training"]["facts"])
        assert facts.keys() >= {"deadline", "chance", "ends", "planned", "a step"}
        assert "on demand" in facts["planned"]
        assert "makes one for $" in facts["a step"]
        run.wait(SECONDS)

        [made] = patient.since(0, TrainMade)
        acts = patient.since(0, events.DeadlineActed)
        first = next(each for each in acts if _on_demand(each.machines))
        assert "on demand" in first.reason
        joined = [each.at for each in patient.since(first.seq, WorkerJoined)]
        if joined[0] - first.at < 2 * max(state.of(RunState)["run-1"].deadline.joins):  # as starts were, so they are
            assert made.at <= due
        assert any(isinstance(each, events.ControllerRecovered) for each in cluster.events())
        assert len(acts) < 8
        assert not _on_demand(cluster.state.steered), "what is on demand is not wanted any more"
    finally:
        cluster.delete()


LONG, ROOM = 5000, 9000.0  # it is ended before, and has far more time than any start takes
EVER = 3 * PATIENCE  # three TensorFlow processes start one after another, and refused requests wait


@pytest.mark.nightly
def test_a_spot_worker_takes_over_beside_the_one_on_demand_though_the_controller_dies(
    home: Path, tmp_path: Path
) -> None:
    """It may have one worker. Capacity goes, one on demand works, capacity comes back."""
    cluster = client.declare(
        client.Declaration("cpux1", name="turns", zone=(ZONE,), max_workers=1, max_hours=1500.0, idle=1e6)
    )
    patient = Patient(cluster)
    try:
        cluster.weather(hours_per_minute=6, notice="scaled", boot="0.5s")
        run = client.train(
            source=CELL, cluster=cluster, train_steps=LONG, pace_seconds=1.0, check=False, finish_by=ROOM / 10,
            eval_batches=1,
        )  # fmt: skip
        patient.until(
            lambda state: (known := state.of(RunState)["run-1"].deadline) and known.outlook, "an outlook", EVER
        )
        file = tmp_path / "market.csv"
        file.write_text(MARKET.replace(",0,9\n", ",0,0\n"), encoding="utf-8")
        cluster.weather(availability=f"{ZONE}:cpu={file}:{ZONE}")
        patient.until(
            lambda state: _terms(state, *state.of(RunState)["run-1"].workers) == ["standard"], "one on demand", EVER
        )
        file.write_text(MARKET.replace(",3600,0\n", ",3600,9\n"), encoding="utf-8")
        cluster.weather(availability=f"{ZONE}:cpu={file}:{ZONE}")
        patient.until(lambda state: _terms(state, *_living(state)) == ["spot", "standard"], "a Spot VM beside it", EVER)
        os.kill(patient.controller(), signal.SIGKILL)
        state = patient.until(
            lambda state: _living(state) == list(state.of(RunState)["run-1"].workers)
            and _terms(state, *_living(state)) == ["spot"],
            "the Spot worker alone", EVER,
        )  # fmt: skip
        [spot], [gone] = _living(state), [vm.name for vm in state.vms.values() if vm.provisioning_model == "standard"
                                          and vm.role == "worker" and vm.running_at]  # fmt: skip
        joined = [each.seq for each in patient.since(0, WorkerJoined) if each.worker == spot]
        [deleted] = [each.seq for each in patient.since(0, events.VmDeleted) if each.vm == gone]
        assert joined[0] < deleted, "it works before the other one goes"
        assert any(isinstance(each, events.ControllerRecovered) for each in cluster.events())
        assert _most_at_once(cluster.events()) == 2
        reasons = [each.reason for each in patient.since(0, events.DeadlineActed)]
        assert "no Spot capacity for" in reasons[0]
        assert "no on-demand workers" in reasons[1]
        run.stop()
    finally:
        cluster.delete()


def _living(state: ClusterState) -> list[str]:
    return [vm.name for vm in state.living if vm.role == "worker" and vm.state != "leaving"]


def _terms(state: ClusterState, *vms: str) -> list[str]:
    return sorted(state.vms[vm].provisioning_model for vm in vms if vm in state.vms and state.vms[vm].running_at)


def _most_at_once(history: Iterable[Event]) -> int:
    """How many workers' VMs there were together."""
    there, most = set[str](), 0
    for each in history:
        if isinstance(each, events.VmRunning) and each.vm.startswith("worker"):
            there.add(each.vm)
        elif isinstance(each, (events.VmRevoked, events.VmDeleted)):
            there.discard(each.vm)
        most = max(most, len(there))
    return most


def _on_demand(machines: events.Machines | None) -> bool:
    return any(terms == "standard" for _, terms, _ in machines or ())
