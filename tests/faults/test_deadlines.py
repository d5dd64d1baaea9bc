"""A run with a deadline on a real cluster: its Spot capacity ends, its controller is killed, and it is done in time."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.conftest import Patient
from tests.faults.test_two_runs import CELL
from tests.homes import own_home
from transient_magics import client
from transient_magics.client import text
from transient_magics.errors import ClusterError, DeclarationError
from transient_magics.journal import events
from transient_magics.panels.snapshot.view import view

STEPS, PACE, SECONDS = 140, 0.25, 180.0  # alone it takes 35 s
ZONE = "us-central1-a"
MARKET = f"zone,gpu,gpus_per_vm,seconds,available\n{ZONE},cpu,1,0,9\n{ZONE},cpu,1,3600,0\n{ZONE},cpu,1,9000000,\n"


@pytest.fixture
def home() -> Iterator[Path]:
    """Of its own, for time passes faster on its emulator, and there is no capacity in the end."""
    with own_home() as folder:
        yield folder


def test_it_is_done_in_time_though_spot_capacity_ends_and_the_controller_dies(home: Path, tmp_path: Path) -> None:
    """Six hours of the cloud pass in a minute; an hour after its speed is known there is no Spot VM any more."""
    cluster = client.declare(
        client.Declaration("cpux1", name="due", zone=(ZONE,), max_workers=2, max_hours=200.0, idle=1e6)
    )
    patient = Patient(cluster)
    try:
        cluster.weather(hours_per_minute=6, notice="scaled", boot="0.5s")
        with pytest.raises(DeclarationError, match=r"due ends by its own limits in .*, before the deadline"):
            client.train(source=CELL, cluster=cluster, train_steps=STEPS, finish_by=500.0)
        asked = time.time()
        run = client.train(
            source=CELL, cluster=cluster, train_steps=STEPS, pace_seconds=PACE, check=False, finish_by=SECONDS / 10,
            eval_batches=1,
        )  # fmt: skip
        due = run.declared.finish_by
        assert asked <= due - SECONDS <= time.time(), "eighteen hours of the cluster's clock"
        assert "is to be done by" in text.declared_words(run.declared, time.time())
        patient.until(lambda state: state.runs["run-1"].deadline and state.runs["run-1"].deadline.outlook, "an outlook")
        with pytest.raises(ClusterError, match="run-1 has a deadline, and due for itself"):
            client.train(source=CELL, cluster=cluster, train_steps=1)
        os.kill(patient.controller(), signal.SIGKILL)
        file = tmp_path / "market.csv"
        file.write_text(MARKET)
        cluster.weather(availability=f"{ZONE}:cpu={file}:{ZONE}")
        state = patient.until(lambda state: _on_demand(state.steered), "a worker on demand")
        facts = dict(view(state, cluster.cost(), time.time())["training"]["facts"])
        assert facts.keys() >= {"done by", "chance", "ends", "planned", "a step"}
        assert "on demand" in facts["planned"]
        assert "makes one for $" in facts["a step"]
        run.wait(SECONDS)

        [made] = patient.since(0, events.TrainMade)
        acts = patient.since(0, events.DeadlineActed)
        first = next(each for each in acts if _on_demand(each.machines))
        assert "on demand" in first.reason
        joined = [each.at for each in patient.since(first.seq, events.WorkerJoined)]
        if joined[0] - first.at < 2 * max(state.runs["run-1"].deadline.joins):  # as starts were, so they are
            assert made.at <= due
        assert any(isinstance(each, events.ControllerRecovered) for each in cluster.events())
        assert len(acts) < 8
        assert not _on_demand(cluster.state.steered), "what is on demand is not wanted any more"
    finally:
        cluster.delete()


def _on_demand(machines: events.Machines | None) -> bool:
    return any(terms == "standard" for _, terms, _ in machines or ())
