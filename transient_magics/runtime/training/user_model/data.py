"""The examples of a cell: what its input_fn returns, as tf.data pipelines.

An example consists of features, labels and optional sample weights. Each of them is one value or a
structure of values (structure.py); the pipelines name the values with keys of ours. Arrays are fed
when an iterator starts. They are not part of a graph, which is limited to 2 GB. Every VM calls
input_fn itself, so no data are copied between VMs.

input_fn runs in the graph that reads its dataset, so TensorFlow executes the whole pipeline. It
runs outside of graphs if that fails, because the dataset or something that it uses (a lookup table,
a layer) was created at the top of the cell.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ....errors import DeclarationError, TrainingError
from ...tf.graph_mode import tensorflow
from ..trainable import Pipeline, Sample
from . import reading
from .structure import (
    INPUTS,
    LABELS,
    PARTS,
    WEIGHTS,
    Layout,
    is_named,
    is_text,
    leaves,
    mapped,
    name_of,
)

_SHUFFLED = 1_000_000
"""Size of the buffer that shuffles example numbers; smaller data are shuffled completely."""

_RETURN = (
    "Return (features, labels) or (features, labels, weights) as arrays, "
    "or a tf.data.Dataset of such examples."
)
_WRAP = "Wrap it: tf.data.Dataset.from_generator(lambda: ..., output_signature=...)."
_DENSE = "Return dense arrays or tensors: {}."
_TO_DENSE = _DENSE.format("tf.sparse.to_dense(x)")
_SPARSE = ("a sparse matrix", _DENSE.format("matrix.toarray()"))
_WHOLE: tuple[tuple[str, str, str], ...] = (
    ("builtins.NoneType", "None", "Write `return features, labels` for both modes."),
    ("builtins.generator", "a generator", _WRAP),
    (
        "keras.src.trainers.data_adapters.py_dataset_adapter.PyDataset",
        "a keras.utils.PyDataset",
        _WRAP,
    ),
    ("torch.utils.data.dataloader.DataLoader", "a PyTorch DataLoader", _WRAP),
    ("torch.utils.data.dataset.Dataset", "a PyTorch Dataset", _WRAP),
    (
        "tensorflow.python.data.ops.iterator_ops.IteratorBase",
        "an iterator of a dataset",
        "Return the dataset.",
    ),
    ("pandas.core.frame.DataFrame", "one DataFrame", "Return (frame[[...]], frame['label'])."),
    ("pandas.DataFrame", "one DataFrame", "Return (frame[[...]], frame['label'])."),
    ("builtins.list", "a list", "Return a tuple: (features, labels)."),
)
"""Unsupported return values: the class or a base of it, its name in the error, the remedy."""
_LEAVES: tuple[tuple[str, str, str], ...] = (
    ("builtins.NoneType", "None", "Remove it, or return an array with an entry per example."),
    ("builtins.generator", "a generator", "Convert it to an array or a tf.data.Dataset."),
    ("scipy.sparse._base._spbase", *_SPARSE),
    ("scipy.sparse._base.spmatrix", *_SPARSE),
    ("tensorflow.python.framework.sparse_tensor.SparseTensor", "a SparseTensor", _TO_DENSE),
    (
        "tensorflow.python.ops.ragged.ragged_tensor.RaggedTensor",
        "a RaggedTensor",
        _DENSE.format("ragged.to_tensor()"),
    ),
    ("tensorflow.python.framework.sparse_tensor.SparseTensorSpec", "sparse tensors", _TO_DENSE),
    (
        "tensorflow.python.ops.ragged.ragged_tensor.RaggedTensorSpec",
        "ragged tensors",
        _DENSE.format("x.to_tensor()"),
    ),
    (
        "tensorflow.python.framework.type_spec.NoneTensorSpec",
        "None",
        "Remove it, or return a tensor.",
    ),
    (
        "tensorflow.python.data.ops.dataset_ops.DatasetSpec",
        "datasets",
        "Write ds.flat_map(lambda w: w.batch(n)).",
    ),
    (
        "tensorflow.python.data.ops.dataset_ops.DatasetV2",
        "a dataset",
        "Use tf.data.Dataset.zip((features, labels)).",
    ),
    (
        "keras.src.backend.common.keras_tensor.KerasTensor",
        "a symbolic tensor of Keras",
        "Return arrays.",
    ),
    (
        "tensorflow.python.framework.tensor.Tensor",
        "a symbolic tensor",
        "Return arrays, or a dataset of it.",
    ),
)
"""Unsupported values within features, labels and weights, in the same form."""
_KINDS = {
    "M": (
        "dates (datetime64)",
        "Convert them to numbers: dates.astype('int64'), or days since the first one.",
    ),
    "m": ("times (timedelta64)", "Convert them to numbers: times / numpy.timedelta64(1, 's')."),
    "V": ("records of several fields", "Return a dict with an array per field."),
}
"""Unsupported kinds of arrays, by the letter of `dtype.kind`."""

_refused = 0


@dataclass(frozen=True)
class _Arrays:
    """The arrays of a mode, by the keys of an example's values."""

    values: Mapping[str, Any]

    @property
    def count(self) -> int:
        """Number of examples."""
        return len(next(iter(self.values.values())))


