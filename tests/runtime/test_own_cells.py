"""What a cell with a model of its own asks for is honoured, or refused in one sentence before anything is launched.

All cells are checked in one process, as `check` does it for one.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.runtime.machine_room import PROJECT

pytestmark = pytest.mark.training

PROGRAM = """
import contextlib, json, pathlib, sys, tempfile
from transient_magics.runtime.tf.graph_mode import everything
everything()
import keras
from transient_magics.runtime.programs import check
from transient_magics.runtime.folder import RunFolder

answers = []
with contextlib.redirect_stdout(sys.stderr):
    for cell, declared in json.load(sys.stdin):
        keras.utils.clear_session()
        keras.config.set_dtype_policy("float32")
        with tempfile.TemporaryDirectory() as place:
            folder = RunFolder(pathlib.Path(place))
            folder.cell.write_text(cell)
            (folder.path / "run.json").write_text(json.dumps({"name": "run", "train_steps": 3, **declared}))
            answers.append(check.answer(folder))
print(json.dumps(answers))
"""
CELL = """
import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

DATA = np.ones((8, 3), "f"), np.arange(8) % 2
def input_fn(mode):
    return DATA
HEAD
model = keras.Sequential([layers.Dense(2)])
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
"""
SETS = "tf.data.Dataset.from_tensor_slices(DATA)"


def cell(*changes: tuple[str, str], head: str = "", tail: str = "") -> str:
    text = CELL.replace("HEAD", head)
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return text + tail + "\n"


def of_dataset(dataset: str, *, model: str = "layers.Dense(2)") -> str:
    return cell(("return DATA", f"return {dataset}"), ("layers.Dense(2)", model))


WITH_INPUT = "keras.Input((3,)), layers.Dense(2)"
MODEL_FN = """
import numpy as np
def input_fn(mode):
    return np.ones((8, 3), "f"), np.ones(8), np.ones(8)
def model_fn(features, labels, mode):
    return {}
"""
CALLED_WITH = """
class Own(keras.Model):
    def __init__(self):
        super().__init__()
        self.inner = layers.Dense(2)
    def call(self, inputs):
        return self.inner(inputs)
"""
OWN_STEP = """
class Own(keras.Sequential):
    def train_step(self, data):
        return super().train_step(data)
"""
VARIABLE_IN_CALL = """
class Scaled(layers.Layer):
    def call(self, inputs):
        return inputs * tf.Variable(2.0)
"""
USES_OUTSIDE = """
outside = OUTSIDE
def times(truth, guess):
    return ops.mean(guess * ops.convert_to_tensor(outside))
"""
QUESTION = """
def question(truth, guess):
    return ops.sum(guess if ops.sum(truth) == 1 else truth)
