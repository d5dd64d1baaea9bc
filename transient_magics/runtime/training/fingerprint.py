"""A fingerprint of a run's program in one process, by which the chief sees that all processes
execute the same one.

Seeds make what a cell draws the same everywhere (randomness.py), but a cell can use entropy that no
seed reaches. Then workers may train on what is evaluated, or place variables on other parameter
servers than the chief.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from ...protocol import checks

TRAINING = "training"
EVALUATION = "evaluation"
WEIGHTS = "weights"
_DIFFERENT = {
    WEIGHTS: "its model has weights of other names, shapes or another order",
    TRAINING: "it has another number of training examples",
    EVALUATION: "it has other examples for the evaluation",
}
_COMPARED_ROWS = 4096
"""Rows of a larger array that are compared, evenly spaced."""
_LARGEST = 1e100
_TOLERANCE = 1e-5
"""Relative deviation of two checksums of one array: machines round sums differently."""


def of_weights(graph: Any) -> dict[str, str]:
    """Return the part for the trainable variables of a graph, in the order in which they were made."""
    variables = graph.get_collection("trainable_variables")
    if not variables:  # a graph that was read from a file
        return {}
    described = [
        (variable.op.name, variable.shape.as_list(), variable.dtype.name) for variable in variables
    ]
    return {WEIGHTS: hashlib.sha256(json.dumps(described).encode()).hexdigest()}


def of_examples(mode: str, arrays: Mapping[str, Any]) -> dict[str, str]:
    """Return the part for the arrays, by name, that a cell has for `mode`: of training examples
    their number alone.
    """
    if mode == "train":
        return {TRAINING: str(len(next(iter(arrays.values()))))}
    return {EVALUATION: json.dumps(_checksum(arrays))}


def parse(text: str) -> dict[str, str]:
    """Read a fingerprint that another process sent as JSON. Raises ValueError for anything else."""
    if text:
        found = checks.parsed_object(text.encode())
    else:
        found = {}
    parts = {name: value for name, value in found.items() if isinstance(value, str)}
    if parts.keys() != found.keys() or not parts.keys() <= _DIFFERENT.keys():
        raise ValueError(f"not a fingerprint of a program: {text:.80}")
    if EVALUATION in parts:
        _read(parts[EVALUATION])
    return parts


def difference(one: Mapping[str, str], other: Mapping[str, str]) -> str:
    """Return what differs between two fingerprints, in a few words; empty where no part that both
    have does.
    """
    for part, words in _DIFFERENT.items():
        if not (one.get(part) and other.get(part)):
            continue
        if part == EVALUATION:
            same = _alike(one[part], other[part])
        else:
            same = one[part] == other[part]
        if not same:
            return words
    return ""


def _checksum(arrays: Mapping[str, Any]) -> tuple[str, float, float]:
    """Return a digest of names, kinds and shapes, a sum that depends on the order, and the sum of
    magnitudes.
    """
    import numpy

    described = list[Any]()
    total = 0.0
    magnitude = 0.0
    for name, array in sorted(arrays.items()):
        kind = "text" if array.dtype.kind in "SU" else "number"
        described.append([name, kind, array.shape])
        rows = array[:: max(1, len(array) // _COMPARED_ROWS)]
        if kind == "text":
            values = numpy.frombuffer(rows.tobytes(), numpy.uint8)
        else:
            values = rows.reshape(-1)
        values = numpy.nan_to_num(values.astype(numpy.float64), posinf=0.0, neginf=0.0)
        values = numpy.clip(values, -_LARGEST, _LARGEST)  # JSON has no infinite sums
        total += float(values @ numpy.cos(numpy.arange(len(values)) + len(described)))
        magnitude += float(numpy.abs(values).sum())
    return hashlib.sha256(json.dumps(described).encode()).hexdigest(), total, magnitude


def _alike(one: str, other: str) -> bool:
    """Return whether two checksums are equal but for rounding."""
    first = _read(one)
    second = _read(other)
    largest = max(first[2], second[2])
    return first[0] == second[0] and abs(first[1] - second[1]) <= _TOLERANCE * largest


def _read(text: str) -> tuple[str, float, float]:
    match checks.parsed(text.encode()):
        case [str() as digest, float() as total, float() as magnitude]:
            return digest, total, magnitude
        case _:
            raise ValueError(f"not a checksum of arrays: {text:.80}")
