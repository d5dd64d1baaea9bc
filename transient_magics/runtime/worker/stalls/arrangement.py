"""The graph of a worker's step once more: on one mini-batch that stays in memory, and wherever its variables are.

What is imported is the step that the worker would train with, with other features and other devices: whatever the model
is, the arrangements compute the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...tf.graph_mode import tensorflow
from ...training.examples import iterator_of
from ...training.graph.file import needed, nodes
from ...training.graph.worker import WorkerGraph

_STEP = ("loss", "before", "after", "examples", "step", "divisor", "share", "expected", "weight",
         "fed", "pulled", "forward", "backward")  # fmt: skip
_JOB = re.compile(r"/job:(?:ps|worker)/(?:replica:\d+/)?task:\d+")


@dataclass(frozen=True)
class Arrangement:
    """A finished graph with its step; `start`, run with `feeds`, puts the mini-batch there, `initialise` makes the
    variables."""

    graph: Any
    built: WorkerGraph
    start: Any
    feeds: Mapping[Any, Any]
    initialise: Any


def in_memory(graph: Any, built: WorkerGraph, features: Mapping[str, Any], batch: Mapping[str, Any], device: str,
              *, apart: bool = False) -> Arrangement:  # fmt: skip
    """The step of `graph` on the values `batch` of its `features`, for the worker at `device`.

    `apart`: without any cluster, all that it has in one process.
    """
    tf = tensorflow()

    names = {name: getattr(built, name).name for name in _STEP}
    initial = [each.initializer.name for each in graph.get_collection(tf.GraphKeys.GLOBAL_VARIABLES)]
    definition = needed(graph, [*names.values(), *initial])
    if apart:
        for node in nodes(definition):
            node.device = _JOB.sub("", node.device)
    with tf.Graph().as_default() as made:
        with tf.device(f"{'' if apart else device}/cpu:0"):
            held = {name: tf.placeholder(tensor.dtype, tensor.shape) for name, tensor in features.items()}
            iterator = iterator_of(tf.data.Dataset.from_tensors(held).repeat())
            kept = iterator.get_next()
        given = {features[name].name: kept[name] for name in features}
        wanted = [*names.values(), *initial]
        found = tf.import_graph_def(definition, given, wanted, name="measured")
        with tf.control_dependencies(None):
            initialise = tf.group(*found[len(names) :])
    made.finalize()
    step = replace(built, **dict(zip(names, found, strict=False)))
    return Arrangement(made, step, iterator.initializer, {held[name]: batch[name] for name in held}, initialise)
