"""How large a model is: its parameters, what is kept of it, and the floating-point operations of a training step.

Operations are counted by TensorFlow's profiler on the whole training graph, gradients and updates included, as CM-DARE
(ICDCS'20) counts them. It needs shapes, so the graph is counted as it would be on batches of two examples: of a copy,
because some models refuse a batch of a known size, or of one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

from ...tf.graph_mode import tensorflow

_EXAMPLES = 2
_FREE = "targets"  # Tensor2Tensor's losses have branches that are never taken, and that no known batch fits


def count(graph: Any, features: Mapping[str, Any]) -> dict[str, float]:
    """`parameters` that are trained, and `gigaflops` (1e9) of a step per example, of a training graph on placeholders.

    `variable_bytes` is what parameter servers keep, the optimizer's variables among them. `gigaflops` is left out where
    the shapes of the features do not tell.
    """
    tf = tensorflow()

    with graph.as_default():
        trained, kept = tf.trainable_variables(), tf.global_variables()
    found: dict[str, float] = {
        "parameters": sum(each.shape.num_elements() or 0 for each in trained),
        "variable_bytes": sum((each.shape.num_elements() or 0) * each.dtype.size for each in kept),
    }
    fixed = [feature for name, feature in features.items() if name != _FREE]
    if fixed and all(feature.shape.rank and feature.shape[1:].is_fully_defined() for feature in fixed):
        with contextlib.suppress(ValueError):  # some other branch that fits no known batch
            found["gigaflops"] = _operations(tf, graph, fixed) / _EXAMPLES / 1e9
    return found


def _operations(tf: Any, graph: Any, features: Iterable[Any]) -> float:
    with tf.Graph().as_default() as copy:
        known = {
            feature.name: tf.placeholder(feature.dtype, [_EXAMPLES, *feature.shape[1:].as_list()])
            for feature in features
        }
        tf.import_graph_def(graph.as_graph_def(), input_map=known, name="")
        options = {**tf.profiler.ProfileOptionBuilder.float_operation(), "output": "none"}
        counted = tf.profiler.profile(copy, options=options)
    return float(counted.total_float_ops) if counted else 0.0
