"""A cluster whose variables lie on two parameter servers, and the VM of one or of both is lost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.conftest import CELL, PATIENCE, Patient, take_away
from tests.faults.healing import healed
from transient_magics import client
from transient_magics.protocol.vm_events import TrainFailed, TrainStarted

NAMES = {(1,): "the second of two", (0,): "the first of two", (0, 1): "both"}
pytestmark = [pytest.mark.training, pytest.mark.nightly]


@pytest.fixture(scope="module")
def pair(home: Path) -> Iterator[Patient]:
    """Two parameter servers and two workers, which train for ever."""
    cluster = client.declare(client.Declaration("k80x2", name="pair", ps=2, max_workers=4))
    run = client.train(
        source=CELL, cluster=cluster, model="resnet", hparams_set="resnet_digits", problem="image_digits",
        train_steps=10**7, checkpoint_steps=20, checkpoint_seconds=None, pace_seconds=0.4, check=False,
    )  # fmt: skip
    patient = Patient(cluster, run)
    patient.whole()
    yield patient
    cluster.delete(PATIENCE)


@pytest.mark.parametrize("slots", list(NAMES), ids=list(NAMES.values()))
def test_a_lost_vm_of_two_parameter_servers(pair: Patient, slots: tuple[int, ...]) -> None:
    pair.until(lambda _: pair.saved_at_home() > 0, "a checkpoint at home")
    saved, mark, gone = pair.saved_at_home(), pair.mark(), time.time()
    lost = [vm.name for vm in pair.cluster.state.living if vm.role == "ps" and vm.slot in slots]
    assert len(lost) == len(slots)
    for vm in lost:
        take_away(f"pair-{vm}")
    pair.until(lambda state: not {vm.name for vm in state.living} & set(lost), "noticed")
    pair.until(
        lambda state: len([vm for vm in state.living if vm.role == "ps" and vm.state == "ready"]) == 2, "two servers"
    )
    began = time.time_ns()
    pair.sees(lambda: any(row["time"] > began and row["steps"] for row in pair._rows()), "steps")
    seconds = time.time() - gone
    pair.whole()
    pair.until(lambda _: pair.saved_at_home() > saved, "a newer checkpoint at home")
    healed(f"VM lost of parameter servers: {NAMES[slots]}", "training", seconds)
    started = pair.since(mark, TrainStarted)
    assert all(each.step >= saved for each in started), "it begins before what was at home"  # type: ignore[attr-defined]
    assert not pair.since(mark, TrainFailed)
    pair.goes_on()
