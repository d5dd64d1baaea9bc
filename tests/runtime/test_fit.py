"""Unedited Keras cells: `model.fit` declares the data, the batch and the steps, or is refused with a remedy.

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
from transient_magics.runtime.tf.graph_mode import everything
everything()
import keras
from transient_magics.runtime.programs import check
from transient_magics.runtime.folder import RunFolder

CELLS = json.loads(CELLS_TEXT)
answers = {}
with contextlib.redirect_stdout(sys.stderr):
    for name, (cell, declared) in CELLS.items():
        keras.utils.clear_session()
        with tempfile.TemporaryDirectory() as place:
            folder = RunFolder(pathlib.Path(place))
            folder.cell.write_text(cell)
            (folder.path / "run.json").write_text(json.dumps({"name": "run", "train_steps": 3, **declared}))
            answers[name] = check.answer(folder)
print(json.dumps(answers))
"""
HEAD = """import itertools
import keras
import numpy as np
import tensorflow as tf
x = np.random.default_rng(0).normal(size=(1000, 20)).astype("float32")
y = (x[:, 0] > 0).astype("int64")
model = keras.Sequential([keras.layers.Dense(8, "relu"), keras.layers.Dense(2)])
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
"""
LINE = HEAD.count("\n") + 2
"""The line of the notebook's cell that follows the head, below the magic."""
DATASET = "tf.data.Dataset.from_tensor_slices((x, y)).shuffle(1000).batch(64)"
PYDATASET = """class Halves(keras.utils.PyDataset):
    def __len__(self):
        return 2
    def __getitem__(self, number):
        part = slice(500 * number, 500 * (number + 1))
        return x[part], y[part]
"""
UNLABELLED = """class Itself(keras.layers.Layer):
    def call(self, inputs):
        self.add_loss(keras.ops.mean(inputs**2))
        return inputs
model = keras.Sequential([keras.layers.Dense(8), Itself()])
model.compile("adam")
"""
TEXTS = """texts = np.array(["good film", "a bad one"] * 500)
words = keras.layers.TextVectorization(output_sequence_length=4)
words.adapt(texts)
model = keras.Sequential([words, keras.layers.Embedding(9, 4), keras.layers.Flatten(), keras.layers.Dense(2)])
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
"""
FRAME = """import pandas as pd
frame = pd.DataFrame(x, columns=[f"column {number}" for number in range(20)])
"""

