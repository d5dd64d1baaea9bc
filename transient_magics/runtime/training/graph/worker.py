"""A worker's graph, built from the definition of what is trained. Mini-batch and learning rate are fed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ....protocol.run import RunSpec
from ...tf import placement
from ...tf.graph_mode import tensorflow
from ..trainable import Trainable
from .copies import copies
from .moments import observe, reads, shared_values
from .noise import gradient_sum
from .state import parts
from .training import training_graph
from .wire import cross_once


@dataclass(frozen=True)
class WorkerGraph:
    """What a worker runs and feeds: tensors of one graph, and the operation `step`.

    `before` and `after` are the global step around `step`; `missing` names the variables that do not live yet;
    `weight`, `share` and `expected` are those of training.py. Four measure gradients that no step applies (noise.py):
    the squared norm of one and of their sum, what begins a sum, and the variables' values, which may be fed to have all
    gradients of the same ones. The next four tell when the step's mini-batch, its
    variables, its loss and its gradients were there (moments.py). Four more are of synchronous training
    (accumulate.py): a round to feed, what `step` saw of it, the round and step now.
    With `--chief worker`, `saved` writes the variables to the path fed as `checkpoint`. `pull`, `push` and `number`
    are of a worker that trains alone, on copies of the variables (copies.py).
    """

    loss: Any
    before: Any
    after: Any
    examples: Any
    step: Any
    divisor: Any
    share: Any
    expected: Any
    weight: Any
    missing: Any
    squared: Any
    summed: Any
    cleared: Any
    variables: Sequence[Any]
    fed: Any
    pulled: Any
    forward: Any
    backward: Any
    round: Any = None
    seen: Any = None
    current_round: Any = None
    current_step: Any = None
    checkpoint: Any = None
    saved: Any = None
    pull: Any = None
    push: Any = None
    number: Any = None


def build(trainable: Trainable, features: Mapping[str, Any], spec: RunSpec, device: str, servers: int) -> WorkerGraph:
    """Build the step on `features` in the default graph, for the worker at `device`, after `trainable.prepare`."""
    tf = tensorflow()

    ready, alone = placement.ready_flag(spec.name), spec.alone and servers == 1
    wire = "fp32" if alone else spec.wire
    with tf.device(device) if alone else placement.placed(device, servers, spec.ps_shards):
        built = training_graph(trainable, features, wire, spec.mode == "sync", spec.damped)
        missing = tf.report_uninitialized_variables([ready, *(() if alone else tf.global_variables())])
    with tf.device(f"{device}/cpu:0"):
        squared, summed, cleared = gradient_sum(built.objective.pairs)
    graph, saving = tf.get_default_graph(), ()
    if spec.chief == "worker":
        with tf.device(f"{device}/cpu:0"):
            saver = tf.train.Saver(tf.global_variables(), max_to_keep=0).saver_def
        saving = tuple(map(graph.as_graph_element, (saver.filename_tensor_name, saver.save_tensor_name)))
    states = [part.handle for state in built.states for part, _ in parts(state.variable, state.new)]
    arrived = cross_once(graph, device, wire, exact=states)
    variables = shared_values(squared.op, arrived or reads(graph), features)
    with tf.device(f"{device}/cpu:0"):
        loss = tf.identity(built.objective.loss)
    kept = [gradient for gradient, _ in built.objective.pairs] if alone else []
    moments = vars(observe(features, arrived, loss, built.step, device, kept)).values()
    sync = built.accumulators
    position = (sync.round, sync.seen, *sync.position) if sync else (None,) * 4
    saving = saving or (None, None)
    taken = vars(copies(spec.name, tf.global_variables(), built.global_step)) if alone else {}
    return WorkerGraph(
        loss, built.before, built.after, built.examples, built.step, built.divisor, built.share,
        built.expected, built.objective.weight, missing, squared, summed, cleared, variables,
        *moments, *position, *saving, **taken,
    )  # fmt: skip
