"""Moments of a step, seen by its worker: when its mini-batch was there, its variables, its loss, its gradients.

Each is the time at which an operation ran that is behind the event by control edges. No other operation waits for any
of them, so what overlaps (pulling and computing, computing and pushing) overlaps as without them, and what nobody
fetches is no part of a step at all. Each is taken on the worker's CPU, of a value that has reached the worker: an edge
from an operation of a parameter server would tell when that had begun to send.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ...tf.graph_mode import has_gpu, tensorflow

_PS, _UPDATES = "/job:ps", ("ResourceGather", "ResourceGatherNd")


@dataclass(frozen=True)
class Moments:
    """Scalars of float64, seconds since 1970 by the worker's clock."""

    fed: Any
    pulled: Any
    forward: Any
    backward: Any


def observe(
    features: Any, arrived: Collection[Any], loss: Any, step: Any, device: str, kept: Collection[Any] = ()
) -> Moments:
    """Add the moments of `step` to its finished graph, for the worker at `device`.

    `arrived`: the variables' values as the worker has them; only those that the step needs are waited for. `loss` is in
    the memory of the CPU. `kept`: gradients that are sent to nobody, where the variables are on the worker.
    """
    tf = tensorflow()

    needed = _needed([step, loss.op])
    pulled = _consumed(arrived, needed)
    cpu = f"{device}/cpu:0"
    sent = _on_cpu(tf, _sent(needed, device), cpu) if has_gpu() else [tensor for tensor, _ in _sent(needed, device)]
    ends = [each.values if isinstance(each, tf.IndexedSlices) else each for each in kept]
    sent += [_seen_on_cpu(tf, ends, cpu)] if ends and has_gpu() else ends
    batch = next(iter(features.values()))

    def behind(name: str, values: Iterable[Any]) -> Any:
        with tf.control_dependencies(None), tf.device(None), tf.device(cpu), tf.control_dependencies(list(values)):
            return tf.timestamp(name=f"transient_{name}")

    with tf.device(cpu):
        held = tf.identity(batch)  # features that were put in place of a placeholder take data edges along only
    return Moments(behind("fed", [held]), behind("pulled", pulled), behind("forward", [loss]), behind("backward", sent))


def reads(graph: Any) -> list[Any]:
    """All values of variables that are read in a graph as soon as it runs."""
    operations = graph.get_operations()
    return [each.outputs[0] for each in operations if each.type == "ReadVariableOp" and not each.control_inputs]


def shared_values(end: Any, values: Iterable[Any], features: Mapping[str, Any]) -> list[Any]:
    """Those of the variables' `values` that the operation `end` needs whatever the mini-batch is: whole variables, but
    not the rows of an embedding that its examples take."""
    batch = {feature.op for feature in features.values()}
    return [value for value in _consumed(values, _needed([end])) if batch.isdisjoint(_needed([value.op]))]


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
    """The tensors that the step sends from the worker to parameter servers, and who takes each as which input."""
    taken: dict[Any, list[tuple[Any, int]]] = {}
    for operation in needed:
        if operation.type in _UPDATES or not _place(operation).startswith(_PS):
            continue
        for index, given in enumerate(operation.inputs):
            if given.dtype.is_floating and given.op.device.startswith(device) and _outside(given.op):
                taken.setdefault(given.ref(), []).append((operation, index))
    return [(reference.deref(), takers) for reference, takers in taken.items()]


def _on_cpu(tf: Any, sent: Iterable[tuple[Any, list[tuple[Any, int]]]], cpu: str) -> list[Any]:
    """The same tensors in the memory of the CPU, from where they are sent: only there it is seen when a GPU is done."""
    here = []
    for tensor, takers in sent:
        with tf.control_dependencies(None), tf.device(None), tf.device(cpu):
            held = tf.identity(tensor)
        for operation, index in takers:
            operation._update_input(index, held)  # the only way to move an edge of a built graph
        here.append(held)
    return here


def _seen_on_cpu(tf: Any, kept: Collection[Any], cpu: str) -> Any:
    """A number of each of these in the memory of the CPU: all of them need not go there to see that the GPU is done.

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