TRAINED = {
    "arrays": ("model.fit(x, y)\n", 32, 32),
    "epochs and a batch size": ("model.fit(x, y, batch_size=100, epochs=7)\n", 100, 70),
    "a part for validation": ("model.fit(x, y, batch_size=100, epochs=2, validation_split=0.25)\n", 100, 16),
    "validation data": ("model.fit(x, y, epochs=1, validation_data=(x[:50], y[:50]))\n", 32, 32),
    "a dataset for validation": (f"model.fit(x, y, validation_data={DATASET})\n", 32, 32),
    "arrays for validation": (f"model.fit({DATASET}, validation_data=(x[:90], y[:90]))\n", 64, 16),
    "steps per epoch": ("model.fit(x, y, epochs=3, steps_per_epoch=5)\n", 32, 15),
    "a later begin": ("model.fit(x, y, epochs=5, initial_epoch=2)\n", 32, 96),
    "weights of classes": ("model.fit(x, y, class_weight={0: 1.0, 1: 2.0})\n", 32, 32),
    "weights of examples": ("model.fit(x, y, sample_weight=np.ones(1000))\n", 32, 32),
    "a batched dataset": (f"model.fit({DATASET}, epochs=2, validation_data={DATASET})\n", 64, 32),
    "a dataset with weights of classes": (f"model.fit({DATASET}, class_weight={{0: 1.0, 1: 2.0}})\n", 64, 16),
    "a PyDataset": (f"{PYDATASET}model.fit(Halves(), epochs=2)\n", 500, 4),
    "a dataset of unknown length": (
        f"def some(*element):\n    return True\nmodel.fit({DATASET}.filter(some), epochs=2)\n",
        64,
        32,
    ),
    "a generator": ("model.fit(((x[:8], y[:8]) for _ in range(9)), epochs=3)\n", 8, 9),
    "steps of a generator": (
        "model.fit(((x[:8], y[:8]) for _ in itertools.count()), steps_per_epoch=5, epochs=3, "
        "validation_data=((x[:9], y[:9]) for _ in itertools.count()), validation_steps=2)\n",
        8,
        15,
    ),
    "examples without labels": (f"{UNLABELLED}model.fit(x, epochs=2)\n", 32, 64),
    "a dataset without labels": (
        f"{UNLABELLED}model.fit(tf.data.Dataset.from_tensor_slices(x).batch(50), validation_data=x[:60])\n",
        50,
        20,
    ),
    "texts": (f"{TEXTS}model.fit(texts, y, validation_split=0.1)\n", 32, 29),
    "texts as objects": (f"{TEXTS}model.fit(texts.astype(object), y, batch_size=100)\n", 100, 10),
    "a dataset of texts": (
        f"{TEXTS}model.fit(tf.data.Dataset.from_tensor_slices((texts, y)).batch(64), epochs=2)\n",
        64,
        32,
    ),
    "a sparse matrix": (
        "import scipy.sparse\nmodel.fit(scipy.sparse.csr_matrix(x), y, batch_size=50, validation_split=0.5)\n",
        50,
        10,
    ),
    "a DataFrame": (f"{FRAME}model.fit(frame, pd.Series(y), batch_size=50)\n", 50, 20),
    "code behind it": ("history = model.fit(x, y)\nprint(history.history['loss'])\nmodel.save('a.keras')\n", 32, 32),
    "a function": (
        "def main():\n    model.fit(x, y)\nif __name__ == '__main__':\n    main()\nelse:\n    main()\n",
        32,
        32,
    ),
    "a caught exception": ("try:\n    model.fit(x, y)\nexcept Exception:\n    model = None\n", 32, 32),
    "callbacks that a run replaces": (
        "model.fit(x, y, callbacks=[keras.callbacks.TensorBoard(), keras.callbacks.TerminateOnNaN()])\n",
        32,
        32,
    ),
    "a callback of the user": (
        "class Mine(keras.callbacks.Callback):\n    def on_epoch_end(self, epoch, logs=None):\n        pass\n"
        "model.fit(x, y, callbacks=[Mine(), keras.callbacks.LambdaCallback(on_train_end=print)])\n",
        32,
        32,
    ),
    "options of EarlyStopping": (
        "stop = keras.callbacks.EarlyStopping('loss', min_delta=0.1, baseline=1.0, start_from_epoch=2)\n"
        "model.fit(x, y, callbacks=stop)\n",
        32,
        32,
    ),
    "early stopping": (
        "best = keras.callbacks.ModelCheckpoint('a.keras', monitor='val_accuracy', save_best_only=True)\n"
        "stop = keras.callbacks.EarlyStopping(patience=2)\n"
        "model.fit(x, y, batch_size=50, epochs=10, validation_split=0.2, callbacks=[stop, best])\n",
        50,
        160,
    ),
    "a rate for each epoch": (
        "falls = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5)\n"
        "model.fit(x, y, epochs=3, callbacks=[falls])\n",
        32,
        96,
    ),
    "fit of another library": (
        "from sklearn.preprocessing import StandardScaler\nx = StandardScaler().fit(x).transform(x)\nmodel.fit(x, y)\n",
        32,
        32,
    ),
}

