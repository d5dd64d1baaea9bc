"""The cell's input_fn: arrays or a tf.data.Dataset of single examples, as pipelines of a training and an evaluation.

Arrays reach TensorFlow when an iterator starts and are no part of a graph, which may not grow beyond 2 GB. Every VM
calls input_fn itself, so nothing of the data is copied between them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from ...errors import TrainingError
from ..graph_mode import tensorflow
from ..trainable import Pipeline

INPUTS, LABELS = "inputs", "labels"
_SHUFFLED = 1_000_000
"""Numbers of examples among which the next one is drawn; fewer examples are shuffled completely."""
_EVALUATED_AT_ONCE = 128


class Data:
    """What the cell's input_fn gives for the modes `train` and `eval`: features with labels.

    Features are one array, called "inputs" then, or several by name. Types and shapes are those of one example.
    """

    def __init__(self, input_fn: Callable[[str], Any]) -> None:
        self._input_fn = input_fn
        self._arrays: dict[str, Mapping[str, Any]] = {}
        tf = tensorflow()
        with tf.Graph().as_default():
            dataset, _ = self._examples("train")
            self.types: Mapping[str, Any] = tf.data.get_output_types(dataset)
            self.shapes: Mapping[str, Any] = tf.data.get_output_shapes(dataset)
        if LABELS not in self.types:
            raise _wrong("it gave no labels")

    def training(self, batch: int) -> Pipeline:
        """Endless single examples; in batches, filled up with zeros, where their shapes differ.

        They begin at a place that is drawn whenever an iterator starts: a worker that lives for minutes would never
        reach the last of them otherwise. Of a dataset that does not know how long it is, they begin where it does.
        """
        dataset, feeds = self._examples("train")
        dataset = dataset.repeat()
        if not self.of_one_shape:
            return self._pipeline(dataset.padded_batch(batch).prefetch(2), feeds, batched=True)
        return self._pipeline(dataset, feeds, batched=False)

    def evaluation(self) -> Pipeline:
        """The examples for the evaluation once, in batches."""
        dataset, feeds = self._examples("eval")
        batches = dataset.batch if self.of_one_shape else dataset.padded_batch
        return self._pipeline(batches(_EVALUATED_AT_ONCE).prefetch(2), feeds, batched=True)

    @property
    def of_one_shape(self) -> bool:
        """Whether all examples have the same shapes."""
        return all(shape.is_fully_defined() for shape in self.shapes.values())

    def structured(self, features: Mapping[str, Any]) -> tuple[Any, Any]:
        """Features and labels as input_fn gave them; None for labels that are not there."""
        names = set(self.types) - {LABELS}
        given = features[INPUTS] if names == {INPUTS} else {name: features[name] for name in sorted(names)}
        return given, features.get(LABELS)

    def _examples(self, mode: str) -> tuple[Any, dict[Any, Any]]:
        """A dataset of named single examples in the default graph, and what its iterator must be fed with."""
        tf, modern = tensorflow(), importlib.import_module("tensorflow")
        if mode not in self._arrays:
            given = self._input_fn(mode)
            if isinstance(given, modern.data.Dataset):
                return (_from_anywhere(tf, given) if mode == "train" else given).map(_named), {}
            self._arrays[mode] = _as_arrays(given)
        arrays = self._arrays[mode]
        held = {name: tf.placeholder(array.dtype, array.shape) for name, array in arrays.items()}
        if mode == "train":
            dataset = _shuffled(tf, modern, held, len(arrays[LABELS]))
        else:
            dataset = modern.data.Dataset.from_tensor_slices(held)
        return dataset, {held[name]: array for name, array in arrays.items()}

    def _pipeline(self, dataset: Any, feeds: Mapping[Any, Any], batched: bool) -> Pipeline:
        tf = tensorflow()
        return Pipeline(dataset, tf.data.get_output_types(dataset), tf.data.get_output_shapes(dataset), batched, feeds)


def _shuffled(tf: Any, modern: Any, held: Mapping[str, Any], count: int) -> Any:
    """The examples in an order that is drawn each time. Their numbers are shuffled: examples may be large."""
    place = tf.random_uniform([], maxval=count, dtype=tf.int64)
    numbers = modern.data.Dataset.range(count).map(lambda number: (number + place) % count)
    numbers = numbers.shuffle(min(count, _SHUFFLED))
    return numbers.map(lambda number: {name: tf.gather(array, number) for name, array in held.items()})


def _from_anywhere(tf: Any, dataset: Any) -> Any:
    """The dataset from a place in it that is drawn each time, and then again and again; it may shuffle itself."""
    count = tf.data.experimental.cardinality(dataset)  # below 0: endless, or not known
    place = tf.random_uniform([], maxval=tf.maximum(count, 1), dtype=tf.int64)
    return dataset.skip(place).concatenate(dataset.repeat())


def _named(*example: Any) -> dict[str, Any]:
    """One example of a user's dataset under the names of its parts."""
    if len(example) != 2:
        raise _wrong(f"its dataset's examples have {len(example)} parts")
    features, labels = example
    return {**(features if isinstance(features, Mapping) else {INPUTS: features}), LABELS: labels}


def _as_arrays(given: Any) -> dict[str, Any]:
    import numpy

    if not isinstance(given, tuple) or len(given) != 2:
        raise _wrong(f"it gave {type(given).__name__}")
    arrays = {name: numpy.asarray(value) for name, value in _named(*given).items()}
    for name, array in arrays.items():
        if not array.ndim or array.dtype == object or len(array) != len(arrays[LABELS]) or not len(array):
            raise TrainingError(
                f"input_fn gave {name!r} with the shape {array.shape} and labels with {arrays[LABELS].shape}",
                fix="Every array needs one entry for each example, one at least.",
            )
        if array.dtype == numpy.float64:  # what NumPy makes of everything; models compute with half of it
            arrays[name] = array.astype(numpy.float32)
    return arrays


def _wrong(what: str) -> TrainingError:
    fix = "Return (features, labels) as arrays, or a tf.data.Dataset of single examples (features, labels)."
    return TrainingError(f"input_fn returns features and labels, but {what}", fix=fix)
