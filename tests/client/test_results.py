"""Results without a model: the history as a table, event files for TensorBoard, and what is refused early."""

from __future__ import annotations

import importlib
import json
import math
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib import util
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock
from xml.etree import ElementTree

import numpy
import pytest

from tests.journal.test_state import SPEC
from transient_magics import client, panels
from transient_magics.cli.program import main
from transient_magics.client.results import comparison, keras_model, models
from transient_magics.errors import ClusterError, DeclarationError, PlanError, TrainingError
from transient_magics.journal import Event, Journal, events, metrics
from transient_magics.journal.declared import fingerprint
from transient_magics.protocol import jsonl
from transient_magics.protocol.step_parts import EXPOSED
from transient_magics.protocol.vm_events import (
    TrainBest,
    TrainCheckpoint,
    TrainEpoch,
    TrainEvaluated,
    TrainFailed,
    TrainFinished,
    TrainProgress,
    TrainShipped,
    TrainStarted,
    TrainUnevaluated,
)
from transient_magics.runtime.files.archive import pack
from transient_magics.runtime.programs import serve
from transient_magics.works.studies import trials

START = 1_700_000_000 * 10**9
GRADIENTS = ["gradient_squared", "gradient_signal", "gradient_noise"]
COLUMNS = [
    "time", "worker", "step", "loss", "steps_per_second", "batch_size", "staleness", "steps", "samples",
    "compute_seconds", "wait_seconds", "learning_rate_divisor", *metrics.SPLIT, "server_share", *GRADIENTS,
]  # fmt: skip
SPLIT = [0.1, 0.05, 0.2, 0.05, 0.0, 0.6, 0.05, 0.1, 0.1]
MEASURED = dict(zip(GRADIENTS, (5.0, 1.0, 128.0), strict=True))
READER = """
import json, sys
from pathlib import Path
from tensorflow.compat.v1 import train, make_ndarray
found = []
for path in sorted(Path(sys.argv[1]).glob("*/events.out.tfevents.*")):
    for event in train.summary_iterator(str(path)):
        for value in event.summary.value:
            is_text = value.metadata.plugin_data.plugin_name == "text"
            content = make_ndarray(value.tensor).item().decode() if is_text else value.simple_value
            found.append([path.parent.name, event.wall_time, event.step, value.tag, content])
print(json.dumps(found))
"""


def row(worker: str, second: float, step: int, **values: Any) -> dict[str, Any]:
    return {
        "time": START + int(second * 1e9), "worker": worker, "step": step, "steps": 5, "samples": 160, "loss": 1 / step,
        "batch_size": 32, "compute_seconds": 0.4, "wait_seconds": 0.6, "gap_seconds": 0.3, "staleness": 1.5,
        "learning_rate_divisor": 1.414214, "split": SPLIT, **values,
    }  # fmt: skip


def measure(run: client.Run, *rows: dict[str, Any]) -> None:
    jsonl.append_lines(run.directory / "metrics.jsonl", b"".join(json.dumps(each).encode() + b"\n" for each in rows))


def happen(run: client.Run, *history: tuple[float, Event]) -> None:
    with Journal(run.cluster.directory / "journal.jsonl") as journal:
        for second, event in history:
            journal.append(type(event)(**{**vars(event), "time": START + int(second * 1e9)}))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[client.Run]:
    """A run under way, as its files tell."""
    monkeypatch.setenv("TRANSIENT_MAGICS_HOME", str(tmp_path / "home"))
    found = client.Run("run-1", client.Cluster("demo"))
    found.directory.mkdir(parents=True)
    (found.cluster.directory / "spec.json").write_text("{}", encoding="utf-8")
    happen(
        found,
        (0, events.ClusterDeclared(spec=SPEC.to_dict())),
        (1, events.VmReady(vm="worker-0")),
        (2, events.WorkDeclared(of="run", work="run-0", spec={"train_steps": 9})),
        (9, events.WorkDeclared(of="run", work="run-1", spec={"train_steps": 90})),
        (10, TrainStarted(run="run-1", step=0)),
        (11, TrainProgress(run="run-1", step=10, loss=2.0, steps_per_second=8.0, active=2)),
        (12, TrainProgress(run="run-0", step=70, loss=7.0)),
        (13, events.VmRevoked(vm="worker-1", signal="notice")),
    )
    other = {"steps": 4, "samples": 128, "compute_seconds": 1.0, "wait_seconds": 0.2, "learning_rate_divisor": 1.0}
    measure(found, row("worker-0", 11, 8), row("worker-1", 11.5, 10, **MEASURED))
    measure(found, row("worker-0", 13, 15, loss=None, **other))
    return found


