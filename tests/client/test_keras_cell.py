"""What no run trains is refused in the cell, by its syntax alone: with the line and the remedy, without TensorFlow."""

from __future__ import annotations

import ast
import sys

import pytest

from transient_magics.client import cell, keras_cell
from transient_magics.errors import CellError
from transient_magics.protocol import fit_calls

MODEL = """import keras, numpy as np
x = np.ones((8, 4)); y = np.ones(8)
model = keras.Sequential([keras.layers.Dense(1)])
model.compile("adam", "mse")
"""
FIT = "model.fit(x, y)\n"
LOOP = """import tensorflow as tf, keras
model = keras.Sequential([keras.layers.Dense(1)])
def step(x, y):
    with tf.GradientTape() as tape:
        loss = model(x)
step(1, 2)
"""
GAN = """import keras
class GAN(keras.Model):
    def train_step(self, data):
        return {}
gan = GAN()
gan.compile()
gan.fit([1.0])
"""

REFUSED = {
    "torch": ("import torch\nx = torch.ones(3)\n", "cell line 2: ", "uses PyTorch", "%%job --pip torch"),
    "jax": ("from jax import numpy as jnp\nx = jnp.ones(3)\n", "cell line 2: ", "uses JAX", "%%job --pip jax"),
    "torch behind Keras": (
        'import os\nos.environ["KERAS_BACKEND"] = "torch"\nimport keras, torch\n' + FIT.replace("x, y", "1, 2"),
        "cell line 4: ",
        "but Keras uses TensorFlow in a run",
        "Use keras.ops instead of torch",
    ),
    "a strategy": (
        "import tensorflow as tf\ns = tf.distribute.MirroredStrategy()\n" + MODEL + FIT,
        "cell line 3: ",
        "MirroredStrategy has no effect in a run",
        "Leave the strategy and its scope out",
    ),
    "a loop of the cell's own": (LOOP, "cell line 5: ", "GradientTape", "Call fit of a compiled Keras model"),
    "a train_step": (GAN, "cell line 4: ", "train_step", "Override compute_loss"),
    "no compile": (
        MODEL.replace('model.compile("adam", "mse")\n', "") + FIT,
        "cell line 5: ",
        "model is fitted, but not compiled",
        "Write model.compile",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_run_trains_is_refused_with_its_line(name: str) -> None:
    source, place, words, remedy = REFUSED[name]
    with pytest.raises(CellError) as caught:
        cell.check(source, own_model=True, line_offset=1)
    assert str(caught.value).startswith(place)
    assert words in str(caught.value)
    assert remedy in str(caught.value)


@pytest.mark.parametrize(
    "source",
    [
        MODEL + FIT,
        MODEL + "history = model.fit(x, y)\nprint(history.history)\n",
        "import torch\n" + MODEL + FIT,
        'import os\nos.environ["KERAS_BACKEND"] = "jax"\n' + MODEL + FIT,
        "import keras\nmodel = keras.models.load_model('a.keras')\nmodel.fit(1, 2)\n",
        "from tensorflow import keras\nmodel = keras.Sequential()\nmodel.compile()\nmodel.fit(1, 2)\n",
    ],
)
def test_unedited_cells_pass(source: str) -> None:
    cell.check(source, own_model=True, line_offset=1)


def test_a_keras_cell_is_not_told_of_tensor2tensor() -> None:
    with pytest.raises(CellError, match="neither calls fit nor defines input_fn") as caught:
        cell.check(MODEL, own_model=True)
    assert "Tensor2Tensor" not in str(caught.value)


def test_the_lines_behind_fit_are_named() -> None:
    behind = "score = model.evaluate(x, y)\nprint(score)\n"
    assert keras_cell.notes(MODEL + FIT, 1) == []
    assert keras_cell.notes(MODEL + FIT + "print(1)\n", 1) == [
        "Line 7 comes after model.fit and is not executed: continue in the next cell, with model = run.model()."
    ]
    assert keras_cell.notes(MODEL + FIT + behind, 1) == [
        "Lines 7 to 8 come after model.fit and are not executed: continue in the next cell, with model = run.model()."
    ]
    assert keras_cell.notes(MODEL + FIT + behind, 0)[0].startswith("Lines 6 to 7")


TRAIN = "def train():\n    model.fit(x, y)\n"
METHOD = "class Trainer:\n    def train(self):\n        self.model.fit(x, y)\nt = Trainer()\n"
ANY_CALL = "later()\n"
"""A call that may be one of `fit` if the cell passes a function on that calls it."""
CONTINUED = {
    "twice": f"{FIT}{FIT}",
    "in one line": "model.fit(x, y); model.fit(x, y)\n",
    "in two functions": f"{TRAIN}def tune():\n    model.fit(x, y)\ntrain()\ntune()\n",
    "a function twice": f"{TRAIN}train()\ntrain()\n",
    "both in a function": "def train():\n    model.fit(x, y)\n    model.fit(x, y)\ntrain()\n",
    "a method twice": f"{METHOD}t.train()\nt.train()\n",
    "an object twice": "class Train:\n    def __init__(self):\n        model.fit(x, y)\nTrain()\nTrain()\n",
    "a for loop": "for _ in y:\n    model.fit(x, y)\n",
    "a while loop": "while model.fit(x, y):\n    pass\n",
    "a list": "[model.fit(x, y) for _ in y]\n",
    "a set": "{model.fit(x, y) for _ in y}\n",
    "a dict": "{_: model.fit(x, y) for _ in y}\n",
    "a generator": "all(model.fit(x, y) for _ in y)\n",
    "a loop in a function": "def train():\n    for _ in y:\n        model.fit(x, y)\ntrain()\n",
    "an async loop": "async def train():\n    async for _ in y:\n        model.fit(x, y)\nrun(train())\n",
    "a lambda": f"train = lambda: model.fit(x, y)\n{ANY_CALL}",
    "an argument": f"{TRAIN}map(train, y)\n{ANY_CALL}",
    "an object that is called": f"class Train:\n    def __call__(self):\n        model.fit(x, y)\n{ANY_CALL}",
}
BEHIND = "print(1)\n"
ENDED = {
    "once": FIT,
    "behind a loop": f"for _ in y:\n    scaler.fit(x)\n{FIT}",
    "behind another fit": f"scaler = Scaler().fit(x)\n{FIT}",
    "in several lines": "history = (model\n    .fit(\n        x, y))\n",
    "a function": f"{TRAIN}history = train()\n",
    "a method": f"{METHOD}train = 1\nt.train()\n",
    "a constructor before it": (
        f"class Data:\n    def __init__(self):\n        self.scaler.fit(x)\ndata = Data()\n{FIT}"
    ),
}


@pytest.mark.parametrize("name", CONTINUED)
def test_any_call_that_may_be_a_later_fit_is_found(name: str) -> None:
    tree = ast.parse(CONTINUED[name])
    defined = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    first = next(node for node in tree.body if not isinstance(node, defined))
    assert fit_calls.may_continue(tree, first.lineno)
    assert fit_calls.last_fit(tree) == len(tree.body)


@pytest.mark.parametrize("name", ENDED)
def test_a_single_fit_is_the_last(name: str) -> None:
    source = f"{ENDED[name]}{BEHIND}"
    tree = ast.parse(source)
    last = fit_calls.last_fit(tree)
    assert tree.body[last:] == tree.body[-1:]
    assert not fit_calls.may_continue(tree, tree.body[last - 1].lineno)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        (f"{MODEL}history = {FIT}", "history"),
        (f"{MODEL}if True:\n    found = {FIT}", "found"),
        (f"{MODEL}{FIT}", ""),
        (f"{MODEL}def train():\n    history = {FIT}train()\n", ""),
        (f"scaler = Scaler().fit(x)\n{MODEL}{FIT}", ""),
        (f"scaler = Scaler().fit(x)\n{MODEL}history = {FIT}", "history"),
    ],
)
def test_the_name_of_what_fit_returns_is_found(source: str, name: str) -> None:
    assert keras_cell.history_name(source) == name


def test_another_backend_is_named() -> None:
    source = 'import os\nos.environ["KERAS_BACKEND"] = "jax"\n' + MODEL + FIT
    assert keras_cell.notes(source) == ["KERAS_BACKEND=jax is ignored: a run computes with TensorFlow."]


def test_these_checks_import_no_tensorflow() -> None:
    assert "tensorflow" not in sys.modules
