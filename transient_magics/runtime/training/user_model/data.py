"""The cell's input_fn: arrays or a tf.data.Dataset, as pipelines of a training and an evaluation.

An example is features, labels and, if there are any, sample weights. Each of the three is one value, several by name,
or several in order; in pipelines all of them have names. Arrays reach TensorFlow when an iterator starts and are no
part of a graph, which may not grow beyond 2 GB. Every VM calls input_fn itself, so nothing of the data is copied
between them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ....errors import DeclarationError, TrainingError
from ...tf.graph_mode import tensorflow
from ..trainable import Pipeline
from . import batches

INPUTS, LABELS, WEIGHTS = "inputs", "labels", "sample_weight"
_PARTS = (INPUTS, LABELS, WEIGHTS)
_SHUFFLED = 1_000_000
"""Numbers of examples among which the next one is drawn; fewer examples are shuffled completely."""


class Data:
    """What the cell's input_fn gives for the modes `train` and `eval`.

    `types` and `shapes` are those of one example, by name; `features` and `labels` are the names of those.
    """

    def __init__(
        self, input_fn: Callable[[str], Any], inputs: Sequence[Sequence[int | None]] = (), batch: int | None = None
    ) -> None:
        """Ask for the training data; `inputs` are the shapes of the model's, `batch` is declared if it is.

        Raises DeclarationError or TrainingError where they cannot be trained on.
        """
        self._input_fn, self._inputs = input_fn, inputs
        self._arrays: dict[str, Mapping[str, Any]] = {}
        self._parts: Mapping[str, Any] = {}
        tf = tensorflow()
        with tf.Graph().as_default():
            dataset, _, batched = self._examples("train")
            self.types: Mapping[str, Any] = tf.data.get_output_types(dataset)
            shapes = tf.data.get_output_shapes(dataset)
            self.batch = _declared(dataset, shapes, batch) if batched else batch
            self.shapes: Mapping[str, Any] = {name: shape[1:] if batched else shape for name, shape in shapes.items()}
        self.features = sorted(_named(INPUTS, self._parts[INPUTS]))
        self.labels = sorted(_named(LABELS, self._parts[LABELS]))

    def training(self, batch: int) -> Pipeline:
        """Endless single examples; in batches, filled up with zeros, where their shapes differ.

        They begin at a place that is drawn whenever an iterator starts: a worker that lives for minutes would never
        reach the last of them otherwise. Of a dataset that does not know how long it is, they begin where it does.
        """
        dataset, feeds, batched = self._examples("train")
        dataset = dataset.repeat()
        if batched:
            return self._pipeline(dataset.prefetch(2), feeds, batched=True)
        if not self.of_one_shape:
            return self._pipeline(dataset.padded_batch(batch).prefetch(2), feeds, batched=True)
        return self._pipeline(dataset, feeds, batched=False)

    def evaluation(self, batch: int) -> Pipeline:
        """The examples for the evaluation once, in batches: some metrics are means over these."""
        dataset, feeds, batched = self._examples("eval")
        if not batched:
            dataset = (dataset.batch if self.of_one_shape else dataset.padded_batch)(batch)
        return self._pipeline(dataset.prefetch(2), feeds, batched=True)

    @property
    def of_one_shape(self) -> bool:
        """Whether all examples have the same shapes."""
        return all(shape.is_fully_defined() for shape in self.shapes.values())

    def structured(self, values: Mapping[str, Any]) -> tuple[Any, Any, Any]:
        """Features, labels and weights as input_fn gave them; None for what is not there."""
        return tuple(_structured(part, self._parts.get(part), values) for part in _PARTS)  # type: ignore[return-value]

    def _examples(self, mode: str) -> tuple[Any, dict[Any, Any], bool]:
        """A dataset of named examples in the default graph, what its iterator is fed with, whether they are batches."""
        tf, modern = tensorflow(), importlib.import_module("tensorflow")
        if mode not in self._arrays:
            given = self._input_fn(mode)
            if isinstance(given, modern.data.Dataset):
                self._parts = self._parts or _parts_of(given.element_spec, modern)
                dataset = (_from_anywhere(tf, given) if mode == "train" else given).map(_flat)
                shapes, names = tf.data.get_output_shapes(dataset), _named(INPUTS, self._parts[INPUTS])
                batched = batches.is_batched(given, [shapes[name] for name in names], self._inputs)
                return dataset, {}, batched
            example = _in_parts(given)
            self._parts = self._parts or dict(zip(_PARTS, example, strict=False))
            self._arrays[mode] = _as_arrays(example)
        arrays = self._arrays[mode]
        held = {name: tf.placeholder(array.dtype, array.shape) for name, array in arrays.items()}
        if mode == "train":
            dataset = _shuffled(tf, modern, held, len(next(iter(arrays.values()))))
        else:
            dataset = modern.data.Dataset.from_tensor_slices(held)
        return dataset, {held[name]: array for name, array in arrays.items()}, False

    def _pipeline(self, dataset: Any, feeds: Mapping[Any, Any], batched: bool) -> Pipeline:
        tf = tensorflow()
        return Pipeline(dataset, tf.data.get_output_types(dataset), tf.data.get_output_shapes(dataset), batched, feeds)


def _shuffled(tf: Any, modern: Any, held: Mapping[str, Any], count: int) -> Any:
    """The examples in an order that is drawn each time. Their numbers are shuffled: examples may be large."""
    place = tf.random_uniform([], maxval=count, dtype=tf.int64)
    as_it_is = modern.autograph.experimental.do_not_convert  # AutoGraph takes long to find that nothing is to be done
    numbers = modern.data.Dataset.range(count).map(as_it_is(lambda number: (number + place) % count))
    numbers = numbers.shuffle(min(count, _SHUFFLED))
    return numbers.map(as_it_is(lambda number: {name: tf.gather(array, number) for name, array in held.items()}))


def _from_anywhere(tf: Any, dataset: Any) -> Any:
    """The dataset from a place in it that is drawn each time, and then again and again; it may shuffle itself."""
    count = tf.data.experimental.cardinality(dataset)  # below 0: endless, or not known
    place = tf.random_uniform([], maxval=tf.maximum(count, 1), dtype=tf.int64)
    return dataset.skip(place).concatenate(dataset.repeat())


def _declared(dataset: Any, shapes: Mapping[str, Any], batch: int | None) -> int:
    """The mini-batch of a set that is batched already, which must be the one that the cell names, if it does."""
    size = next(iter(shapes.values()))[0] or batches.batch_size(dataset)
    if (size or batch) is None:
        what = "input_fn's dataset is batched, and it is not known how large its batches are"
        raise DeclarationError(what, fix="Say batch_size = N in the cell.")
    if size and batch and size != batch:
        what = f"the cell says batch_size = {batch}, and input_fn's dataset has batches of {size}"
        raise DeclarationError(what, fix="Leave one of the two out.")
    return int(size or batch or 0)


def _flat(*example: Any) -> dict[str, Any]:
    """An example's values by their names in a pipeline."""
    return {
        name: each for part, value in zip(_PARTS, example, strict=False) for name, each in _named(part, value).items()
    }


