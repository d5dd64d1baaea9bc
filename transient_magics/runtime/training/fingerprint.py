"""A fingerprint of a run's program in one process, by which the chief sees that all processes execute the same one.

Seeds make what a cell draws the same everywhere (randomness.py), but a cell can use entropy that no seed reaches. Then
workers may train on what is evaluated, or place variables on other parameter servers than the chief.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

TRAINING, EVALUATION, WEIGHTS = "training", "evaluation", "weights"
_DIFFERENT = {
    WEIGHTS: "its model has weights of other names, shapes or another order",
    TRAINING: "it has another number of training examples",
    EVALUATION: "it has other examples for the evaluation",
}
_COMPARED_ROWS = 4096
"""Rows of a larger array that are compared, evenly spaced."""
_TOLERANCE = 1e-5
"""Relative deviation of two checksums of one array: machines round sums differently."""


def of_weights(graph: Any) -> dict[str, str]:
    """Return the part for the trainable variables of a graph, in the order in which they were made."""
    variables = graph.get_collection("trainable_variables")
    if not variables:  # a graph that was read from a file
        return {}
    described = [(each.op.name, each.shape.as_list(), each.dtype.name) for each in variables]
    return {WEIGHTS: hashlib.sha256(json.dumps(described).encode()).hexdigest()}


def of_examples(mode: str, arrays: Mapping[str, Any]) -> dict[str, str]:
    """Return the part for the arrays, by name, that a cell has for `mode`: of training examples their number alone."""
    if mode == "train":
        return {TRAINING: str(len(next(iter(arrays.values()))))}
    return {EVALUATION: json.dumps({name: _checksum(array) for name, array in sorted(arrays.items())})}


def difference(one: Mapping[str, str], other: Mapping[str, str]) -> str:
    """Return what differs between two fingerprints, in a few words; empty where no part that both have does."""
    for part, words in _DIFFERENT.items():
        if not (one.get(part) and other.get(part)):
            continue
        same = _alike(one[part], other[part]) if part == EVALUATION else one[part] == other[part]
        if not same:
            return words
    return ""


def _checksum(array: Any) -> Sequence[Any]:
    """Return kind and shape of an array, a sum over it that depends on the order, and the sum of magnitudes."""
    import numpy

    kind, shape = "text" if array.dtype.kind in "SU" else "number", list(array.shape)
    array = array[:: max(1, len(array) // _COMPARED_ROWS)]
    values = numpy.frombuffer(array.tobytes(), numpy.uint8) if kind == "text" else array.reshape(-1)
    values = numpy.nan_to_num(values.astype(numpy.float64))
    total = float(values @ numpy.cos(numpy.arange(len(values))))
    return kind, shape, total, float(numpy.abs(values).sum())


def _alike(one: str, other: str) -> bool:
    """Return whether two collections of checksums are equal but for rounding. Raises ValueError for other texts."""
    first, second = json.loads(one), json.loads(other)
    if first.keys() != second.keys():
        return False
    for name, (kind, shape, total, magnitude) in first.items():
        its_kind, its_shape, its_total, its_magnitude = second[name]
        if (kind, shape) != (its_kind, its_shape):
            return False
        if abs(total - its_total) > _TOLERANCE * max(magnitude, its_magnitude):
            return False
    return True
