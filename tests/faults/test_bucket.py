"""A cluster with a bucket: its checkpoints outlive the parameter server's VM, and then the cluster."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy
import pytest
from google.api_core.exceptions import Forbidden
from google.cloud import storage
from google.oauth2.credentials import Credentials

from tests.faults.conftest import CELL, LINE_CELL, PATIENCE, Patient, take_away
from tests.faults.healing import healed
from tests.light import LIGHT
from tests.runtime import programs
from transient_magics import client, emulator
from transient_magics.journal import RunState
from transient_magics.protocol.vm_events import TrainShipped, TrainStarted
from transient_magics.runtime.files.checkpoints import Checkpoints

pytestmark = [pytest.mark.training, pytest.mark.nightly]

# So many that blocks are soon read again.
LARGER = {**LIGHT, "hparams": LIGHT["hparams"].replace("batch_size=8", "batch_size=32")}

# How alike the weights are, from 0 to 1: those of another beginning have nothing in common, however long they train.
ALIKE = """
import sys
import numpy
from transient_magics.runtime.tf.graph_mode import tensorflow

first, second = [tensorflow().train.load_checkpoint(each) for each in sys.argv[1:]]
names = [name for name in first.get_variable_to_shape_map() if name.endswith("kernel")]
before, after = [numpy.concatenate([each.get_tensor(name).ravel() for name in names]) for each in (first, second)]
print(before @ after / numpy.linalg.norm(before) / numpy.linalg.norm(after))
"""


def its_token_opens_its_checkpoints_alone(home: Path, vm: str) -> None:
    """What users' code on the parameter server's VM finds there, it finds nowhere else, and it is all that it has."""
    (place,) = (home / "emulator" / "vms" / vm / "home").rglob("bucket-token.json")
    token = json.loads(place.read_text(encoding="utf-8"))["token"]
    assert place.stat().st_mode & 0o777 == 0o600
    kept = [path for folder in ("clusters", "emulator/operations") for path in (home / folder).rglob("*")]
    assert not [path for path in kept if path.is_file() and token.encode() in path.read_bytes()]
    stored = storage.Client("p", Credentials(token), client_options={"api_endpoint": emulator.running()})
    bucket = stored.bucket("stored-results")
    for prefix in ("", "lab/", "lab/another-cluster/"):
        with pytest.raises(Forbidden):
            list(stored.list_blobs(bucket, prefix=prefix))
    for name in ("lab/another-cluster/run-1/checkpoints/manifest.json", "digits/image_digits.records.json"):
        with pytest.raises(Forbidden):
            bucket.blob(name).upload_from_string("poison")
    with pytest.raises(Forbidden):
        bucket.reload()


def its_workers_token_reads_records_alone(home: Path, vm: str) -> None:
    """Code on the VM can neither change the records that others read nor list the checkpoints."""
    (place,) = (home / "emulator" / "vms" / vm / "home").rglob("records-token.json")
    workers = json.loads(place.read_text(encoding="utf-8"))["token"]
    stored = storage.Client("p", Credentials(workers), client_options={"api_endpoint": emulator.running()})
    bucket = stored.bucket("stored-results")
    (shared, *_) = [each.name for each in stored.list_blobs(bucket, prefix="digits/") if "-train-" in each.name]
    for attack in (lambda: bucket.blob(shared).upload_from_string("poison"), lambda: bucket.blob(shared).delete(),
                   lambda: list(stored.list_blobs(bucket, prefix="lab/"))):  # fmt: skip
        with pytest.raises(Forbidden):
            attack()


def test_checkpoints_in_a_bucket_outlive_the_cluster(home: Path, tmp_path: Path) -> None:
    cluster = client.declare(client.Declaration("cpu", name="stored", bucket="gs://stored-results/lab"))
    run = client.train(
        source=LINE_CELL, cluster=cluster, train_steps=10**6, checkpoint_steps=20, checkpoint_seconds=None,
        pace_seconds=0.2, check=False, eval_steps=None,
    )  # fmt: skip
    patient = Patient(cluster, run)
    try:
        shipped = patient.shipped()
        its_token_opens_its_checkpoints_alone(home, "stored-ps-0")
        run.stop()
        result = run.wait(PATIENCE)
    finally:
        cluster.delete(PATIENCE)
    assert result.step >= shipped
    assert str(result.checkpoint).startswith("gs://stored-results/lab/stored-")
    assert not (run.directory / "checkpoints").exists(), "copied over SSH all the same"
    fetched = run.fetch(tmp_path / "fetched")
    name = str(result.checkpoint).rpartition("/")[2]
    assert (fetched / "checkpoints" / f"{name}.index").exists()
    ended = json.loads((fetched / "result.json").read_text(encoding="utf-8"))
    assert (ended["run"], ended["stopped"]) == ("run-1", True)
    assert "token" not in json.loads((fetched / "run.json").read_text(encoding="utf-8"))


def test_training_resumes_from_the_bucket_and_results_outlive_the_cluster(home: Path, tmp_path: Path) -> None:
    cluster = client.declare(client.Declaration("k80x1", name="stored", bucket="gs://stored-results/lab"))
    run = client.train(
        source=CELL, cluster=cluster, **LARGER,
        train_steps=10**6, checkpoint_steps=120, checkpoint_seconds=None, pace_seconds=0.05, check=False,
        data_dir="gs://stored-results/digits", cache="1KB:memory", keep=2,
    )  # fmt: skip
    patient = Patient(cluster, run)
    try:
        shipped = patient.shipped()
        assert not (run.directory / "checkpoints").exists(), "copied over SSH all the same"
        its_token_opens_its_checkpoints_alone(home, "stored-ps-0")
        its_workers_token_reads_records_alone(home, "stored-ps-0")
        mark = patient.mark()
        take_away("stored-ps-0")
        resumed = patient.event(mark, TrainStarted).step  # type: ignore[attr-defined]
        assert resumed >= shipped
        patient.event(mark, TrainShipped)
        patient.goes_on()
        read_straight = lambda state: (data := state.of(RunState)["run-1"].data) and data.straight_bytes  # noqa: E731
        patient.until(read_straight, "blocks that workers read in the bucket itself")
        run.stop()
        result = run.wait(PATIENCE)
        mark, asked = patient.mark(), time.time()
        again = client.train(
            source=CELL, cluster=cluster, **LARGER,
            train_steps=result.step + 100, resume=run.name, pace_seconds=0.05, check=False,
            data_dir="gs://stored-results/digits",
        )  # fmt: skip
        goes_on = patient.event(mark, TrainStarted, run=again.name)
        healed("--resume from a bucket", "after a run", goes_on.at - asked)
        # Workers made steps while the run was being stopped, and those were saved, too.
        assert goes_on.step >= result.step, "its steps count"  # type: ignore[attr-defined]
        end = again.wait(PATIENCE).step
        assert not (again.directory / "checkpoints").exists(), "the VM got them from the bucket itself"
    finally:
        cluster.delete(PATIENCE)
    assert str(result.checkpoint).startswith("gs://stored-results/lab/stored-")
    fetched = run.fetch(tmp_path / "fetched")
    # A worker may make a step or two while they are written, which the name does not tell.
    begun = max(step for step in Checkpoints(fetched / "checkpoints").steps() if step <= goes_on.step)
    places = [each / "checkpoints" / f"model.ckpt-{step}" for each, step in
              ((fetched, begun), (again.fetch(tmp_path / "again"), end))]  # fmt: skip
    assert 0.3 < float(programs.run(ALIKE, *places, own=True)) < 0.999999, "it goes on from the values, too"
    name = str(result.checkpoint).rpartition("/")[2]
    assert (fetched / "checkpoints" / f"{name}.index").exists()
    # As many as were to be kept, and what its chief saved as it ended, which takes no other one's place.
    assert len(list((fetched / "checkpoints").glob("*.index"))) in (2, 3)
    newest = Checkpoints(fetched / "checkpoints").steps()[0]
    assert (
        f'"model.ckpt-{newest}"' in (fetched / "checkpoints" / "checkpoint").read_text(encoding="utf-8").splitlines()[0]
    )
    assert newest >= result.step
    assert (fetched / "metrics.jsonl").stat().st_size
    ended = json.loads((fetched / "result.json").read_text(encoding="utf-8"))
    assert (ended["run"], ended["stopped"]) == ("run-1", True)
    assert "token" not in json.loads((fetched / "run.json").read_text(encoding="utf-8"))
    assert not (run.directory / "checkpoints").exists()
    assert numpy.shape(run.predict(numpy.zeros((3, 8, 8), "uint8"))) == (3, 10), "from the bucket's checkpoint"
