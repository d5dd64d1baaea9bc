"""The controller's wall clock jumps: limits, the bill and the journal's order bear it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.faults.clocks import WallClock
from tests.faults.conftest import PATIENCE, Patient
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


def dearest(cluster: client.Cluster, began: float) -> float:
    """Dollars if every VM that there ever was had run from the beginning on, and a minute, the least that is billed."""
    return (time.time() - began + 60) / HOUR * sum(vm.hourly for vm in cluster.state.vms.values())


@pytest.mark.parametrize("wrong", [26 * HOUR, pytest.param(-26 * HOUR, marks=pytest.mark.nightly)])
def test_a_controllers_clock_that_jumps_ends_no_cluster_and_bills_no_hour(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: float
) -> None:
    clock, began = WallClock(tmp_path), time.time()
    held = emulator.hold()
    emulator.ensure()  # by its own clock, which is Compute Engine's
    with monkeypatch.context() as patch:
        for name, value in clock.environment.items():
            patch.setenv(name, value)
        cluster = client.declare(client.Declaration("k80", name="jumpy", max_hours=2, max_cost=1.0, idle=600))
        # Within the block: a client that finds the controller not there yet starts another one.
        cluster.wait(PATIENCE)
    patient = Patient(cluster)
    try:
        held.close()
        number = patient.controller()
        library = Path(clock.environment["LD_PRELOAD"]).resolve()  # as the kernel names it, without links
        assert str(library) in Path(f"/proc/{number}/maps").read_text(encoding="utf-8")
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
        assert 0 < cluster.cost().total < dearest(cluster, began)
    finally:
        cluster.delete(PATIENCE)
    assert cluster.cost().total < dearest(cluster, began)
