"""Wall clocks that jump, the controller's or a VM's: limits, the bill and the journal's order bear it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.faults.clocks import WallClock
from tests.faults.conftest import CELL, PATIENCE, Patient, started_with
from tests.faults.healing import healed
from transient_magics import client, emulator
from transient_magics.journal import events

HOUR = 3600.0


def its_journal_is_whole(patient: Patient, began: float) -> None:
    """No event is lost, and none is of another time than the true one."""
    history = patient.cluster.events()
    assert [event.seq for event in history] == list(range(1, len(history) + 1))
    told = [event.at for event in history]
    assert told == sorted(told)
    assert began - 60 < told[0] <= told[-1] < time.time() + 60


@pytest.mark.parametrize("wrong", [26 * HOUR, pytest.param(-26 * HOUR, marks=pytest.mark.matrix)])
def test_a_controllers_clock_that_jumps_ends_no_cluster_and_bills_no_hour(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: float
) -> None:
    clock, began = WallClock(tmp_path), time.time()
    emulator.ensure(expecting=True)  # by its own clock, which is Compute Engine's
    with monkeypatch.context() as patch:
        for name, value in clock.environment.items():
            patch.setenv(name, value)
        cluster = client.declare(client.Declaration("k80", name="jumpy", max_hours=2, max_cost=1.0, idle=600))
    patient = Patient(cluster)
    try:
        cluster.wait(PATIENCE)
        number = patient.controller()
        assert clock.environment["LD_PRELOAD"] in Path(f"/proc/{number}/maps").read_text()
        clock.jump(wrong)
        mark, jumped = patient.mark(), time.monotonic()
        cluster.revoke("worker-0")
        patient.event(mark, events.WorkerReplaced, worker="worker-0")
        patient.until(lambda state: state.vms["worker-1"].state == "ready", "replaced")
        healed("wall clock jumps", f"a worker is revoked, {wrong / HOUR:+.0f} h", time.monotonic() - jumped)
        clock.jump(0)
        assert cluster.state.phase == "ready"
        assert patient.controller() == number
        its_journal_is_whole(patient, began)
        longest = (time.time() - began) / HOUR
        assert 0 < cluster.cost().total < longest * sum(vm.hourly for vm in cluster.state.vms.values())
    finally:
        cluster.delete(PATIENCE)
    assert cluster.cost().total < (time.time() - began) / HOUR * sum(vm.hourly for vm in cluster.state.vms.values())


@pytest.mark.training
@pytest.mark.matrix
def test_vms_clocks_that_jump_double_and_lose_nothing_and_idle_time_begins_now(home: Path, tmp_path: Path) -> None:
    clock, began = WallClock(tmp_path), time.time()
    cluster = client.declare(client.Declaration("k80x2", name="skewed", idle=600))
    patient = Patient(cluster)
    try:
        cluster.wait(PATIENCE)
        for vm in ("ps-0", "worker-0"):
            with started_with(patient, vm, clock.environment):
                patient.another_agent(vm)
        patient.run = client.train(
            source=CELL, cluster=cluster, model="resnet", hparams_set="resnet_digits", problem="image_digits",
            train_steps=10**6, checkpoint_steps=40, checkpoint_seconds=None, pace_seconds=0.1, check=False,
        )  # fmt: skip
        patient.whole(2)
        server = patient.process("ps-0", "parameter_server")
        assert clock.environment["LD_PRELOAD"] in Path(f"/proc/{server}/maps").read_text()
        for wrong in (HOUR, -HOUR, 2 * HOUR, -2 * HOUR):
            clock.jump(wrong)
            jumped, step = time.monotonic(), patient.cluster.state.runs["run-1"].step
            mark = patient.mark()
            patient.event(mark, events.TrainCheckpoint)
            patient.event(mark, events.TrainProgress)
            patient.until(lambda state, step=step: state.runs["run-1"].step > step, "steps")
            patient.whole(2)
            healed("wall clock jumps", f"training, on VMs, {wrong / HOUR:+.0f} h", time.monotonic() - jumped)
        assert not [event for event in cluster.events("train.started") if event.step], "it was started again"  # type: ignore[attr-defined]
        os.kill(patient.controller(), 9)  # another reads all that was told
        patient.event(mark, events.ControllerRecovered)
        told = [(event.kind, event.time) for event in cluster.events() if event.kind.startswith(("train.", "worker."))]
        assert len(told) == len(set(told)), "an event is in the journal twice"
        patient.run.stop()
        ended = patient.run.wait(PATIENCE)
        assert ended.step > 0
        time.sleep(5)
        assert cluster.state.phase == "ready"
        assert time.time() - cluster.state.idle_since < 120, "it has been idle for hours, it is said"
        assert cluster.cost().total < (time.time() - began) / HOUR * sum(vm.hourly for vm in cluster.state.vms.values())
    finally:
        clock.jump(0)
        cluster.delete(PATIENCE)
