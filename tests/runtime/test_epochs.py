"""Epochs of an unedited Keras cell on two workers: metrics, callbacks, learning rate, an early end; a real run."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.machine_room import MachineRoom, free_ports, until
from tests.runtime.test_own_models import OWN, need_agent, stop
from tests.runtime.test_training import Story, assignment
from transient_magics.runtime.files.archive import unpack

pytestmark = pytest.mark.training

CELL = """
import keras
from sklearn.datasets import load_digits

images, digits = load_digits(return_X_y=True)
model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(10, "softmax")])
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])

class Watch(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print("the end of epoch", epoch)
        if epoch == 4:
            self.model.stop_training = True

callbacks = [
    keras.callbacks.ReduceLROnPlateau(min_delta=100.0, patience=1, factor=0.5),
    keras.callbacks.LambdaCallback(on_train_end=lambda logs: print("trained to", round(logs["val_loss"], 9))),
    keras.callbacks.CSVLogger("log.csv"),
    Watch(),
]
history = model.fit(images / 16, digits, batch_size=48, epochs=8, validation_split=0.2, callbacks=callbacks)
"""
EPOCH = 30
"""Steps of an epoch: 1,437 examples for training in mini-batches of 48."""
NAMES = {"accuracy", "loss", "val_accuracy", "val_loss", "learning_rate"}


@pytest.fixture(scope="module")
def story(shared_room: MachineRoom) -> Story:
    room = shared_room
    address, chief = (f"127.0.0.1:{port}" for port in free_ports(2))
    declared = {"steps": 8 * EPOCH, "epoch_steps": EPOCH, "eval_steps": EPOCH, "callbacks": True}
    for name in ("ps-0", "worker-1", "worker-2"):
        need_agent(room, name)
        room.put(name, {**OWN, "train_steps": 0, "noise_share": 0.0, "name": "epochs"}, CELL)
        room.say(name, {**assignment(name, [address], chief, "epochs"), **declared})
    found = Story(room, run="epochs")
    found.wait("the end", "train.finished", "train.failed")
    until(lambda: not room.pids("ps-0"), "the end of every role")
    stop(room, "epochs")
    return found


def epochs(story: Story) -> list[dict[str, Any]]:
    assert not story.events("train.failed")
    return story.events("train.epoch")


def test_each_epoch_has_the_metrics_that_keras_names(story: Story) -> None:
    found = epochs(story)
    assert [event["epoch"] for event in found] == [0, 1, 2, 3, 4]
    assert [event["step"] for event in found] == [EPOCH * number for number in range(1, 6)]
    for event in found:
        assert set(event["logs"]) == NAMES
    assert found[-1]["logs"]["loss"] < found[0]["logs"]["loss"]
    assert found[-1]["logs"]["accuracy"] > found[0]["logs"]["accuracy"]
    assert found[-1]["logs"]["val_accuracy"] > 0.2


def test_a_plateau_halves_the_learning_rate_of_the_workers(story: Story) -> None:
    assert [event["rate"] for event in epochs(story)] == pytest.approx([1.0, 0.5, 0.25, 0.125, 0.0625])
    divisors = {round(line["learning_rate_divisor"], 3) for line in story.metrics()}
    assert divisors & {round(2**0.5 * 2**halved, 3) for halved in range(1, 5)}


def test_a_callback_stops_the_run_after_its_epoch(story: Story) -> None:
    (finished,) = story.events("train.finished")
    assert finished["reason"] == "the callback Watch ended it after epoch 5"
    assert 5 * EPOCH <= finished["step"] < 5 * EPOCH + 2, "workers wait at the end of an epoch"


def test_what_callbacks_print_is_in_the_events(story: Story) -> None:
    for event in epochs(story):
        assert f"the end of epoch {event['epoch']}" in event["output"]


def test_files_of_callbacks_are_in_the_folder_of_the_run(story: Story) -> None:
    path = story.room.run_folder("ps-0", "epochs") / "files" / "log.csv"
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["epoch"]) for row in rows] == [0, 1, 2, 3, 4]
    assert float(rows[2]["val_loss"]) == pytest.approx(epochs(story)[2]["logs"]["val_loss"])


def test_files_of_callbacks_are_packed_for_the_machine_of_the_notebook(story: Story, tmp_path: Path) -> None:
    unpack(story.room.run_folder("ps-0", "epochs") / "files.tar", tmp_path / "files")
    assert [path.name for path in (tmp_path / "files").iterdir()] == ["log.csv"]