class Data:
    """The examples of the modes `train` and `eval`.

    Attributes
    ----------
    types, shapes
        Types and shapes of one example's values, by key.
    features, labels
        The keys of the features and of the labels.
    names
        The user's name of each value, by key.
    batch
        Examples per mini-batch: as declared, or those of a dataset that is already batched; else
        None.
    """

    def __init__(
        self,
        input_fn: Callable[[str], Any],
        inputs: Sequence[Sequence[int | None]] = (),
        batch: int | None = None,
        batched: bool | None = None,
        *,
        labelled: bool = True,
    ) -> None:
        """Call input_fn for the training data.

        Parameters
        ----------
        input_fn
            The cell's function of the mode.
        inputs
            Shapes of the model's inputs, batch dimension first; empty if they are unknown.
        batch
            The cell's `batch_size`, if it has one.
        batched
            Whether a dataset's elements are batches; None decides by `inputs`.
        labelled
            Whether examples need labels.

        Raises
        ------
        DeclarationError, TrainingError
            For data that cannot be trained on.
        """
        self._input_fn = input_fn
        self._inputs = inputs
        self._batched = batched
        self._least_parts = 1 + labelled
        self._kept: dict[str, Any] = {}
        """Arrays, and datasets made outside of graphs, by mode."""
        self._layout: Layout | None = None
        self._begin: reading.Begin | None = None
        tf = tensorflow()
        with tf.Graph().as_default():
            given = self._given("train")
            dataset, _ = self._examples(given)
            batched = self._is_batched(given)
            self.types: Mapping[str, Any] = tf.data.get_output_types(dataset)
            shapes = tf.data.get_output_shapes(dataset)
            _refuse_unknown(shapes, self._laid_out.names)
            if batched:
                self.batch = _declared(given, shapes, batch)
            else:
                self.batch = batch
            self.shapes: Mapping[str, Any] = {
                name: shape[1:] if batched else shape for name, shape in shapes.items()
            }
        self._first = self._first_rows(given, batched)
        self.features = self._laid_out.keys(INPUTS)
        self.labels = self._laid_out.keys(LABELS)
        self.names: Mapping[str, str] = self._laid_out.names

    def training(self, batch: int) -> Pipeline:
        """Return endless single training examples, or padded batches where their shapes differ.

        Each iterator starts at a random place (reading.py). The pipeline's `note` says what limits
        the choice of that place.
        """
        begin = self._place()
        given = self._given("train")
        if isinstance(given, _Arrays):
            dataset, feeds = self._shuffled(given)
        else:
            dataset = self._by_key(reading.begun(given, begin))
            feeds = {}
        dataset = dataset.repeat()
        note = _note(begin, given)
        if self._is_batched(given):
            return self._pipeline(dataset.prefetch(2), feeds, batched=True, note=note)
        if self.of_one_shape:
            return self._pipeline(dataset, feeds, batched=False, note=note)
        padded = dataset.padded_batch(batch).prefetch(2)
        return self._pipeline(padded, feeds, batched=True, note=note)

    def evaluation(self, batch: int, drawn: Sample | None = None) -> Pipeline:
        """Return the evaluation examples once, or those `drawn`, in batches.

        The batches matter: some metrics are means over batches.
        """
        given = self._given("eval")
        size = _check_size(given, "eval")
        dataset, feeds = self._examples(given)
        if drawn:
            dataset = _part(dataset, drawn)
        batched = self._is_batched(given)
        if not batched:
            make_batches = dataset.batch if self.of_one_shape else dataset.padded_batch
            dataset = make_batches(batch)
        return self._pipeline(
            dataset.prefetch(2), feeds, batched=True, elements=size, single=not batched
        )

    def check(self, batch: int) -> None:
        """Raise TrainingError if a mode has no example, or the modes have different values."""
        with tensorflow().Graph().as_default():
            _check_size(self._given("train"), "train")
        with tensorflow().Graph().as_default():
            self.evaluation(batch)

    def counted_evaluation(self, seconds: float) -> tuple[int, int, bool]:
        """Count the evaluation dataset for at most `seconds`.

        Returns
        -------
        tuple of int, int, bool
            Elements, examples, and whether the whole dataset was counted.
        """
        with tensorflow().Graph().as_default():
            given = self._given("eval")
            if isinstance(given, _Arrays):
                return given.count, given.count, True
            rows = _rows if self._is_batched(given) else None
            return reading.counted_in(given, seconds, rows)

    @property
    def of_one_shape(self) -> bool:
        """Whether all examples have the same shapes."""
        return all(shape.is_fully_defined() for shape in self.shapes.values())

    @property
    def structure(self) -> Any:
        """The features as the model receives them, with keys in place of values."""
        return self._laid_out.parts[INPUTS]

    @property
    def weighted(self) -> bool:
        """Whether examples have weights."""
        return WEIGHTS in self._laid_out.parts

    def structured(self, values: Mapping[str, Any]) -> tuple[Any, Any, Any]:
        """Return features, labels and weights in the form of input_fn; None for missing parts."""
        return self._laid_out.structured(values)

    @property
    def _laid_out(self) -> Layout:
        assert self._layout is not None
        return self._layout

    def example(self, count: int) -> dict[str, Any]:
        """Return a batch of `count` examples by key: the first one, repeated.

        A dataset is read only where that matters, for texts and unknown dimensions, and not if it
        is of a graph. Otherwise they are zeros and empty texts, and every unknown dimension is one.
        """
        import numpy

        return {key: numpy.repeat(row, count, axis=0) for key, row in self._first.items()}

    def _first_rows(self, given: Any, batched: bool) -> dict[str, Any]:
        """Return the first example by key, as arrays of one row."""
        import numpy

        if isinstance(given, _Arrays):
            return {key: array[:1] for key, array in given.values.items()}
        matters = not self.of_one_shape or tensorflow().string in self.types.values()
        element = reading.first_element(given) if matters else None
        if element is None:
            return {key: _zeros(self.types[key], shape) for key, shape in self.shapes.items()}
        rows = {key: value.numpy() for key, value in self._laid_out.flat(*element).items()}
        if batched:
            return {key: row[:1] for key, row in rows.items()}
        return {key: numpy.asarray(row)[None] for key, row in rows.items()}

    def _place(self) -> reading.Begin:
        """Return the range in which reading begins. Raises TrainingError for empty data."""
        if self._begin is None:
            with tensorflow().Graph().as_default():
                given = self._given("train")
                if isinstance(given, _Arrays):
                    self._begin = reading.Begin(0, given.count)
                else:
                    self._begin = reading.begin_of(given)
                if not self._begin.count:
                    raise _no_example(given, "train")
                _check_size(given, "train")
        return self._begin

    def _given(self, mode: str) -> Any:
        """Return the `_Arrays` or the dataset (of the default graph, or eager) of input_fn."""
        if mode in self._kept:
            return self._kept[mode]
        modern = importlib.import_module("tensorflow")
        given = self._call_input_fn(mode)
        if isinstance(given, modern.data.Dataset):
            parts = checked_spec(given.element_spec, self._least_parts)
            self._layout = self._layout or Layout(parts)
            self._layout.flat(*parts)
            if reading.is_eager(given):
                self._kept[mode] = given
            return given
        example = _in_parts(checked_parts(given, self._least_parts))
        self._layout = self._layout or Layout(example)
        self._kept[mode] = _Arrays(_as_arrays(example, self._layout))
        return self._kept[mode]

    def _call_input_fn(self, mode: str) -> Any:
        """Call input_fn in the default graph, or outside of graphs if it needs that.

        TensorFlow reports a dataset that does not belong to the graph in many ways, so any error
        leads to a second call outside of graphs.
        """
        from tensorflow.python.eager import context

        tf = tensorflow()
        graph = tf.get_default_graph()
        before = _stateful(tf)
        refusals = refused_captures()
        seed = graph.seed
        try:
            given = self._input_fn(mode)
        except Exception as error:
            foreign = refused_captures() != refusals or "Eager" in str(error)
            try:
                with context.eager_mode():
                    return self._input_fn(mode)
            except Exception:
                if foreign:
                    raise
            raise
        finally:
            # A seed that input_fn sets must not determine the place at which each worker begins.
            graph.seed = seed
        if isinstance(given, tuple):
            values = [value for _, value in leaves(given)]
        else:
            values = []
        symbolic = any(
            getattr(value, "graph", None) is graph
            for value in values
            if not hasattr(value, "numpy")
        )
        if _stateful(tf) == before and not symbolic:
            return given
        with context.eager_mode():
            return self._input_fn(mode)

    def _examples(self, given: Any) -> tuple[Any, dict[Any, Any]]:
        """Return a dataset of values by key in the default graph, and the feeds of its iterator."""
        if not isinstance(given, _Arrays):
            if reading.is_eager(given):
                dataset = reading.handed_over(given)
            else:
                dataset = given
            return self._by_key(dataset), {}
        placeholders = _placeholders(given)
        modern = importlib.import_module("tensorflow")
        dataset = modern.data.Dataset.from_tensor_slices(placeholders)
        return dataset, {placeholders[key]: array for key, array in given.values.items()}

    def _by_key(self, dataset: Any) -> Any:
        as_it_is = importlib.import_module("tensorflow").autograph.experimental.do_not_convert
        return dataset.map(as_it_is(self._laid_out.flat))

    def _shuffled(self, given: _Arrays) -> tuple[Any, dict[Any, Any]]:
        """Return the arrays' examples in random order, and the feeds of the iterator.

        Shuffles the numbers of the examples, because the examples may be large.
        """
        tf = tensorflow()
        modern = importlib.import_module("tensorflow")
        placeholders = _placeholders(given)
        count = given.count
        place = tf.random_uniform([], maxval=count, dtype=tf.int64)
        # AutoGraph would need a long time to find nothing to convert.
        as_it_is = modern.autograph.experimental.do_not_convert
        numbers = modern.data.Dataset.range(count).map(
            as_it_is(lambda number: (number + place) % count)
        )
        numbers = numbers.shuffle(min(count, _SHUFFLED))

        def gather(number: Any) -> dict[str, Any]:
            return {key: tf.gather(array, number) for key, array in placeholders.items()}

        dataset = numbers.map(as_it_is(gather))
        return dataset, {placeholders[key]: array for key, array in given.values.items()}

    def _is_batched(self, given: Any) -> bool:
        if isinstance(given, _Arrays):
            return False
        if self._batched is not None:
            return self._batched
        features = [value for _, value in leaves(given.element_spec[0])]
        return reading.is_batched(given, [value.shape for value in features], self._inputs)

    def _pipeline(
        self, dataset: Any, feeds: Mapping[Any, Any], batched: bool, **more: Any
    ) -> Pipeline:
        tf = tensorflow()
        types = tf.data.get_output_types(dataset)
        shapes = tf.data.get_output_shapes(dataset)
        return Pipeline(dataset, types, shapes, batched, feeds, **more)


