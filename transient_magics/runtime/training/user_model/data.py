"""The cell's input_fn: arrays or a tf.data.Dataset, as pipelines of a training and an evaluation.

An example is features, labels and, if there are any, sample weights. Each of the three is one
value, or a structure of several (structure.py); in pipelines all of them have names of our own.
Arrays reach TensorFlow when an iterator starts and are no part of a graph, which may not grow
beyond 2 GB. Every VM calls input_fn itself, so nothing of the data is copied between them.

input_fn is called in the graph that reads its dataset, where TensorFlow runs the whole pipeline.
Where that cannot be, as the dataset or what it uses (a lookup table, a layer) was made at the top
of the cell, it is called outside of graphs.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ....errors import DeclarationError, TrainingError
from ...tf.graph_mode import tensorflow
from ..trainable import Drawn, Pipeline
from . import reading
from .structure import INPUTS, LABELS, PARTS, WEIGHTS, Layout, is_named, leaves, mapped, name_of

_SHUFFLED = 1_000_000
"""Numbers of examples among which the next one is drawn; fewer examples are shuffled completely."""

_RETURN = "Return (features, labels) or (features, labels, weights) as arrays, or a tf.data.Dataset of such examples."
_WRAP = "Wrap it: tf.data.Dataset.from_generator(lambda: ..., output_signature=...)."
_DENSE = "Give dense arrays or tensors: {}."
_TO_DENSE = _DENSE.format("tf.sparse.to_dense(x)")
_SPARSE = ("a sparse matrix", _DENSE.format("matrix.toarray()"))
_WHOLE: tuple[tuple[str, str, str], ...] = (
    ("builtins.NoneType", "nothing (None)", "End it with return features, labels, for both modes."),
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
"""Of whole answers: the class (or one that it derives from), what it is called, and what to do."""
_LEAVES: tuple[tuple[str, str, str], ...] = (
    ("builtins.NoneType", "None", "Leave it out, or give an array with an entry for each example."),
    ("builtins.generator", "a generator", "Make an array of it, or a tf.data.Dataset of examples."),
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
        "Leave it out, or give a tensor.",
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
        "Give arrays.",
    ),
    (
        "tensorflow.python.framework.tensor.Tensor",
        "a symbolic tensor",
        "Give arrays, or a dataset of it.",
    ),
)
"""The same of each value in an answer."""
_KINDS = {
    "M": (
        "dates (datetime64)",
        "Give numbers, as dates.astype('int64') or days since the first one.",
    ),
    "m": ("times (timedelta64)", "Give numbers, as times / numpy.timedelta64(1, 's')."),
    "V": ("records of several fields", "Give each field by its name, in a dict."),
}
"""Of arrays, by the letter of their dtype's kind."""

_refused = 0


@dataclass(frozen=True)
class _Arrays:
    """Arrays by the keys of an example's values."""

    values: Mapping[str, Any]

    @property
    def count(self) -> int:
        """How many examples they are."""
        return len(next(iter(self.values.values())))


