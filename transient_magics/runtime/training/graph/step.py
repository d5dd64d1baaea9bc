"""The graph of one training step: its gradients, how they are sent and applied, the model's size.

Chief and workers build the same variables in the same order from the same definition, so they agree
on the placement of variables on several parameter servers without communication. The chief builds
on placeholders and never runs the step. The divisor of the learning rate is fed at every step.

Gradients are weighted by the number of examples over which they are a mean (for text: tokens
without padding; S. Tyagi, P. Sharma, ACSOS 2020, section 3.1). A synchronous step knows the weights
of all workers and is exactly the step of one process on all mini-batches together. An asynchronous
step is multiplied by a share that is fed: the worker's mini-batch over the mean one. If the weight
of a mini-batch varies (text), it is also multiplied by its weight over the expected weight.
Clipping comes before the share, because it would undo it.

Damping divides the learning rate of a gradient by its staleness, the number of steps that others
made since it was begun (W. Zhang, S. Gupta, X. Lian, J. Liu, "Staleness-aware async-SGD for
distributed deep learning", IJCAI 2016, section 3.1: a rate of alpha / tau, and of alpha where tau
is 0). It divides the rate and not the gradient, because some optimizers (Adam) ignore a gradient's
size.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...tf.graph_mode import tensorflow
from ...tf.placement import cut
from ..trainable import Objective, Pairs, Trainable
from .state import State, assigned, merged, parts

_READS = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd")

_EXAMPLES = 2
"""Batch size for the count of operations."""
_FREE = "targets"
"""Feature that keeps unknown dimensions when operations are counted.

Tensor2Tensor's losses have unused branches that no batch of a known size fits.
"""


@dataclass(frozen=True)
class TrainingGraph:
    """The graph of a step, as a worker runs it.

    Attributes
    ----------
    objective
        Loss, gradients and optimizer. In synchronous training the chief applies it.
    step
        The operation of the step. In synchronous training it pushes into the `accumulators`.
    before, after
        The global step before and after `step`.
    examples
        Number of examples in the batch.
    divisor
        Learning rate divisor to feed.
    share, expected
        The worker's mini-batch over the mean one, and the expected weight of a mini-batch, to feed.
    global_step
        The variable of the global step.
    states
        Assigned by the step in addition to what the optimizer changes.
    accumulators
        Of synchronous training, else None.
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
    trainable: Trainable,
    features: Mapping[str, Any],
    wire: str = "fp32",
    sync: bool = False,
    damped: bool = False,
) -> TrainingGraph:
    """Build the training step on `features` in the default graph.

    Parameters
    ----------
    trainable, features
        The model, and a batch of training features.
    wire
        Width in which gradients are sent, `fp32` or `bf16`.
    sync
        Whether the step only pushes gradients, which the chief applies.
    damped
        Whether late gradients get a lower learning rate.
    """
    tf = tensorflow()

    global_step = tf.train.get_or_create_global_step()
    before = tf.identity(global_step.read_value(), name="step_before")
    divisor = tf.placeholder_with_default(tf.constant(1.0), [], name="learning_rate_divisor")
    share = tf.placeholder_with_default(tf.constant(1.0), [], name="gradient_share")
    expected = tf.placeholder_with_default(tf.constant(0.0), [], name="expected_weight")
    examples = tf.shape(next(iter(features.values())))[0]
    objective = trainable.objective(features, divisor)
    # Statistics of batch normalisation are not gradients. Without `assigned`, an evaluation would
    # have none.
    trained = [variable for _, variable in objective.pairs]
    states, updates = assigned(trained)
    accumulators = None
    if sync:
        accumulators = Accumulators(trained, global_step, states)
        step = pushed(objective, accumulators, wire, updates)
    else:
        exact = exact_share(share, objective.weight, expected)
        updates += [operation for state in states for operation in merged(state)]
        began = before if damped else None
        step = applied(objective, global_step, exact, wire, began, updates)
    with tf.control_dependencies([step]):
        after = tf.identity(global_step.read_value(), name="step_after")
    return TrainingGraph(
        objective,
        step,
        before,
        after,
        examples,
        divisor,
        share,
        expected,
        global_step,
        states,
        accumulators,
    )