def _zeros(kind: Any, shape: Any) -> Any:
    import numpy

    sizes = [1, *(size or 1 for size in shape.as_list())]
    if kind == tensorflow().string:
        return numpy.full(sizes, "", str)
    return numpy.zeros(sizes, kind.as_numpy_dtype)


def _rows(*example: Any) -> Any:
    """Return the number of examples of a batch, as a tensor."""
    modern = importlib.import_module("tensorflow")
    _, first = next(leaves(example))
    return modern.cast(modern.shape(first)[0], "int64")


def _placeholders(given: _Arrays) -> dict[str, Any]:
    """Return a placeholder per array."""
    tf = tensorflow()
    return {key: tf.placeholder(array.dtype, array.shape) for key, array in given.values.items()}


def _stateful(tf: Any) -> tuple[int, int]:
    """Count the tables and variables of the default graph.

    No process would initialise them for an input_fn.
    """
    return len(tf.get_collection(tf.GraphKeys.TABLE_INITIALIZERS)), len(tf.global_variables())


def _part(dataset: Any, drawn: Sample) -> Any:
    """Return the elements that are drawn from the first `drawn.total`, the same ones each time."""
    import numpy

    modern = importlib.import_module("tensorflow")
    chosen = numpy.zeros(drawn.total, bool)
    generator = numpy.random.default_rng(drawn.seed)
    chosen[generator.choice(drawn.total, drawn.size, replace=False)] = True
    as_it_is = modern.autograph.experimental.do_not_convert
    numbered = dataset.take(drawn.total).enumerate()
    kept = numbered.filter(
        as_it_is(lambda number, *_: modern.gather(modern.constant(chosen), number))
    )
    return kept.map(as_it_is(lambda _, values: values))


