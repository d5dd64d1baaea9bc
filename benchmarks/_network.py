"""The networks that are trained side by side, on random examples, from one definition.

The text of this file is also the cell of ours, followed by `NETWORK = "..."`; the peer imports it. Batch normalisation
keeps no moving statistics, which only an evaluation would look at.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import tensorflow as tf

BATCH = 32
NETWORK = "tiny"
"""`tiny` (0.01 million parameters), `large` (4.3 million, in matrices) or `resnet32` (0.5 million, in convolutions)."""

SIZES = {"tiny": [64, 64, 64, 10], "large": [64, *[1024] * 5, 10], "resnet32": [32, 32, 3]}
Variable = Callable[[str, list[int]], Any]


def logits(network: str, images: Any, variable: Variable) -> Any:
    """The scores of ten classes, shape [batch, 10]; `variable(name, shape)` gives the parameters."""
    return residual(images, variable) if network == "resnet32" else connected(SIZES[network], images, variable)


def connected(sizes: list[int], values: Any, variable: Variable) -> Any:
    """Matrices with ReLU between them."""
    for layer, (inputs, outputs) in enumerate(pairwise(sizes)):
        values = values @ variable(f"weights_{layer}", [inputs, outputs]) + variable(f"bias_{layer}", [outputs])
        if layer < len(sizes) - 2:
            values = tf.nn.relu(values)
    return values


def residual(images: Any, variable: Variable) -> Any:
    """ResNet-32 for CIFAR (He et al., "Deep residual learning for image recognition", CVPR 2016, section 4.2)."""

    def convolved(values: Any, name: str, outputs: int, stride: int) -> Any:
        kernel = variable(f"{name}_kernel", [3, 3, values.shape[-1], outputs])
        values = tf.nn.conv2d(values, kernel, stride, "SAME")
        mean, variance = tf.nn.moments(values, [0, 1, 2])
        scale, offset = variable(f"{name}_scale", [outputs]), variable(f"{name}_offset", [outputs])
        return tf.nn.batch_normalization(values, mean, variance, offset, 1.0 + scale, 1e-3)

    values = tf.nn.relu(convolved(images, "first", 16, 1))
    for stage, outputs in enumerate((16, 32, 64)):
        for block in range(5):
            stride = 2 if stage and not block else 1
            inner = tf.nn.relu(convolved(values, f"stage_{stage}_{block}_a", outputs, stride))
            inner = convolved(inner, f"stage_{stage}_{block}_b", outputs, 1)
            if stride == 2:  # the shortcut without parameters
                values = tf.pad(values[:, ::2, ::2], [[0, 0], [0, 0], [0, 0], [outputs // 4, outputs // 4]])
            values = tf.nn.relu(values + inner)
    return connected([64, 10], tf.reduce_mean(values, [1, 2]), variable)


def loss(scores: Any, labels: Any) -> Any:
    """The mean cross entropy."""
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=scores))


def examples(network: str) -> Any:
    """A dataset of random images and labels, one at a time, for ever the same."""
    shape = SIZES[network] if network == "resnet32" else SIZES[network][:1]
    labels = tf.random.uniform([1024], maxval=10, dtype=tf.int32)
    return tf.data.Dataset.from_tensor_slices((tf.random.uniform([1024, *shape]), labels))


def input_fn(mode: str) -> Any:
    """The examples of the cell's network."""
    return examples(NETWORK)


def model_fn(features: Any, labels: Any, mode: str) -> dict[str, Any]:
    """The cell's network."""
    one = tf.compat.v1
    initial = one.random_normal_initializer(stddev=0.05)
    scores = logits(NETWORK, features, lambda name, shape: one.get_variable(name, shape, initializer=initial))
    answer: dict[str, Any] = {"predictions": scores}
    if mode != "infer":
        answer["loss"] = loss(scores, labels)
    if mode == "train":
        answer |= {"optimizer": one.train.GradientDescentOptimizer, "learning_rate": 0.01}
    return answer