def exact_share(share: Any, weight: Any, expected: Any) -> Any:
    """Return `share` times the weight of this mini-batch over the `expected` one.

    An `expected` weight of 0 means that it is unknown.
    """
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
    """Return an operation that applies the gradients and counts the step.

    Parameters
    ----------
    objective, global_step
        The gradients with their optimizer, and the step to count.
    share
        Factor of the gradients: mini-batch over mean mini-batch.
    wire
        Width in which gradients are sent.
    began
        The global step at which the worker began, to damp late gradients; None for no damping.
    updates
        Operations that run with it.
    """
    tf = tensorflow()

    pairs = _sent(objective.finished(objective.pairs), share, wire)
    optimizer = objective.optimizer
    if began is not None:
        optimizer = objective.slower(_staleness(pairs, global_step, began))
    done = optimizer.apply_gradients(pairs)
    with tf.control_dependencies([done]):
        disturbed = objective.disturbances()
    with tf.control_dependencies([done, *updates, *disturbed]):
        return global_step.assign_add(1, read_value=False)


def pushed(
    objective: Objective, accumulators: Accumulators, wire: str, updates: Sequence[Any] = ()
) -> Any:
    """Return an operation that pushes the gradients times their weight, and the weight.

    Their mean is divided by the mean weight. Every worker runs the `updates` with it.
    """
    tf = tensorflow()

    return tf.group(
        accumulators.push(_sent(objective.pairs, objective.weight, wire), objective.weight),
        *updates,
    )


def check_graph(trainable: Trainable, shards: int = 1) -> dict[str, float]:
    """Build one training step on placeholders, discard it, and return its size.

    Raises what the model raises.
    """
    with tensorflow().Graph().as_default() as graph:
        trainable.prepare()
        features = trainable.placeholders()
        with cut(shards):
            training_graph(trainable, features)
    return model_size(graph, features)


def _staleness(pairs: Pairs, global_step: Any, began: Any) -> Any:
    """Return the number of steps between `began` and the last gradient, at least 1.

    Clips at 1 so that a gradient without staleness keeps its rate.
    """
    tf = tensorflow()

    gradients = [item.values if isinstance(item, tf.IndexedSlices) else item for item, _ in pairs]
    with tf.control_dependencies(gradients), tf.device(global_step.device):
        return tf.cast(tf.maximum(global_step.read_value() - began, 1), tf.float32)


def _sent(pairs: Pairs, share: Any, wire: str) -> Pairs:
    """Return gradients as parameter servers receive them: times the share, in the width `wire`."""
    tf = tensorflow()

    weighted = [(_times(tf, gradient, share), variable) for gradient, variable in pairs]
    if wire == "bf16":
        return narrow_gradients(weighted)
    return weighted


def _times(tf: Any, gradient: Any, share: Any) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        values = gradient.values * tf.cast(share, gradient.values.dtype)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return gradient * tf.cast(share, gradient.dtype)


# A synchronous step: workers push gradients, and the chief applies their mean once.
#
# Every variable has an accumulator on its parameter server, so gradients take the same way as in
# asynchronous training. Gradients are tagged with a round, and an accumulator drops those of an
# earlier one. Rounds are like steps, but they never go back: after a restore the global step
# repeats, and a gradient of the lost variables must not count for the step with the same number.
#
# Workers push gradients times their weight, the number of examples over which they are a mean. One
# more accumulator receives the weights, and the means are divided by its mean: the applied gradient
# is the mean over all examples. This accumulator also counts complete pushes. A worker reaches it
# after all others, and the chief reads it before all others, so a counted worker is part of every
# mean. A worker that dies during its push is part of some means only. Each accumulator divides by
# its own count, so each variable still moves by a mean of gradients of this step, with one batch
# more or less.
#
# Sparse gradients (of embeddings) are sent sparse and become dense on the parameter server.
# TensorFlow's SparseConditionalAccumulator would divide each row by the number of workers that used
# it: rare rows would move too far, and the step would differ from that of one large batch. The
# price is that lazy optimizers get dense gradients.
#
# State that layers assign (state.py) has accumulators too. Each worker pushes its new value, and
# the chief assigns the plain mean of these values: every replica counts once, as in Keras's own
# synchronous training.