def _note(begin: reading.Begin, given: Any) -> str:
    """Return what limits the places at which workers begin, with a remedy; else nothing."""
    if isinstance(given, _Arrays) or not begin.partial:
        return ""
    if begin.total:
        if reading.is_eager(given):
            fix = "Create it inside input_fn."
        else:
            fix = "Shuffle it before the slow transformation."
        return (
            f"reading through input_fn's dataset takes more than {reading.SECONDS:.0f} s: each "
            f"worker begins at one of the first {begin.count:,} of its {begin.total:,} elements. "
            f"{fix}"
        )
    if reading.shuffles(given):
        return ""
    return (
        f"input_fn's dataset is endless, or cannot be counted in {reading.SECONDS:.0f} s: each "
        f"worker begins at one of its first {begin.count:,} elements. Add .shuffle(n), or, if it "
        "has n elements, .apply(tf.data.experimental.assert_cardinality(n))."
    )


def _check_size(given: Any, mode: str) -> int:
    """Return the count of elements, as `Pipeline.elements`. Raises TrainingError for 0."""
    if isinstance(given, _Arrays):
        size = given.count
    else:
        size = reading.size_of(given)
    if not size:
        raise _no_example(given, mode)
    return size


def _no_example(given: Any, mode: str) -> TrainingError:
    if isinstance(given, _Arrays):
        dropped = None
    else:
        dropped = reading.drops_remainder(given)
    if dropped is None:
        return TrainingError(f"input_fn returns no examples for the mode {mode!r}")
    what = f"input_fn returns less than one batch of {dropped} examples for the mode {mode!r}"
    return TrainingError(what, fix="Remove drop_remainder=True.")


