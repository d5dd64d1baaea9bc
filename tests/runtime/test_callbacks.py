"""Calls of a cell's callbacks at the ends of epochs, without a run: order, errors, learning rate, end, output."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.runtime import programs

pytestmark = pytest.mark.training

PROGRAM = """
import contextlib, json, pathlib, sys, tempfile
from transient_magics.runtime.tf.graph_mode import everything
everything()
import keras
from transient_magics.runtime.training.user_model.callbacks import CallbackCalls, CallbackError
from transient_magics.runtime.training.usercode import run_cell

def play(cell, epochs, past=()):
    keras.utils.clear_session()
    with tempfile.TemporaryDirectory() as place:
        path = pathlib.Path(place) / "cell.py"
        path.write_text(cell)
        module = run_cell(path, pathlib.Path(place) / "include", 1)
        calls = CallbackCalls(module.model, module.callbacks, 5, 10, 1)
        answers = []
        try:
            answers.append(calls.begin(0, past))
            for number, logs in enumerate(epochs, len(past)):
                answers.append(calls.end_epoch(number, logs, last=number == 4))
        except CallbackError as error:
            return {"error": error.what}
    return {"answers": [answer.to_dict() for answer in answers], "seen": getattr(module, "seen", [])}

with contextlib.redirect_stdout(sys.stderr):
    answers = {name: play(*case) for name, case in json.loads(CASES_TEXT).items()}
print(json.dumps(answers))
"""
HEAD = """import keras
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
"""
SEEN = """seen = []
class Notes(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        seen.append("begin")
    def on_epoch_begin(self, epoch, logs=None):
        seen.append(f"epoch {epoch}")
    def on_epoch_end(self, epoch, logs=None):
        print("loss", logs["loss"])
        seen.append(f"end {epoch}")
    def on_train_end(self, logs=None):
        seen.append(f"over {logs['loss']}")
"""
FLAT = [{"loss": 1.0, "val_loss": 1.0}] * 5
CASES: dict[str, tuple[Any, ...]] = {
    "order": (f"{HEAD}{SEEN}callbacks = [Notes()]\n", FLAT),
    "again": (f"{HEAD}{SEEN}callbacks = [Notes()]\n", FLAT[:1], [[0, FLAT[0]], [1, FLAT[0]]]),
    "early stopping": (
        f"{HEAD}{SEEN}callbacks = [keras.callbacks.EarlyStopping(patience=1, start_from_epoch=1), Notes()]\n",
        FLAT[:3],
    ),
    "scheduler": (
        f"{HEAD}callbacks = [keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / (epoch + 1))]\n",
        FLAT[:2],
    ),
    "error": (
        f"{HEAD}class Wrong(keras.callbacks.Callback):\n    def on_epoch_end(self, epoch, logs=None):\n"
        "        logs['accuracy']\ncallbacks = [Wrong()]\n",
        FLAT[:1],
    ),
}


@pytest.fixture(scope="module")
def answers() -> dict[str, dict[str, Any]]:
    program = PROGRAM.replace("CASES_TEXT", repr(json.dumps(CASES)))
    return json.loads(programs.run(program, own=True).splitlines()[-1])


def test_hooks_are_called_in_the_order_of_keras(answers: dict[str, dict[str, Any]]) -> None:
    of_epochs = [f"{what} {epoch}" for epoch in range(5) for what in ("epoch", "end")]
    assert answers["order"]["seen"] == ["begin", *of_epochs, "over 1.0"]
    assert [answer["output"] for answer in answers["order"]["answers"]] == ["", *["loss 1.0\n"] * 5]


def test_a_restarted_process_calls_again_for_epochs_that_are_over_and_keeps_no_output_of_them(
    answers: dict[str, dict[str, Any]],
) -> None:
    played = answers["again"]
    assert played["seen"][:6] == ["begin", "epoch 0", "end 0", "epoch 1", "end 1", "epoch 2"]
    assert [answer["output"] for answer in played["answers"]] == ["", "loss 1.0\n"]


def test_early_stopping_is_that_of_keras(answers: dict[str, dict[str, Any]]) -> None:
    played = answers["early stopping"]
    assert [answer["stop"] for answer in played["answers"]] == [
        "",
        "",
        "",
        "the callback EarlyStopping ended it after epoch 3",
    ]
    assert played["seen"][-2:] == ["end 2", "over 1.0"], "no epoch begins after it"


def test_a_scheduler_sets_the_rate_before_its_epoch(answers: dict[str, dict[str, Any]]) -> None:
    rates = [answer["rate"] for answer in answers["scheduler"]["answers"]]
    assert rates == pytest.approx([1.0, 1 / 2, 1 / 6])


def test_an_error_in_a_callback_names_the_line_of_the_cell(answers: dict[str, dict[str, Any]]) -> None:
    line = HEAD.count("\n") + 3 + 1
    assert answers["error"]["error"] == (f"cell line {line}: KeyError: 'accuracy' (on_epoch_end of the callback Wrong)")