def _named(part: str, value: Any) -> dict[str, Any]:
    """The values of one part of an example: of features, the names are the cell's own."""
    if isinstance(value, Mapping):
        return {name if part == INPUTS else f"{part}/{name}": each for name, each in value.items()}
    if isinstance(value, tuple):
        return {f"{part}_{number}": each for number, each in enumerate(value)}
    return {part: value}


def _structured(part: str, like: Any, values: Mapping[str, Any]) -> Any:
    """The reverse of `_named`; None if there are no such values."""
    names = list(_named(part, like))
    if like is None or not all(name in values for name in names):
        return None
    if isinstance(like, Mapping):
        return {key: values[name] for key, name in zip(like, names, strict=True)}
    return tuple(values[name] for name in names) if isinstance(like, tuple) else values[part]


def _parts_of(given: Any, modern: Any) -> dict[str, Any]:
    """The parts of an example of a dataset that gives this. Raises TrainingError where they are not understood."""
    if not isinstance(given, tuple) or len(given) not in (2, 3):
        raise _wrong(f"its dataset's examples have {len(given) if isinstance(given, tuple) else 1} parts")
    parts: dict[str, Any] = dict(zip(_PARTS, given, strict=False))
    for name, value in _flat_checked(given).items():
        if not isinstance(value, modern.TensorSpec):
            kind = type(value).__name__.removesuffix("Spec")
            raise TrainingError(
                f"input_fn's dataset gives {name!r} as {kind}", fix="Every part of an example is a tensor."
            )
    return parts


def _flat_checked(example: Sequence[Any]) -> dict[str, Any]:
    named = [name for part, value in zip(_PARTS, example, strict=False) for name in _named(part, value)]
    if twice := [name for name in named if named.count(name) > 1]:
        raise TrainingError(f"no feature can be called {twice[0]!r}", where="input_fn", fix="Give it another name.")
    return _flat(*example)


def _in_parts(given: Any) -> tuple[Any, ...]:
    """What input_fn gave as arrays. A list of arrays is several inputs if they have an entry for each example."""
    if not isinstance(given, tuple) or len(given) not in (2, 3):
        raise _wrong(f"it gave {type(given).__name__}")
    known = [
        len(each)
        for part in given
        for each in (part.values() if isinstance(part, Mapping) else [part])
        if len(getattr(each, "shape", ()))
    ]

    def arranged(value: Any) -> Any:
        if not isinstance(value, list | tuple):
            return value
        several = bool(value) and all(len(getattr(each, "shape", ())) for each in value)
        return tuple(value) if several and (not known or all(len(each) == known[0] for each in value)) else list(value)

    return tuple(map(arranged, given))


def _as_arrays(example: Sequence[Any]) -> dict[str, Any]:
    import numpy

    arrays = {name: numpy.asarray(value) for name, value in _flat_checked(example).items()}
    labels = arrays[next(iter(_named(LABELS, example[1])))]
    for name, array in arrays.items():
        if not array.ndim or array.dtype == object or len(array) != len(labels) or not len(array):
            raise TrainingError(
                f"input_fn gave {name!r} with the shape {array.shape} and labels with {labels.shape}",
                fix="Every array needs one entry for each example, one at least.",
            )
        if array.dtype == numpy.float64:  # what NumPy makes of everything; models compute with half of it
            arrays[name] = array.astype(numpy.float32)
    return arrays


def _wrong(what: str) -> TrainingError:
    fix = "Return (features, labels) or (features, labels, weights) as arrays, or a tf.data.Dataset of such examples."
    return TrainingError(f"input_fn returns features and labels, but {what}", fix=fix)
