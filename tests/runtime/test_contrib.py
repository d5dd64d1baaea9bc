"""What stands in for what TensorFlow dropped: the convolutional cell of T2T computes what Keras's layer does."""

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
from tensor2tensor.layers import common_video
import tensorflow_probability

assert tensorflow_probability.__version__  # which is imported when something of it is asked for
frames = np.random.default_rng(5).normal(size=(2, 3, 6, 4, 2)).astype("f")
with tf.Graph().as_default(), tf.Session() as session:
    state, outputs = None, []
    for time in range(3):
        with tf.variable_scope("cell", reuse=tf.AUTO_REUSE):
            output, state = common_video.conv_lstm_2d(tf.constant(frames[:, time]), state, 5, kernel_size=3, name="it")
        outputs.append(output)
    assert {name.op.name: name.shape.as_list() for name in tf.trainable_variables()} == {
        "cell/it/kernel": [3, 3, 2 + 5, 4 * 5], "cell/it/biases": [4 * 5]
    }
    first = tf.get_variable("first", initializer=tf.random.uniform([]), trainable=False)
    second = tf.get_variable("second", initializer=first.initialized_value(), trainable=False)
    session.run(tf.global_variables_initializer())
    assert session.run(tf.equal(first, second))
    kernel, biases = session.run(tf.trainable_variables())

    layer = tf.keras.layers.ConvLSTM2D(5, 3, padding="same", recurrent_activation="sigmoid", return_sequences=True)
    expected = layer(tf.constant(frames))
    # Keras has the gates in another order, and a forget bias of 1 among its biases.
    kernel, biases = (np.concatenate([np.split(w, 4, -1)[i] for i in (0, 2, 1, 3)], -1) for w in (kernel, biases))
    biases[5:10] += 1
    for variable, value in zip(layer.weights, (kernel[:, :, :2], kernel[:, :, 2:], biases), strict=True):
        session.run(variable.assign(value))
    difference = np.abs(np.stack(session.run(outputs), 1) - session.run(expected)).max()
    assert difference < 1e-5, difference
"""


def test_what_was_dropped_is_made_up_for() -> None:
    programs.run(PROGRAM)