REFUSED = {
    "a second model": (
        "model.fit(x, y)\nother = keras.models.clone_model(model)\nother.compile('sgd', 'mse')\nother.fit(x, y)\n",
        "for a second model",
        LINE + 3,
    ),
    "a change of trainable without compile": (
        "model.fit(x, y)\nmodel.layers[0].trainable = False\nmodel.fit(x, y)\n",
        "Call model.compile again",
        LINE + 2,
    ),
    "a later phase of unknown length": (
        f"model.fit(x, y)\nmodel.fit({DATASET}.filter(lambda a, b: True))\n",
        "Give it steps_per_epoch",
        LINE + 1,
    ),
    "a later fit that a run cannot train": (
        "model.fit(x, y)\nmodel.fit(x, y, shuffle=False)\n",
        "shuffle=False of model.fit",
        LINE + 1,
    ),
    "a loop of steps between two phases": (
        "model.fit(x, y)\nmodel.train_on_batch(x, y)\nmodel.fit(x, y)\n",
        "model.train_on_batch",
        LINE + 1,
    ),
    "examples in their order": ("model.fit(x, y, shuffle=False)\n", "shuffle=False of model.fit", LINE),
    "nothing to validate with": (
        "model.fit(x, y, callbacks=[keras.callbacks.EarlyStopping()])\n",
        "there are no validation data",
        LINE,
    ),
    "an endless generator": (
        "many = np.broadcast_to(x[:1], (1_000_000, 20))\nmodel.fit((many, many) for _ in itertools.count())\n",
        "a generator that does not end within 1 GiB. Give steps_per_epoch",
        LINE + 1,
    ),
    "a ragged tensor": (
        "model.fit(tf.ragged.constant([[1.0], [1.0, 2.0]] * 500), y)\n",
        "model.fit has 'inputs' as a RaggedTensor",
        LINE,
    ),
    "no labels": ("model.fit(x)\n", "features without labels", LINE),
    "a callback of batches": (
        "class Mine(keras.callbacks.Callback):\n    def on_train_batch_end(self, batch, logs=None):\n        pass\n"
        "model.fit(x, y, callbacks=[Mine()])\n",
        "on_train_batch_end of the callback Mine is not called in a run",
        LINE + 3,
    ),
    "a function for batches": (
        "model.fit(x, y, callbacks=keras.callbacks.LambdaCallback(on_batch_begin=print))\n",
        "on_batch_begin of the callback LambdaCallback is not called in a run",
        LINE,
    ),
    "the best by a metric of the training data": (
        "model.fit(x, y, callbacks=keras.callbacks.EarlyStopping('loss', restore_best_weights=True))\n",
        "Write monitor='val_loss'",
        LINE,
    ),
    "callbacks without epochs": (
        f"model.fit({DATASET}.repeat(), callbacks=keras.callbacks.CSVLogger('a.csv'))\n",
        "callbacks need to know how many steps an epoch has",
        LINE,
    ),
    "an unknown direction": (
        "model.fit(x, y, callbacks=keras.callbacks.ModelCheckpoint('a.keras', 'val_agreement', save_best_only=True))\n",
        "Pass mode='max' or mode='min' to the callback",
        LINE,
    ),
    "both kinds of weights": (
        "model.fit(x, y, class_weight={0: 1.0}, sample_weight=np.ones(1000))\n",
        "both class_weight and sample_weight",
        LINE,
    ),
    "two schedules": (
        "model.optimizer.learning_rate = keras.optimizers.schedules.CosineDecay(0.1, 10)\n"
        "model.fit(x, y, callbacks=[keras.callbacks.LearningRateScheduler(lambda epoch: 0.1)])\n",
        "LearningRateScheduler cannot be used with a schedule of the optimizer",
        LINE + 1,
    ),
    "an unknown argument": ("model.fit(x, y, epoch=3)\n", "unexpected keyword argument 'epoch'", LINE),
    "no epoch": ("model.fit(x, y, epochs=0)\n", "epochs of model.fit must be a whole number of at least 1", LINE),
    "input_fn beside it": ("def input_fn(mode):\n    return x, y\nmodel.fit(x, y)\n", "Keep one of them", None),
    "evaluate before it": ("model.evaluate(x, y)\n", "Move it below model.fit", LINE),
    "no training": ("", "the cell does not train a model", None),
    "a share of too few": ("model.fit(x[:1], y[:1], validation_split=0.5)\n", "not sufficient to split", LINE),
}

PHASES = {
    "twice": ("model.fit(x, y, epochs=2)\nmodel.fit(x, y)\n", [64, 32]),
    "with another optimizer": (
        "history = model.fit(x, y, validation_split=0.2)\n"
        "print(history.history['val_accuracy'][-1], model.evaluate(x, y), model.predict(x[:1]))\n"
        "model.compile('sgd', 'mse')\nmodel.fit(x, y, epochs=3, initial_epoch=history.epoch[-1] + 1)\nprint(later)\n",
        [25, 64],
    ),
    "in a loop": ("for size in (20, 50, 100):\n    model.fit(x, y, batch_size=size)\nprint(later)\n", [50, 20, 10]),
    "in a list": ("[model.fit(x, y) for _ in range(2)]\n", [32, 32]),
    "in a function": (
        "def train(epochs):\n    return model.fit(x, y, epochs=epochs)\ntrain(1)\ntrain(2)\nprint(later)\n",
        [32, 64],
    ),
    "in two functions": (
        "def pretrain():\n    model.fit(x, y)\ndef finetune():\n    model.fit(x, y, epochs=2)\n"
        "pretrain()\nfinetune()\nprint(later)\n",
        [32, 64],
    ),
    "in a method": (
        "class Trainer:\n    def __init__(self, model):\n        self.model = model\n"
        "    def train(self):\n        self.model.fit(x, y)\n"
        "t = Trainer(model)\nt.train(); t.train()\nprint(later)\n",
        [32, 32],
    ),
    "in a dict": ("{size: model.fit(x, y, batch_size=size) for size in (50, 100)}\nprint(later)\n", [20, 10]),
    "in a set": ("{len(model.fit(x, y).epoch) for _ in range(2)}\n", [32, 32]),
    "in a generator": ("list(model.fit(x, y) for _ in range(2))\n", [32, 32]),
    "in one line": ("model.fit(x, y); model.fit(x, y)\n", [32, 32]),
    "under another name": ("train = model.fit\ntrain(x, y)\ntrain(x, y)\n", [32, 32]),
    "in a lambda": ("train = lambda: model.fit(x, y)\ntrain()\ntrain()\n", [32, 32]),
    "as long as the loss is large": (
        "history = model.fit(x, y)\nassert history.history['loss'][-1] < 9\nmodel.fit(x, y)\n",
        [32],
    ),
}
"""Cells that call `fit` several times, and the steps of the calls that can be foreseen."""
ONE = {
    "another library behind it": (
        "model.fit(x, y)\nfrom sklearn.dummy import DummyClassifier\nDummyClassifier().fit(x, y)\n"
    ),
    "another library's object": (
        "from sklearn.dummy import DummyClassifier\nother = DummyClassifier()\nmodel.fit(x, y)\nother.fit(x, y)\n"
    ),
    "one of two functions": "def first():\n    model.fit(x, y)\ndef second():\n    model.fit(x, y)\nfirst()\n",
}
"""Cells that train in one phase, although something else is fitted behind it."""