def test_an_evaluation_that_failed_says_why_and_what_was_measured_before_stays(run: client.Run) -> None:
    with pytest.raises(TrainingError, match="has not been evaluated yet"):
        run.evaluate()
    happen(run, (40, TrainUnevaluated(run=run.name, step=1100, reason="ValueError: no dev split")))
    with pytest.raises(TrainingError, match="could not be evaluated at step 1,100: ValueError: no dev split"):
        run.evaluate()
    happen(run, (50, TrainEvaluated(run=run.name, step=1200, metrics={"accuracy": 0.5})))
    happen(run, (60, TrainUnevaluated(run=run.name, step=1300, reason="ValueError: no dev split")))
    assert run.evaluate() == {"accuracy": 0.5}


def test_metrics_of_a_part_of_the_dev_split_say_so(run: client.Run) -> None:
    part = TrainEvaluated(
        run=run.name, step=20, metrics={"accuracy": 0.5}, examples=300, complete=False, of=1000, drawn=300, among=1000
    )
    whole = TrainEvaluated(run=run.name, step=30, metrics={"accuracy": 0.6}, examples=1000)
    happen(run, (40, part))
    assert run.evaluate() == {"accuracy": 0.5}
    assert (repr(run.evaluate()), run.evaluate().part) == (
        "{'accuracy': 0.5} (300 of 1,000 examples)", "300 of 1,000 examples",
    )  # fmt: skip
    happen(run, (50, whole))
    assert repr(run.evaluate()) == "{'accuracy': 0.6}"
    frame = run.evaluations()
    assert list(frame.columns) == ["step", "time", "part", "accuracy"]
    assert list(frame["part"]) == ["300 of 1,000 examples", ""]


def test_a_worker_is_lost_by_the_run_that_had_it_when_its_notice_came(run: client.Run) -> None:
    place: dict[str, Any] = {"role": "worker", "slot": 5, "zone": "z", "accelerator": "k80", "machine_type": "m"}
    priced: dict[str, Any] = {"provisioning_model": "spot", "hourly": 36.0, "on_demand_hourly": 99.0}
    happen(
        run,
        (14, events.VmRequested(vm="worker-5", **place, **priced)),
        (15, events.VmRunning(vm="worker-5", address="")),
        (16, events.ClusterLeased(ports={"run-1": 0}, workers={"5": "run-1"})),
        (50, events.VmPreemptionNotice(vm="worker-5")),
        (60, TrainFinished(run="run-1", step=90, loss=0.25)),
        (61, events.WorkDeclared(of="run", work="run-2", spec={"train_steps": 90})),
        (62, events.ClusterLeased(ports={"run-2": 0}, workers={"5": "run-2"})),
    )
    assert trials.revocations(run.cluster.state) == {"run-1": 1}, "within the time that the notice gives"
    happen(run, (80, events.VmRevoked(vm="worker-5", signal="notice")))
    assert trials.revocations(run.cluster.state) == {"run-1": 1}, "who has its place by now has lost nothing"