def _refuse_unknown(shapes: Mapping[str, Any], names: Mapping[str, str]) -> None:
    """Raise TrainingError for a value whose number of dimensions is unknown."""
    if unknown := [names[key] for key, shape in shapes.items() if shape.rank is None]:
        what = (
            f"input_fn: its dataset has {unknown[0]!r} with an unknown shape, as from py_function"
        )
        raise TrainingError(what, fix="Set it in a map: tf.ensure_shape(x, [28, 28]).")


def _declared(dataset: Any, shapes: Mapping[str, Any], batch: int | None) -> int:
    """Return the mini-batch of a batched dataset.

    Raises DeclarationError if it is unknown, or differs from the cell's `batch_size`.
    """
    size = next(iter(shapes.values()))[0] or reading.batch_size(dataset)
    if (size or batch) is None:
        size = reading.first_batch_size(dataset)
    if (size or batch) is None:
        what = "input_fn's dataset is batched, and its batch size is unknown"
        raise DeclarationError(what, fix="Set batch_size = N in the cell.")
    if size and batch and size != batch:
        what = f"the cell has batch_size = {batch}, but input_fn's dataset has batches of {size}"
        raise DeclarationError(what, fix="Remove one of the two.")
    return int(size or batch or 0)


def _as_arrays(example: tuple[Any, ...], layout: Layout | None = None) -> dict[str, Any]:
    """Return the arrays of an example's values by key.

    Raises TrainingError for values that are not arrays, or do not fit each other.
    """
    arrays = tuple(
        mapped(partial(as_array, part), value) for part, value in zip(PARTS, example, strict=False)
    )
    layout = layout or Layout(example)
    found = layout.flat(*arrays)
    checked_lengths(found, layout.names)
    return found