class Data:
    """What the cell's input_fn gives for the modes `train` and `eval`.

    `types` and `shapes` are those of one example, by its keys; `features` and `labels` are the keys
    of those, and `names` says what the user calls each.
    """

    def __init__(
        self,
        input_fn: Callable[[str], Any],
        inputs: Sequence[Sequence[int | None]] = (),
        batch: int | None = None,
        batched: bool | None = None,
    ) -> None:
        """Ask for the training data; `inputs` are the shapes of the model's, `batch` is declared if
        it is. `batched`: whether a dataset's elements are batches (None: judged by `inputs`).

        Raises DeclarationError or TrainingError where they cannot be trained on.
        """
        self._input_fn = input_fn
        self._inputs = inputs
        self._batched = batched
        self._kept: dict[str, Any] = {}
        """What was given as arrays, or outside of graphs, by mode."""
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
        self.features = self._laid_out.keys(INPUTS)
        self.labels = self._laid_out.keys(LABELS)
        self.names: Mapping[str, str] = self._laid_out.names

    def training(self, batch: int) -> Pipeline:
        """Endless single examples; in batches, filled up with zeros, where their shapes differ.

        They begin at a place that is drawn whenever an iterator starts (reading.py). What keeps it
        from being any of them is the pipeline's `note`.
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
        if not self.of_one_shape:
            return self._pipeline(
                dataset.padded_batch(batch).prefetch(2), feeds, batched=True, note=note
            )
        return self._pipeline(dataset, feeds, batched=False, note=note)

    def evaluation(self, batch: int, drawn: Drawn | None = None) -> Pipeline:
        """The examples for the evaluation once, or those `drawn`, in batches: some metrics are
        means over these.
        """
        given = self._given("eval")
        size = _check_size(given, "eval")
        dataset, feeds = self._examples(given)
        if drawn:
            dataset = _part(dataset, drawn)
        batched = self._is_batched(given)
        if not batched:
            dataset = (dataset.batch if self.of_one_shape else dataset.padded_batch)(batch)
        return self._pipeline(
            dataset.prefetch(2), feeds, batched=True, elements=size, single=not batched
        )

    def check(self, batch: int) -> None:
        """Raise TrainingError where a mode is known to have no example, or the evaluation has other
        values.
        """
        with tensorflow().Graph().as_default():
            _check_size(self._given("train"), "train")
        with tensorflow().Graph().as_default():
            self.evaluation(batch)

    def counted_evaluation(self, seconds: float) -> tuple[int, int, bool]:
        """How many elements and examples the evaluation's dataset has; whether those are all, after
        so much time.
        """
        with tensorflow().Graph().as_default():
            given = self._given("eval")
            if isinstance(given, _Arrays):
                return given.count, given.count, True
            rows = _rows if self._is_batched(given) else None
            elements, examples, ended = reading.counted_in(given, seconds, rows)
            return elements, examples, ended

    @property
    def of_one_shape(self) -> bool:
        """Whether all examples have the same shapes."""
        return all(shape.is_fully_defined() for shape in self.shapes.values())

    @property
    def structure(self) -> Any:
        """The features as the model takes them, with keys in place of values."""
        return self._laid_out.parts[INPUTS]

    @property
    def weighted(self) -> bool:
        """Whether examples have weights."""
        return WEIGHTS in self._laid_out.parts

    def structured(self, values: Mapping[str, Any]) -> tuple[Any, Any, Any]:
        """Features, labels and weights as input_fn gave them; None for what is not there."""
        return self._laid_out.structured(values)

    @property
    def _laid_out(self) -> Layout:
        assert self._layout is not None
        return self._layout

    def _place(self) -> reading.Begin:
        """Where reading begins. Raises TrainingError for data without an example."""
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
        """What input_fn gives: `_Arrays`, or a dataset, of the default graph or made outside of it."""
        if mode in self._kept:
            return self._kept[mode]
        modern = importlib.import_module("tensorflow")
        given = self._asked(mode)
        if isinstance(given, modern.data.Dataset):
            parts = checked_spec(given.element_spec)
            self._layout = self._layout or Layout(parts)
            self._layout.flat(*parts)
            if reading.is_eager(given):
                self._kept[mode] = given
            return given
        example = _in_parts(checked_parts(given))
        self._layout = self._layout or Layout(example)
        self._kept[mode] = _Arrays(_as_arrays(example, self._layout))
        return self._kept[mode]

    def _asked(self, mode: str) -> Any:
        """What input_fn returns, called in the default graph, or outside of graphs where it needs
        that.
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
            # TensorFlow has many words for a dataset that does not belong to the graph.
            foreign = refused_captures() != refusals or "Eager" in str(error)
            try:
                with context.eager_mode():
                    return self._input_fn(mode)
            except Exception:
                if foreign:
                    raise
            raise
        finally:
            graph.seed = seed  # a seed that input_fn sets is not that of the place at which each worker begins
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
        """A dataset of an example's values by their keys in the default graph, and what its
        iterator is fed with.
        """
        if not isinstance(given, _Arrays):
            if reading.is_eager(given):
                dataset = reading.handed_over(given)
            else:
                dataset = given
            return self._by_key(dataset), {}
        held = _held(given)
        dataset = importlib.import_module("tensorflow").data.Dataset.from_tensor_slices(held)
        return dataset, {held[key]: array for key, array in given.values.items()}

    def _by_key(self, dataset: Any) -> Any:
        as_it_is = importlib.import_module("tensorflow").autograph.experimental.do_not_convert
        return dataset.map(as_it_is(self._laid_out.flat))

    def _shuffled(self, given: _Arrays) -> tuple[Any, dict[Any, Any]]:
        """The same in an order that is drawn each time. Examples' numbers are shuffled: examples
        may be large.
        """
        tf = tensorflow()
        modern = importlib.import_module("tensorflow")
        held = _held(given)
        count = given.count
        place = tf.random_uniform([], maxval=count, dtype=tf.int64)
        as_it_is = (
            modern.autograph.experimental.do_not_convert
        )  # AutoGraph takes long to find that nothing is to be done
        numbers = modern.data.Dataset.range(count).map(
            as_it_is(lambda number: (number + place) % count)
        )
        numbers = numbers.shuffle(min(count, _SHUFFLED))
        dataset = numbers.map(
            as_it_is(lambda number: {key: tf.gather(array, number) for key, array in held.items()})
        )
        return dataset, {held[key]: array for key, array in given.values.items()}

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


