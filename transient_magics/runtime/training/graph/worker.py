"""A worker's graph: the step, the moments and the noise that it measures, and the variables of a
lone worker.

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
    """What a worker runs and feeds: tensors of one graph, and the operation `step`.

    `before` and `after` are the global step around `step`; `missing` names the variables that do
    not live yet; `weight`, `share` and `expected` are those of step.py. Four measure gradients that
    no step applies: the squared norm of one and of their sum, what begins a sum, and the variables'
    values, which may be fed to have all gradients of the same ones. The next four tell when the
    step's mini-batch, its variables, its loss and its gradients were there. Four more are of
    synchronous training (`Accumulators` in step.py): a round to feed, what `step` saw of it, the
    round and step now. With `--chief worker`, `saved` writes the variables to the path fed as
    `checkpoint`. `pull`, `push` and `number` are of a worker that trains alone, on copies of the
    variables.
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


def build(
    trainable: Trainable, features: Mapping[str, Any], spec: RunSpec, device: str, servers: int
) -> WorkerGraph:
    """Build the step on `features` in the default graph, for the worker at `device`, after
    `trainable.prepare`.
    """
    tf = tensorflow()

    ready = placement.ready_flag(spec.name)
    alone = spec.alone and servers == 1
    wire = "fp32" if alone else spec.wire
    with tf.device(device) if alone else placement.placed(device, servers, spec.ps_shards):
        built = training_graph(trainable, features, wire, spec.mode == "sync", spec.damped)
        missing = tf.report_uninitialized_variables(
            [ready, *(() if alone else tf.global_variables())]
        )
    with tf.device(f"{device}/cpu:0"):
        squared, summed, cleared = gradient_sum(built.objective.pairs)
    graph = tf.get_default_graph()
    saving = ()
    if spec.chief == "worker":
        with tf.device(f"{device}/cpu:0"):
            saver = tf.train.Saver(tf.global_variables(), max_to_keep=0).saver_def
        saving = tuple(
            map(graph.as_graph_element, (saver.filename_tensor_name, saver.save_tensor_name))
        )
    states = [part.handle for state in built.states for part, _ in parts(state.variable, state.new)]
    arrived = cross_once(graph, device, wire, exact=states)
    variables = shared_values(squared.op, arrived or reads(graph), features)
    with tf.device(f"{device}/cpu:0"):
        loss = tf.identity(built.objective.loss)
    if alone:
        kept = [gradient for gradient, _ in built.objective.pairs]
    else:
        kept = []
    moments = vars(observe(features, arrived, loss, built.step, device, kept)).values()
    sync = built.accumulators
    if sync:
        position = (sync.round, sync.seen, *sync.position)
    else:
        position = (None,) * 4
    saving = saving or (None, None)
    if alone:
        taken = vars(copies(spec.name, tf.global_variables(), built.global_step))
    else:
        taken = {}
    return WorkerGraph(
        loss,
        built.before,
        built.after,
        built.examples,
        built.step,
        built.divisor,
        built.share,
        built.expected,
        built.objective.weight,
        missing,
        squared,
        summed,
        cleared,
        variables,
        *moments,
        *position,
        *saving,
        **taken,
    )


# The variables of a worker that trains alone: on its own device, and handed to the parameter server
# now and then.
#
# With nobody to share them, no step need wait for another process. The parameter server stays their
# home: the worker begins with what is there, and saved and evaluated is what it has handed over.
# Each that begins puts its number there; one whose place another has taken meanwhile, as after a
# freeze, finds a number that is not its own and hands nothing over.


@dataclass(frozen=True)
class Copies:
    """Operations, to which `number` is fed, that of the worker: `pull` takes the place and the
    values, `push` hands the values over, the global step last; it raises InvalidArgumentError where
    another has the place.
    """

    pull: Any
    push: Any
    number: Any


def copies(run: str, variables: Sequence[Any], global_step: Any) -> Copies:
    """Add them to a graph with these variables, all of them on the worker; `global_step` is one of
    them.
    """
    tf = tensorflow()
    with tf.device(_HOME):
        owner = tf.Variable(
            0, trainable=False, collections=[], name=f"transient_owner_{run}", use_resource=True
        )
        number = tf.placeholder(tf.int32, [], name="transient_number")
        with tf.control_dependencies([owner.assign(number, read_value=False)]):
            there = [_read(tf, variable) for variable in variables]
        mine = tf.debugging.Assert(
            tf.equal(owner.read_value(), number), [number], name="transient_mine"
        )
    pull = [
        variable.assign(value, read_value=False)
        for variable, value in zip(variables, there, strict=True)
    ]
    with tf.control_dependencies([mine]):
        pushed = [_write(tf, variable) for variable in variables if variable is not global_step]
    with tf.control_dependencies(pushed):
        last = _write(tf, global_step)
    return Copies(
        tf.group(*pull, name="transient_pull"), tf.group(last, name="transient_push"), number
    )


