"""A controller killed while it ends the cluster whose run is over (`--when-done cluster`)."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.faults.conftest import CELL, PATIENCE, Patient
from tests.faults.healing import healed
from tests.faults.test_controller_on_a_vm import vms
from tests.faults.test_more_hands import nothing_is_doubled
from transient_magics import client
from transient_magics.journal import Event, events
from transient_magics.protocol.vm_events import TrainFailed


@pytest.mark.nightly
@pytest.mark.parametrize("moment", [TrainFailed, events.VmDeleted], ids=["decided", "begun"])
def test_a_controller_killed_when_its_cluster_is_to_end_with_its_run_ends_it(home: Path, moment: type[Event]) -> None:
    """The run fails for want of a package, before anything is trained."""
    cluster = client.declare(client.Declaration("k80", name="ending"))
    patient = Patient(cluster)
    patient.cluster.wait(PATIENCE)
    number, journal = patient.controller(), cluster.directory / "journal.jsonl"
    client.train(
        source=CELL, cluster=cluster, model="resnet", hparams_set="resnet_digits", problem="image_digits",
        train_steps=30, when_done="cluster", pip=("/nowhere/tiny-1.0-py3-none-any.whl",),
    )  # fmt: skip
    deadline = time.monotonic() + PATIENCE
    while f'"{moment.kind}"'.encode() not in journal.read_bytes():
        assert time.monotonic() < deadline, moment
        time.sleep(0.001)
    os.kill(number, signal.SIGKILL)
    began = time.monotonic()
    cluster.wait(PATIENCE, until="deleted")
    seconds = time.monotonic() - began
    healed("kill -9", f"controller, --when-done, {moment.kind}", seconds)
    assert seconds < 120
    assert len(patient.since(0, events.ControllerRecovered)) == 1
    assert len(patient.since(0, TrainFailed)) == 1
    assert [each.reason for each in patient.since(0, events.ClusterDeleting)] == ["run-1 is over"]  # type: ignore[attr-defined]
    assert not vms("ending")
    nothing_is_doubled(cluster)
