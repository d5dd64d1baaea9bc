"""`==` and `!=` between tensors: by element in the user's code, by identity in what was written for graphs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.runtime.machine_room import PROJECT

pytestmark = pytest.mark.training

PROGRAM = """
import os, sys
os.environ.update(CUDA_VISIBLE_DEVICES="", KERAS_BACKEND="tensorflow")
import numpy as np
from transient_magics.runtime.tf.graph_mode import tensorflow

tf = tensorflow()
import tensorflow as tf2

def code(place, text):
    names = {"tf": tf2}
    exec(compile(text, place, "exec"), names)
    return names

def values(build):
    with tf.Graph().as_default(), tf.Session() as session:
        made = build()
        session.run(tf.global_variables_initializer())
        return session.run(made)

def mapped(function):
    with tf.Graph().as_default(), tf.Session() as session:
        following = tf.data.make_one_shot_iterator(tf2.data.Dataset.range(3).map(function)).get_next()
        return [session.run(following).tolist() for _ in range(3)]

def in_the_operators():
    number = lambda: tf.constant([0, 1, 2])
    def all_kinds():
        variable = tf.get_variable("variable", initializer=[0, 1, 2])
        ragged = tf2.ragged.constant([[0], [1, 2]])
        return [number() == 1, 1 != number(), np.array([0, 0, 2]) == number(), variable == 1, number() != variable,
                (ragged == 1).flat_values, (ragged != 1).flat_values, number() == [1, 2], number() != [1, 2]]
    expected = [[0, 1, 0], [1, 0, 1], [1, 0, 1], [0, 1, 0], [0, 0, 0], [0, 1, 0], [1, 0, 1], 0, 1]
    assert [np.int32(value).tolist() for value in values(all_kinds)] == expected
    with tf.Graph().as_default():
        one, another = tf.constant(1), tf.constant(1)
        assert (one == None, one != None) == (False, True)
        assert {one: "one", another: "another"}[one] == "one" and one in [one]
        for question in (lambda: one in [another], lambda: bool(one == another)):
            try:
                question()
            except tf2.errors.OperatorNotAllowedInGraphError:
                continue
            raise AssertionError("identity")

FILE, CELL, PIP = (
    code(place, "def same(a, b): return a == b")
    for place in ("/tmp/__autograph_generated_file1.py", "cell", "/venv/lib/site-packages/losses/masked.py")
)
GRAPH_CODE = [code(f"/usr/lib/python3/{folder}/{name}/layers.py", "def same(a, b): return a == b")
              for folder in ("site-packages", "dist-packages") for name in ("tensor2tensor", "tf_slim", "tensorflow")]
def by_caller():
    for modern in (FILE, CELL, PIP):
        assert values(lambda: modern["same"](tf.constant([1, 2]), tf.constant([1, 3]))).tolist() == [True, False]
    for old in GRAPH_CODE:
        with tf.Graph().as_default():
            tensor, equal = tf.constant([1, 2]), tf.constant([1, 2])
            assert old["same"](tensor, tensor) is True and old["same"](tensor, equal) is False

in_the_operators()
by_caller()
import tempfile, importlib.util
with tempfile.NamedTemporaryFile("w", suffix=".py") as file:  # AutoGraph reads sources
    file.write(
        "def times_ten(number):\\n    if number == 1:\\n        return number * 10\\n    return number\\n"
        "def counted(number):\\n    found = number * 0\\n"
        "    while found != number:\\n        found += 1\\n    return found\\n"
    )
    file.flush()
    specification = importlib.util.spec_from_file_location("helpers", file.name)
    helpers = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(helpers)
    assert mapped(helpers.times_ten) == [0, 10, 2]
    assert mapped(helpers.counted) == [0, 1, 2]
    assert mapped(lambda number: tf2.py_function(lambda value: value == 1, [number], tf2.bool)) == [False, True, False]
    assert values(lambda: tf2.function(helpers.times_ten)(tf.constant(1))) == 10

from transient_magics.runtime.training.t2t import bridges

bridges.cross()  # Tensor2Tensor's mode, in which TensorFlow knows identity only
by_caller()
in_the_operators()
"""


def test_whoever_wrote_for_tensorflow_2_compares_elements_and_whoever_wrote_for_graphs_compares_identity() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=PROJECT, capture_output=True, text=True, check=False, encoding="utf-8"
    )
    assert done.returncode == 0, done.stderr[-2000:]
