"""A cluster that trains moves: to another zone though its controller is killed, not where there is no quota, and to
another number of parameter servers."""

from __future__ import annotations

import os
import signal
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.conftest import CELL, PATIENCE, Patient, take_away
from tests.light import LIGHT
from transient_magics import client
from transient_magics.journal import bill, events, now, replay
from transient_magics.protocol.vm_events import TrainCheckpoint, TrainStarted, WorkerLeft

pytestmark = pytest.mark.training


@pytest.fixture(scope="module")
def mover(home: Path) -> Iterator[Patient]:
    """Two workers that train for ever in us-west1-b."""
    cluster = client.declare(client.Declaration("k80x2@us-west1-b", name="mover"))
    run = client.train(
        source=CELL, cluster=cluster, **LIGHT,
        train_steps=10**7, checkpoint_steps=40, checkpoint_seconds=None, pace_seconds=0.3, check=False,
    )  # fmt: skip
    patient = Patient(cluster, run)
    patient.whole()
    yield patient
    cluster.delete(PATIENCE)


def losses(patient: Patient, after: int = 0) -> list[float]:
    """Of rows of the run's metrics that are of later steps."""
    return [row["loss"] for row in patient._rows() if row["loss"] is not None and row["step"] > after]


def another_zone(patient: Patient) -> str:
    """Where it is not."""
    (here,) = {vm.zone for vm in patient.cluster.state.serving}
    return "us-west1-b" if here == "us-east1-c" else "us-east1-c"


def is_whole_in(patient: Patient, zone: str) -> None:
    """See one VM in each place, all in that zone, its workers training, and nothing else that is paid."""
    patient.until(lambda state: not state.relocation and {vm.zone for vm in state.living} == {zone}, f"in {zone}")
    patient.settled()
    living = patient.cluster.state.living
    assert sorted((vm.role, vm.slot) for vm in living) == [("ps", 0), ("worker", 0), ("worker", 1)]
    patient.goes_on()


def prepares(patient: Patient) -> bool:
    """Whether some process stands by with all ready."""
    coming = [vm for vm in patient.cluster.state.living if vm.coming and vm.ready_at]
    assert patient.run
    return any((patient.home(vm.name) / "transient/runs" / patient.run.name / "prepared").exists() for vm in coming)


MOMENTS: dict[str, Callable[[Patient, int], object]] = {
    "it is asked for": lambda patient, mark: patient.since(mark, events.ClusterRelocating),
    "the first VM runs": lambda patient, mark: patient.since(mark, events.VmRunning),
    "a process stands by": lambda patient, _: prepares(patient),
    "workers leave": lambda patient, mark: patient.since(mark, WorkerLeft),
    "it is saved": lambda patient, mark: [each for each in patient.since(mark, TrainCheckpoint) if each.asked],  # type: ignore[attr-defined]
    "it is there": lambda patient, mark: patient.since(mark, events.ClusterRelocated),
}


@pytest.mark.nightly
def test_a_training_moves_to_another_zone_though_the_controller_is_killed_on_the_way(mover: Patient) -> None:
    cluster = mover.cluster
    mover.until(lambda _: mover.saved_at_home() > 0, "a checkpoint at home")
    old, before = {vm.name for vm in cluster.state.living}, losses(mover)
    mark = mover.mark()
    offer = cluster.relocate("us-east1-c")
    assert "mover would move to k80x2 with 1 parameter server in us-east1-c" in str(offer)
    assert offer.bytes > 0
    assert offer.dollars > 0
    assert mover.mark() - mark <= 2, "a question changes nothing"
    assert not cluster.state.relocation

    cluster.relocate("us-east1-c", yes=True)
    mover.event(mark, events.VmReady)
    killed = mover.controller()
    os.kill(killed, signal.SIGKILL)
    moved = mover.event(mark, events.ClusterRelocated)
    assert set(moved.leaves) == old  # type: ignore[attr-defined]
    told = [each for each in mover.since(mark, TrainCheckpoint) if each.seq < moved.seq]
    saved = told[-1].step  # type: ignore[attr-defined]
    started = mover.event(mark, TrainStarted).step  # type: ignore[attr-defined]
    assert started == saved, "no step is made again"
    mover.until(lambda state: {vm.name for vm in state.living if vm.role == "worker"} == set(mover.workers()), "joined")
    mover.goes_on()
    state = mover.until(lambda now: {vm.zone for vm in now.living} == {"us-east1-c"}, "gone from where it was")
    assert sorted((vm.role, vm.slot) for vm in state.living) == [("ps", 0), ("worker", 0), ("worker", 1)]
    after = losses(mover, after=started)
    assert statistics.median(after) < statistics.median(before), "its variables came along"
    assert bill(state, now()).transfer == pytest.approx(offer.dollars, rel=0.05)
    assert not mover.since(mark, events.VmRevoked)
    assert replay(cluster.events()).vms.keys() == state.vms.keys()
    mover.has_the_chiefs_metrics()

    mark = mover.mark()
    cluster.weather(quota=["k80@us-central1=0"])
    cluster.relocate("us-central1-c", yes=True)
    stayed = mover.event(mark, events.ClusterStayed)
    assert "cannot be had" in stayed.reason  # type: ignore[attr-defined]
    mover.until(lambda now: {vm.name for vm in now.living} == {vm.name for vm in state.living}, "as it was")
    mover.goes_on()
    assert not mover.since(mark, TrainStarted), "nobody was interrupted"