def _rows(*example: Any) -> Any:
    """How many examples a batch has."""
    modern = importlib.import_module("tensorflow")
    _, first = next(leaves(example))
    return modern.cast(modern.shape(first)[0], "int64")


def _held(given: _Arrays) -> dict[str, Any]:
    tf = tensorflow()
    return {key: tf.placeholder(array.dtype, array.shape) for key, array in given.values.items()}


def _stateful(tf: Any) -> tuple[int, int]:
    """How many tables and variables the default graph has, which no process would initialise for an
    input_fn.
    """
    return len(tf.get_collection(tf.GraphKeys.TABLE_INITIALIZERS)), len(tf.global_variables())


def _part(dataset: Any, drawn: Drawn) -> Any:
    """Of the first elements those that are drawn, the same ones each time."""
    import numpy

    modern = importlib.import_module("tensorflow")
    chosen = numpy.zeros(drawn.of, bool)
    chosen[numpy.random.default_rng(drawn.seed).choice(drawn.of, drawn.many, replace=False)] = True
    as_it_is = modern.autograph.experimental.do_not_convert
    numbered = dataset.take(drawn.of).enumerate()
    kept = numbered.filter(
        as_it_is(lambda number, *_: modern.gather(modern.constant(chosen), number))
    )
    return kept.map(as_it_is(lambda _, values: values))


def _note(begin: reading.Begin, given: Any) -> str:
    """What keeps workers from beginning at any of the examples, and what to do about it; else
    nothing.
    """
    if isinstance(given, _Arrays) or not begin.partial:
        return ""
    if begin.of:
        if reading.is_eager(given):
            fix = "Make it inside input_fn."
        else:
            fix = "Shuffle it before what takes so long."
        return (
            f"input_fn's dataset cannot be passed over in {reading.SECONDS:.0f} s: each worker begins at one of the "
            f"first {begin.count:,} of its {begin.of:,} elements. {fix}"
        )
    if reading.shuffles(given):
        return ""
    return (
        f"input_fn's dataset has no end, or one too far away to find in {reading.SECONDS:.0f} s: each worker begins at "
        f"one of its first {begin.count:,} elements. Add .shuffle(n), or, where it has n elements, "
        ".apply(tf.data.experimental.assert_cardinality(n))."
    )


def _check_size(given: Any, mode: str) -> int:
    """How many elements it has, as `Pipeline.elements`. Raises TrainingError where it has none."""
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
        return TrainingError(f"input_fn gives no example for the mode {mode!r}")
    what = f"input_fn gives no example for the mode {mode!r}: there are fewer than one batch of {dropped}"
    return TrainingError(what, fix="Leave drop_remainder=True out.")


def _refuse_unknown(shapes: Mapping[str, Any], names: Mapping[str, str]) -> None:
    """Raise TrainingError for a value of which it is not even known how many dimensions it has."""
    if unknown := [names[key] for key, shape in shapes.items() if shape.rank is None]:
        what = (
            f"input_fn: its dataset gives {unknown[0]!r} of an unknown shape, as py_function does"
        )
        raise TrainingError(what, fix="Say it in a map: tf.ensure_shape(x, [28, 28]).")


