"""The place in a dataset at which a worker begins to read, and whether a dataset has batches.

Each worker begins at a random place, and at another one after each start. Otherwise all workers
would read the same examples at the same time, and a worker that lives for minutes would never reach
the last ones. Examples before that place should cost nothing, so the place is one of the dataset's
source, below all transformations that only map, filter, batch or shuffle. A source that does not
know its number of elements is counted, for a few seconds at most.

A dataset that was made outside of the graph, at the top of the cell, is read there, and a generator
passes its elements on.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from ....errors import DeclarationError
from ...tf.graph_mode import tensorflow

SECONDS = 3.0
"""Longest time to count a dataset, and therefore to skip a part of it."""
_BLOCK = 64
"""Single examples that are passed on together: each transfer is a call of Python."""
ENDLESS = -1
UNKNOWN = -2
_ONE_TO_ONE = frozenset(
    (
        "_AssertCardinalityDataset",
        "_MapDataset",
        "_OptionsDataset",
        "_ParallelMapDataset",
        "_PrefetchDataset",
        "_ShuffleDataset",
    )
)
_BATCHING = frozenset(("_BatchDataset", "_PaddedBatchDataset", "_ParallelBatchDataset"))
_ALIKE = _ONE_TO_ONE | _BATCHING | {"_FilterDataset", "_RepeatDataset", "_UnbatchDataset"}
"""Transformations whose effect does not depend on where their input begins."""
_ZIP = "_ZipDataset"
_QUICK = frozenset(("_RangeDataset", "_TensorSliceDataset"))
"""Sources that skip elements without computing them."""

BATCHING = (
    "_BatchDataset",
    "_ParallelBatchDataset",
    "_PaddedBatchDataset",
    "_DenseToRaggedDataset",
    "_DenseToSparseBatchDataset",
    "_RebatchDataset",
    "_GroupByWindowDataset",
)
_REGROUPING = (
    "_UnbatchDataset",
    "_FlatMapDataset",
    "_InterleaveDataset",
    "_ParallelInterleaveDataset",
)
"""Transformations that hide whether their input was batched."""


@dataclass(frozen=True)
class Begin:
    """The range in which the first element is drawn.

    Attributes
    ----------
    depth
        Levels between the dataset and the source in which the place is drawn.
    count
        Number of elements among which the place is drawn.
    partial
        Whether the source has more elements than could be counted in time.
    total
        The number of all elements if `partial`; 0 if it is unknown.
    zipped
        Whether the source zips several datasets, each of which has to begin at the place.
    """

    depth: int
    count: int
    partial: bool = False
    total: int = 0
    zipped: bool = False


def is_eager(dataset: Any) -> bool:
    """Return whether the dataset was made outside of the graph."""
    return hasattr(_bare(dataset)._variant_tensor, "numpy")


def begin_of(dataset: Any) -> Begin:
    """Find the range in which reading may begin; this may take some seconds.

    Adds operations to the graph of a dataset that is not eager: do not use that graph afterwards.
    """
    chain = _chain(dataset)
    if is_eager(dataset):
        return _begin_at_top(chain)
    counts = [size_of(node) for node in chain]
    depth = 0
    count = counts[0]
    asserted = False
    for node, below in zip(chain, counts[1:], strict=False):
        if below != UNKNOWN or count < 0:
            count = below
        elif _kind(node) in _ONE_TO_ONE:  # assert_cardinality knows more than its input
            asserted = True
        elif _kind(node) in _BATCHING and (size := batch_size(node)):
            count = count * size
            asserted = True
        else:
            break
        depth += 1
    if _kind(chain[depth]) == _ZIP and all(
        _kind(parts[-1]) in _QUICK and {size_of(part) for part in parts} == {count}
        for parts in _zipped(chain[depth])
    ):
        return Begin(depth, count, zipped=True)
    return _counted(chain[depth], depth, count, asserted)


def _begin_at_top(chain: list[Any]) -> Begin:
    """Return the range for a dataset that can be read only from its top.

    An endless dataset counts as what it repeats.
    """
    depth = 0
    counts = [size_of(node) for node in chain]
    while counts[depth] == ENDLESS and depth + 1 < len(chain):
        depth += 1
    asserted = any(_kind(node) == "_AssertCardinalityDataset" for node in chain)
    begin = _counted(chain[depth], depth, counts[depth], asserted)
    count = begin.count
    for node in chain[:depth]:
        if _kind(node) in _BATCHING:
            count = -(-count // (batch_size(node) or 1))
    return Begin(0, count, begin.partial, begin.total)


def _counted(source: Any, depth: int, count: int, asserted: bool) -> Begin:
    """Count a source unless its number of elements is certain.

    `count` is the number that the source reports, or that the user has `asserted`.
    """
    if count >= 0 and (asserted or _kind(source) in _QUICK):
        return Begin(depth, count)
    counted, _, ended = counted_in(source, SECONDS)
    if ended:
        return Begin(depth, counted)
    # The first element alone may take longer, as where a large buffer is shuffled.
    return Begin(depth, max(counted, 1), partial=True, total=max(count, 0))


def begun(dataset: Any, begin: Begin) -> Any:
    """Return the dataset of the default graph once through, from a random place per iterator."""
    tf = tensorflow()
    place = tf.random_uniform([], maxval=max(begin.count, 1), dtype=tf.int64)
    if is_eager(dataset):
        return handed_over(dataset, place)
    chain = _chain(dataset)[: begin.depth + 1]
    if begin.zipped:
        for number, parts in enumerate(_zipped(chain[-1])):
            if len(parts) > 1:
                reader = parts[-2]
                position = 0
            else:
                reader = chain[-1]
                position = number
            _replace_input(reader, position, _rotated(parts[-1], place))
        return dataset
    rotated = _rotated(chain[-1], place)
    if not begin.depth:
        return rotated
    _replace_input(chain[-2], 0, rotated)
    return dataset


def _replace_input(reader: Any, number: int, dataset: Any) -> None:
    """Replace the input of a graph's dataset, which is an operation of the graph."""
    reader._variant_tensor.op._update_input(number, dataset._variant_tensor)


