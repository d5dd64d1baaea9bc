"""The share of a gradient, in the graph: what workers with unequal mini-batches push averages to one large batch's."""

from __future__ import annotations

import pytest

from tests.runtime import programs

pytestmark = pytest.mark.training

PROGRAM = """
import os
os.environ.update(CUDA_VISIBLE_DEVICES="")
import numpy as np
from transient_magics.runtime.training.t2t import bridges

tf = bridges.cross()
from tensor2tensor.models import resnet
from transient_magics.runtime.training.batching import BatchController
from transient_magics.runtime.training.graph.step import applied, exact_share
from transient_magics.runtime.training.t2t.optimizer import Request, gradients, noisy_and_clipped
from transient_magics.runtime.training.trainable import Objective

controller = BatchController("static", 64, 3)
controller.members({0: 9, 1: 12, 2: 18})
random = np.random.default_rng(3)
inputs = random.normal(size=(controller.total, 5)).astype("f")
targets = random.normal(size=(controller.total, 1)).astype("f")


def pushed(clip, rows, share):
    with tf.Graph().as_default(), tf.Session() as session:
        hparams = resnet.resnet_cifar_15()
        hparams.optimizer, hparams.weight_decay, hparams.clip_grad_norm = "sgd", 0.0, clip
        weights = tf.get_variable("weights", [5, 1], initializer=tf.ones_initializer())
        fed = tf.placeholder_with_default(1.0, [])
        loss = tf.reduce_mean(tf.square(tf.matmul(inputs[rows], weights) - targets[rows])) / 2
        step = tf.train.get_or_create_global_step()
        total, optimizer, pairs = gradients(Request(loss, 1.0, hparams, [weights]), tf.constant(1.0))
        objective = Objective(
            total, pairs, optimizer, lambda given: noisy_and_clipped(given, hparams), lambda by: optimizer, fed
        )
        train = applied(objective, step, fed)
        session.run(tf.global_variables_initializer())
        session.run(train, {fed: share})
        return 1.0 - session.run(weights)


parts, begin = [], 0
for worker, size in controller.sizes.items():
    parts.append(pushed(0.0, slice(begin, begin + size), controller.share(worker)))
    begin += size
assert np.abs(np.mean(parts, axis=0) - pushed(0.0, slice(0, None), 1.0)).max() < 1e-6
norm = np.linalg.norm(pushed(0.01, slice(0, 44), 1.5))
assert abs(norm - 0.015) < 1e-6, norm  # clipped first, then weighted

# Mini-batches of text weigh more or less than they do in the mean; every token moves the variables alike.
shares = [exact_share(*map(tf.constant, fed)) for fed in ((0.5, 90.0, 60.0), (0.5, 30.0, 60.0), (0.5, 30.0, 0.0))]
with tf.Session() as session:
    assert np.allclose(session.run(shares), [0.75, 0.25, 0.5])
"""


def test_weighted_gradients_average_to_that_of_all_examples_and_are_clipped_before() -> None:
    programs.run(PROGRAM)
