"""A worker's graph: the step, the measured moments and noise, and the variables of a lone worker.

Mini-batch and learning rate are fed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ....protocol.run import RunSpec
from ...tf import placement
from ...tf.graph_mode import has_gpu, tensorflow
from ..trainable import Pairs, Trainable
from .state import parts
from .step import cross_once, training_graph

_HOME = "/job:ps/task:0"

_PS = "/job:ps"
_UPDATES = ("ResourceGather", "ResourceGatherNd")


@dataclass(frozen=True)
class WorkerGraph:
    """The tensors that a worker fetches and feeds, and the operation `step`.

    Attributes
    ----------
    loss, examples
        Mean loss and number of examples of the batch.
    step, before, after
        The operation of the step, and the global step before and after it.
    divisor, share, expected, weight
        As in step.py.
    missing
        Names of variables that do not exist yet.
    tables
        Fills the model's lookup tables, once per session, before its examples are read.
    squared, summed, cleared
        Measurement of gradients that no step applies: the squared norm of one, and of their sum;
        and the operation that begins a new sum.
    variables
        The variables' values, which can be fed so that all these gradients are of the same values.
    fed, pulled, forward, backward
        Times at which the mini-batch, variables, loss and gradients of a step were there
        (`Moments`).
    round, seen, current_round, current_step
        Of synchronous training (`Accumulators` in step.py): the round to feed, the round that
        `step` saw, and the current round and step.
    checkpoint, saved
        With `--chief worker`, `saved` writes the variables to the path fed as `checkpoint`.
    pull, push, number
        Of a worker that trains alone on copies of the variables (`Copies`).
    metrics
        What the mini-batch adds to the training metrics (Objective.metrics).
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
    tables: Any
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
    metrics: Any = None


def build(
    trainable: Trainable, features: Mapping[str, Any], spec: RunSpec, device: str, servers: int
) -> WorkerGraph:
    """Build the step on `features` in the default graph, after `trainable.prepare`.

    Parameters
    ----------
    trainable, features
        The model, and a batch of training features.
    spec
        The run's declaration.
    device
        The worker's device.
    servers
        Number of parameter servers.
    """
    tf = tensorflow()

    ready = placement.ready_flag(spec.name, spec.phase_begin)
    alone = spec.alone and servers == 1
    wire = "fp32" if alone else spec.wire
    if alone:
        places = tf.device(device)
    else:
        places = placement.placed(device, servers, spec.ps_shards)
    with places:
        built = training_graph(trainable, features, wire, spec.mode == "sync", spec.damped)
        shared = [] if alone else tf.global_variables()
        missing = tf.report_uninitialized_variables([ready, *shared])
    with tf.device(f"{device}/cpu:0"):
        squared, summed, cleared = gradient_sum(built.objective.pairs)
    graph = tf.get_default_graph()
    optional: dict[str, Any] = {}
    if spec.chief == "worker":
        optional |= _saving(tf, graph, device)
    states = [part.handle for state in built.states for part, _ in parts(state.variable, state.new)]
    arrived = cross_once(graph, device, wire, exact=states)
    variables = shared_values(squared.op, arrived or reads(graph), features)
    with tf.device(f"{device}/cpu:0"):
        loss = tf.identity(built.objective.loss)
        if built.objective.metrics is not None:
            optional["metrics"] = tf.identity(built.objective.metrics)
    kept: list[Any] = []
    if alone:
        kept = [gradient for gradient, _ in built.objective.pairs]
    moments = observe(features, arrived, loss, built.step, device, kept)
    if sync := built.accumulators:
        optional["round"] = sync.round
        optional["seen"] = sync.seen
        optional["current_round"], optional["current_step"] = sync.position
    if alone:
        optional |= vars(copies(spec.name, tf.global_variables(), built.global_step))
    return WorkerGraph(
        loss=loss,
        before=built.before,
        after=built.after,
        examples=built.examples,
        step=built.step,
        divisor=built.divisor,
        share=built.share,
        expected=built.expected,
        weight=built.objective.weight,
        missing=missing,
        tables=tf.tables_initializer(),
        squared=squared,
        summed=summed,
        cleared=cleared,
        variables=variables,
        **vars(moments),
        **optional,
    )


def _saving(tf: Any, graph: Any, device: str) -> dict[str, Any]:
    """Return what a worker that writes checkpoints feeds and fetches for that."""
    with tf.device(f"{device}/cpu:0"):
        saver = tf.train.Saver(tf.global_variables(), max_to_keep=0).saver_def
    return {
        "checkpoint": graph.as_graph_element(saver.filename_tensor_name),
        "saved": graph.as_graph_element(saver.save_tensor_name),
    }