"""
COMPILED = "keras.losses.SparseCategoricalCrossentropy(from_logits=True)"
TAKEN: dict[str, tuple[str, dict[str, Any]]] = {
    "a call without training": (cell(("keras.Sequential([layers.Dense(2)])", "Own()"), head=CALLED_WITH), {}),
    "a tensor that the cell computed": (
        cell((COMPILED, "times"), head=USES_OUTSIDE.replace("OUTSIDE", "tf.constant([1.0, 2.0])")),
        {},
    ),
    "batches for a known model": (of_dataset(SETS + ".shuffle(8).batch(4).prefetch(1)", model=WITH_INPUT), {}),
    "examples for a known model": (of_dataset(SETS + ".shuffle(8)", model=WITH_INPUT), {}),
    "examples for an unknown model": (of_dataset(SETS + ".repeat()"), {}),
    "random numbers of no layer": (
        cell(("layers.Dense(2)", "layers.Lambda(lambda x: x + keras.random.normal((3,))), layers.Dense(2)")),
        {},
    ),
    "weighted metrics": (
        cell((COMPILED, "'mse', weighted_metrics=['mae']"), ("np.arange(8) % 2", "np.ones((8, 2)), np.ones(8)")),
        {},
    ),
}
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "fit": (cell(tail="model.fit(*DATA)"), {}, "cell line 14: model.fit in a cell would run on every server by itself"),
    "evaluate": (cell(tail="print(model.evaluate(*DATA))"), {}, "cell line 14: model.evaluate in a cell would run"),
    "callbacks": (
        cell(tail="stop = [keras.callbacks.EarlyStopping()]"), {},
        "Keras callbacks are not called in a run (stop: EarlyStopping). Leave them out;",
    ),
    "run_eagerly": (
        cell((COMPILED, "'mse', run_eagerly=True")), {}, "run_eagerly=True of model.compile means nothing in a run",
    ),
    "steps_per_execution": (
        cell((COMPILED, "'mse', steps_per_execution=4")), {}, "steps_per_execution=4 of model.compile means nothing",
    ),
    "jit_compile": (cell((COMPILED, "'mse', jit_compile=True")), {}, "cell line 13: jit_compile=True of model.compile"),
    "train_step": (cell(("keras.Sequential([", "Own(["), head=OWN_STEP), {}, "Own.train_step is not called in a run"),
    "constraint": (
        cell(("layers.Dense(2)", "layers.Dense(2, kernel_constraint='max_norm')")), {},
        "the constraint MaxNorm of sequential/dense/kernel is not supported on parameter servers",
    ),
    "stateful": (
        cell(("layers.Dense(2)", "layers.Reshape((3, 1)), layers.GRU(2, stateful=True)")), {},
        "the layer gru is stateful",
    ),
    "reduction none": (
        cell(("from_logits=True", "reduction='none'")), {}, "has no reduction and gives a number for each",
    ),
    "sums of unequal mini-batches": (
        cell(("from_logits=True", "reduction='sum'")), {"batching": "dynamic"},
        "is a sum, and mini-batches of different",
    ),
    "a metric of several numbers": (
        cell((COMPILED, "'mse', metrics=[keras.metrics.F1Score()]"), ("np.arange(8) % 2", "np.ones((8, 2), 'f')")), {},
        "the metric f1_score gives 2 numbers",
    ),
    "mixed_float16": (
        cell(head="keras.config.set_dtype_policy('mixed_float16')"), {},
        "mixed_float16 needs its loss scaled, which is not supported on parameter servers. Use mixed_bfloat16.",
    ),
    "an error in what AutoGraph made": (
        of_dataset(SETS + ".map(lambda x, y: (x + tf.constant('a'), y))"), {}, "cell line 10: TypeError: Input",
    ),
    "a variable of the cell's": (
        cell((COMPILED, "times"), head=USES_OUTSIDE.replace("OUTSIDE", "tf.Variable([1.0, 2.0])")), {},
        "a variable (or another object) outside of the model is used in it",
    ),
    "a variable for every call": (
        cell(("layers.Dense(2)", "Scaled(), layers.Dense(2)"), head=VARIABLE_IN_CALL), {},
        "the model makes a variable whenever it is called",
    ),
    "a tensor as a truth value": (
        cell((COMPILED, "question"), head=QUESTION), {},
        "Using a symbolic `tf.Tensor` as a Python `bool` is not allowed",
    ),
    "batches for an unknown model": (
        of_dataset(SETS + ".shuffle(8).batch(4)"), {},
        "input_fn's dataset is batched (.batch(4)), and the model does not say what one example is. "
        "Leave .batch out and say batch_size = 4 in the cell, or begin the model with keras.Input.",
    ),
    "batches for an unknown model, mapped": (
        of_dataset(SETS + ".batch(4).map(lambda x, y: (x / 2, y))"), {}, "is batched (.batch(4))",
    ),
    "other batches than declared": (
        of_dataset(SETS + ".batch(4)", model=WITH_INPUT) + "batch_size = 8\n", {},
        "the cell says batch_size = 8, and input_fn's dataset has batches of 4",
    ),
    "a feature called labels": (
        cell(('np.ones((8, 3), "f")', "{'labels': np.ones((8, 3))}")), {}, "no feature can be called 'labels'",
    ),
    "a number for a model": (cell(tail="model = 3"), {}, "the cell's model is no Keras model but a builtins.int"),
    "weights for a model_fn": (MODEL_FN, {}, "input_fn gives sample weights, which model_fn does not take"),
}  # fmt: skip


@pytest.fixture(scope="module")
def answers() -> dict[str, dict[str, Any]]:
    cells = [(text, declared) for text, declared, *_ in (*TAKEN.values(), *REFUSED.values())]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=PROJECT,
        input=json.dumps(cells),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(zip((*TAKEN, *REFUSED), json.loads(done.stdout), strict=True))


def test_what_is_honoured_is_built(answers: dict[str, dict[str, Any]]) -> None:
    assert {name: answers[name].get("error") for name in TAKEN} == dict.fromkeys(TAKEN)


def test_what_means_nothing_in_a_run_is_refused_by_name(answers: dict[str, dict[str, Any]]) -> None:
    said = {name: answers[name].get("error") or "nothing" for name in REFUSED}
    assert {name: text for name, text in said.items() if REFUSED[name][2] not in text} == {}
