"""The graph of one training step.

Chief and workers build the same variables in the same order from the same definition, so their placement on several
parameter servers agrees without talking. The chief builds on placeholders and never runs the step. The divisor of the
learning rate is fed at every step.

Gradients are weighted by the examples (of text: the tokens that are no padding) whose mean they are (S. Tyagi, P.
Sharma, ACSOS 2020, section 3.1). A synchronous step knows those of all workers and is exactly that of one process on
all mini-batches together. An asynchronous one is multiplied by a share that is fed, the worker's mini-batch over the
mean one; where the weight of a mini-batch varies (text), also by its weight over what such a mini-batch is expected to
weigh. Clipping comes before the share: it would undo it otherwise.

Damping divides the learning rate of a gradient by its staleness, the number of steps that others made since it was
begun (W. Zhang, S. Gupta, X. Lian, J. Liu, "Staleness-aware async-SGD for distributed deep learning", IJCAI 2016,
section 3.1: a rate of alpha / tau, and of alpha where tau is 0). It is the rate and not the gradient that is divided,
because some optimizers (Adam) take no notice of a gradient's size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...tf.graph_mode import tensorflow
from ...tf.placement import cut
from ..trainable import Objective, Pairs, Trainable
from .accumulate import Accumulators
from .count import count
from .state import State, assigned, merged
from .wire import narrow_gradients


@dataclass(frozen=True)
class TrainingGraph:
    """What a worker runs: `step` returns nothing; `before` and `after` are the global step around it.

    In synchronous training `step` pushes into the `accumulators`, from which the chief applies as `objective` says.
    `states` are what the step assigns, besides what the optimizer changes.
    """

    objective: Objective
    step: Any
    before: Any
    after: Any
    examples: Any
    divisor: Any
    share: Any
    expected: Any
    global_step: Any
    states: Sequence[State]
    accumulators: Any = None


def training_graph(
    trainable: Trainable, features: Mapping[str, Any], wire: str = "fp32", sync: bool = False, damped: bool = False
) -> TrainingGraph:
    """Build the training step on `features` in the default graph; with `sync` it pushes gradients and applies none.

    `wire` is how gradients are sent (wire.py); `damped`: the learning rate of late ones is lower.
    """
    tf = tensorflow()

    global_step = tf.train.get_or_create_global_step()
    before = tf.identity(global_step.read_value(), name="step_before")
    divisor = tf.placeholder_with_default(tf.constant(1.0), [], name="learning_rate_divisor")
    share = tf.placeholder_with_default(tf.constant(1.0), [], name="gradient_share")
    expected = tf.placeholder_with_default(tf.constant(0.0), [], name="expected_weight")
    examples = tf.shape(next(iter(features.values())))[0]
    objective = trainable.objective(features, divisor)
    # Statistics of batch normalisation are no part of the gradients; without these the evaluation would see none.
    trained = [variable for _, variable in objective.pairs]
    states, updates = assigned(trained)
    accumulators = None
    if sync:
        accumulators = Accumulators(trained, global_step, states)
        step = pushed(objective, accumulators, wire, updates)
    else:
        exact = exact_share(share, objective.weight, expected)
        updates += [operation for state in states for operation in merged(state)]
        step = applied(objective, global_step, exact, wire, before if damped else None, updates)
    with tf.control_dependencies([step]):
        after = tf.identity(global_step.read_value(), name="step_after")
    return TrainingGraph(
        objective, step, before, after, examples, divisor, share, expected, global_step, states, accumulators
    )


def exact_share(share: Any, weight: Any, expected: Any) -> Any:
    """`share` times the weight of this mini-batch over what such a mini-batch weighs in the mean (0: not known)."""
    tf = tensorflow()

    return tf.where(expected > 0, share * weight / tf.maximum(expected, 1e-9), share)


def applied(
    objective: Objective,
    global_step: Any,
    share: Any,
    wire: str = "fp32",
    began: Any = None,
    updates: Sequence[Any] = (),
) -> Any:
    """An operation that applies the gradients times `share` (mini-batch over mean mini-batch) and counts the step.

    With `began`, the global step at which the worker began, late gradients are damped. `updates` are run with it.
    """
    tf = tensorflow()

    pairs = _sent(objective.finished(objective.pairs), share, wire)
    optimizer = objective.optimizer if began is None else objective.slower(_staleness(pairs, global_step, began))
    done = optimizer.apply_gradients(pairs)
    with tf.control_dependencies([done]):
        disturbed = objective.disturbances()
    with tf.control_dependencies([done, *updates, *disturbed]):
        return global_step.assign_add(1, read_value=False)


def pushed(objective: Objective, accumulators: Accumulators, wire: str, updates: Sequence[Any] = ()) -> Any:
    """An operation that pushes the gradients times their weight, and the weight, by which their mean is divided.

    `updates` are run with it, by every worker.
    """
    tf = tensorflow()

    return tf.group(accumulators.push(_sent(objective.pairs, objective.weight, wire), objective.weight), *updates)


def check_graph(trainable: Trainable, shards: int = 1) -> dict[str, float]:
    """Build one training step on placeholders, and throw it away; its size (count.py). Raises what the model raises."""
    with tensorflow().Graph().as_default() as graph:
        trainable.prepare()
        features = trainable.placeholders()
        with cut(shards):
            training_graph(trainable, features)
    return count(graph, features)


def _staleness(pairs: Pairs, global_step: Any, began: Any) -> Any:
    """The steps made between `began` and the moment at which all gradients are there; 1 where there were none."""
    tf = tensorflow()

    gradients = [item.values if isinstance(item, tf.IndexedSlices) else item for item, _ in pairs]
    with tf.control_dependencies(gradients), tf.device(global_step.device):
        return tf.cast(tf.maximum(global_step.read_value() - began, 1), tf.float32)


def _sent(pairs: Pairs, share: Any, wire: str) -> Pairs:
    """Gradients as they reach the parameter servers: weighted by the worker's share, in the width of `wire`."""
    tf = tensorflow()

    weighted = [(_times(tf, gradient, share), variable) for gradient, variable in pairs]
    return narrow_gradients(weighted) if wire == "bf16" else weighted


def _times(tf: Any, gradient: Any, share: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        values = gradient.values * tf.cast(share, gradient.values.dtype)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient * tf.cast(share, gradient.dtype)
