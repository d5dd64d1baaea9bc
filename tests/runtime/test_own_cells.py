"""What a cell with a model of its own asks for is honoured, or refused in one sentence before anything is launched.

All cells are checked in one process, as `check` does it for one.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.runtime import programs

pytestmark = pytest.mark.training

PROGRAM = """
import contextlib, json, pathlib, sys, tempfile
import keras
from transient_magics.runtime.programs import check
from transient_magics.runtime.folder import RunFolder

answers = []
with contextlib.redirect_stdout(sys.stderr):
    for cell, declared in json.loads(pathlib.Path(sys.argv[1]).read_text()):
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
ODD_NAMES = """
from typing import NamedTuple
NAMES = ["petal length (cm)", "größe", "a/b", "labels", "inputs", "0 first", "file"]
ENTRIES = {f"in_{number}": name for number, name in enumerate(NAMES)}
class Named(keras.Model):
    def __init__(self):
        super().__init__()
        self.inner = layers.Dense(2)
    def call(self, inputs):
        return self.inner(ops.concatenate([inputs[name] for name in NAMES], -1))
"""
NESTED = """
import collections
Pair = collections.namedtuple("Pair", "first second")
class Nested(keras.Model):
    def __init__(self):
        super().__init__()
        self.inner = layers.Dense(2)
    def call(self, inputs):
        x = ops.concatenate([inputs["pair"].first, inputs["pair"].second[0], inputs["pair"].second[1][7]], -1)
        return {"y one": self.inner(x), "z": (self.inner(x), self.inner(x))}
ONE, ROWS = np.ones((8, 3), "f"), np.ones((8, 2), "f")
FEATURES = {"pair": Pair(ONE, (ONE, {7: ONE}))}
LABELS = {"y one": ROWS, "z": (ROWS, ROWS)}
"""
TWINS = """
class Twins(keras.Model):
    def __init__(self):
        super().__init__()
        self.members = [keras.Sequential([layers.Dense(3, name="same"), layers.Dense(2, name="same_1")], name="member")
                        for _ in range(3)]
    def call(self, inputs):
        return sum(member(inputs) for member in self.members)
"""
WARMUP = """
class Warmup(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self):
        self.width = tf.cast(16, tf.float32)
    def __call__(self, step):
        return tf.math.rsqrt(self.width) * tf.math.minimum(tf.math.rsqrt(tf.cast(step, tf.float32) + 1.0), 0.1)
"""
WORDS = """
words = layers.TextVectorization(output_sequence_length=4)
words.adapt(["good film", "bad film"])
text, city = keras.Input((), dtype="string", name="text"), keras.Input((1,), dtype="string", name="city")
place = layers.StringLookup(vocabulary=["rome", "oslo"], output_mode="one_hot")(city)
both = layers.Concatenate()([layers.GlobalAveragePooling1D()(layers.Embedding(9, 3)(words(text))), place])
FEATURES = {"text": np.array(["a good film", "bad"] * 4), "city": np.array([["rome"], ["lima"]] * 4, object)}
"""
"""Raw texts, and the layers that turn them into numbers."""
READS_WORDS = ("keras.Sequential([layers.Dense(2)])", "keras.Model([text, city], layers.Dense(2)(both))")
CENTRALIZED = """
class Centralized(keras.optimizers.SGD):
    def apply(self, grads, trainable_variables=None):
        return super().apply([grad - ops.mean(grad) for grad in grads], trainable_variables)
"""
OUTSIDE = "TOP = tf.data.Dataset.from_tensor_slices(DATA)"
TABLE = """
WORDS = tf.constant(["a", "b"])
TABLE = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(WORDS, [0.0, 1.0]), -1.0)
TEXTS = tf.data.Dataset.from_tensor_slices((["a", "b"] * 4, DATA[1]))
FLIP = layers.RandomFlip()
"""
TAKEN: dict[str, tuple[str, dict[str, Any]]] = {
    "texts": (cell(("return DATA", "return FEATURES, DATA[1]"), READS_WORDS, head=WORDS), {}),
    "texts, synchronously": (
        cell(("return DATA", "return FEATURES, DATA[1]"), READS_WORDS, head=WORDS),
        {"mode": "sync", "workers": 2},
    ),
    "a metric of several numbers": (
        cell((COMPILED, "'mse', metrics=[keras.metrics.F1Score()]"), ("np.arange(8) % 2", "np.ones((8, 2), 'f')")),
        {"keep_best": "max f1_score_1"},
    ),
    "a constraint": (cell(("layers.Dense(2)", "layers.Dense(2, kernel_constraint='max_norm')")), {}),
    "features of any names": (
        cell(
            ("return DATA", 'return {name: np.ones((8, 1), "f") for name in NAMES}, DATA[1]'),
            ("keras.Sequential([layers.Dense(2)])", "Named()"),
            head=ODD_NAMES,
        ),
        {"mode": "sync"},
    ),
    "nested structures": (
        cell(
            ("return DATA", "return FEATURES, LABELS"),
            ("keras.Sequential([layers.Dense(2)])", "Nested()"),
            (COMPILED, "'mse'"),
            head=NESTED,
        ),
        {},
    ),
    "nested structures of a dataset, weighted": (
        cell(
            (
                "return DATA",
                "return tf.data.Dataset.from_tensor_slices((FEATURES, LABELS, {'y one': ROWS[:, 0], "
                "'z': (ROWS[:, 0], ROWS[:, 0])}))",
            ),
            ("keras.Sequential([layers.Dense(2)])", "Nested()"),
            (COMPILED, "'mse'"),
            head=NESTED,
        ),
        {},
    ),
    "layers and sub-models of one name": (cell(("keras.Sequential([layers.Dense(2)])", "Twins()"), head=TWINS), {}),
    "a schedule without get_config": (cell(('"sgd"', "keras.optimizers.Adam(Warmup())"), head=WARMUP), {}),
    "a whole number of NumPy as batch_size": (cell(tail="batch_size = np.int64(4)"), {}),
    "a dataset made at the top": (cell(("return DATA", "return TOP"), head=OUTSIDE), {}),
    "a dataset made at the top, and batched in input_fn": (
        cell(
            ("return DATA", "return TOP.shuffle(8).batch(4).prefetch(1)"), ("layers.Dense(2)", WITH_INPUT), head=OUTSIDE
        ),
        {},
    ),
    "a lookup table in a map": (
        cell(("return DATA", "return TEXTS.map(lambda x, y: (TABLE.lookup(x)[None], y))"), head=TABLE),
        {},
    ),
    "a table made in input_fn": (
        cell(
            (
                "return DATA",
                "return (tf.data.Dataset.from_tensor_slices((['a', 'b'] * 4, DATA[1])).map("
                "lambda x, y: (tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(['a'], [1.0]), 0.0)"
                ".lookup(x)[None], y)))",
            )
        ),
        {},
    ),
    "a layer in a map": (
        cell(
            (
                "return DATA",
                "return tf.data.Dataset.from_tensor_slices((np.ones((8, 2, 2, 1), 'f'), DATA[1])).map("
                "lambda x, y: (FLIP(x), y))",
            ),
            ("layers.Dense(2)", "layers.Flatten(), layers.Dense(2)"),
            head=TABLE,
        ),
        {},
    ),
    "tensors computed in input_fn": (cell(("return DATA", "return tf.ones((8, 3)), tf.cast(DATA[1], tf.int64)")), {}),
    "a table of numbers": (
        cell(
            ("return DATA", "return pd.DataFrame({'a b': [1, 2], 'ü': [.5, 1]}), pd.Series([0, 1])"),
            head="import pandas as pd",
        ),
        {},
    ),
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
RETURNED = """
import pandas as pd
import scipy.sparse
ITERATOR = iter(SETS)
class Loaded(keras.utils.PyDataset):
    def __len__(self):
        return 1
    def __getitem__(self, number):
        return DATA
""".replace("SETS", SETS)
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "fit": (cell(tail="model.fit(*DATA)"), {}, "calls model.fit and defines input_fn or model_fn. Keep one"),
    "evaluate": (cell(tail="print(model.evaluate(*DATA))"), {}, "cell line 14: model.evaluate in a cell would run"),
    "callbacks": (
        cell(tail="stop = [keras.callbacks.EarlyStopping()]"), {},
        "Keras callbacks are not called in a run (stop: EarlyStopping). Remove them.",
    ),
    "run_eagerly": (
        cell((COMPILED, "'mse', run_eagerly=True")), {}, "run_eagerly=True of model.compile has no effect in a run",
    ),
    "steps_per_execution": (
        cell((COMPILED, "'mse', steps_per_execution=4")), {}, "steps_per_execution=4 of model.compile has no effect",
    ),
    "jit_compile": (cell((COMPILED, "'mse', jit_compile=True")), {}, "cell line 13: jit_compile=True of model.compile"),
    "train_step": (cell(("keras.Sequential([", "Own(["), head=OWN_STEP), {}, "Own.train_step is not called in a run"),
    "stateful": (
        cell(("layers.Dense(2)", "layers.Reshape((3, 1)), layers.GRU(2, stateful=True)")), {},
        "the layer gru is stateful",
    ),
    "reduction none": (
        cell(("from_logits=True", "reduction='none'")), {}, "has no reduction and returns one number per",
    ),
    "sums of unequal mini-batches": (
        cell(("from_logits=True", "reduction='sum'")), {"batching": "dynamic"},
        "is a sum, but mini-batches of different",
    ),
    "mixed_float16": (
        cell(head="keras.config.set_dtype_policy('mixed_float16')"), {},
        "mixed_float16 needs loss scaling, which is not supported on parameter servers. Use mixed_bfloat16.",
    ),
    "an error in what AutoGraph made": (
        of_dataset(SETS + ".map(lambda x, y: (x + tf.constant('a'), y))"), {}, "cell line 10: TypeError: Input",
    ),
    "a variable of the cell's": (
        cell((COMPILED, "times"), head=USES_OUTSIDE.replace("OUTSIDE", "tf.Variable([1.0, 2.0])")), {},
        "the model uses a variable (or another object) that was created outside of it",
    ),
    "a variable for every call": (
        cell(("layers.Dense(2)", "Scaled(), layers.Dense(2)"), head=VARIABLE_IN_CALL), {},
        "the model creates a variable in each call",
    ),
    "a tensor as a truth value": (
        cell((COMPILED, "question"), head=QUESTION), {},
        "Using a symbolic `tf.Tensor` as a Python `bool` is not allowed",
    ),
    "batches for an unknown model": (
        of_dataset(SETS + ".shuffle(8).batch(4)"), {},
        "input_fn's dataset is batched (.batch(4)), and the model has no input shape to compare it with. "
        "Remove .batch and set batch_size = 4 in the cell, or begin the model with keras.Input.",
    ),
    "batches for an unknown model, mapped": (
        of_dataset(SETS + ".batch(4).map(lambda x, y: (x / 2, y))"), {}, "is batched (.batch(4))",
    ),
    "other batches than declared": (
        of_dataset(SETS + ".batch(4)", model=WITH_INPUT) + "batch_size = 8\n", {},
        "the cell has batch_size = 8, but input_fn's dataset has batches of 4",
    ),
    **{
        name: (cell(("return DATA", f"return {given}"), head=RETURNED), {}, said)
        for name, (given, said) in {
            "nothing": ("None", "it returned None. Write `return features, labels`"),
            "a generator": ("(pair for pair in zip(*DATA))", "it returned a generator. Wrap it: tf.data.Dataset."),
            "an iterator": ("zip(*DATA)", "it returned an iterator. Wrap it"),
            "a PyDataset": ("Loaded()", "it returned a keras.utils.PyDataset. Wrap it"),
            "a list": ("list(DATA)", "it returned a list. Return a tuple"),
            "an array alone": ("DATA[0]", "it returned one array or tensor. Return (features, labels)"),
            "a dict alone": ("{'a': DATA[0]}", "it returned a dict"),
            "a DataFrame alone": ("pd.DataFrame({'a': [1.0]})", "it returned one DataFrame"),
            "an iterator of a dataset": ("ITERATOR", "it returned an iterator of a dataset. Return the dataset"),
            "four parts": ("(*DATA, 1, 2)", "it returned 4 parts"),
            "a sparse matrix": ("scipy.sparse.csr_matrix(DATA[0]), DATA[1]", "'inputs' as a sparse matrix. Return"),
            "a sparse array": ("{'x': scipy.sparse.coo_array(DATA[0])}, DATA[1]", "'x' as a sparse matrix"),
            "ragged lists": ("[[1], [1, 2]], [0, 1]", "'inputs' as lists of different lengths. Pad them"),
            "a RaggedTensor": ("tf.ragged.constant([[1], [1, 2]]), [0, 1]", "'inputs' as a RaggedTensor. Return dense"),
            "a SparseTensor": ("tf.sparse.from_dense(DATA[0]), DATA[1]", "'inputs' as a SparseTensor"),
            "objects": ("np.array([object()] * 8), DATA[1]", "'inputs' as an array of the type object (of object)"),
            "texts in a table": (
                "pd.DataFrame({'n': [1, 2], 'city': ['x', 'y']}), [0, 1]", "a table whose column 'city' has the type",
            ),
            "dates": (
                "np.array(['2020-01-01'] * 8, 'M8[D]'), DATA[1]",
                "'inputs' as dates (datetime64). Convert them to numbers",
            ),
            "times": ("{'t': np.ones(8, 'm8[s]')}, DATA[1]", "'t' as times (timedelta64). Convert them to numbers"),
            "no labels": ("DATA[0], None", "'labels' as None"),
            "a number": ("DATA[0], 3", "'labels' as a single value of the type int64"),
            "other lengths": ("DATA[0], DATA[1][:7]", "'inputs' with the shape (8, 3), but labels with (7,)"),
            "no example": ("DATA[0][:0], DATA[1][:0]", "returned empty arrays"),
            "no feature": ("{}, DATA[1]", "input_fn returns no features"),
            "datasets in a tuple": (f"{SETS}, {SETS}", "'inputs' as a dataset. Use tf.data.Dataset.zip"),
            "windows": (
                f"{SETS}.window(2)", "its dataset has 'inputs' as datasets. Write ds.flat_map",
            ),
            "an unknown shape": (
                f"{SETS}.map(lambda x, y: (tf.py_function(lambda x: x, [x], tf.float32), y))",
                "'inputs' with an unknown shape, as from py_function. Set it in a map: tf.ensure_shape",
            ),
            "a Keras tensor": ("keras.Input((3,)), DATA[1]", "'inputs' as a symbolic tensor of Keras"),
            "other features for an evaluation": (
                "DATA[0], (DATA[1] if mode == 'train' else (DATA[1], DATA[1]))",
                "input_fn returns 'labels' only for the mode 'train'. Return the same",
            ),
        }.items()
    },
    "no batch for an evaluation": (
        of_dataset(f"{SETS}.batch(8 if mode == 'train' else 32, drop_remainder=True).map(lambda x, y: (x, y))",
                   model=WITH_INPUT), {},
        "returns less than one batch of 32 examples for the mode 'eval'. Remove drop_remainder=True.",
    ),
    "no batch to train on": (
        of_dataset(f"{SETS}.batch(32, drop_remainder=True)", model=WITH_INPUT), {},
        "returns less than one batch of 32 examples for the mode 'train'",
    ),
    "nothing for an evaluation": (
        cell(("return DATA", "if mode == 'train': return DATA")), {}, "it returned None",
    ),
    "the command line": (
        cell(tail="import argparse\nargparse.ArgumentParser().parse_args(['--rate'])"), {},
        "cell line 15: the cell ends its program (exit code 2), as argparse does",
    ),
    "a truth value as batch_size": (
        cell(tail="batch_size = True"), {}, "batch_size must be a whole number of at least 1",
    ),
    "an optimizer of the user's": (
        cell(('"sgd"', "Centralized()"), head=CENTRALIZED), {},
        "Centralized.apply is not called in a run. Override update_step",
    ),
    "a number for a model": (cell(tail="model = 3"), {}, "the cell's model is not a Keras model, but a builtins.int"),
    "weights for a model_fn": (MODEL_FN, {}, "input_fn returns sample weights, which model_fn does not accept"),
}  # fmt: skip


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    cells = tmp_path_factory.mktemp("cells") / "cells.json"
    given = [(text, declared) for text, declared, *_ in (*TAKEN.values(), *REFUSED.values())]
    cells.write_text(json.dumps(given), encoding="utf-8")
    printed = programs.run(PROGRAM, cells, own=True)
    return dict(zip((*TAKEN, *REFUSED), json.loads(printed), strict=True))


def test_what_is_honoured_is_built(answers: dict[str, dict[str, Any]]) -> None:
    assert {name: answers[name].get("error") for name in TAKEN} == dict.fromkeys(TAKEN)


def test_what_means_nothing_in_a_run_is_refused_by_name(answers: dict[str, dict[str, Any]]) -> None:
    said = {name: answers[name].get("error") or "nothing" for name in REFUSED}
    assert {name: text for name, text in said.items() if REFUSED[name][2] not in text} == {}