@pytest.mark.nightly
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_controller_killed_at_any_moment_of_a_move_leaves_one_whole_cluster(mover: Patient, moment: str) -> None:
    mover.settled()
    mover.sees(lambda: len(losses(mover)) >= 20, "rows of its begin")
    mark, zone, before = mover.mark(), another_zone(mover), losses(mover)
    mover.cluster.relocate(zone, yes=True)
    mover.sees(lambda: MOMENTS[moment](mover, mark), moment)
    os.kill(mover.controller(), signal.SIGKILL)
    is_whole_in(mover, zone)
    started = mover.since(mark, TrainStarted)[-1].step  # type: ignore[attr-defined]
    assert statistics.median(losses(mover, after=started)) < statistics.median(before[:20]), "its variables came along"
    mover.has_the_chiefs_metrics()


@pytest.mark.nightly
def test_a_lost_parameter_server_on_either_side_of_a_move_leaves_one_whole_cluster(mover: Patient) -> None:
    mover.settled()
    mover.until(lambda _: mover.saved_at_home() > 0, "a checkpoint at home")
    mark, zone = mover.mark(), another_zone(mover)
    mover.cluster.relocate(zone, yes=True)
    mover.sees(lambda: prepares(mover), "a process that stands by")
    new = next(vm.name for vm in mover.cluster.state.living if vm.coming and vm.role == "ps")
    take_away(f"mover-{new}")
    mover.event(mark, events.VmRevoked, vm=new)
    is_whole_in(mover, zone)

    mover.until(lambda _: mover.saved_at_home() > 0, "a checkpoint at home")
    mark, zone, kept = mover.mark(), another_zone(mover), mover.saved_at_home()
    old = mover.server()
    mover.cluster.relocate(zone, yes=True)
    mover.event(mark, WorkerLeft)
    take_away(f"mover-{old}")
    is_whole_in(mover, zone)
    assert mover.since(mark, TrainStarted)[-1].step >= kept  # type: ignore[attr-defined]


@pytest.mark.nightly
def test_a_second_parameter_server_has_its_part_of_the_variables(mover: Patient) -> None:
    cluster, mark = mover.cluster, mover.mark()
    begun = losses(mover)[:3]
    cluster.resize(ps=2)
    mover.event(mark, events.ClusterRelocated)
    started = mover.event(mark, TrainStarted).step  # type: ignore[attr-defined]
    mover.whole()
    mover.goes_on()
    assert sorted((vm.role, vm.slot) for vm in cluster.state.living) == [
        ("ps", 0), ("ps", 1), ("worker", 0), ("worker", 1),
    ]  # fmt: skip
    assert statistics.median(losses(mover, after=started)) < statistics.median(begun)
    mover.until(lambda state: (state.current_or_next_run.checkpoint_step or 0) > started, "saved from both")  # type: ignore[union-attr]


@pytest.mark.nightly
def test_a_worker_that_keeps_the_variables_itself_takes_all_its_steps_along(home: Path) -> None:
    cluster = client.declare(client.Declaration("k80@us-west1-b", name="lone"))
    run = client.train(
        source=CELL, cluster=cluster, model="resnet", hparams_set="resnet_digits", problem="image_digits",
        train_steps=10**7, workers=1, max_workers=1, checkpoint_steps=10**6, checkpoint_seconds=None,
        pace_seconds=0.3, check=False,
    )  # fmt: skip
    lone = Patient(cluster, run)
    lone.whole()
    lone.goes_on()
    mark, (old,) = lone.mark(), lone.workers()
    cluster.relocate("us-east1-c", yes=True)
    lone.event(mark, events.ClusterRelocated)
    started = lone.event(mark, TrainStarted).step  # type: ignore[attr-defined]
    lone.whole()
    lone.goes_on()
    assert lone.workers() != [old]
    assert started == max(row["step"] for row in lone._rows() if row["worker"] == old), "no step was lost"
    cluster.delete(PATIENCE)