def test_the_history_of_a_run_is_what_fit_returns(run: client.Run) -> None:
    assert list(run.epochs().columns) == ["epoch", "step", "time"]
    logs = [{"loss": 0.5, "val_loss": 0.75}, {"loss": 0.25}]
    for epoch, values in enumerate(logs):
        happen(
            run,
            (40 + epoch, TrainEpoch(run=run.name, epoch=epoch, step=30 * epoch + 30, logs=values, output=f"{epoch}\n")),
        )
    assert list(run.epochs()["loss"]) == [0.5, 0.25]
    assert run.output() == "0\n1\n"
    history = run.fit_history()
    assert "waits for its end" in repr(history)
    happen(run, (70, TrainFinished(run=run.name, step=60)))
    assert history.epoch == [0, 1]
    assert history.history["loss"] == [0.5, 0.25]
    assert history.history["val_loss"][0] == 0.75
    assert math.isnan(history.history["val_loss"][1])
    assert set(history.params) == {"epochs", "steps"}


def test_files_of_callbacks_are_unpacked_once_they_are_here(run: client.Run, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="have no files here"):
        run.files()
    (tmp_path / "written").mkdir()
    (tmp_path / "written" / "log.csv").write_text("epoch,loss\n", encoding="utf-8")
    pack(tmp_path / "written", run.directory / "files.tar")
    assert (run.files() / "log.csv").read_text(encoding="utf-8") == "epoch,loss\n"
    assert run.files() == run.directory / "files"