def _zipped(dataset: Any) -> list[list[Any]]:
    """Return for each zipped dataset its chain of inputs as far as elements correspond."""
    return [_chain(part, _ONE_TO_ONE) for part in dataset._inputs()]


def _rotated(source: Any, place: Any) -> Any:
    """Return the elements from `place` on, followed by those before it.

    `concatenate` fails with some mixed datasets.
    """
    modern = importlib.import_module("tensorflow")
    as_it_is = modern.autograph.experimental.do_not_convert
    zero = modern.constant(0, "int64")
    rest = modern.constant(-1, "int64")
    parts = modern.data.Dataset.from_tensor_slices(
        (modern.stack([place, zero]), modern.stack([rest, place]))
    )
    return parts.flat_map(as_it_is(lambda skipped, count: source.skip(skipped).take(count)))


def handed_over(dataset: Any, place: Any = None) -> Any:
    """Return an eager dataset as one of the default graph.

    With `place` it begins there, and repeats without end.
    """
    modern = importlib.import_module("tensorflow")
    spec = dataset.element_spec
    same_shapes = all(part.shape.is_fully_defined() for part in modern.nest.flatten(spec))
    joined = same_shapes and not any(_kind(node) in BATCHING for node in _chain(dataset))
    with _where_made(dataset):
        if joined:
            source = dataset.batch(_BLOCK)
        else:
            source = dataset

    def read(begin: Any) -> Iterator[Any]:
        rest = dataset.skip(int(begin))
        if joined:
            rest = rest.batch(_BLOCK)
        yield from rest
        while place is not None:
            empty = True
            for element in source:
                empty = False
                yield element
            if empty:
                return

    if place is None:
        begin = tensorflow().constant(0, "int64")
    else:
        begin = place
    given = modern.data.Dataset.from_generator(
        read, args=(begin,), output_signature=source.element_spec
    )
    if joined:
        return given.unbatch()
    return given


def counted_in(
    dataset: Any, seconds: float, rows: Callable[..., Any] | None = None
) -> tuple[int, int, bool]:
    """Count the elements of a dataset for at most `seconds`.

    Returns
    -------
    tuple of int, int, bool
        Elements, the sum of their `rows` (without `rows`, elements again), and whether the dataset
        ended.
    """
    modern = importlib.import_module("tensorflow")
    as_it_is = modern.autograph.experimental.do_not_convert
    began = time.monotonic()
    until = time.time() + seconds
    with _where_made(dataset):
        within = dataset.take_while(as_it_is(lambda *_: modern.timestamp() < until))
        one = modern.constant(1, "int64")

        def added(counts: Any, *element: Any) -> Any:
            examples = rows(*element) if rows else one
            return counts + modern.stack([one, examples])

        elements, examples = _value(
            within.reduce(modern.constant([0, 0], "int64"), as_it_is(added))
        )
    return int(elements), int(examples), time.monotonic() - began < seconds


def size_of(dataset: Any) -> int:
    """Return the number of elements that a dataset reports; else ENDLESS or UNKNOWN."""
    with _where_made(dataset):
        return int(_value(dataset.cardinality()))


def is_dataset(value: Any) -> bool:
    """Return whether a value is a tf.data.Dataset."""
    return isinstance(value, importlib.import_module("tensorflow").data.Dataset)


def first_element(dataset: Any) -> Any:
    """Return the first element of a dataset made outside of the graph; else None."""
    if not is_eager(dataset):
        return None
    with _where_made(dataset):
        return next(iter(dataset.take(1)), None)


def first_batch_size(dataset: Any) -> int | None:
    """Return the size of the first batch of a dataset made outside of the graph; else None."""
    element = first_element(dataset)
    if element is None:
        return None
    return int(importlib.import_module("tensorflow").nest.flatten(element)[0].shape[0])