def _home_of(tf: Any, variable: Any) -> Any:
    """The handle of the variable of this name on the parameter server."""
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


# The part of a worker's graph that measures its gradients, beside the step and with none of its
# operations after them.
#
# Running it computes the gradient of one more mini-batch and adds it to a sum in the worker's own
# memory; nothing is applied, pushed or counted. `GradientNoise` says what for. Only numbers come
# out, whatever the size of the model.


def gradient_sum(pairs: Pairs) -> tuple[Any, Any, Any]:
    """The squared norm of the gradient, that of the sum since the operation was run which is the
    third.

    They come on the device that is chosen where this is called; the sum is as large as the model.
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


# Moments of a step, seen by its worker: when its mini-batch was there, its variables, its loss, its
# gradients.
#
# Each is the time at which an operation ran that is behind the event by control edges. No other
# operation waits for any of them, so what overlaps (pulling and computing, computing and pushing)
# overlaps as without them, and what nobody fetches is no part of a step at all. Each is taken on
# the worker's CPU, of a value that has reached the worker: an edge from an operation of a parameter
# server would tell when that had begun to send.


@dataclass(frozen=True)
class Moments:
    """Scalars of float64, seconds since 1970 by the worker's clock."""

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

    `arrived`: the variables' values as the worker has them; only those that the step needs are
    waited for. `loss` is in the memory of the CPU. `kept`: gradients that are sent to nobody, where
    the variables are on the worker.
    """
    tf = tensorflow()

    needed = _needed([step, loss.op])
    pulled = _consumed(arrived, needed)
    cpu = f"{device}/cpu:0"
    if has_gpu():
        sent = _on_cpu(tf, _sent(needed, device), cpu)
    else:
        sent = [tensor for tensor, _ in _sent(needed, device)]
    ends = [each.values if isinstance(each, tf.IndexedSlices) else each for each in kept]
    sent += [_seen_on_cpu(tf, ends, cpu)] if ends and has_gpu() else ends
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
        held = tf.identity(
            batch
        )  # features that were put in place of a placeholder take data edges along only
    return Moments(
        behind("fed", [held]),
        behind("pulled", pulled),
        behind("forward", [loss]),
        behind("backward", sent),
    )


def reads(graph: Any) -> list[Any]:
    """All values of variables that are read in a graph as soon as it runs."""
    operations = graph.get_operations()
    return [
        operation.outputs[0]
        for operation in operations
        if operation.type == "ReadVariableOp" and not operation.control_inputs
    ]


def shared_values(end: Any, values: Iterable[Any], features: Mapping[str, Any]) -> list[Any]:
    """Those of the variables' `values` that the operation `end` needs whatever the mini-batch is:
    whole variables, but not the rows of an embedding that its examples take.
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
    """The operations that these need, themselves among them."""
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
    """The tensors that the step sends from the worker to parameter servers, and who takes each as
    which input.
    """
    taken: dict[Any, list[tuple[Any, int]]] = {}
    for operation in needed:
        if operation.type in _UPDATES or not _place(operation).startswith(_PS):
            continue
        for index, given in enumerate(operation.inputs):
            if (
                given.dtype.is_floating
                and given.op.device.startswith(device)
                and _outside(given.op)
            ):
                taken.setdefault(given.ref(), []).append((operation, index))
    return [(reference.deref(), takers) for reference, takers in taken.items()]


def _on_cpu(tf: Any, sent: Iterable[tuple[Any, list[tuple[Any, int]]]], cpu: str) -> list[Any]:
    """The same tensors in the memory of the CPU, from where they are sent: only there it is seen
    when a GPU is done.
    """
    here = []
    for tensor, takers in sent:
        with tf.control_dependencies(None), tf.device(None), tf.device(cpu):
            held = tf.identity(tensor)
        for operation, index in takers:
            operation._update_input(index, held)  # the only way to move an edge of a built graph
        here.append(held)
    return here


def _seen_on_cpu(tf: Any, kept: Collection[Any], cpu: str) -> Any:
    """A number of each of these in the memory of the CPU: all of them need not go there to see that
    the GPU is done.

    Tensor2Tensor has variables without any rows, whose gradients have none.
    """
    with tf.control_dependencies(None):
        first = tf.concat([tf.cast(tf.reshape(each, [-1])[:1], tf.float32) for each in kept], 0)
        with tf.device(None), tf.device(cpu):
            return tf.identity(first)


def _place(operation: Any) -> str:
    """Its device; one that has none is placed beside its variable."""
    if operation.device:
        return operation.device
    resource = tensorflow().resource
    return next((given.op.device for given in operation.inputs if given.dtype == resource), "")


def _outside(operation: Any) -> bool:
    """No part of a branch that may not be taken, or of a loop."""
    return operation._get_control_flow_context() is None