def test_evaluations_are_a_table_and_runs_stand_beside_each_other(
    run: client.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list(run.evaluations().columns) == ["step", "time"]
    for second, step, accuracy in ((40, 30, 0.5), (50, 60, 0.75), (60, 90, 0.625)):
        metrics = {"accuracy": accuracy, "loss": 1 / step}
        happen(run, (second, TrainEvaluated(run=run.name, step=step, metrics=metrics)))
    place: dict[str, Any] = {"role": "worker", "slot": 5, "zone": "z", "accelerator": "k80", "machine_type": "m"}
    priced: dict[str, Any] = {"provisioning_model": "spot", "hourly": 36.0, "on_demand_hourly": 99.0}
    happen(
        run, (3, events.VmRequested(vm="worker-5", **place, **priced)), (4, events.VmRunning(vm="worker-5", address=""))
    )
    happen(run, (5, events.VmReady(vm="worker-5")))
    happen(run, (10, events.ClusterLeased(ports={"run-1": 0}, workers={"5": "run-1"})))
    happen(run, (61, TrainBest(run=run.name, step=60, metric="accuracy", value=0.75, path="checkpoints/x")))
    happen(run, (65, events.VmRevoked(vm="worker-5", signal="notice", stopping=START + 65 * 10**9)))
    happen(run, (70, TrainFinished(run=run.name, step=90, loss=0.25, reason="no better")))
    frame = run.evaluations()
    assert list(frame.columns) == ["step", "time", "accuracy", "loss"]
    assert list(frame["accuracy"]) == [0.5, 0.75, 0.625]
    assert str(frame["time"].iloc[0]) == "2023-11-14 22:14:00+00:00"
    best = run.best
    assert best is not None
    assert (best.step, best.value, best.metric, best.path) == (60, 0.75, "accuracy", None), "its files are not here"

    counted = mock.Mock(wraps=comparison.costs)
    monkeypatch.setattr(comparison, "costs", counted)
    both = client.compare(*client.runs())
    assert len(both.rows) == 2
    assert counted.call_count == 1, "once for all runs of a cluster"
    assert [row.run for row in both.rows] == ["run-0", "run-1"]
    row = both.rows[1]
    assert (row.value, row.best_step, row.loss, row.state) == (0.75, 60, 0.25, "finished")
    assert row.hours == pytest.approx(60 / 3600)
    assert (row.revocations, row.dollars) == (1, pytest.approx(55 * 36 / 3600)), "55 s of its worker"
    said = str(both).splitlines()
    assert said[0].split() == ["run", "cluster", "steps", "best", "loss", "hours", "dollars", "revocations", "state"]
    assert said[2].split()[:4] == ["run-1", "k80x2", "90", "accuracy"]
    assert list(both.frame()["best_step"])[1] == 60
    drawn = panels.comparison_html(both)
    parsed = ElementTree.fromstring(drawn)
    assert len(parsed.findall(".//svg[@role='img']")) == 2
    assert [each.text for each in parsed.findall(".//svg[@role='img']/text")[-1:]] == ["steps"], "the axis has a unit"
    assert len(parsed.findall(".//tr/td/span/svg")) == 2, "the look of each run's curves stands beside its name"
    cells = [[cell.text for cell in line] for line in parsed.findall(".//details//tr")]
    assert cells == [["steps", "run-0", "run-1"], ["30", None, "0.5"], ["60", None, "0.75"], ["90", None, "0.625"]]
    assert "accuracy of evaluations, 0.5 to 0.75, steps 30 to 90" in drawn
    assert ElementTree.fromstring(panels.runs_html(client.runs())).find(".//svg") is None
    assert "Best" not in f"{both}{drawn}", "one run alone was evaluated"
    happen(run, (80, TrainEvaluated(run="run-0", step=70, metrics={"accuracy": 0.875, "loss": 9.0})))
    assert str(client.compare(*client.runs())).endswith("\nBest: run-0, accuracy 0.875 at step 70.")
    parsed = ElementTree.fromstring(panels.comparison_html(both))
    assert [each.text for each in parsed.findall(".//g/title")][-1] == "run-0: 0.875 at 70", "it is marked"
    with pytest.raises(DeclarationError, match="The arguments of compare must be runs"):
        client.compare("run-1")  # type: ignore[arg-type]


def test_the_history_is_a_table_of_what_the_workers_measured(run: client.Run) -> None:
    history = run.history()
    assert list(history.columns) == COLUMNS
    assert list(history.worker) == ["worker-0", "worker-1", "worker-0"]
    assert list(history.steps_per_second) == [5.0, 5.0, 2.0], "the first by the seconds its steps took"
    assert str(history.time.dtype).endswith("UTC]")
    assert history.time[0].timestamp() == START / 1e9 + 11
    assert history.loss.isna().tolist() == [False, False, True]
    counted = history[["steps", "samples", "compute_seconds", "wait_seconds", "learning_rate_divisor"]]
    assert counted.to_numpy().tolist() == [
        [5, 160, 0.4, 0.6, 1.414214], [5, 160, 0.4, 0.6, 1.414214], [4, 128, 1.0, 0.2, 1.0],
    ]  # fmt: skip
    assert history.split_input.tolist()[:2] == [0.1, 0.1]
    assert history[[f"split_{part}" for part in EXPOSED]].sum(axis=1).tolist()[:2] == pytest.approx([1.0, 1.0])
    assert history[GRADIENTS].dropna().to_numpy().tolist() == [list(MEASURED.values())]


def test_the_history_of_a_run_that_has_not_begun_is_empty(run: client.Run) -> None:
    (run.directory / "metrics.jsonl").unlink()
    history = run.history()
    assert list(history.columns) == COLUMNS
    assert len(history) == 0


@pytest.mark.training
def test_tensorflow_reads_what_is_written_for_tensorboard_in_several_goes(run: client.Run, tmp_path: Path) -> None:
    folder = run.tensorboard(tmp_path / "board")
    (cluster_file,) = (folder / "cluster").iterdir()
    with cluster_file.open("ab") as file:
        file.write(b"torn")  # what an interrupted call leaves
    measure(run, row("worker-0", 14, 20))
    happen(
        run,
        (14.5, TrainEpoch(run="run-1", epoch=2, step=90, logs={"loss": 0.5, "val_loss": 0.75})),
        (15, TrainFinished(run="run-1", step=90, loss=0.5)),
        (16, events.VmRevoked(vm="worker-0", signal="ssh")),
        (17, TrainEvaluated(run="run-1", step=90, metrics={"accuracy": 0.75})),
    )
    for _ in range(2):
        assert main(["tensorboard", "run-1", str(folder), "--cluster", "demo"]) == 0
    read = subprocess.run([sys.executable, "-c", READER, str(folder)], capture_output=True, check=True)
    found = [(owner, at - START / 1e9, step, tag, value) for owner, at, step, tag, value in json.loads(read.stdout)]
    assert len(found) == len(set(found)), "something is there twice"
    assert {(owner, tag, value) for owner, _, _, tag, value in found if tag.startswith("epoch_")} == {
        ("train", "epoch_loss", 0.5),
        ("validation", "epoch_loss", 0.75),
    }
    assert [each[1:3] + each[4:] for each in found if each[3] == "loss" and each[0] == "cluster"] == [
        (11, 10, 2.0), (15, 90, 0.5),
    ]  # fmt: skip
    assert [each[1:3] + each[4:] for each in found if each[0] == "worker-0" and each[3] == "steps_per_second"] == [
        (11, 8, 5.0), (13, 15, 2.0), (14, 20, 5.0),
    ]  # fmt: skip
    second = {tag: pytest.approx(value) for owner, at, _, tag, value in found if (owner, at) == ("worker-0", 13)}
    assert second == {
        "steps_per_second": 2.0, "samples_per_second": 64.0, "compute_seconds_per_step": 0.25, "staleness": 1.5,
        "wait_seconds_per_step": 0.05, "batch_size": 32.0, "learning_rate_divisor": 1.0,
        **{f"{part}_per_step": pytest.approx(seconds / 4) for part, seconds in zip(metrics.SPLIT, SPLIT, strict=True)},
    }  # fmt: skip
    assert ("worker-1", 11.5, 10, "staleness", 1.5) in found
    assert ("evaluation", 17, 90, "accuracy", 0.75) in found
    (revoked,) = [each for each in found if each[3] == "events/vm.revoked"]
    assert revoked[:3] == ("cluster", 13, 10)
    assert "worker-1" in revoked[4]
    assert not [each for each in found if each[3] == "events/vm.ready"], "that was before the run"


BOARD = """
import json, sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell()
shell.run_line_magic("load_ext", "tensorboard")
from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer
board = EventMultiplexer().AddRunsFromDirectory(sys.argv[1]).Reload()
print(json.dumps({
    "magic": "tensorboard" in shell.magics_manager.magics["line"],
    "loss": [[each.step, each.value] for each in board.Scalars("cluster", "loss")],
    "runs": sorted(board.Runs()),
}))
"""


@pytest.mark.parametrize("place", ["gs://results/c/run-1/checkpoints/9-ab/model.ckpt-9", "gs://somebody/model.ckpt-9"])
def test_a_checkpoint_in_a_bucket_is_the_runs_only_in_its_own_place(run: client.Run, place: str) -> None:
    (run.cluster.directory / "spec.json").write_text(json.dumps(SPEC.to_dict()), encoding="utf-8")
    (run.directory / "run.json").write_text(
        json.dumps({"train_steps": 9, "store": "gs://results/c/run-1"}), encoding="utf-8"
    )
    shipped = TrainShipped(run="run-1", step=9, path=place)
    happen(run, (50.0, shipped), (51.0, TrainFinished(run="run-1", step=9)))
    assert run.wait(10).checkpoint == (place if place.startswith("gs://results/") else None)


@pytest.mark.nightly
@pytest.mark.training  # TensorBoard looks for TensorFlow
def test_tensorboard_is_there_as_an_extension_and_reads_what_is_written(run: client.Run, tmp_path: Path) -> None:
    said = subprocess.run([sys.executable, "-c", BOARD, str(run.tensorboard(tmp_path / "board"))],
                          capture_output=True, text=True, check=True, encoding="utf-8")  # fmt: skip
    assert json.loads(said.stdout) == {
        "magic": True, "loss": [[10, 2.0]], "runs": ["cluster", "worker-0", "worker-1"],
    }  # fmt: skip


def test_a_folder_is_one_run_s(run: client.Run, tmp_path: Path) -> None:
    other = client.Run("run-0", run.cluster)
    other.directory.mkdir()
    assert run.tensorboard() == run.directory / "tensorboard"
    with pytest.raises(TrainingError, match="holds the event files of demo/run-1"):
        other.tensorboard(run.tensorboard(tmp_path / "board"))


def test_what_cannot_be_predicted_is_said_before_tensorflow_starts(run: client.Run) -> None:
    with pytest.raises(TrainingError, match="same number of examples"):
        run.predict({"inputs": numpy.zeros((3, 8, 8)), "targets": [1]})
    with pytest.raises(TrainingError, match="must be an array of examples"):
        run.predict([{"inputs": 1}])
    with pytest.raises(TrainingError, match="run-1 has no checkpoint yet"):
        run.predict([[1, 2, 3], [4]])


@pytest.mark.parametrize(
    ("array", "error"),
    [
        (numpy.zeros((2, 8, 8)), None),
        (numpy.zeros((2, 8, 8, 1), "int64"), None),
        (numpy.full((2, 8, 8, 1), 0.5), "has values that uint8 cannot represent"),
        (numpy.full((2, 8, 8, 1), 256), "has values that uint8 cannot represent"),
        (numpy.zeros((8, 8)), r"must be a batch of \(any, any, 1\), but has the shape \(8, 8\)"),
        (numpy.zeros((2, 8, 8, 3)), "must be a batch of"),
    ],
)
def test_images_must_be_what_the_model_takes(array: numpy.ndarray, error: str | None) -> None:
    kind = SimpleNamespace(is_integer=True, is_bool=False, as_numpy_dtype=numpy.uint8, name="uint8")
    placeholder = SimpleNamespace(shape=SimpleNamespace(as_list=lambda: [None, None, None, 1]), dtype=kind)
    if error is None:
        assert serve._fit("inputs", array, placeholder).shape == (2, 8, 8, 1)
    else:
        with pytest.raises(TrainingError, match=error):
            serve._fit("inputs", array, placeholder)


@pytest.mark.parametrize(("checkpoint", "step"), [("last", 30), ("best", 20), (10, 10)])
def test_predict_decode_and_export_use_the_checkpoint_that_is_asked_for(
    run: client.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkpoint: str | int, step: int
) -> None:
    served = list[tuple[str, int]]()

    def answer(_: str, *words: str) -> dict[str, Any]:
        """Answer for the process that restores the checkpoint, and record which one it is."""
        served_step = int(words[words.index("--step") + 1])
        if "export" in words:
            served.append(("export", served_step))
            Path(words[-1]).mkdir()
        else:
            served.append(("decode" if "decode" in words else "predict", served_step))
            numpy.savez(words[-1], texts=numpy.array(["a text"]))
        return {}

    monkeypatch.setattr(models, "run_model_program", answer)
    checkpoints = run.directory / "checkpoints"
    checkpoints.mkdir()
    for saved_step in (10, 20, 30):
        (checkpoints / f"model.ckpt-{saved_step}.index").touch()
        (checkpoints / f"model.ckpt-{saved_step}.data-00000-of-00001").touch()
    best = TrainBest(run=run.name, step=20, metric="accuracy", value=0.75, path="checkpoints/model.ckpt-20")
    happen(run, (40, best))

    run.predict([[1.0]], checkpoint=checkpoint)
    run.decode(["a text"], checkpoint=checkpoint)
    run.export(tmp_path / "model", checkpoint=checkpoint)
    assert served == [("predict", step), ("decode", step), ("export", step)]
    with pytest.raises(TrainingError, match="no checkpoint of step 15"):
        run.predict([[1.0]], checkpoint=15)


def test_an_export_overwrites_nothing(run: client.Run, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    with pytest.raises(TrainingError, match="has no checkpoint yet"):
        run.export(tmp_path / "model")
    (tmp_path / "model" / "mine").touch()
    with pytest.raises(TrainingError, match="already exists"):
        run.export(tmp_path / "model")


def test_a_keras_model_is_refused_by_name_before_tensorflow_comes(run: client.Run, tmp_path: Path) -> None:
    declared = run.directory / "run.json"
    declared.write_text(
        json.dumps({"name": "run-1", "train_steps": 9, "model": "resnet", "hparams_set": "h", "problem": "p"}),
        encoding="utf-8",
    )
    with pytest.raises(
        TrainingError, match=r"run-1 trains resnet of Tensor2Tensor, which is not a Keras model\. Use run.predict"
    ):
        run.model()
    declared.write_text(json.dumps({"name": "run-1", "train_steps": 9}), encoding="utf-8")
    with pytest.raises(TrainingError, match="has no checkpoint yet"):
        run.model()
    with pytest.raises(TrainingError, match=r"model\.h5 is not a valid name of a Keras model"):
        run.model(tmp_path / "model.h5")
    (tmp_path / "model.keras").touch()
    with pytest.raises(TrainingError, match="already exists"):
        run.model(tmp_path / "model.keras")


def test_modules_of_a_run_leave_the_notebooks_of_the_same_names_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, value in (("here", "the notebook's"), ("run", "the run's")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "helper_of_both.py").write_text(f'WHOSE = "{value}"', encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path / "here")
    whose = lambda: importlib.import_module("helper_of_both").WHOSE  # noqa: E731
    assert whose() == "the notebook's"
    with keras_model._apart(tmp_path / "run"):
        sys.path.insert(0, str(tmp_path / "run"))
        assert whose() == "the run's"
    assert whose() == "the notebook's"
    del sys.modules["helper_of_both"]
    assert whose() == "the notebook's"


def test_without_the_training_stack_the_error_says_what_is_missing(
    run: client.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run.directory / "checkpoints").mkdir()
    (run.directory / "checkpoints" / "model.ckpt-7.index").touch()
    find = util.find_spec
    monkeypatch.setattr(util, "find_spec", lambda name, *more: None if name == "tensorflow" else find(name, *more))
    with pytest.raises(TrainingError, match=r"tensorflow is not installed here.*make venv"):
        run.export(tmp_path / "model")
    assert not list(tmp_path.glob("*model*"))


@pytest.mark.parametrize(
    ("keep", "why"),
    [
        (0, "must be at least 1, not 0"),
        (-3, "must be at least 1, not -3"),
        ("many", "must be a whole number, not 'many'"),
    ],
)
def test_how_many_checkpoints_stay_is_a_number_from_one_on(run: client.Run, keep: object, why: str) -> None:
    with pytest.raises(DeclarationError) as error:
        client.train(
            source="", cluster=run.cluster, train_steps=5, keep=keep,
            model="resnet", hparams_set="resnet_digits", problem="image_digits",
        )  # fmt: skip
    assert str(error.value) == f"Invalid --keep: {why}."


def test_files_of_packages_go_into_the_runs_folder(
    run: client.Run, tmp_path: Path, tiny_wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client.commands, "send", lambda *_: {})  # nobody is in charge of the cluster
    mine = Path(shutil.copy2(tiny_wheel, tmp_path))
    new = client.train(source="", cluster=run.cluster, train_steps=5, pip=(str(mine), "six==1.16"))
    mine.unlink()
    assert json.loads((new.directory / "run.json").read_text(encoding="utf-8"))["pip"] == [tiny_wheel.name, "six==1.16"]
    assert (new.directory / "pip" / tiny_wheel.name).read_bytes() == tiny_wheel.read_bytes()
    before = fingerprint(new.directory)
    (new.directory / "pip" / tiny_wheel.name).write_bytes(b"another")
    assert fingerprint(new.directory) != before, "whoever agreed to the code agreed to this, too"
    monkeypatch.setattr(client.cell, "MOST_PACKAGES_BYTES", 100)
    for pip, said in (
        ((str(tiny_wheel),), "more than"),
        (
            (str(tiny_wheel), str(shutil.copy2(tiny_wheel, tmp_path))),
            f"Two package files have the name {tiny_wheel.name}",
        ),
    ):
        with pytest.raises(DeclarationError, match=said):
            client.train(source="", cluster=run.cluster, train_steps=5, pip=pip)
    assert sorted(path.name for path in (run.cluster.directory / "runs").iterdir()) == ["run-1", new.name]


def test_a_misspelt_hyperparameter_is_found_before_anything_is_queued(
    run: client.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client.commands, "send", lambda *_: {})
    t2t = {"model": "resnet", "hparams_set": "resnet_digits", "problem": "image_digits", "train_steps": 5}
    known = {**t2t, "cluster": run.cluster, "source": "hparams.add_hparam('own_size', 3)"}
    with pytest.raises(DeclarationError, match=r"'learning_rat' \(--hparams\)\. Did you mean learning_rate\?"):
        client.train(**known, hparams="num_hidden_layers=2,learning_rat=0.1")
    with pytest.raises(DeclarationError, match=r"'hiden_size' \(--over\)\. Did you mean hidden_size\?"):
        client.declare_study(**known, over="learning_rate=1e-3:1e-1:log hiden_size=8,16", objective="max accuracy")
    assert not list((run.cluster.directory / "studies").glob("*"))
    assert client.train(**known, hparams="own_size=4,learning_rate=0.1").name == "run-2"


def test_a_worker_cannot_save_between_synchronous_steps(run: client.Run) -> None:
    declared = replace(SPEC, chief="worker")
    happen(run, (1, events.ClusterDeclared(spec=declared.to_dict())))
    with pytest.raises(DeclarationError, match=r"asynchronous steps only.*Use --mode async"):
        client.train(
            source="", cluster=run.cluster, train_steps=5, mode="sync",
            model="resnet", hparams_set="resnet_digits", problem="image_digits",
        )  # fmt: skip


def test_a_run_that_is_over_says_what_it_does_not_have(
    run: client.Run, calm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRANSIENT_MAGICS_EMULATOR", calm)  # a forecast asks it how fast time passes
    (run.directory / "cell.py").write_text("", encoding="utf-8")
    happen(run, (20, TrainFailed(run=run.name, reason="no model is registered as 'resnt'")))
    with pytest.raises(TrainingError, match=r"^run-1 was not evaluated \(demo\)\.$"):
        run.evaluate()
    with pytest.raises(TrainingError, match=r"^run-1 has no checkpoint \(demo\)\.$"):
        run.export(run.directory / "model")
    with pytest.raises(PlanError, match=r"^run-1 has already ended \(failed\)\.$"):
        run.forecast()


def test_a_place_that_cannot_be_written_is_one_sentence(run: client.Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(TrainingError, match="results of run-1 cannot be written: Not a directory"):
        run.fetch(tmp_path / "file" / "folder")
    with pytest.raises(TrainingError, match="model cannot be exported: Not a directory"):
        run.export(tmp_path / "file" / "folder")


def test_going_on_to_where_a_run_already_is_is_refused(run: client.Run) -> None:
    (run.directory / "checkpoints").mkdir()
    (run.directory / "checkpoints" / "model.ckpt-80.index").write_text("", encoding="utf-8")
    happen(run, (20, TrainCheckpoint(run=run.name, step=80, path="checkpoints/model.ckpt-80")))
    said = r"^run-1 of demo has already made 80 steps.*\(--train-steps\).*more than 80"
    with pytest.raises(DeclarationError, match=said):
        client.train(source="", cluster=run.cluster, train_steps=80, resume=run.name)
    happen(run, (30, events.ClusterDeleted()))
    with pytest.raises(ClusterError, match=r"^demo is deleted\."):
        client.train(source="", cluster=run.cluster, train_steps=90)


def test_a_deleted_cluster_refuses_at_once_what_only_a_living_one_can_do(run: client.Run) -> None:
    happen(run, (20, events.ClusterDeleted()))
    begun = time.monotonic()
    for command in (
        lambda: run.cluster.revoke("worker-0"),
        lambda: run.cluster.logs("worker-0"),
        run.stop,
        run.save,
    ):
        with pytest.raises(ClusterError, match=r"^demo is deleted\."):
            command()
    run.cluster.delete()
    assert time.monotonic() - begun < 30, "no controller was started, and none was waited for"
    assert not (run.cluster.directory / "controller.log").exists()
