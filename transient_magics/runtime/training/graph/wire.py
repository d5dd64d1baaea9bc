"""What crosses between a worker and the parameter servers: every variable once, with `--wire bf16` in half the bytes.

Whoever sends narrows, whoever receives widens: the parameter server keeps and updates every variable in float32, a
worker computes in float32 on values that were rounded to bfloat16 on the way (8 bits of mantissa; the exponent's range
is float32's, so nothing overflows and no loss has to be scaled). Only float32 is narrowed. The rounding is no part of
the model: the graph is built as ever, and then the edges that cross are replaced.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from ...tf.graph_mode import tensorflow

_READS = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd")


def cross_once(graph: Any, worker_device: str, wire: str, exact: Collection[Any] = ()) -> list[Any]:
    """Let each variable cross once per step to `worker_device`, in the width that `wire` (fp32, bf16) says.

    Every use of a variable makes a read of its own, and each would be sent: weight decay alone doubles the bytes. Reads
    that wait for something else keep to themselves. Call it when the graph is complete: it sees nothing added later.
    `exact`: handles of variables that are not narrowed. A moving average would keep the rounding of each step.
    Returns the values as the worker has them.
    """
    tf, arrived = tensorflow(), []
    kept = {handle.ref() for handle in exact}

    for reads in _alike(graph):
        # A read has no device of its own: TensorFlow places it beside its variable.
        server, tensors = reads[0].inputs[0].device, [read.outputs[0] for read in reads]
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
        narrowed = wire == "bf16" and value.dtype == tf.float32 and reads[0].inputs[0].ref() not in kept
        with graph.as_default(), tf.control_dependencies(None), tf.device(None):
            if narrowed:
                value = _cast(tf, _cast(tf, value, tf.bfloat16, server, "narrow"), tf.float32, worker_device, "widen")
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
            key = (operation.inputs[0].name, operation.get_attr("dtype")) if free else operation.name
            groups.setdefault(key, []).append(operation)
    return list(groups.values())


def narrow_gradients(pairs: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Gradients as they arrive at each variable's parameter server: through bfloat16, and float32 again there."""
    tf = tensorflow()

    return [(_through(tf, gradient, variable.device), variable) for gradient, variable in pairs]


def _through(tf: Any, gradient: Any, server: str) -> Any:
    if gradient.dtype != tf.float32:
        return gradient
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(_through(tf, gradient.values, server), gradient.indices, gradient.dense_shape)
    sent = tf.cast(gradient, tf.bfloat16, name="narrow")  # where everything of the worker is computed
    return _cast(tf, sent, tf.float32, server, "widen")


def _cast(tf: Any, tensor: Any, to: Any, device: str, name: str) -> Any:
    with tf.device(None), tf.device(device):
        return tf.cast(tensor, to, name=name)
