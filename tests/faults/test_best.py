"""The best checkpoint outlives what takes the last ones: rotation, a VM that is lost, a run that ends."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest

from tests.faults.conftest import PATIENCE, Patient, take_away
from tests.faults.rooms import CELL
from transient_magics import client
from transient_magics.errors import TrainingError
from transient_magics.journal import RunState
from transient_magics.protocol.vm_events import TrainBest, TrainEvaluated, TrainStarted
from transient_magics.runtime.files.checkpoints import Checkpoints

pytestmark = [pytest.mark.training, pytest.mark.nightly]

# The first evaluation stays the best: later ones have a larger number.
WORSENING = CELL.replace("BALLAST", "4").replace(
    '{"accuracy":', '{"age": (tf.cast(tf.train.get_or_create_global_step(), "float32"), tf.no_op()), "accuracy":'
)


@pytest.mark.parametrize("bucket", [None, "gs://best-results/lab"])
def test_the_best_checkpoint_is_there_after_the_servers_vm_was_taken_and_in_the_run_that_goes_on(
    home: Path, tmp_path: Path, bucket: str | None
) -> None:
    cluster = client.declare(client.Declaration("cpux1", name="judged", **({"bucket": bucket} if bucket else {})))
    declared = {
        "source": WORSENING, "cluster": cluster, "checkpoint_steps": 20, "checkpoint_seconds": None, "keep": 1,
        "pace_seconds": 0.1, "keep_best": "min age", "eval_steps": 30,
    }  # fmt: skip
    run = client.train(**declared, train_steps=10**6)
    patient = Patient(cluster, run)
    try:
        first = patient.event(0, TrainEvaluated)
        if bucket:
            patient.until(
                lambda state: (best := state.of(RunState)["run-1"].best) and best.shipped, "the best in the bucket"
            )
        patient.event(first.seq, TrainEvaluated)
        mark = patient.mark()
        take_away("judged-ps-0")
        patient.event(mark, TrainStarted)
        patient.event(mark, TrainEvaluated)
        run.stop()
        last = run.wait(PATIENCE)
        assert run.best is not None
        assert (run.best.step, run.best.value, run.best.metric) == (first.step, first.step, "age")  # type: ignore[attr-defined]
        assert str(run.best.path).startswith(bucket if bucket else str(run.directory))
        again = client.train(**declared, train_steps=10**6, resume="run-1")
        told = patient.event(mark, TrainBest, run=again.name)
        assert told.step == run.best.step  # type: ignore[attr-defined]
        again.stop()
        again.wait(PATIENCE)
    finally:
        cluster.delete(PATIENCE)
    fetched = run.fetch(tmp_path / "fetched")
    newest, best = Checkpoints(fetched / "checkpoints").steps()
    assert (newest >= last.step, best) == (True, run.best.step)
    assert run.predict(numpy.zeros((3, 8), "float32"), checkpoint="best").shape == (3, 2)
    with pytest.raises(TrainingError, match="has no checkpoint of step 7"):
        run.export(tmp_path / "model", checkpoint=7)