def _declared(dataset: Any, shapes: Mapping[str, Any], batch: int | None) -> int:
    """The mini-batch of a set that is batched already, which must be the one that the cell names,
    if it does.
    """
    size = next(iter(shapes.values()))[0] or reading.batch_size(dataset)
    if (size or batch) is None:
        size = reading.first_batch_size(dataset)
    if (size or batch) is None:
        what = "input_fn's dataset is batched, and it is not known how large its batches are"
        raise DeclarationError(what, fix="Say batch_size = N in the cell.")
    if size and batch and size != batch:
        what = f"the cell says batch_size = {batch}, and input_fn's dataset has batches of {size}"
        raise DeclarationError(what, fix="Leave one of the two out.")
    return int(size or batch or 0)


def _as_arrays(example: tuple[Any, ...], layout: Layout | None = None) -> dict[str, Any]:
    """The arrays of an example's values by their keys. Raises TrainingError where they are none, or
    do not fit.
    """
    arrays = tuple(
        mapped(lambda path, value, part=part: as_array(part, path, value), value)
        for part, value in zip(PARTS, example, strict=False)
    )
    layout = layout or Layout(example)
    found = layout.flat(*arrays)
    checked_lengths(found, layout.names)
    return found


def _in_parts(given: tuple[Any, ...]) -> tuple[Any, ...]:
    """An answer of arrays. A list of arrays is several inputs if they have an entry for each
    example.
    """
    known = [
        len(value)
        for part in given
        for _, value in leaves(
            part if not isinstance(part, tuple) or hasattr(part, "_fields") else None
        )
        if len(getattr(value, "shape", ()))
    ]

    def arranged(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: arranged(each) for key, each in value.items()}
        if not isinstance(value, list | tuple):
            return value
        if hasattr(value, "_fields"):
            return type(value)(*map(arranged, value))
        inner = list(map(arranged, value))
        if inner and all(map(is_input, inner)):
            return tuple(inner)
        return list(value)

    def is_input(value: Any) -> bool:
        if isinstance(value, Mapping | tuple):
            return True
        return bool(len(getattr(value, "shape", ()))) and (not known or len(value) == known[0])

    return tuple(map(arranged, given))


# What input_fn may return, and what is said of everything else: one table, with a sentence for each
# kind.
#
# It may return (features, labels) or (features, labels, weights), each of them an array, or a
# structure of arrays, or a tf.data.Dataset of such examples.


def wrong(what: str, fix: str = _RETURN) -> TrainingError:
    """The error for an answer as a whole."""
    return TrainingError(f"input_fn returns features and labels, but {what}", fix=fix)


def checked_parts(given: Any) -> tuple[Any, ...]:
    """The parts of an answer that is no dataset. Raises TrainingError."""
    if isinstance(given, tuple) and not is_named(given):
        if len(given) not in (2, 3):
            raise wrong(f"it gave {len(given)} parts")
        for part, structure in zip(PARTS, given, strict=False):
            for path, value in leaves(structure):
                refuse(part, path, value)
        return given
    if found := _called(given, _WHOLE):
        raise wrong(f"it gave {found[0]}", found[1])
    if isinstance(given, Iterator):
        raise wrong("it gave an iterator", _WRAP)
    if isinstance(given, Mapping):
        raise wrong("it gave a dict: features alone, or both without their order")
    if hasattr(given, "shape"):
        raise wrong("it gave one array or tensor")
    raise wrong(f"it gave {type(given).__name__}")


def checked_spec(spec: Any) -> tuple[Any, ...]:
    """The parts of a dataset's element by its `element_spec`. Raises TrainingError."""
    if not isinstance(spec, tuple) or is_named(spec) or len(spec) not in (2, 3):
        raise wrong(
            f"its dataset's examples have {len(spec) if isinstance(spec, tuple) else 1} parts"
        )
    for part, structure in zip(PARTS, spec, strict=False):
        for path, value in leaves(structure):
            refuse(part, path, value, "its dataset gives")
    return spec


