"""The state that a step assigns: moving averages, counters, flags, last values.

Every worker computes a new value from the one it read, so the values of several workers must be
combined.

Synchronous training assigns the mean of all new values once per step, as Keras does with replicas
(`Accumulators` in step.py).

In asynchronous training the parameter server applies each change to its current value. If the new
value is `share * old + rest`, the server assigns `share * current + rest`. So a moving average
stays between its value and those of the batches, for any momentum, number of workers and delay.
Adding the difference to the old value would diverge: with n workers it moves n times too far. A
share of 1 is a counter or a sum, to which the rest is added. All other values are assigned
unchanged: flags, maxima, last values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ...tf.graph_mode import tensorflow

_COLLECTION = "transient_layer_state"
_SUMS = frozenset(
    {
        *("Add", "AddV2", "AddN", "Sub", "Neg"),
        # Sums of one term.
        *("Identity", "StopGradient", "PreventGradient", "CheckNumerics", "Cast"),
    }
)
_PRODUCTS = frozenset({"Mul", "Div", "RealDiv"})
_CHOICE = "SelectV2"
_DEEPEST = 100
"""Longest chain of operations that is followed.

The result of a longer one, such as an unrolled loop, is assigned.
"""
_FUSED = frozenset({"FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"})
_UPDATES = frozenset({"AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"})


@dataclass(frozen=True)
class Change:
    """A new value as `share * old + rest`.

    A share or rest that is known when the graph is built is a Python number.
    """

    share: Any
    rest: Any


@dataclass(frozen=True)
class State:
    """The value that a step assigns to a variable.

    Attributes
    ----------
    variable
        The variable.
    new
        Its value after the step.
    change
        How the new value follows from the old one; None if it is assigned unchanged.
    reads
        The tensors with which the step reads the old value.
    """

    variable: Any
    new: Any
    change: Change | None
    reads: Sequence[Any]


def keep(variable: Any, old: Any, new: Any) -> None:
    """Let a step assign `new` to `variable`, whose value it read as `old`."""
    tf = tensorflow()
    tf.add_to_collection(_COLLECTION, State(variable, new, _change(variable, new, [old]), [old]))


def assigned(trained: Sequence[Any] = ()) -> tuple[list[State], list[Any]]:
    """Return the states of the default graph, one per variable, and all other update operations.

    Layers of TensorFlow's version 1 leave operations that assign; `keep` records the states of
    Keras 3. Variables that are `trained` are not states.
    """
    tf = tensorflow()
    states: dict[str, State] = {
        state.variable.name: state for state in tf.get_collection(_COLLECTION)
    }
    changed = {variable.op.name for variable in trained}
    kept = [variable for variable in tf.global_variables() if variable.op.name not in changed]
    variables = {
        variable.handle.ref(): variable for variable in kept if hasattr(variable, "handle")
    }
    others: list[Any] = []
    for update in tf.get_collection(tf.GraphKeys.UPDATE_OPS):
        operation = getattr(update, "op", update)
        variable = None
        if operation.type in _UPDATES and operation._get_control_flow_context() is None:
            variable = variables.get(operation.inputs[0].ref())
        if variable is None:
            others.append(update)
        else:
            states[variable.name] = _followed(
                states.get(variable.name), _updated(variable, operation)
            )
    return list(states.values()), others


def parts(variable: Any, value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each part of a sharded variable with its part of `value`; else the variable itself.

    A single number belongs to every part.
    """
    if not hasattr(variable, "_get_variable_list"):
        yield variable, value
        return
    for part in variable:
        if isinstance(value, float) or value.shape.rank == 0:
            yield part, value
            continue
        cut = part._get_save_slice_info()
        spans = zip(cut.var_offset, cut.var_shape, strict=True)
        yield part, value[tuple(slice(start, start + length) for start, length in spans)]