# The variables of a worker that trains alone: on its own device, and written to the parameter
# server from time to time.
#
# No other process uses them, so no step waits for another process. The parameter server keeps the
# reference copy: the worker begins with its values, and checkpoints and evaluations use what the
# worker wrote last. Each worker that begins writes its number there. A worker that another one
# replaced, for example after a freeze, finds a different number and writes nothing.


@dataclass(frozen=True)
class Copies:
    """Operations of a worker that trains alone; the worker's `number` is fed to both.

    Attributes
    ----------
    pull
        Writes the number, and reads the values from the parameter server.
    push
        Writes the values to the parameter server, the global step last. Raises InvalidArgumentError
        if another worker wrote its number.
    number
        The placeholder of the number.
    """

    pull: Any
    push: Any
    number: Any


def copies(run: str, variables: Sequence[Any], global_step: Any) -> Copies:
    """Add the operations to a graph whose `variables` are all on the worker.

    `global_step` is one of them.
    """
    tf = tensorflow()
    with tf.device(_HOME):
        owner = tf.Variable(
            0, trainable=False, collections=[], name=f"transient_owner_{run}", use_resource=True
        )
        number = tf.placeholder(tf.int32, [], name="transient_number")
        with tf.control_dependencies([owner.assign(number, read_value=False)]):
            stored = [_read(tf, variable) for variable in variables]
        mine = tf.debugging.Assert(
            tf.equal(owner.read_value(), number), [number], name="transient_mine"
        )
    pull = [
        variable.assign(value, read_value=False)
        for variable, value in zip(variables, stored, strict=True)
    ]
    with tf.control_dependencies([mine]):
        pushed = [_write(tf, variable) for variable in variables if variable is not global_step]
    with tf.control_dependencies(pushed):
        last = _write(tf, global_step)
    return Copies(
        tf.group(*pull, name="transient_pull"), tf.group(last, name="transient_push"), number
    )


def _home_of(tf: Any, variable: Any) -> Any:
    """Return the handle of the variable of this name on the parameter server."""
    here = variable.handle.op
    with tf.device(_HOME):
        return tf.raw_ops.VarHandleOp(
            dtype=variable.dtype.base_dtype,
            shape=variable.shape,
            shared_name=here.get_attr("shared_name").decode(),
            container=here.get_attr("container").decode(),
        )


def _read(tf: Any, variable: Any) -> Any:
    return tf.raw_ops.ReadVariableOp(
        resource=_home_of(tf, variable), dtype=variable.dtype.base_dtype
    )


def _write(tf: Any, variable: Any) -> Any:
    with tf.device(variable.device):
        value = variable.read_value()
    return tf.raw_ops.AssignVariableOp(resource=_home_of(tf, variable), value=value)


# The part of a worker's graph that measures gradients, independent of the step.
#
# To run it computes the gradient of one more mini-batch and adds it to a sum in the worker's
# memory. Nothing is applied, pushed or counted. `GradientNoise` explains the purpose. The results
# are single numbers for any size of model.


def gradient_sum(pairs: Pairs) -> tuple[Any, Any, Any]:
    """Return the squared norms of the gradient and of a sum, and an operation that clears it.

    They are on the device in effect at the call. The sum is as large as the model.
    """
    tf = tensorflow()

    size = sum(variable.shape.num_elements() for _, variable in pairs)
    flat = [
        tf.reshape(tf.cast(tf.convert_to_tensor(gradient), tf.float32), [-1])
        for gradient, _ in pairs
    ]
    gradient = tf.concat(flat, 0)
    total = tf.Variable(
        tf.zeros([size]),
        trainable=False,
        collections=[],
        name="transient_gradient_sum",
        use_resource=True,
    )
    with tf.control_dependencies([total.assign_add(gradient, read_value=False)]):
        summed = _squared(tf, total.read_value())
    return _squared(tf, gradient), summed, total.assign(tf.zeros([size]), read_value=False)


def _squared(tf: Any, vector: Any) -> Any:
    return 2.0 * tf.nn.l2_loss(vector)


# Moments of a step, seen by its worker: when its mini-batch, variables, loss and gradients were
# there.
#
# Each is the time at which an operation ran that depends on the event by control edges. No other
# operation waits for it, so overlapping parts (pulling and computing, computing and pushing) still
# overlap, and a moment that is not fetched is not part of a step. Each is measured on the worker's
# CPU after a value has reached the worker: an edge from an operation of a parameter server would
# show when that began to send.


@dataclass(frozen=True)
class Moments:
    """Times as scalars of float64, in seconds since 1970 by the worker's clock."""

    fed: Any
    pulled: Any
    forward: Any
    backward: Any