def refuse(part: str, path: tuple[Any, ...], value: Any, gives: str = "it gives") -> None:
    """Raise TrainingError for a value that cannot be trained on, whatever its size."""
    if found := _called(value, _LEAVES):
        name = name_of(part, path)
        raise TrainingError(f"input_fn: {gives} {name!r} as {found[0]}", fix=found[1])


def as_array(part: str, path: tuple[Any, ...], value: Any) -> Any:
    """One value of an answer as an array of numbers or texts, with 32 bits where NumPy's default
    has 64.

    Raises TrainingError.
    """
    import numpy

    refuse(part, path, value)
    name = name_of(part, path)
    try:
        array = numpy.asarray(value)
    except ValueError as error:
        if "inhomogeneous" not in str(error):
            raise
        raise _of(
            name, "lists of different lengths", "Fill them up: keras.utils.pad_sequences(lists)."
        ) from error
    if array.dtype == object:
        raise _of(
            name,
            _objects(value, array),
            "Turn it into numbers: codes of categories, astype('float32').",
        )
    if found := _KINDS.get(array.dtype.kind):
        raise _of(name, *found)
    if not array.ndim:
        raise _of(
            name,
            f"a single value of the type {array.dtype}",
            "Give an array with an entry for each example.",
        )
    if array.dtype == numpy.float64:
        return array.astype(numpy.float32)
    return array


def checked_lengths(arrays: Mapping[str, Any], names: Mapping[str, str]) -> None:
    """Raise TrainingError unless all arrays have an entry for each example, and there is one
    example.
    """
    labels = next(key for key in arrays if key.startswith("label"))
    for key, array in arrays.items():
        if len(array) != len(arrays[labels]):
            raise TrainingError(
                f"input_fn gave {names[key]!r} with the shape {array.shape} and labels with {arrays[labels].shape}",
                fix="Every array needs one entry for each example.",
            )
    if not len(arrays[labels]):
        raise TrainingError(
            "input_fn gave arrays without an example", fix="Every array needs one entry at least."
        )


def _of(name: str, what: str, fix: str) -> TrainingError:
    return TrainingError(f"input_fn: it gives {name!r} as {what}", fix=fix)


def _called(value: Any, table: tuple[tuple[str, str, str], ...]) -> tuple[str, str] | None:
    """What the table says of a value, by the name of its class: these modules are not imported for
    it.
    """
    names = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(value).__mro__}
    if "tensorflow.python.framework.tensor.Tensor" in names and hasattr(value, "numpy"):
        return None  # it was computed already
    return next(((called, fix) for name, called, fix in table if name in names), None)


def _objects(value: Any, array: Any) -> str:
    """An array of Python's objects, in words; of a DataFrame, its first column that is no numbers."""
    for column, kind in (
        getattr(value, "dtypes", {}).items() if getattr(value, "ndim", 0) == 2 else ()
    ):
        if getattr(kind, "kind", "O") not in "biuf":
            return f"a table whose column {column!r} has the type {kind}"
    kinds = sorted({type(each).__name__ for each in array.ravel()[:1000].tolist()})
    return f"an array of the type object (of {', '.join(kinds[:3]) or 'nothing'})"


# Tensors that the cell computed when it ran, as constants of the graphs that use them.
#
# A table of class weights, say, which a loss multiplies with. TensorFlow takes such tensors into
# the graphs of its functions only. Variables outside of the model cannot be had: no parameter
# server knows them.


def refused_captures() -> int:
    """How often a graph was refused what exists outside of graphs only. Datasets can then be made
    outside of them.
    """
    return _refused


def keep_as_constants() -> None:
    """Let graphs take in what was computed outside of them. Variables raise DeclarationError. Once
    per process.
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
                "a variable (or another object) outside of the model is used in it",
                fix="Make it a weight of the model, with a layer's add_weight, or a constant.",
            )
        if dtype is not None and not dtype.is_compatible_with(self.dtype):
            raise ValueError(
                f"a tensor of {self.dtype.name} was computed where {dtype.name} is needed"
            )
        return self._capture_as_const(name)

    eager.__tf_tensor__ = __tf_tensor__