SYNCHRONOUS = {"mode": "sync", "workers": 4}
SHARED = {
    "shared arrays": ("model.fit(x, y, batch_size=50)\n", 20),
    "shared batches of a dataset": (f"model.fit({DATASET}, validation_data={DATASET})\n", 16),
    "shared batches of a PyDataset": (f"{PYDATASET}model.fit(Halves())\n", 2),
}
"""Cells that four workers train synchronously, and the number of steps."""


@pytest.fixture(scope="module")
def answers() -> dict[str, dict[str, Any]]:
    cells = {name: (HEAD + case[0], {}) for name, case in {**TRAINED, **REFUSED}.items()}
    cells |= {name: (HEAD + source, {}) for name, (source, _) in PHASES.items()}
    cells |= {name: (HEAD + source, {}) for name, source in ONE.items()}
    cells |= {name: (HEAD + source, SYNCHRONOUS) for name, (source, _) in SHARED.items()}
    program = PROGRAM.replace("CELLS_TEXT", repr(json.dumps(cells)))
    return json.loads(programs.run(program, own=True).splitlines()[-1])


@pytest.mark.parametrize("name", TRAINED)
def test_a_call_of_fit_declares_the_batch_and_the_steps(answers: dict[str, dict[str, Any]], name: str) -> None:
    _, batch, steps = TRAINED[name]
    answer = answers[name]
    assert answer["ok"], answer
    assert (answer["model"]["batch_size"], answer["fit"]["steps"]) == (batch, steps)


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_run_cannot_do_is_refused_with_its_line(answers: dict[str, dict[str, Any]], name: str) -> None:
    _, words, line = REFUSED[name]
    answer = answers[name]
    assert not answer["ok"]
    assert words in answer["error"]
    assert answer["line"] == line


def test_a_run_calls_early_stopping_and_keeps_the_best_checkpoint(answers: dict[str, dict[str, Any]]) -> None:
    assert answers["early stopping"]["fit"] == {
        "steps": 160,
        "epoch_steps": 16,
        "first_epoch": 0,
        "eval_steps": 16,
        "keep_best": "max accuracy",
        "callbacks": True,
        "phase_steps": 0,
    }


@pytest.mark.parametrize("name", PHASES)
def test_several_calls_declare_phases_of_one_run(answers: dict[str, dict[str, Any]], name: str) -> None:
    answer = answers[name]
    assert answer["ok"], answer
    steps = PHASES[name][1]
    assert (answer["fit"]["phase_steps"], answer["fit"]["steps"]) == (steps[0], sum(steps))


@pytest.mark.parametrize("name", ONE)
def test_fitting_something_else_is_no_phase(answers: dict[str, dict[str, Any]], name: str) -> None:
    answer = answers[name]
    assert answer["ok"], answer
    assert (answer["fit"]["phase_steps"], answer["fit"]["steps"]) == (0, 32)


@pytest.mark.parametrize("name", SHARED)
def test_a_synchronous_step_takes_one_batch_of_the_cell(answers: dict[str, dict[str, Any]], name: str) -> None:
    answer = answers[name]
    assert answer["ok"], answer
    assert answer["fit"]["steps"] == SHARED[name][1]
    assert answer["model"]["batch_size"] * SYNCHRONOUS["workers"] in (52, 64, 500)
