"""A run computes what Keras computes: some of the random models of benchmarks/bench_parity.py, and known traps."""

from __future__ import annotations

import pytest

from tests.runtime import programs

pytestmark = pytest.mark.training

BENCHMARKS = programs.PROJECT / "benchmarks"
RANDOM = """
import sys
sys.path.insert(0, sys.argv.pop(1))
import bench_parity
bench_parity.main()
"""
TRAPS = """
import pathlib, sys, tempfile
sys.path.insert(0, sys.argv[1])
import numpy as np
from transient_magics.runtime.tf.graph_mode import everything
everything()
import keras
from bench_parity import Ours, _fresh
from transient_magics.runtime.training.usercode import run_cell

HEAD = '''
import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops
keras.utils.set_random_seed(3)
batch_size = 8
'''
MODEL = '''
model = keras.Sequential([keras.Input((6,)), layers.Dense(10)])
'''

def ours(cell):
    with _fresh(), tempfile.TemporaryDirectory() as folder:
        return Ours(HEAD + cell, pathlib.Path(folder))

def masked_loss():
    # Whatever is labelled 0 does not count, and everything is.
    made = ours('''
def input_fn(mode):
    return np.random.default_rng(1).normal(size=(16, 6)), np.zeros(16, "int64")
def loss(truth, guess):
    there = ops.cast(truth != 0, "float32")
    each = keras.losses.sparse_categorical_crossentropy(truth, guess, from_logits=True)
    return ops.sum(each * there) / (ops.sum(there) + 1e-6)
''' + MODEL + 'model.compile(keras.optimizers.SGD(0.0), loss)')
    assert made.loss({"inputs": np.ones((8, 6), "f"), "labels": np.zeros(8, "int64")}) == 0.0
    assert made.loss({"inputs": np.ones((8, 6), "f"), "labels": np.ones(8, "int64")}) > 0.1
    assert made.evaluate()["loss"] == 0.0

def metric_of_a_batch():
    # One number per batch: their mean over the 32 batches there are.
    made = ours('''
def input_fn(mode):
    return np.ones((256, 6)), np.arange(256) % 10
def mean_label(truth, guess):
    return ops.mean(ops.cast(truth, "float32"))
def hits(truth, guess):
    return ops.mean(ops.cast(ops.argmax(guess, -1) == ops.cast(truth, "int32"), "float32"))
''' + MODEL + '''
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True),
              metrics=["accuracy", mean_label, hits])
''')
    found = made.evaluate()
    assert abs(found["mean_label"] - (np.arange(256) % 10).mean()) < 1e-5
    assert found["hits"] == found["accuracy"] > 0

def sets_in_batches():
    # The same examples, in batches of the user's and in ours, mapped with a comparison that AutoGraph sees.
    cell = '''
def halved(features, label):
    if label == 1:
        features = features / 2
    return features, label
def input_fn(mode):
    features = np.random.default_rng(1).normal(size=(20, 6)).astype("f")
    return tf.data.Dataset.from_tensor_slices((features, np.arange(20) % 10)).map(halved)BATCHED
''' + MODEL + '''
model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
'''
    single, batched = ours(cell.replace("BATCHED", "")), ours(cell.replace("BATCHED", ".batch(8).prefetch(1)"))
    assert batched.trainable.batch == 8
    shapes = {name: shape.as_list() for name, shape in batched.trainable._data.shapes.items()}
    assert shapes == {"inputs": [6], "labels": []}
    assert single.evaluate() == batched.evaluate()
    with _fresh(), tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "cell.py").write_text(HEAD + cell.replace("BATCHED", ".batch(8)"))
        plain = run_cell(pathlib.Path(folder) / "cell.py", pathlib.Path(folder) / "include", 1)
        expected = plain.model.evaluate(plain.input_fn("eval"), verbose=0, return_dict=True)
    found = batched.evaluate()
    assert all(abs(found[name] - value) < 1e-5 for name, value in expected.items()), (found, expected)
    with batched.tf.Graph().as_default():
        pipeline = batched.trainable.training_pipeline()
        assert pipeline.batched and pipeline.shapes["inputs"].as_list() == [None, 6]

def model_fn_metrics():
    # tf.metrics of one number per batch, and `==` in a model_fn.
    made = ours('''
import tensorflow.compat.v1 as tf1
def input_fn(mode):
    return np.ones((40, 6)), np.arange(40) % 10
def model_fn(features, labels, mode):
    logits = features @ tf1.get_variable("weights", [6, 10])
    loss = tf1.reduce_mean(tf1.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    threes = tf1.reduce_mean(tf1.cast(labels == 3, tf1.float32))
    return {"loss": loss, "optimizer": tf1.train.GradientDescentOptimizer, "learning_rate": 0.1, "predictions": logits,
            "eval_metric_ops": {"threes": tf1.metrics.mean(threes)}} if mode == "eval" else {
            "loss": loss, "optimizer": tf1.train.GradientDescentOptimizer, "learning_rate": 0.1}
''')
    with made.tf.Graph().as_default(), made.tf.Session() as session:
        pipeline = made.trainable.evaluation_pipeline()
        iterator = made.tf.data.make_initializable_iterator(pipeline.dataset)
        batch = iterator.get_next()
        built = made.trainable.evaluation_graph(batch)
        session.run([made.tf.global_variables_initializer(), made.tf.local_variables_initializer()])
        session.run(iterator.initializer, pipeline.feeds)
        from transient_magics.runtime.programs.evaluate import all_batches
        all_batches(session, built, batch, pipeline)
        assert abs(session.run(built.values["threes"]) - 0.1) < 1e-6

def repeated_words():
    # A word that a batch uses three times, clipped by what all three add up to.
    cell = '''
def input_fn(mode):
    return np.array([[0, 1, 1, 1]] * 8), np.ones((8, 2), "f")
model = keras.Sequential([keras.Input((4,), dtype="int32"), layers.Embedding(3, 2), layers.GlobalAveragePooling1D()])
model.compile(keras.optimizers.SGD(1.0, CLIP), "mse")
'''
    for clip in ("clipvalue=0.1", "clipnorm=0.1", "global_clipnorm=0.1"):
        made = ours(cell.replace("CLIP", clip))
        batch = {"inputs": np.array([[0, 1, 1, 1]] * 8), "labels": np.ones((8, 2), "f")}
        (before,), (gradient,) = made.weights(), made.gradients_of(batch)
        made.step(batch)
        (after,) = made.weights()
        assert np.linalg.norm(gradient) > 0.2
        clipped = np.clip(gradient, -0.1, 0.1) if "value" in clip else 0.1 * gradient / np.linalg.norm(gradient)
        np.testing.assert_allclose(before - after, clipped, rtol=1e-4, err_msg=clip)

masked_loss()
metric_of_a_batch()
sets_in_batches()
model_fn_metrics()
repeated_words()
"""


@pytest.mark.parametrize(
    "numbers",
    [
        # Two inputs, weights and batch normalisation; random numbers and two outputs; Adam.
        pytest.param((0, 4, 97, "--alone"), id="three", marks=pytest.mark.nightly),
        # bfloat16 and a recurrent layer; words, added losses and outputs by name.
        pytest.param((5, 63), id="two more", marks=pytest.mark.nightly),
        # State of all kinds, with several workers.
        pytest.param(("watched",), id="state"),
        pytest.param(("codebook", "fast", "slow", "renormalized", "twice"), id="more state", marks=pytest.mark.nightly),
    ],
)
def test_models_compute_in_a_run_what_they_compute_in_keras(numbers: tuple[int | str, ...]) -> None:
    printed = programs.run(RANDOM, BENCHMARKS, "--only", *numbers, own=True)
    assert "models compared" in printed


def test_known_traps_are_none() -> None:
    programs.run(TRAPS, BENCHMARKS, own=True)
