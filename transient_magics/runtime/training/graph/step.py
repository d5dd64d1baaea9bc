"""The graph of one training step: its gradients, how they are sent and applied, and how large the
model is.

Chief and workers build the same variables in the same order from the same definition, so their
placement on several parameter servers agrees without talking. The chief builds on placeholders and
never runs the step. The divisor of the learning rate is fed at every step.

Gradients are weighted by the examples (of text: the tokens that are no padding) whose mean they are
(S. Tyagi, P. Sharma, ACSOS 2020, section 3.1). A synchronous step knows those of all workers and is
exactly that of one process on all mini-batches together. An asynchronous one is multiplied by a
share that is fed, the worker's mini-batch over the mean one; where the weight of a mini-batch
varies (text), also by its weight over what such a mini-batch is expected to weigh. Clipping comes
before the share: it would undo it otherwise.

Damping divides the learning rate of a gradient by its staleness, the number of steps that others
made since it was begun (W. Zhang, S. Gupta, X. Lian, J. Liu, "Staleness-aware async-SGD for
distributed deep learning", IJCAI 2016, section 3.1: a rate of alpha / tau, and of alpha where tau
is 0). It is the rate and not the gradient that is divided, because some optimizers (Adam) take no
notice of a gradient's size.
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
_FREE = "targets"  # Tensor2Tensor's losses have branches that are never taken, and that no known batch fits


@dataclass(frozen=True)
class TrainingGraph:
    """What a worker runs: `step` returns nothing; `before` and `after` are the global step around
    it.

    In synchronous training `step` pushes into the `accumulators`, from which the chief applies as
    `objective` says. `states` are what the step assigns, besides what the optimizer changes.
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
    """Build the training step on `features` in the default graph; with `sync` it pushes gradients
    and applies none.

    `wire` is how gradients are sent; `damped`: the learning rate of late ones is lower.
    """
    tf = tensorflow()

    global_step = tf.train.get_or_create_global_step()
    before = tf.identity(global_step.read_value(), name="step_before")
    divisor = tf.placeholder_with_default(tf.constant(1.0), [], name="learning_rate_divisor")
    share = tf.placeholder_with_default(tf.constant(1.0), [], name="gradient_share")
    expected = tf.placeholder_with_default(tf.constant(0.0), [], name="expected_weight")
    examples = tf.shape(next(iter(features.values())))[0]
    objective = trainable.objective(features, divisor)
    # Statistics of batch normalisation are no part of the gradients; without these the evaluation
    # would see none.
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
    """`share` times the weight of this mini-batch over what such a mini-batch weighs in the mean
    (0: not known).
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
    """An operation that applies the gradients times `share` (mini-batch over mean mini-batch) and
    counts the step.

    With `began`, the global step at which the worker began, late gradients are damped. `updates`
    are run with it.
    """
    tf = tensorflow()

    pairs = _sent(objective.finished(objective.pairs), share, wire)
    if began is None:
        optimizer = objective.optimizer
    else:
        optimizer = objective.slower(_staleness(pairs, global_step, began))
    done = optimizer.apply_gradients(pairs)
    with tf.control_dependencies([done]):
        disturbed = objective.disturbances()
    with tf.control_dependencies([done, *updates, *disturbed]):
        return global_step.assign_add(1, read_value=False)


def pushed(
    objective: Objective, accumulators: Accumulators, wire: str, updates: Sequence[Any] = ()
) -> Any:
    """An operation that pushes the gradients times their weight, and the weight, by which their
    mean is divided.

    `updates` are run with it, by every worker.
    """
    tf = tensorflow()

    return tf.group(
        accumulators.push(_sent(objective.pairs, objective.weight, wire), objective.weight),
        *updates,
    )


def check_graph(trainable: Trainable, shards: int = 1) -> dict[str, float]:
    """Build one training step on placeholders, and throw it away; its size. Raises what the model
    raises.
    """
    with tensorflow().Graph().as_default() as graph:
        trainable.prepare()
        features = trainable.placeholders()
        with cut(shards):
            training_graph(trainable, features)
    return model_size(graph, features)


def _staleness(pairs: Pairs, global_step: Any, began: Any) -> Any:
    """The steps made between `began` and the moment at which all gradients are there; 1 where there
    were none.
    """
    tf = tensorflow()

    gradients = [item.values if isinstance(item, tf.IndexedSlices) else item for item, _ in pairs]
    with tf.control_dependencies(gradients), tf.device(global_step.device):
        return tf.cast(tf.maximum(global_step.read_value() - began, 1), tf.float32)


def _sent(pairs: Pairs, share: Any, wire: str) -> Pairs:
    """Gradients as they reach the parameter servers: weighted by the worker's share, in the width
    of `wire`.
    """
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


# The graph of a synchronous step: workers push gradients, the chief takes their mean and applies it
# once.
#
# Every variable has an accumulator on its own parameter server, so gradients travel as far as in
# asynchronous training. Gradients are tagged with a round, and an accumulator drops those of an
# earlier one. Rounds are like steps, except that they never go back: after a restore the global
# step repeats, and a gradient of the variables that were lost must not pass for one of the step
# with the same number.
#
# Gradients come multiplied by their weight, the number of examples whose mean they are. One more
# accumulator takes the weights themselves, by whose mean the others' means are divided: what is
# applied is the mean over all examples. It also counts complete pushes. A worker reaches it after
# all others, the chief takes from it before all others; so whoever is counted is in every mean. A
# worker that dies in the middle of its push has added to some means and not to others. Each
# accumulator divides by its own count, so each variable still moves by a mean of gradients of this
# very step, only over one batch more or less.
#
# Sparse gradients (of embeddings) travel as they are and become dense on the parameter server.
# TensorFlow's SparseConditionalAccumulator would divide each row by the number of workers that
# touched it: rare rows would move too far, and the step would not be that of one large batch. The
# price is that lazy optimizers see dense gradients.
#
# State that layers assign (state.py) has accumulators too. Each worker pushes the new value that it
# computed, and the chief assigns the plain mean of these values: every replica counts once, as in
# Keras's own synchronous training.


class Accumulators:
    """Accumulators of a model's variables and states, shared by name between the chief's graph and
    every worker's.
    """

    def __init__(
        self, variables: Sequence[Any], global_step: Any, states: Sequence[State] = ()
    ) -> None:
        tf = tensorflow()
        self.round = tf.placeholder(tf.int64, [], name="round")
        self._variables = variables
        self._global_step = global_step
        self._each = [_accumulator(tf, variable) for variable in variables]
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
                # The step is counted before the round ends: a new round never comes with an old
                # step.
                self.position = number, tf.identity(global_step.read_value())

    # --- a worker's side ---------------------------------------------------------------------------------------------
    def push(self, pairs: Pairs, weight: Any) -> Any:
        """An operation that adds the gradients of `pairs`, already times `weight`, and the states.

        They are tagged with the fed round. `seen` is the round just before the push is complete. A
        round that waits for this worker cannot have ended by then; if it has, the gradients came
        late and were dropped.
        """
        tf = tensorflow()
        pushed: list[Any] = []
        for (gradient, variable), accumulator in zip(pairs, self._each, strict=True):
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

    # --- the chief's side --------------------------------------------------------------------------------------------
    def build_update(self, objective: Objective) -> None:
        """Build what ends a round: take the means, apply them once, count the step, open the next
        round.

        Noise and clipping come after the mean, as in a step of one process on all batches.
        """
        tf = tensorflow()
        self.needed = tf.placeholder(tf.int32, [], name="needed")
        with tf.device(self._home):
            self.complete = self._complete.num_accumulated()
            weight = tf.maximum(self._complete.take_grad(self.needed), 1e-9)
        means: list[tuple[Any, Any]] = []
        for accumulator, variable in zip(self._each, self._variables, strict=True):
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
            (variable.device, each)
            for variable, each in zip(self._variables, self._each, strict=True)
        ]
        homes += [(variable.device, each) for variable, _, each in self._states]
        self._set = []
        self._held = []
        self._discard = []
        for device, accumulator in homes:
            with tf.device(device):
                self._set.append(accumulator.set_global_step(self.round))
                self._held.append(accumulator.num_accumulated())
                self._discard.append(accumulator.take_grad(1).op)
        self._announce = self._current.assign(self.round, read_value=False)

    def open(self, session: Any) -> None:
        """Start a round later than any before it, with nothing in the accumulators.

        Once the variables hold what they should, and whenever a round may have ended half-way. From
        the first line on no earlier gradient comes in, so what is there then is all that has to go.
        Workers learn of it last.
        """
        number = {self.round: time.time_ns()}
        session.run(self._set, number)
        held = session.run(self._held)
        if leftovers := [
            discard for discard, count in zip(self._discard, held, strict=True) if count
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
    # there are none of whole numbers
    if kind.is_integer or kind == tf.float64:
        wide = tf.float64
    else:
        wide = tf.float32
    with tf.device(variable.device):
        return tf.ConditionalAccumulator(
            wide, variable.shape, shared_name=f"transient_state/{variable.op.name}"
        )


# What crosses between a worker and the parameter servers: every variable once, with `--wire bf16`
# in half the bytes.
#
# Whoever sends narrows, whoever receives widens: the parameter server keeps and updates every
# variable in float32, a worker computes in float32 on values that were rounded to bfloat16 on the
# way (8 bits of mantissa; the exponent's range is float32's, so nothing overflows and no loss has
# to be scaled). Only float32 is narrowed. The rounding is no part of the model: the graph is built
# as ever, and then the edges that cross are replaced.


def cross_once(graph: Any, worker_device: str, wire: str, exact: Collection[Any] = ()) -> list[Any]:
    """Let each variable cross once per step to `worker_device`, in the width that `wire` (fp32,
    bf16) says.

    Every use of a variable makes a read of its own, and each would be sent: weight decay alone
    doubles the bytes. Reads that wait for something else keep to themselves. Call it when the graph
    is complete: it sees nothing added later. `exact`: handles of variables that are not narrowed. A
    moving average would keep the rounding of each step. Returns the values as the worker has them.
    """
    tf = tensorflow()
    arrived = []
    kept = {handle.ref() for handle in exact}

    for reads in _alike(graph):
        # A read has no device of its own: TensorFlow places it beside its variable.
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
                value = _cast(
                    tf,
                    _cast(tf, value, tf.bfloat16, server, "narrow"),
                    tf.float32,
                    worker_device,
                    "widen",
                )
            else:
                with tf.device(worker_device):
                    value = tf.identity(value, name="arrived")
        for reader, index in dict.fromkeys(uses):
            reader._update_input(index, value)  # the only way to move an edge of a built graph
        if not reads[0].control_inputs:
            arrived.append(value)
    return arrived


def _alike(graph: Any) -> list[list[Any]]:
    """Reads of variables, those together that give the same value."""
    groups: dict[Any, list[Any]] = {}
    for operation in graph.get_operations():
        if operation.type in _READS:
            free = operation.type == _READS[0] and not operation.control_inputs
            if free:
                key = (operation.inputs[0].name, operation.get_attr("dtype"))
            else:
                key = operation.name
            groups.setdefault(key, []).append(operation)
    return list(groups.values())


def narrow_gradients(pairs: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Gradients as they arrive at each variable's parameter server: through bfloat16, and float32
    again there.
    """
    tf = tensorflow()

    return [(_through(tf, gradient, variable.device), variable) for gradient, variable in pairs]