def merged(state: State) -> list[Any]:
    """Return the operations that apply the change of one asynchronous worker on the server."""
    # The step must read the old value, whatever is ready first.
    with tensorflow().control_dependencies(state.reads):
        return _merged(state)


def _merged(state: State) -> list[Any]:
    tf = tensorflow()
    variable = state.variable
    change = state.change
    kind = variable.dtype.base_dtype
    shape = variable.shape
    if change is None or _is(change.share, 0) or (kind.is_integer and not _is(change.share, 1)):
        return [part.assign(value, read_value=False) for part, value in parts(variable, state.new)]
    rests = parts(variable, tf.broadcast_to(tf.cast(change.rest, kind), shape))
    if _is(change.share, 1):
        return [part.assign_add(rest, read_value=False) for part, rest in rests]
    share = change.share
    if not isinstance(share, float):
        share = tf.cast(share, kind)
        if share.shape.rank != 0:
            share = tf.broadcast_to(share, shape)
    pairs = zip(rests, parts(variable, share), strict=True)
    return [_moved(tf, part, share, rest) for (part, rest), (_, share) in pairs]


def _moved(tf: Any, variable: Any, share: Any, rest: Any) -> Any:
    with tf.device(variable.device):
        share = tf.convert_to_tensor(share, rest.dtype)
        rest = tf.identity(rest)
        # Read the value when the change arrives, not when the step begins.
        with tf.control_dependencies([share, rest]):
            current = variable.read_value()
        # With a share of 0, a first value replaces even a value that is not a number.
        return variable.assign(tf.math.multiply_no_nan(current, share) + rest, read_value=False)


def _updated(variable: Any, operation: Any) -> State:
    """Return the state that an operation of TensorFlow assigns to `variable`."""
    old = variable.read_value()
    value = operation.inputs[1]
    if operation.type == "AssignAddVariableOp":
        value = old + value
    elif operation.type == "AssignSubVariableOp":
        value = old - value
    readers = [reader for reader in variable.handle.consumers() if reader.type == "ReadVariableOp"]
    # A read after an assignment returns the new value, and would run TensorFlow's own operation.
    before = [
        reader
        for reader in readers
        if all(given.type not in _UPDATES for given in reader.control_inputs)
    ]
    reads = [reader.outputs[0] for reader in before]
    return State(variable, value, _change(variable, value, reads), reads)


def _followed(first: State | None, second: State) -> State:
    """Return both changes in sequence, for a layer that is called twice in a step."""
    if first is None or second.change is None:
        return second
    share = second.change.share
    rest = second.change.rest
    change = first.change and Change(
        _times(first.change.share, share), _plus(_times(first.change.rest, share), rest)
    )
    return State(first.variable, _plus(_times(first.new, share), rest), change, second.reads)


def _change(variable: Any, new: Any, olds: Sequence[Any]) -> Change | None:
    kind = variable.dtype.base_dtype
    if not (kind.is_floating or kind.is_integer):
        return None
    return _Terms(olds, kind.is_integer).of(new)