def _in_parts(given: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return an answer of arrays with lists of inputs as tuples.

    A list of arrays means several inputs if each array has an entry per example; any other list is
    one array.
    """
    lengths = [
        len(value)
        for part in given
        if not isinstance(part, tuple) or is_named(part)
        for _, value in leaves(part)
        if len(getattr(value, "shape", ()))
    ]

    def arranged(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: arranged(inner_value) for key, inner_value in value.items()}
        if not isinstance(value, list | tuple):
            return value
        if is_named(value):
            return type(value)(*map(arranged, value))
        inner = list(map(arranged, value))
        if inner and all(map(is_input, inner)):
            return tuple(inner)
        return list(value)

    def is_input(value: Any) -> bool:
        if isinstance(value, Mapping | tuple):
            return True
        has_entries = bool(len(getattr(value, "shape", ())))
        return has_entries and (not lengths or len(value) == lengths[0])

    return tuple(map(arranged, given))


# Checks of what input_fn returns: (features, labels) or (features, labels, weights), each of them
# an array or a structure of arrays, or a tf.data.Dataset of such examples. The tables above have an
# error for each other kind of value.


def wrong(what: str, fix: str = _RETURN) -> TrainingError:
    """Return the error for an unsupported return value of input_fn."""
    return TrainingError(f"input_fn must return features and labels, but {what}", fix=fix)


def checked_parts(given: Any, least: int = 2) -> tuple[Any, ...]:
    """Return the parts of an answer that is not a dataset, `least` to 3. Raises TrainingError."""
    if isinstance(given, tuple) and not is_named(given):
        if not least <= len(given) <= len(PARTS):
            raise wrong(f"it returned {len(given)} parts")
        for part, structure in zip(PARTS, given, strict=False):
            for path, value in leaves(structure):
                refuse(part, path, value)
        return given
    if found := _called(given, _WHOLE):
        raise wrong(f"it returned {found[0]}", found[1])
    if isinstance(given, Iterator):
        raise wrong("it returned an iterator", _WRAP)
    if isinstance(given, Mapping):
        raise wrong("it returned a dict, which does not separate features from labels")
    if hasattr(given, "shape"):
        raise wrong("it returned one array or tensor")
    raise wrong(f"it returned {type(given).__name__}")


def checked_spec(spec: Any, least: int = 2) -> tuple[Any, ...]:
    """Return the parts of a dataset's element, `least` to 3, from its `element_spec`.

    Raises TrainingError.
    """
    parts = isinstance(spec, tuple) and not is_named(spec)
    if not parts or not least <= len(spec) <= len(PARTS):
        count = len(spec) if isinstance(spec, tuple) else 1
        raise wrong(f"its dataset's examples have {count} parts")
    for part, structure in zip(PARTS, spec, strict=False):
        for path, value in leaves(structure):
            refuse(part, path, value, "input_fn: its dataset has")
    return spec


def refuse(
    part: str, path: tuple[Any, ...], value: Any, source: str = "input_fn: it returns"
) -> None:
    """Raise TrainingError for a value of an unsupported type."""
    if found := _called(value, _LEAVES):
        name = name_of(part, path)
        raise TrainingError(f"{source} {name!r} as {found[0]}", fix=found[1])


def as_array(part: str, path: tuple[Any, ...], value: Any) -> Any:
    """Return one value of an answer as an array of numbers or texts.

    Converts 64-bit floats, NumPy's default, to 32 bits. Raises TrainingError.
    """
    import numpy

    refuse(part, path, value)
    name = name_of(part, path)
    try:
        array = numpy.asarray(value)
    except ValueError as error:
        if "inhomogeneous" not in str(error):
            raise
        raise _unsupported(
            name, "lists of different lengths", "Pad them: keras.utils.pad_sequences(lists)."
        ) from error
    if array.dtype == object and not is_text(array):
        raise _unsupported(
            name,
            _objects(value, array),
            "Convert it to numbers: category codes, or astype('float32').",
        )
    if found := _KINDS.get(array.dtype.kind):
        raise _unsupported(name, *found)
    if not array.ndim:
        raise _unsupported(
            name,
            f"a single value of the type {array.dtype}",
            "Return an array with an entry per example.",
        )
    if array.dtype == numpy.float64:
        return array.astype(numpy.float32)
    return array


def checked_lengths(arrays: Mapping[str, Any], names: Mapping[str, str]) -> None:
    """Raise TrainingError unless all arrays have one entry per example, and at least one."""
    first = next((key for key in arrays if key.startswith("label")), next(iter(arrays)))
    for key, array in arrays.items():
        if len(array) != len(arrays[first]):
            raise TrainingError(
                f"input_fn returned {names[key]!r} with the shape {array.shape}, "
                f"but {names[first]} with {arrays[first].shape}",
                fix="Return arrays with one entry per example.",
            )
    if not len(arrays[first]):
        raise TrainingError("input_fn returned empty arrays", fix="Return at least one example.")


def _unsupported(name: str, what: str, fix: str) -> TrainingError:
    return TrainingError(f"input_fn: it returns {name!r} as {what}", fix=fix)


def _called(value: Any, table: tuple[tuple[str, str, str], ...]) -> tuple[str, str] | None:
    """Return a value's name and remedy from a table, or None.

    Compares names of classes, so that the modules that define them need not be imported.
    """
    names = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(value).__mro__}
    if "tensorflow.python.framework.tensor.Tensor" in names and hasattr(value, "numpy"):
        return None  # an eager tensor, which has a value
    return next(((called, fix) for name, called, fix in table if name in names), None)


def _objects(value: Any, array: Any) -> str:
    """Describe an array of Python objects; of a DataFrame, its first column that is not numeric."""
    if getattr(value, "ndim", 0) == 2:
        for column, kind in getattr(value, "dtypes", {}).items():
            if getattr(kind, "kind", "O") not in "biuf":
                return f"a table whose column {column!r} has the type {kind}"
    kinds = sorted({type(item).__name__ for item in array.ravel()[:1000].tolist()})
    return f"an array of the type object (of {', '.join(kinds[:3]) or 'nothing'})"


# Tensors that the cell computed when it ran become constants of the graphs that use them, for
# example a table of class weights in a loss. TensorFlow itself does that only in the graphs of its
# functions. Variables outside of the model are refused: no parameter server has them.


def refused_captures() -> int:
    """Return how often a graph refused an object that exists only outside of graphs.

    Datasets that use such an object can be made outside of graphs.
    """
    return _refused


def keep_as_constants() -> None:
    """Let graphs capture eager tensors as constants. Call it once per process.

    From then on, a captured variable raises DeclarationError.
    """
    from tensorflow.python.eager import context
    from tensorflow.python.framework import dtypes, ops

    eager: Any = ops.EagerTensor.__mro__[1]
    converted = eager.__tf_tensor__

    def __tf_tensor__(self: Any, dtype: Any = None, name: str | None = None) -> Any:
        if context.executing_eagerly() or ops.get_default_graph().building_function:
            return converted(self, dtype, name)
        if self.dtype in (dtypes.resource, dtypes.variant):
            global _refused
            _refused += 1
            raise DeclarationError(
                "the model uses a variable (or another object) that was created outside of it",
                fix="Create it as a weight of the model with a layer's add_weight, or use a "
                "constant.",
            )
        if dtype is not None and not dtype.is_compatible_with(self.dtype):
            raise ValueError(
                f"the tensor must have the type {dtype.name}, but the cell computed "
                f"{self.dtype.name}"
            )
        return self._capture_as_const(name)

    eager.__tf_tensor__ = __tf_tensor__
