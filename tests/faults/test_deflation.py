"""A worker's VM shrinks: it trains on with fewer examples, nothing restarts, and its loss is one as any other. Where
workers are to be fewer, the slow one goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.conftest import CELL, Patient, said
from transient_magics import client
from transient_magics.controller.decisions.shrink_policy import lately
from transient_magics.journal import ClusterState, events, metrics, now
from transient_magics.protocol.vm_events import TrainStarted, WorkerBatchResized, WorkerLeft

pytestmark = [pytest.mark.training, pytest.mark.nightly]
SHRUNK = "worker-1"


def part(patient: Patient) -> float:
    """Of the examples of a step, those of the worker that shrank."""
    assert patient.run
    sizes = dict.fromkeys(patient.workers(), 64)
    for event in patient.since(0, WorkerBatchResized):
        assert isinstance(event, WorkerBatchResized)
        sizes[event.worker] = event.new
    return sizes[SHRUNK] / sum(sizes[name] for name in patient.workers())


def test_a_vm_that_shrinks_trains_on_with_fewer_examples_and_can_be_lost_like_any_other(home: Path) -> None:
    cluster = client.declare(client.Declaration("cpux2", name="shrinks", zone=("us-central1-a",)))
    run = client.train(
        source=CELL, cluster=cluster, model="resnet", hparams_set="resnet_digits", problem="image_digits",
        train_steps=10**7, check=False, batching="dynamic", hparams="batch_size=64",
    )  # fmt: skip
    patient = Patient(cluster, run)
    patient.whole()
    patient.goes_on()
    mark = patient.mark()

    # So little that the worker feels it on a machine whose processors many others want, too.
    assert (
        said(f"deflate shrinks {SHRUNK} --cpu 8% --network 50%")
        == f"{SHRUNK} has 8% of its CPU and 50% of its network."
    )
    shrunk = patient.event(mark, events.VmDeflated, vm=SHRUNK)
    assert isinstance(shrunk, events.VmDeflated)
    assert (shrunk.cpu, shrunk.network, shrunk.cpu_before) == (0.08, 0.5, 1.0)
    patient.sees(lambda: part(patient) < 0.4, "fewer examples")
    patient.goes_on()
    assert not patient.since(mark, WorkerLeft), "nothing was restarted"
    assert not patient.since(mark, TrainStarted)
    assert SHRUNK in patient.workers()

    inflated = patient.mark()
    assert said(f"deflate shrinks {SHRUNK} --restore") == f"{SHRUNK} has all of its CPU and network."
    patient.event(inflated, events.VmInflated, vm=SHRUNK)

    assert "All workers wait for ps-0" in said("deflate shrinks ps-0 --cpu 90%")
    again = patient.mark()
    said(f"deflate shrinks {SHRUNK} --cpu 50%")
    patient.event(again, events.VmDeflated, vm=SHRUNK)
    cluster.revoke(SHRUNK)
    replaced = patient.event(again, events.WorkerReplaced, worker=SHRUNK)
    assert isinstance(replaced, events.WorkerReplaced)

    def there(state: ClusterState) -> bool:
        return bool(state.current_or_next_run and replaced.by in state.current_or_next_run.workers)

    state = patient.until(there, "a worker in its place")
    assert state.vms[replaced.by].share.whole, "what comes in its place has all"
    patient.goes_on()

    said("deflate shrinks worker-0 --cpu 8%")
    rates = lambda: lately(metrics.sample(run.directory / "metrics.jsonl"), now())  # noqa: E731
    patient.sees(lambda: 0 < rates().get("worker-0", 0) < rates().get(replaced.by, 0) / 2, "who is slower")
    said("resize shrinks cpu --give-up slowest")
    patient.until(lambda state: not state.vms["worker-0"].living, "given up")
    assert [vm.name for vm in cluster.state.living if vm.role == "worker"] == [replaced.by]
    patient.goes_on()
    cluster.delete()
