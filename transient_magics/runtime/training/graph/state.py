"""State that a step assigns: moving averages, counters, flags, last values.

Every worker computes a new value from the one that it has read, so the values of several workers
must be combined.

Synchronous training assigns the mean of all new values once per step, as Keras does with replicas
(`Accumulators` in step.py).

Asynchronous training lets the parameter server apply each change to its own current value. Where
the new value is `share * old + rest`, the server assigns `share * current + rest`. So a moving
average stays between its value and those of the batches, whatever its momentum, however many
workers there are and however late they come. The difference to the old value, added to the current
one, would diverge: with n workers it moves n times too far. A share of 1 is a counter or a sum, to
which the rest is added. Everything else is assigned as it is: flags, maxima, last values.
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
        *("Identity", "StopGradient", "PreventGradient", "CheckNumerics", "Cast"),  # of one term
    }
)
_PRODUCTS = frozenset({"Mul", "Div", "RealDiv"})
_CHOICE = "SelectV2"
_DEEPEST = 100
"""Operations in a row that are looked through: a longer chain, as of an unrolled loop, is assigned.
"""
_FUSED = frozenset({"FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"})
_UPDATES = frozenset({"AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"})


@dataclass(frozen=True)
class Change:
    """A value as `share * old + rest`. A share or rest that is known when the graph is built is a
    Python number.
    """

    share: Any
    rest: Any


@dataclass(frozen=True)
class State:
    """The `new` value of a variable behind a step, and how it follows from the old one: None if it
    is assigned.

    `reads` are where the step reads the old one.
    """

    variable: Any
    new: Any
    change: Change | None
    reads: Sequence[Any]


def keep(variable: Any, old: Any, new: Any) -> None:
    """Let a step assign the value `new` to `variable`, of which it has read the value `old`."""
    tf = tensorflow()
    tf.add_to_collection(_COLLECTION, State(variable, new, _change(variable, new, [old]), [old]))


def assigned(trained: Sequence[Any] = ()) -> tuple[list[State], list[Any]]:
    """The states of the default graph, one for each variable, and the update operations that assign
    none.

    Layers of TensorFlow's version 1 leave operations that assign; `keep` has left the states of
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
        taken = operation.type in _UPDATES and operation._get_control_flow_context() is None
        if taken:
            variable = variables.get(operation.inputs[0].ref())
        else:
            variable = None
        if variable is None:
            others.append(update)
        else:
            states[variable.name] = _followed(
                states.get(variable.name), _updated(variable, operation)
            )
    return list(states.values()), others


def parts(variable: Any, value: Any) -> Iterator[tuple[Any, Any]]:
    """The parts of a variable that is cut, each with its part of `value`; of any other the variable
    itself.

    A single number is that of every part.
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
    """Operations with which the parameter servers take over the change of one asynchronous worker."""
    # Whatever is ready first, the step computes with the old value.
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
        with tf.control_dependencies(
            [share, rest]
        ):  # read when they are here, not when the step begins
            current = variable.read_value()
        # A share of 0 has a first value replace whatever there is, be it a number or not.
        return variable.assign(tf.math.multiply_no_nan(current, share) + rest, read_value=False)


def _updated(variable: Any, operation: Any) -> State:
    """The state that an operation of TensorFlow assigns to `variable`."""
    old = variable.read_value()
    value = operation.inputs[1]
    if operation.type == "AssignAddVariableOp":
        value = old + value
    elif operation.type == "AssignSubVariableOp":
        value = old - value
    readers = [reader for reader in variable.handle.consumers() if reader.type == "ReadVariableOp"]
    # What is read behind an assignment is its new value, and would have TensorFlow's own operation
    # run.
    before = [
        reader
        for reader in readers
        if all(given.type not in _UPDATES for given in reader.control_inputs)
    ]
    reads = [reader.outputs[0] for reader in before]
    return State(variable, value, _change(variable, value, reads), reads)


def _followed(first: State | None, second: State) -> State:
    """Both changes, one behind the other, as of a layer that is called twice in a step."""
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
    """Finds shares of the old value and rests in a graph. `whole`: the old value is a whole number."""

    def __init__(self, olds: Sequence[Any], whole: bool) -> None:
        self._dependent = _dependent(olds, whole)
        self._known: dict[Any, Change | None] = {old.ref(): Change(1.0, 0.0) for old in olds}

    def of(self, tensor: Any, depth: int = 0) -> Change | None:
        """The value of `tensor` as a share of the old value and a rest; None where it is no such
        sum.
        """
        reference = tensor.ref()
        if reference not in self._known:
            independent = reference not in self._dependent
            if independent:
                self._known[reference] = Change(0.0, tensor)
            else:
                self._known[reference] = self._computed(tensor, depth)
        return self._known[reference]

    def _computed(self, tensor: Any, depth: int) -> Change | None:
        kind = tensor.op.type
        inputs = list(tensor.op.inputs)
        if kind in _PRODUCTS and tensor.dtype.is_floating:
            return self._product(kind, inputs, depth)
        if depth > _DEEPEST or kind not in (*_SUMS, _CHOICE):
            return None
        changes: list[Change] = []
        for given in inputs[1:] if kind == _CHOICE else inputs:
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
    """A change that is left out at times, or that begins with a first value. To keep or replace a
    value is neither.
    """
    tf = tensorflow()
    if (_is(one.share, 0) and _is(other.share, 1)) or (_is(one.share, 1) and _is(other.share, 0)):
        return None

    def of(this: Any, that: Any) -> Any:
        if isinstance(this, float) and isinstance(that, float) and this == that:
            return this
        return tf.where_v2(condition, tf.cast(this, kind), tf.cast(that, kind))

    return Change(of(one.share, other.share), of(one.rest, other.rest))


def _dependent(olds: Sequence[Any], whole: bool) -> set[Any]:
    """The tensors that depend on the old value; `whole`: it is a whole number.

    What depends on fractions through whole numbers or truth values alone is a choice, as of the
    nearest vector of a codebook: a part of what the batch says.
    """
    found = {old.ref() for old in olds}
    waiting = list(olds)
    while waiting:
        tensor = waiting.pop()
        for reader in tensor.consumers():
            for output in () if _ignored(reader, tensor) else reader.outputs:
                follows = output.dtype.is_floating or (whole and output.dtype.is_integer)
                if follows and output.ref() not in found:
                    found.add(output.ref())
                    waiting.append(output)
    return found


def _ignored(reader: Any, tensor: Any) -> bool:
    """Whether an operation only seems to use `tensor`: in training, batch normalisation its moving
    statistics.
    """
    if reader.type not in _FUSED or not reader.get_attr("is_training"):
        return False
    if reader.type == "FusedBatchNormV3":
        factor = reader.get_attr("exponential_avg_factor")
    else:
        factor = 1.0
    return factor == 1.0 and all(tensor is not given for given in list(reader.inputs)[:3])


# Shares and rests are Python numbers as long as they are known, which `merged` looks at.
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
    return value if _is(value, 0) else -value
