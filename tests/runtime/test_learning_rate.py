"""What the learning rate is divided by, and that a step's update is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.runtime import programs
from tests.runtime.test_shared_graph import CELL
from tests.runtime.test_training import DECLARATION, DIGITS
from transient_magics.runtime.training.step_rules import divisor

OWN = CELL.replace("PYTHON", "False").replace("AdamOptimizer", "GradientDescentOptimizer")

# TensorFlow never comes into the process of the tests.
PROGRAM = """
import json, sys
from pathlib import Path
import numpy as np
from transient_magics.runtime.folder import RunFolder
from transient_magics.runtime.training.graph.step import training_graph
from transient_magics.runtime.tf.graph_mode import tensorflow
from transient_magics.runtime.training.loading import load_model

folder = RunFolder(Path(sys.argv[1]))
trainable = load_model(folder, folder.spec(), str(folder.data))
tf = tensorflow()
with tf.Graph().as_default(), tf.Session() as session:
    trainable.prepare()
    features = trainable.placeholders()
    built = training_graph(trainable, features)
    random = np.random.default_rng(5)
    shapes = {each: [size or 4 for size in each.shape.as_list()] for each in features.values()}
    batch = {each: random.integers(0, 9, shape) if each.dtype.is_integer else random.normal(size=shape)
             for each, shape in shapes.items()}
    session.run(tf.global_variables_initializer())
    first = session.run(tf.global_variables())
    load = [variable.assign(value) for variable, value in zip(tf.global_variables(), first)]

    def moved(by):
        session.run(load)
        session.run(built.step, {**batch, built.divisor: by})
        changes = [after - before for after, before in zip(session.run(tf.trainable_variables()), start)]
        return float(np.sqrt(sum(np.square(change).sum() for change in changes)))

    start = session.run(tf.trainable_variables())
    print(json.dumps([moved(1.0), moved(2.0), moved(4.0)]))
"""


@pytest.mark.parametrize(
    ("policy", "synchronous", "divisors"),
    [
        ("active", False, [1.0, 1.0, 2.0]),
        ("slots", False, [3.0, 3.0, 3.0]),
        ("fixed", False, [1.0, 1.0, 1.0]),
        ("active", True, [1.0, 1.0, 1.0]),
        ("slots", True, [3.0, 3.0, 3.0]),
        ("fixed", True, [1.0, 1.0, 1.0]),
    ],
)
def test_the_divisor_follows_those_who_train_or_is_what_was_declared(
    policy: str, synchronous: bool, divisors: list[float]
):
    found = [divisor(policy, synchronous=synchronous, active=active, slots=9) for active in (0, 1, 4)]
    assert found == divisors


def test_undeclared_slots_divide_by_one():
    assert divisor("slots", synchronous=False, active=4, slots=0) == 1.0


@pytest.mark.training
@pytest.mark.parametrize(
    ("cell", "changes"),
    [(DIGITS, {"hparams": "learning_rate_warmup_steps=0"}), (OWN, {"model": "", "hparams_set": "", "problem": ""})],
    ids=["tensor2tensor", "own"],
)
def test_a_step_moves_the_variables_by_the_divided_rate(tmp_path: Path, cell: str, changes: dict[str, Any]):
    (tmp_path / "run.json").write_text(json.dumps({**DECLARATION, **changes}), encoding="utf-8")
    (tmp_path / "cell.py").write_text(cell, encoding="utf-8")
    moved = programs.run(PROGRAM, tmp_path, own=cell is OWN)
    whole, half, quarter = json.loads(moved.splitlines()[-1])
    assert whole > 0
    assert half == pytest.approx(whole / 2, rel=1e-2)
    assert quarter == pytest.approx(whole / 4, rel=1e-2)