class Accumulators:
    """Accumulators of a model's variables and states.

    Chief and workers build them in separate graphs, and share them by name.
    """

    def __init__(
        self, variables: Sequence[Any], global_step: Any, states: Sequence[State] = ()
    ) -> None:
        tf = tensorflow()
        self.seen: Any = None
        """The round just before a push is complete, as a worker sees it (`push`)."""
        self.needed: Any = None
        """Number of gradients that complete the round, fed by the chief (`build_update`)."""
        self.complete: Any = None
        """Number of complete pushes in the round (`build_update`)."""
        self.update: Any = None
        """Ends the round; its value is the new global step (`build_update`)."""
        self._set: list[Any] = []
        self._counts: list[Any] = []
        self._discard: list[Any] = []
        self._announce: Any = None
        self.round = tf.placeholder(tf.int64, [], name="round")
        self._variables = variables
        self._global_step = global_step
        self._gradients = [_accumulator(tf, variable) for variable in variables]
        cut = [part for state in states for part in parts(state.variable, state.new)]
        self._states = [(variable, new, _state_accumulator(tf, variable)) for variable, new in cut]
        self._home = global_step.device
        with tf.device(self._home):
            self._complete = tf.ConditionalAccumulator(
                tf.float32, [], shared_name="transient_complete_pushes"
            )
            self._current = tf.Variable(
                tf.zeros([], tf.int64),
                trainable=False,
                collections=[],
                name="transient_round",
                use_resource=True,
            )
            number = self._current.read_value()
            with tf.control_dependencies([number]):
                # The step is counted before the round ends, so a new round never has an old step.
                self.position = number, tf.identity(global_step.read_value())

    # The worker's part.

    def push(self, pairs: Pairs, weight: Any) -> Any:
        """Return an operation that adds the states and the gradients, already times `weight`.

        They are tagged with the fed round. `seen` is the round just before the push is complete. A
        round that waits for this worker cannot have ended by then. If it has ended, the gradients
        were late and were dropped.
        """
        tf = tensorflow()
        pushed: list[Any] = []
        for (gradient, variable), accumulator in zip(pairs, self._gradients, strict=True):
            with tf.device(variable.device):
                pushed.append(
                    accumulator.apply_grad(tf.convert_to_tensor(gradient), local_step=self.round)
                )
        for variable, new, accumulator in self._states:
            with tf.device(variable.device):
                pushed.append(
                    accumulator.apply_grad(tf.cast(new, accumulator.dtype), local_step=self.round)
                )
        with tf.control_dependencies(pushed), tf.device(self._home):
            self.seen = self._current.read_value()
        with tf.control_dependencies([self.seen]), tf.device(self._home):
            return self._complete.apply_grad(weight, local_step=self.round)

    # The chief's part.

    def build_update(self, objective: Objective) -> None:
        """Build the end of a round.

        It takes the means, applies them once, counts the step and opens the next round. Noise and
        clipping come after the mean, as in a step of one process on all batches.
        """
        tf = tensorflow()
        self.needed = tf.placeholder(tf.int32, [], name="needed")
        with tf.device(self._home):
            self.complete = self._complete.num_accumulated()
            weight = tf.maximum(self._complete.take_grad(self.needed), 1e-9)
        means: list[tuple[Any, Any]] = []
        for accumulator, variable in zip(self._gradients, self._variables, strict=True):
            with tf.control_dependencies([weight]), tf.device(variable.device):
                mean = accumulator.take_grad(self.needed)
                means.append((mean / tf.cast(weight, mean.dtype), variable))
        states = [
            self._assigned(variable, accumulator, weight)
            for variable, _, accumulator in self._states
        ]
        applied = objective.optimizer.apply_gradients(objective.finished(means))
        with tf.control_dependencies([applied]):
            disturbed = objective.disturbances()
        with tf.control_dependencies([applied, *states, *disturbed]):
            stepped = self._global_step.assign_add(1, read_value=False)
        with tf.control_dependencies([stepped]):
            opened = self._current.assign(self.round + 1, read_value=False)
        with tf.control_dependencies([opened]):
            self.update = tf.identity(self._global_step.read_value())
        self._build_opening(tf)

    def _assigned(self, variable: Any, accumulator: Any, weight: Any) -> Any:
        tf = tensorflow()
        kind = variable.dtype.base_dtype
        with tf.control_dependencies([weight]), tf.device(variable.device):
            mean = accumulator.take_grad(self.needed)
            if kind.is_integer:
                mean = tf.round(mean)
            if kind.is_bool:
                value = mean > 0.5
            else:
                value = tf.cast(mean, kind)
            return variable.assign(value, read_value=False)

    def _build_opening(self, tf: Any) -> None:
        homes = [(self._home, self._complete)]
        homes += [
            (variable.device, accumulator)
            for variable, accumulator in zip(self._variables, self._gradients, strict=True)
        ]
        homes += [(variable.device, accumulator) for variable, _, accumulator in self._states]
        for device, accumulator in homes:
            with tf.device(device):
                self._set.append(accumulator.set_global_step(self.round))
                self._counts.append(accumulator.num_accumulated())
                self._discard.append(accumulator.take_grad(1).op)
        self._announce = self._current.assign(self.round, read_value=False)

    def open(self, session: Any) -> None:
        """Start a round later than all earlier ones, with empty accumulators.

        Call it when the variables have their values, and whenever a round may have ended half-way.
        After the first run no earlier gradient is accepted, so what the accumulators then have is
        discarded. Workers see the round last.
        """
        number = {self.round: time.time_ns()}
        session.run(self._set, number)
        counts = session.run(self._counts)
        if leftovers := [
            discard for discard, count in zip(self._discard, counts, strict=True) if count
        ]:
            session.run(leftovers)
            session.run(self._set, number)  # each take advanced its accumulator
        session.run(self._announce, number)


