"""Preprocessing layers: their lookup tables in graphs, and what they learned from data.

A layer (StringLookup, TextVectorization) creates its table outside of graphs when it receives its
vocabulary, and a graph cannot read that table. So each graph gets a table of its own with the same
entries, beside the operations that read it and never on a parameter server. Its entries are
constants of the graph. A session runs `tf.tables_initializer()` before it reads them.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Mapping
from typing import Any

FILE = "vocabulary.layers.npz"
"""Name of the file beside the checkpoints that has what the layers learned (checkpoints.py)."""
_LAYERS = "keras.src.layers.preprocessing"
_TABLES = "_transient_tables"
"""Attribute of a graph: its tables by the identities of the tables that they repeat."""


def repeat_in_graphs() -> None:
    """Let graphs read tables that were made outside of them. Call it once per process."""
    from tensorflow.python.eager import context
    from tensorflow.python.framework import ops
    from tensorflow.python.ops import lookup_ops

    kind: Any = lookup_ops.StaticHashTable
    handle_of = kind.resource_handle.fget

    def resource_handle(self: Any) -> Any:
        made = handle_of(self)
        if context.executing_eagerly() or not isinstance(made, ops.EagerTensor):
            return made
        # Functions of a graph (of datasets and loops) receive the table from it.
        with ops.init_scope():
            if context.executing_eagerly():
                return made
            graph = ops.get_default_graph()
            repeated = getattr(graph, _TABLES, None)
            if repeated is None:
                repeated = {}
                setattr(graph, _TABLES, repeated)
            if id(self) not in repeated:
                with ops.device("CPU:0"):
                    repeated[id(self)] = self, kind(self._initializer, self._default_value)
            return handle_of(repeated[id(self)][1])

    kind.resource_handle = property(resource_handle)


# What the layers of a model learned from data before the training (`adapt`): vocabularies,
# boundaries, means. It is not among the weights, and the data that a cell reads may change. So the
# chief writes it beside the checkpoints, and everything that uses a checkpoint uses it as well.


def learned(model: Any) -> dict[str, Any]:
    """Return what the layers of a Keras model learned, as arrays by layer and kind."""
    import numpy

    arrays: dict[str, Any] = {}
    for number, layer in enumerate(model._flatten_layers()):
        parts: Mapping[str, Any] = {}
        if _is(layer, "index_lookup", "IndexLookup"):
            parts = _entries(layer)
        elif _is(layer, "discretization", "Discretization") and layer.bin_boundaries is not None:
            parts = {"boundaries": layer.bin_boundaries}
        elif _has_moments(layer):
            parts = {"mean": layer.adapt_mean, "variance": layer.adapt_variance}
        arrays |= {f"{number} {part}": numpy.asarray(value) for part, value in parts.items()}
    return arrays


def restore(model: Any, arrays: Mapping[str, Any]) -> None:
    """Give the layers of a Keras model what `learned` returned."""
    for number, layer in enumerate(model._flatten_layers()):
        parts = {
            name.partition(" ")[2]: value
            for name, value in arrays.items()
            if name.partition(" ")[0] == str(number)
        }
        if "keys" in parts and _is(layer, "index_lookup", "IndexLookup"):
            _set_entries(layer, parts)
        elif "boundaries" in parts:
            layer.bin_boundaries = parts["boundaries"].tolist()
        elif "mean" in parts and _has_moments(layer):
            layer.adapt_mean.assign(parts["mean"])
            layer.adapt_variance.assign(parts["variance"])
            layer.finalize_state()


def fingerprint(arrays: Mapping[str, Any]) -> str:
    """Return a digest of the vocabularies; empty without any. Other values may be rounded."""
    found = {name: value for name, value in arrays.items() if name.endswith((" keys", " values"))}
    if not found:
        return ""
    described = [(name, _texts(value).tolist()) for name, value in sorted(found.items())]
    return hashlib.sha256(repr(described).encode()).hexdigest()


def _is(layer: Any, module: str, kind: str) -> bool:
    return isinstance(layer, getattr(importlib.import_module(f"{_LAYERS}.{module}"), kind))


def _has_moments(layer: Any) -> bool:
    """Return whether a layer is a Normalization that learns mean and variance."""
    is_normalization = _is(layer, "normalization", "Normalization")
    return is_normalization and layer.built and layer.input_mean is None


def _entries(layer: Any) -> dict[str, Any]:
    """Return the entries of a lookup layer's table, in the order of their numbers."""
    import numpy

    keys, values = (tensor.numpy() for tensor in layer.lookup_table.export())
    order = numpy.argsort(keys if layer.invert else values)
    parts = {"keys": _texts(keys[order]), "values": _texts(values[order])}
    if getattr(layer, "idf_weights_const", None) is not None:
        parts["frequencies"] = layer.idf_weights_const.numpy()
    return parts


def _set_entries(layer: Any, parts: Mapping[str, Any]) -> None:
    tf = importlib.import_module("tensorflow")
    keys, values = (
        part.astype(object) if part.dtype.kind == "U" else part
        for part in (parts["keys"], parts["values"])
    )
    entries = tf.lookup.KeyValueTensorInitializer(
        keys, values, layer._key_dtype, layer._value_dtype
    )
    layer.lookup_table = tf.lookup.StaticHashTable(entries, layer._default_value)
    layer._frozen_vocab_size = layer.vocabulary_size()
    if "frequencies" in parts:
        layer.idf_weights_const = tf.constant(parts["frequencies"])


def _texts(array: Any) -> Any:
    """Return an array of `str` for one of bytes, as TensorFlow returns texts."""
    import numpy

    if array.dtype.kind != "O":
        return array
    return numpy.array([text.decode("utf-8", "replace") for text in array], str)