def observe(
    features: Any,
    arrived: Collection[Any],
    loss: Any,
    step: Any,
    device: str,
    kept: Collection[Any] = (),
) -> Moments:
    """Add the moments of `step` to its finished graph, for the worker at `device`.

    Parameters
    ----------
    features
        The batch.
    arrived
        The variables' values on the worker; the moment waits only for those that the step needs.
    loss
        The loss, in the memory of the CPU.
    step
        The operation of the step.
    device
        The worker's device.
    kept
        Gradients that are not sent, because the variables are on the worker.
    """
    tf = tensorflow()

    needed = _needed([step, loss.op])
    pulled = _consumed(arrived, needed)
    cpu = f"{device}/cpu:0"
    if has_gpu():
        sent = _on_cpu(tf, _sent(needed, device), cpu)
    else:
        sent = [tensor for tensor, _ in _sent(needed, device)]
    ends = [item.values if isinstance(item, tf.IndexedSlices) else item for item in kept]
    if ends and has_gpu():
        ends = [_seen_on_cpu(tf, ends, cpu)]
    sent += ends
    batch = next(iter(features.values()))

    def behind(name: str, values: Iterable[Any]) -> Any:
        with (
            tf.control_dependencies(None),
            tf.device(None),
            tf.device(cpu),
            tf.control_dependencies(list(values)),
        ):
            return tf.timestamp(name=f"transient_{name}")

    with tf.device(cpu):
        # Features that replaced a placeholder keep only data edges.
        received = tf.identity(batch)
    return Moments(
        behind("fed", [received]),
        behind("pulled", pulled),
        behind("forward", [loss]),
        behind("backward", sent),
    )


def reads(graph: Any) -> list[Any]:
    """Return all values of variables that a graph reads as soon as it runs."""
    operations = graph.get_operations()
    return [
        operation.outputs[0]
        for operation in operations
        if operation.type == "ReadVariableOp" and not operation.control_inputs
    ]


def shared_values(end: Any, values: Iterable[Any], features: Mapping[str, Any]) -> list[Any]:
    """Return the variables' `values` that `end` needs for any mini-batch.

    That is whole variables, but not the rows of an embedding for its examples.
    """
    batch = {feature.op for feature in features.values()}
    return [
        value
        for value in _consumed(values, _needed([end]))
        if batch.isdisjoint(_needed([value.op]))
    ]


def _consumed(values: Iterable[Any], needed: Collection[Any]) -> list[Any]:
    return [value for value in values if any(reader in needed for reader in value.consumers())]


def _needed(ends: Iterable[Any]) -> set[Any]:
    """Return the operations that `ends` need, including themselves."""
    waiting = list(ends)
    found = set(waiting)
    while waiting:
        operation = waiting.pop()
        for before in (*(given.op for given in operation.inputs), *operation.control_inputs):
            if before not in found:
                found.add(before)
                waiting.append(before)
    return found


def _sent(needed: Collection[Any], device: str) -> list[tuple[Any, list[tuple[Any, int]]]]:
    """Return the tensors that the step sends from the worker to parameter servers.

    Each comes with its receivers, as operations and positions of the input.
    """
    receivers: dict[Any, list[tuple[Any, int]]] = {}
    for operation in needed:
        if operation.type in _UPDATES or not _place(operation).startswith(_PS):
            continue
        for index, given in enumerate(operation.inputs):
            if (
                given.dtype.is_floating
                and given.op.device.startswith(device)
                and _outside(given.op)
            ):
                receivers.setdefault(given.ref(), []).append((operation, index))
    return [(reference.deref(), inputs) for reference, inputs in receivers.items()]


def _on_cpu(tf: Any, sent: Iterable[tuple[Any, list[tuple[Any, int]]]], cpu: str) -> list[Any]:
    """Return copies of the tensors in the memory of the CPU, from where they are then sent.

    Only there a moment shows when a GPU is done.
    """
    copied = []
    for tensor, inputs in sent:
        with tf.control_dependencies(None), tf.device(None), tf.device(cpu):
            copy = tf.identity(tensor)
        for operation, index in inputs:
            operation._update_input(index, copy)  # the only way to move an edge of a built graph
        copied.append(copy)
    return copied


def _seen_on_cpu(tf: Any, kept: Collection[Any], cpu: str) -> Any:
    """Return one number of each tensor in the memory of the CPU.

    That is enough to see when the GPU is done. Tensor2Tensor has variables without rows, whose
    gradients have no number.
    """
    with tf.control_dependencies(None):
        first = tf.concat([tf.cast(tf.reshape(tensor, [-1])[:1], tf.float32) for tensor in kept], 0)
        with tf.device(None), tf.device(cpu):
            return tf.identity(first)


def _place(operation: Any) -> str:
    """Return an operation's device; without one, TensorFlow places it beside its variable."""
    if operation.device:
        return operation.device
    resource = tensorflow().resource
    return next((given.op.device for given in operation.inputs if given.dtype == resource), "")


def _outside(operation: Any) -> bool:
    """Return whether the operation is outside of conditional branches and loops."""
    return operation._get_control_flow_context() is None