def shuffles(dataset: Any) -> bool:
    """Return whether the dataset shuffles its elements."""
    return any(_kind(node) == "_ShuffleDataset" for node in _chain(dataset))


def drops_remainder(dataset: Any) -> int | None:
    """Return the size of the batches whose incomplete last one is dropped; else None."""
    for node in _chain(dataset):
        dropped = getattr(node, "_drop_remainder", None)
        if dropped is not None and tensorflow().get_static_value(dropped):
            return batch_size(node)
    return None


def _chain(dataset: Any, passed: frozenset[str] = _ALIKE) -> list[Any]:
    """Return the dataset and its inputs down to its source."""
    chain = [_bare(dataset)]
    while _kind(chain[-1]) in passed:
        chain.append(_bare(chain[-1]._inputs()[0]))
    return chain


def _where_made(dataset: Any) -> AbstractContextManager[Any]:
    """Return a context in which the dataset's methods work: eager mode, or the graph."""
    from tensorflow.python.eager import context

    if is_eager(dataset):
        return context.eager_mode()
    return nullcontext()


def _bare(dataset: Any) -> Any:
    """Return the dataset without the wrapper of TensorFlow 1."""
    return getattr(dataset, "_dataset", dataset)


def _kind(dataset: Any) -> str:
    return type(_bare(dataset)).__name__


def _value(tensor: Any) -> Any:
    """Return the value of a tensor, eager or of a graph."""
    if hasattr(tensor, "numpy"):
        return tensor.numpy()
    tf = tensorflow()
    with tf.Session(graph=tensor.graph, config=tf.ConfigProto(device_count={"GPU": 0})) as session:
        return session.run(tensor)


# Whether a tf.data.Dataset has single examples, as input_fn should return them, or batches, as for
# `model.fit`. Batches are used as they are.
#
# The inputs of a model that begins with a keras.Input decide. Without them, a dataset with any
# batching transformation is refused: `.batch` also makes one long example of many short ones, and a
# wrong guess would train on batches of batches.


def is_batched(dataset: Any, shapes: Sequence[Any], inputs: Sequence[Sequence[int | None]]) -> bool:
    """Return whether the elements of `dataset` are batches.

    Parameters
    ----------
    dataset
        A tf.data.Dataset.
    shapes
        Shapes of its features.
    inputs
        Shapes of the model's inputs, batch dimension first; empty if they are unknown.

    Raises
    ------
    DeclarationError
        If neither the shapes nor the dataset's transformations decide.
    """
    single = _fit(shapes, inputs, 0)
    whole = _fit(shapes, inputs, 1)
    if single != whole:
        return whole
    if (maker := _batching(dataset)) is None:
        return False
    size = batch_size(dataset)
    if "Padded" in type(maker).__name__:
        name = "padded_batch"
    else:
        name = "batch"
    raise DeclarationError(
        f"input_fn's dataset is batched (.{name}({size or ''})), and the model has no input shape "
        "to compare it with",
        fix=f"Remove .{name} and set batch_size = {size or 'N'} in the cell, "
        "or begin the model with keras.Input.",
    )


def batch_size(dataset: Any) -> int | None:
    """Return the batch size of a dataset, or None if it is unknown."""
    size = getattr(_batching(dataset), "_batch_size", None)
    if size is None:
        return None
    static = tensorflow().get_static_value(size)
    if static is None:
        return None
    return int(static)


def _fit(shapes: Sequence[Any], inputs: Sequence[Sequence[int | None]], skipped: int) -> bool:
    """Return whether shapes without `skipped` first dimensions fit the model's inputs."""
    tf = tensorflow()
    if len(shapes) != len(inputs) or any(
        shape.rank is None or shape.rank < skipped for shape in shapes
    ):
        return False
    if any(
        len(shape) == 2 and shape[1] == 1 and feature.rank < 2
        for shape in inputs
        for feature in shapes
    ):
        return False  # Keras accepts a number as an array of one
    expected = [tf.TensorShape(list(shape[1:])) for shape in inputs]
    actual = [shape[skipped:] for shape in shapes]
    if len(expected) == 1:
        return actual[0].is_compatible_with(expected[0])
    return sorted(shape.rank for shape in actual) == sorted(shape.rank for shape in expected)


def _batching(dataset: Any) -> Any:
    """Return the last transformation that made batches, or None if they were taken apart since."""
    return next(_makers(dataset), None)


def _makers(dataset: Any) -> Iterator[Any]:
    dataset = _bare(dataset)
    if (kind := type(dataset).__name__) in BATCHING:
        yield dataset
    elif kind not in _REGROUPING:
        # The first input of a mixed dataset only selects the next dataset.
        for given in dataset._inputs()[kind == "_DirectedInterleaveDataset" :]:
            yield from _makers(given)
