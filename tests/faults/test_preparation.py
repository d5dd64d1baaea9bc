"""Mini-batches prepared on a VM of their own: it is revoked, the dispatcher is killed, and training goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.conftest import CELL, Patient
from transient_magics import client
from transient_magics.client.text import status
from transient_magics.journal import ClusterState, bill, events, now
from transient_magics.journal.cost import costs
from transient_magics.protocol.vm_events import WorkerLeft

pytestmark = [pytest.mark.training, pytest.mark.nightly]


def test_training_goes_on_without_the_vm_and_without_the_dispatcher(home: Path) -> None:
    cluster = client.declare(client.Declaration("cpu", name="prepared", zone=("us-central1-a",)))
    run = client.train(
        source=CELL, cluster=cluster, model="resnet", hparams_set="resnet_digits", problem="image_digits",
        train_steps=10**7, check=False, prep="cpux2", pace_seconds=0.3,
    )  # fmt: skip
    patient = Patient(cluster, run)
    patient.whole()
    patient.goes_on()
    state = cluster.state
    assert state.preparers == {0: run.name}
    assert state.vms["prep-0"].provisioning_model == "spot"
    said = status(state, bill(state, now()), now())
    assert "prepared on 1 VM of 2" in said
    assert f"prepares for {run.name}" in said
    records = patient.home("worker-0") / "transient" / "runs" / run.name / "data"
    assert {path.stat().st_size for path in records.glob("*train*")} == {0}, "the worker reads none"
    assert bill(state, now()).by_vm["prep-0"] > 0
    assert costs(state, now())[run.name].total > 0

    mark = patient.mark()
    patient.kill("ps-0", "preparation")
    patient.goes_on()
    cluster.revoke("prep-0")
    replaced = patient.event(mark, events.VmRequested, role="prep", replaces="prep-0")
    assert isinstance(replaced, events.VmRequested)

    def there(state: ClusterState) -> bool:
        return state.vms[replaced.vm].state == "ready"

    patient.until(there, "a VM in its place")
    patient.goes_on()
    assert not patient.since(mark, WorkerLeft), "who waits for mini-batches is not taken for stuck"
    cluster.delete()
