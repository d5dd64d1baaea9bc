"""A notice while the code of a run is on its way to a VM, before anything of the run has begun there."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.faults.conftest import CELL, PATIENCE, Patient
from tests.faults.healing import healed
from transient_magics import client
from transient_magics.journal import events
from transient_magics.protocol.vm_events import TrainFailed, TrainStarted, WorkerJoined

MEGABYTES = 60  # at 60 Mbit/s some eight seconds


@pytest.mark.training
@pytest.mark.nightly
def test_a_notice_while_the_code_is_shipped(home: Path, tmp_path: Path) -> None:
    beside = tmp_path / "beside"
    beside.mkdir()
    (beside / "__init__.py").write_text("", encoding="utf-8")
    (beside / "table.bin").write_bytes(os.urandom(MEGABYTES << 20))
    cluster = client.declare(client.Declaration("k80x2", name="shipping"))
    patient = Patient(cluster)
    try:
        cluster.wait(PATIENCE)
        cluster.weather(link="60mbit")
        mark = patient.mark()
        patient.run = run = client.train(
            source=f"import beside\n{CELL}", include=(str(beside),), cluster=cluster,
            model="resnet", hparams_set="resnet_digits", problem="image_digits",
            train_steps=10**7, checkpoint_steps=40, checkpoint_seconds=None, pace_seconds=0.3, check=False,
        )  # fmt: skip
        place = patient.home("worker-1") / "transient" / "runs" / run.name
        patient.sees(lambda: list(place.rglob("*table.bin*")), "code on its way")
        assert not (place / "run.json").exists()
        noticed = time.time()
        cluster.revoke("worker-1")
        patient.event(mark, events.VmPreemptionNotice, vm="worker-1")
        assert not (place / "run.json").exists(), "it was there before the notice"
        replaced = patient.event(mark, events.WorkerReplaced, worker="worker-1")
        assert replaced.at - noticed < 30, "before the VM is gone"
        cluster.weather(link=None)
        patient.whole()
        patient.settled()
        patient.goes_on()
        assert patient.workers() == ["worker-0", "worker-2"]
        joined = patient.event(mark, WorkerJoined, worker="worker-2")
        healed("notice", "the run's code is shipped", joined.at - noticed)
        assert "worker-1" not in {each.worker for each in patient.since(mark, WorkerJoined)}  # type: ignore[attr-defined]
        assert len(patient.since(mark, TrainStarted)) == 1
        assert not patient.since(mark, TrainFailed)
    finally:
        cluster.weather(link=None)
        cluster.delete(PATIENCE)
