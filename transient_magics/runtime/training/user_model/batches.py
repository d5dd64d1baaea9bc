"""Whether a tf.data.Dataset gives single examples, as input_fn is asked for, or batches, as `model.fit` takes them.

Batches are taken as they are. What is what, the model's inputs tell, where the model begins with a keras.Input.
Where they do not, a set that anything in its making has batched is refused: `.batch` also makes one long example of
many short ones, and whoever guesses wrong trains on batches of batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ....errors import DeclarationError
from ...tf.graph_mode import tensorflow

BATCHING = (
    "_BatchDataset",
    "_ParallelBatchDataset",
    "_PaddedBatchDataset",
    "_DenseToRaggedDataset",
    "_DenseToSparseBatchDataset",
    "_RebatchDataset",
    "_GroupByWindowDataset",
)
_REGROUPING = ("_UnbatchDataset", "_FlatMapDataset", "_InterleaveDataset", "_ParallelInterleaveDataset")
"""Transformations behind which it does not matter whether there were batches."""


def is_batched(dataset: Any, shapes: Sequence[Any], inputs: Sequence[Sequence[int | None]]) -> bool:
    """Whether what `dataset` gives are batches, judged by its features' `shapes` and those of the model's `inputs`.

    The inputs' first dimension is the batch; of an unknown model there are none. Raises DeclarationError where it
    cannot be told.
    """
    single, whole = _fit(shapes, inputs, 0), _fit(shapes, inputs, 1)
    if single != whole:
        return whole
    if (maker := _batching(dataset)) is None:
        return False
    size, name = batch_size(dataset), "padded_batch" if "Padded" in type(maker).__name__ else "batch"
    raise DeclarationError(
        f"input_fn's dataset is batched (.{name}({size or ''})), and the model does not say what one example is",
        fix=f"Leave .{name} out and say batch_size = {size or 'N'} in the cell, or begin the model with keras.Input.",
    )


def batch_size(dataset: Any) -> int | None:
    """How many examples its batches have; None where that is not known."""
    size = getattr(_batching(dataset), "_batch_size", None)
    known = tensorflow().get_static_value(size) if size is not None else None
    return int(known) if known is not None else None


def _fit(shapes: Sequence[Any], inputs: Sequence[Sequence[int | None]], skipped: int) -> bool:
    """Whether the features, without so many first dimensions, may be what one example is for the model."""
    tf = tensorflow()
    if len(shapes) != len(inputs) or any(shape.rank is None or shape.rank < skipped for shape in shapes):
        return False
    if any(len(known) == 2 and known[1] == 1 and shape.rank < 2 for known in inputs for shape in shapes):
        return False  # Keras takes a number for an array of one
    wanted, there = [tf.TensorShape(list(known[1:])) for known in inputs], [shape[skipped:] for shape in shapes]
    if len(wanted) == 1:
        return there[0].is_compatible_with(wanted[0])
    return sorted(shape.rank for shape in there) == sorted(shape.rank for shape in wanted)


def _batching(dataset: Any) -> Any:
    """The last transformation that made batches, if there is one whose batches have not been taken apart since."""
    return next(_makers(dataset), None)


def _makers(dataset: Any) -> Iterator[Any]:
    dataset = getattr(dataset, "_dataset", dataset)  # what TensorFlow 1 wraps them in
    if (kind := type(dataset).__name__) in BATCHING:
        yield dataset
    elif kind not in _REGROUPING:
        # Of datasets that are mixed, the first input says which one comes next.
        for given in dataset._inputs()[kind == "_DirectedInterleaveDataset" :]:
            yield from _makers(given)