def _accumulator(tf: Any, variable: Any) -> Any:
    with tf.device(variable.device):
        name = f"transient_gradient/{variable.op.name}"
        return tf.ConditionalAccumulator(
            variable.dtype.base_dtype, variable.shape, shared_name=name
        )


def _state_accumulator(tf: Any, variable: Any) -> Any:
    kind = variable.dtype.base_dtype
    wide = tf.float32
    if kind.is_integer or kind == tf.float64:  # accumulators of whole numbers do not exist
        wide = tf.float64
    with tf.device(variable.device):
        return tf.ConditionalAccumulator(
            wide, variable.shape, shared_name=f"transient_state/{variable.op.name}"
        )


# Transfers between a worker and the parameter servers: every variable once, and with `--wire bf16`
# in half the bytes.
#
# The sender narrows and the receiver widens: the parameter server stores and updates every variable
# in float32, and a worker computes in float32 on values that were rounded to bfloat16 during the
# transfer (8 bits of mantissa; the range of float32, so nothing overflows and no loss needs
# scaling). Only float32 is narrowed. The rounding is not part of the model: the graph is built as
# usual, and then the edges between devices are replaced.


def cross_once(graph: Any, worker_device: str, wire: str, exact: Collection[Any] = ()) -> list[Any]:
    """Transfer each variable once per step to `worker_device`, in the width `wire`.

    Every use of a variable makes a read of its own, and TensorFlow would send each: weight decay
    alone doubles the bytes. Reads that wait for other operations stay separate. Call it when the
    graph is complete, because later operations are not changed.

    Parameters
    ----------
    graph
        The complete graph.
    worker_device
        The worker's device.
    wire
        `fp32` or `bf16`.
    exact
        Handles of variables that are not narrowed: a moving average would accumulate the rounding.

    Returns
    -------
    list
        The variables' values on the worker.
    """
    tf = tensorflow()
    arrived = []
    kept = {handle.ref() for handle in exact}

    for reads in _alike(graph):
        # A read has no device: TensorFlow places it beside its variable.
        server = reads[0].inputs[0].device
        tensors = [read.outputs[0] for read in reads]
        uses = [
            (reader, index)
            for tensor in tensors
            for reader in tensor.consumers()
            for index, given in enumerate(reader.inputs)
            if given is tensor and reader.device.startswith(worker_device)
        ]
        if not uses or "/job:ps" not in server:
            continue
        value = tensors[0]
        narrowed = (
            wire == "bf16" and value.dtype == tf.float32 and reads[0].inputs[0].ref() not in kept
        )
        with graph.as_default(), tf.control_dependencies(None), tf.device(None):
            if narrowed:
                narrow = _cast(tf, value, tf.bfloat16, server, "narrow")
                value = _cast(tf, narrow, tf.float32, worker_device, "widen")
            else:
                with tf.device(worker_device):
                    value = tf.identity(value, name="arrived")
        for reader, index in dict.fromkeys(uses):
            reader._update_input(index, value)  # the only way to move an edge of a built graph
        if not reads[0].control_inputs:
            arrived.append(value)
    return arrived