class _Terms:
    """Shares of the old value, and rests, of tensors in a graph.

    `whole`: the old value is a whole number.
    """

    def __init__(self, olds: Sequence[Any], whole: bool) -> None:
        self._dependent = _dependent(olds, whole)
        self._changes: dict[Any, Change | None] = {old.ref(): Change(1.0, 0.0) for old in olds}

    def of(self, tensor: Any, depth: int = 0) -> Change | None:
        """Return `tensor` as a share of the old value and a rest; None if it is not such a sum."""
        reference = tensor.ref()
        if reference not in self._changes:
            if reference in self._dependent:
                self._changes[reference] = self._computed(tensor, depth)
            else:
                self._changes[reference] = Change(0.0, tensor)
        return self._changes[reference]

    def _computed(self, tensor: Any, depth: int) -> Change | None:
        kind = tensor.op.type
        inputs = list(tensor.op.inputs)
        if kind in _PRODUCTS and tensor.dtype.is_floating:
            return self._product(kind, inputs, depth)
        if depth > _DEEPEST or kind not in (*_SUMS, _CHOICE):
            return None
        changes: list[Change] = []
        terms = inputs[1:] if kind == _CHOICE else inputs
        for given in terms:
            change = self.of(given, depth + 1)
            if change is None:
                return None
            changes.append(
                Change(_cast(change.share, tensor.dtype), _cast(change.rest, tensor.dtype))
            )
        if kind == _CHOICE:
            return _chosen(inputs[0], *changes, kind=tensor.dtype)
        if kind in ("Neg", "Sub"):
            changes[-1] = Change(_minus(changes[-1].share), _minus(changes[-1].rest))
        total = changes[0]
        for change in changes[1:]:
            total = Change(_plus(total.share, change.share), _plus(total.rest, change.rest))
        return total

    def _product(self, kind: str, inputs: list[Any], depth: int) -> Change | None:
        if kind == "Mul" and inputs[1].ref() in self._dependent:
            inputs.reverse()
        if depth > _DEEPEST or inputs[1].ref() in self._dependent:
            return None
        change = self.of(inputs[0], depth + 1)
        value = tensorflow().get_static_value(inputs[1])
        if value is None or value.ndim or not value:
            factor = inputs[1]
        else:
            factor = float(value)
        if kind != "Mul":
            factor = 1 / factor
        return change and Change(_times(change.share, factor), _times(change.rest, factor))


def _chosen(condition: Any, one: Change, other: Change, kind: Any) -> Change | None:
    """Return a change that is applied only at times, or that begins with a first value.

    None for a value that is either kept or replaced.
    """
    tf = tensorflow()
    if (_is(one.share, 0) and _is(other.share, 1)) or (_is(one.share, 1) and _is(other.share, 0)):
        return None

    def choose(first: Any, second: Any) -> Any:
        if isinstance(first, float) and isinstance(second, float) and first == second:
            return first
        return tf.where_v2(condition, tf.cast(first, kind), tf.cast(second, kind))

    return Change(choose(one.share, other.share), choose(one.rest, other.rest))


def _dependent(olds: Sequence[Any], whole: bool) -> set[Any]:
    """Return the tensors that depend on the old value; `whole`: it is a whole number.

    A dependence on fractions only through whole numbers or truth values is a choice, such as the
    nearest vector of a codebook: it belongs to what the batch contributes.
    """
    found = {old.ref() for old in olds}
    waiting = list(olds)
    while waiting:
        tensor = waiting.pop()
        for reader in tensor.consumers():
            if _ignored(reader, tensor):
                continue
            for output in reader.outputs:
                follows = output.dtype.is_floating or (whole and output.dtype.is_integer)
                if follows and output.ref() not in found:
                    found.add(output.ref())
                    waiting.append(output)
    return found


def _ignored(reader: Any, tensor: Any) -> bool:
    """Return whether an operation has `tensor` as an input without using it.

    Batch normalisation does not use its moving statistics in training.
    """
    if reader.type not in _FUSED or not reader.get_attr("is_training"):
        return False
    factor = 1.0
    if reader.type == "FusedBatchNormV3":
        factor = reader.get_attr("exponential_avg_factor")
    return factor == 1.0 and all(tensor is not given for given in list(reader.inputs)[:3])


# Known shares and rests stay Python numbers, which `merged` checks for.
def _is(value: Any, number: int) -> bool:
    return isinstance(value, float) and value == number


def _times(value: Any, factor: Any) -> Any:
    if _is(value, 0):
        return value
    if _is(value, 1):
        return factor
    return value * factor


def _plus(value: Any, other: Any) -> Any:
    if _is(value, 0):
        return other
    if _is(other, 0):
        return value
    return value + other


def _cast(value: Any, kind: Any) -> Any:
    if isinstance(value, float):
        return value
    return tensorflow().cast(value, kind)


def _minus(value: Any) -> Any:
    if _is(value, 0):
        return value
    return -value