def _through(tf: Any, gradient: Any, server: str) -> Any:
    if gradient.dtype != tf.float32:
        return gradient
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(
            _through(tf, gradient.values, server), gradient.indices, gradient.dense_shape
        )
    sent = tf.cast(
        gradient, tf.bfloat16, name="narrow"
    )  # where everything of the worker is computed
    return _cast(tf, sent, tf.float32, server, "widen")


def _cast(tf: Any, tensor: Any, to: Any, device: str, name: str) -> Any:
    with tf.device(None), tf.device(device):
        return tf.cast(tensor, to, name=name)


# How large a model is: its parameters, what is kept of it, and the floating-point operations of a
# training step.
#
# Operations are counted by TensorFlow's profiler on the whole training graph, gradients and updates
# included, as CM-DARE (ICDCS'20) counts them. It needs shapes, so the graph is counted as it would
# be on batches of two examples: of a copy, because some models refuse a batch of a known size, or
# of one.


def model_size(graph: Any, features: Mapping[str, Any]) -> dict[str, float]:
    """`parameters` that are trained, and `gigaflops` (1e9) of a step per example, of a training
    graph on placeholders.

    `variable_bytes` is what parameter servers keep, the optimizer's variables among them.
    `gigaflops` is left out where the shapes of the features do not tell.
    """
    tf = tensorflow()

    with graph.as_default():
        trained = tf.trainable_variables()
        kept = tf.global_variables()
    found: dict[str, float] = {
        "parameters": sum(each.shape.num_elements() or 0 for each in trained),
        "variable_bytes": sum((each.shape.num_elements() or 0) * each.dtype.size for each in kept),
    }
    fixed = [feature for name, feature in features.items() if name != _FREE]
    if fixed and all(
        feature.shape.rank and feature.shape[1:].is_fully_defined() for feature in fixed
    ):
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
    if counted:
        return float(counted.total_float_ops)
    return 0.0