def _alike(graph: Any) -> list[list[Any]]:
    """Return the reads of variables, grouped if they give the same value."""
    groups: dict[Any, list[Any]] = {}
    for operation in graph.get_operations():
        if operation.type in _READS:
            if operation.type == _READS[0] and not operation.control_inputs:
                key = (operation.inputs[0].name, operation.get_attr("dtype"))
            else:
                key = operation.name
            groups.setdefault(key, []).append(operation)
    return list(groups.values())


def narrow_gradients(pairs: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Return gradients that are sent in bfloat16 and become float32 on the parameter server."""
    tf = tensorflow()

    return [(_through(tf, gradient, variable.device), variable) for gradient, variable in pairs]


def _through(tf: Any, gradient: Any, server: str) -> Any:
    if gradient.dtype != tf.float32:
        return gradient
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(
            _through(tf, gradient.values, server), gradient.indices, gradient.dense_shape
        )
    sent = tf.cast(gradient, tf.bfloat16, name="narrow")  # on the worker
    return _cast(tf, sent, tf.float32, server, "widen")


def _cast(tf: Any, tensor: Any, to: Any, device: str, name: str) -> Any:
    with tf.device(None), tf.device(device):
        return tf.cast(tensor, to, name=name)


# The size of a model: its parameters, stored bytes, and floating-point operations of a training
# step.
#
# TensorFlow's profiler counts the operations of the whole training graph, including gradients and
# updates, as CM-DARE (ICDCS'20) does. It needs shapes, so it counts a copy of the graph on batches
# of two examples. A copy, because some models refuse a batch of a known size; two, because some
# refuse one example.


def model_size(graph: Any, features: Mapping[str, Any]) -> dict[str, float]:
    """Return the size of a training graph on placeholders.

    Returns
    -------
    dict
        `parameters` that are trained; `variable_bytes` on the parameter servers, including
        variables of the optimizer; and `gigaflops` (1e9) of a step per example, unless a feature
        has unknown dimensions.
    """
    tf = tensorflow()

    with graph.as_default():
        trained = tf.trainable_variables()
        kept = tf.global_variables()
    found: dict[str, float] = {
        "parameters": sum(_elements(variable) for variable in trained),
        "variable_bytes": sum(_elements(variable) * variable.dtype.size for variable in kept),
    }
    fixed = [feature for name, feature in features.items() if name != _FREE]
    if fixed and all(
        feature.shape.rank and feature.shape[1:].is_fully_defined() for feature in fixed
    ):
        with contextlib.suppress(ValueError):  # another unused branch that fits no known batch
            found["gigaflops"] = _operations(tf, graph, fixed) / _EXAMPLES / 1e9
    return found


def _elements(variable: Any) -> int:
    return variable.shape.num_elements() or 0


def _operations(tf: Any, graph: Any, features: Iterable[Any]) -> float:
    """Return the floating-point operations of a step on a batch of `_EXAMPLES`."""
    with tf.Graph().as_default() as copy:
        inputs = {
            feature.name: tf.placeholder(feature.dtype, [_EXAMPLES, *feature.shape[1:].as_list()])
            for feature in features
        }
        tf.import_graph_def(graph.as_graph_def(), input_map=inputs, name="")
        options = {**tf.profiler.ProfileOptionBuilder.float_operation(), "output": "none"}
        counted = tf.profiler.profile(copy, options=options)
    if counted:
        return float(counted.total_float_ops)
    return 0.0
