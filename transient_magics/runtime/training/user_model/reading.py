"""Where in a dataset a worker begins to read, and whether the dataset gives examples or batches.

Each time that a worker begins, it begins at a place that is drawn then: otherwise all workers would
read the same examples beside each other, and one that lives for minutes would never reach the last
ones. So that nothing is computed for the examples that are passed over, the place is one of the
dataset's source, below what only maps, filters, batches or shuffles it. How many elements a source
has is counted where it does not know it, for a few seconds at most.

A dataset that was made outside of the graph, at the top of the cell, is read there and handed over
by a generator.
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
"""How long it takes at most to count a dataset, and so to pass over a part of it."""
_BLOCK = 64
"""Single examples that are handed over together: each time takes a call of Python's."""
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
"""Transformations of a dataset that do with it what they did, wherever it begins."""
_ZIP = "_ZipDataset"
_QUICK = frozenset(("_RangeDataset", "_TensorSliceDataset"))
"""Sources that pass over elements without computing them."""

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
"""Transformations behind which it does not matter whether there were batches."""


@dataclass(frozen=True)
class Begin:
    """The place at which reading begins is drawn among `count` elements of the source `depth`
    levels below.

    `partial`: there are more of them, which could not be counted in time; `of`: how many there are,
    if that is known. `zipped`: the source is several that are zipped, each of which is turned.
    """

    depth: int
    count: int
    partial: bool = False
    of: int = 0
    zipped: bool = False


def is_eager(dataset: Any) -> bool:
    """Whether it was made outside of the graph."""
    return hasattr(_bare(dataset)._variant_tensor, "numpy")


def begin_of(dataset: Any) -> Begin:
    """Find out where reading may begin; it may take some seconds. Of a dataset in a graph, that
    graph is used up.
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
        elif _kind(node) in _ONE_TO_ONE:  # assert_cardinality says more than what lies below it
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
    """The same of a dataset that can only be read from its top. Of one without end, from what it
    repeats.
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
    return Begin(0, count, begin.partial, begin.of)


def _counted(source: Any, depth: int, count: int, asserted: bool) -> Begin:
    """`count`: what is known of the source's elements, by itself or because the user has `asserted`
    it.
    """
    if count >= 0 and (asserted or _kind(source) in _QUICK):
        return Begin(depth, count)
    counted, _, ended = counted_in(source, SECONDS)
    return Begin(depth, counted, not ended, 0 if ended else max(count, 0))


def begun(dataset: Any, begin: Begin) -> Any:
    """The dataset of the default graph from a place that is drawn when an iterator starts, once
    through.
    """
    tf = tensorflow()
    place = tf.random_uniform([], maxval=max(begin.count, 1), dtype=tf.int64)
    if is_eager(dataset):
        return handed_over(dataset, place)
    chain = _chain(dataset)[: begin.depth + 1]
    if begin.zipped:
        for number, parts in enumerate(_zipped(chain[-1])):
            if len(parts) > 1:
                reader = parts[-2]
                place_there = 0
            else:
                reader = chain[-1]
                place_there = number
            _read_instead(reader, place_there, _turned(parts[-1], place))
        return dataset
    turned = _turned(chain[-1], place)
    if not begin.depth:
        return turned
    _read_instead(chain[-2], 0, turned)
    return dataset


def _read_instead(reader: Any, number: int, dataset: Any) -> None:
    """Let a dataset of a graph, which is an operation of it, read another one."""
    reader._variant_tensor.op._update_input(number, dataset._variant_tensor)


def _zipped(dataset: Any) -> list[list[Any]]:
    """Of each dataset that is zipped, what lies below it as far as elements correspond to each
    other.
    """
    return [_chain(part, _ONE_TO_ONE) for part in dataset._inputs()]


def _turned(source: Any, place: Any) -> Any:
    """What comes from `place` on, and then what comes before it; `concatenate` fails with some
    mixed datasets.
    """
    modern = importlib.import_module("tensorflow")
    as_it_is = modern.autograph.experimental.do_not_convert
    zero = modern.constant(0, "int64")
    rest = modern.constant(-1, "int64")
    parts = modern.data.Dataset.from_tensor_slices(
        (modern.stack([place, zero]), modern.stack([rest, place]))
    )
    return parts.flat_map(as_it_is(lambda skipped, taken: source.skip(skipped).take(taken)))


def handed_over(dataset: Any, place: Any = None) -> Any:
    """A dataset made elsewhere as one of the default graph; with `place`, from there on and again
    without end.
    """
    modern = importlib.import_module("tensorflow")
    spec = dataset.element_spec
    known = all(part.shape.is_fully_defined() for part in modern.nest.flatten(spec))
    joined = known and not any(_kind(node) in BATCHING for node in _chain(dataset))
    with _where_made(dataset):
        if joined:
            source = dataset.batch(_BLOCK)
        else:
            source = dataset

    def read(begin: Any) -> Iterator[Any]:
        first = dataset.skip(int(begin))
        yield from first.batch(_BLOCK) if joined else first
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
    """How many elements it has, as far as they come in time, how many `rows` these have, and
    whether those are all.
    """
    modern = importlib.import_module("tensorflow")
    as_it_is = modern.autograph.experimental.do_not_convert
    began = time.monotonic()
    until = time.time() + seconds
    with _where_made(dataset):
        within = dataset.take_while(as_it_is(lambda *_: modern.timestamp() < until))
        one = modern.constant(1, "int64")

        def added(counts: Any, *element: Any) -> Any:
            return counts + modern.stack([one, rows(*element) if rows else one])

        elements, examples = _value(
            within.reduce(modern.constant([0, 0], "int64"), as_it_is(added))
        )
    return int(elements), int(examples), time.monotonic() - began < seconds


def size_of(dataset: Any) -> int:
    """How many elements it knows that it has; ENDLESS or UNKNOWN where it has no end, or does not
    know.
    """
    with _where_made(dataset):
        return int(_value(dataset.cardinality()))


def first_batch_size(dataset: Any) -> int | None:
    """Return the size of the first batch of a dataset made outside of the graph; else None."""
    if not is_eager(dataset):
        return None
    modern = importlib.import_module("tensorflow")
    with _where_made(dataset):
        for element in dataset.take(1):
            return int(modern.shape(modern.nest.flatten(element)[0])[0])
    return None


def shuffles(dataset: Any) -> bool:
    """Whether its order is drawn by itself."""
    return any(_kind(node) == "_ShuffleDataset" for node in _chain(dataset))


def drops_remainder(dataset: Any) -> int | None:
    """The size of the batches of which it drops an incomplete one; None where it does not."""
    for node in _chain(dataset):
        dropped = getattr(node, "_drop_remainder", None)
        if dropped is not None and tensorflow().get_static_value(dropped):
            return batch_size(node)
    return None


def _chain(dataset: Any, passed: frozenset[str] = _ALIKE) -> list[Any]:
    """The dataset, and what lies below it until its source."""
    chain = [_bare(dataset)]
    while _kind(chain[-1]) in passed:
        chain.append(_bare(chain[-1]._inputs()[0]))
    return chain


def _where_made(dataset: Any) -> AbstractContextManager[Any]:
    from tensorflow.python.eager import context

    if is_eager(dataset):
        return context.eager_mode()
    return nullcontext()


def _bare(dataset: Any) -> Any:
    return getattr(dataset, "_dataset", dataset)  # what TensorFlow 1 wraps them in


def _kind(dataset: Any) -> str:
    return type(_bare(dataset)).__name__


def _value(tensor: Any) -> Any:
    """The value of a tensor, of a graph or outside of one."""
    if hasattr(tensor, "numpy"):
        return tensor.numpy()
    tf = tensorflow()
    with tf.Session(graph=tensor.graph, config=tf.ConfigProto(device_count={"GPU": 0})) as session:
        return session.run(tensor)


# Whether a tf.data.Dataset gives single examples, as input_fn is asked for, or batches, as
# `model.fit` takes them.
#
# Batches are taken as they are. What is what, the model's inputs tell, where the model begins with
# a keras.Input. Where they do not, a set that anything in its making has batched is refused:
# `.batch` also makes one long example of many short ones, and whoever guesses wrong trains on
# batches of batches.


def is_batched(dataset: Any, shapes: Sequence[Any], inputs: Sequence[Sequence[int | None]]) -> bool:
    """Whether what `dataset` gives are batches, judged by its features' `shapes` and those of the
    model's `inputs`.

    The inputs' first dimension is the batch; of an unknown model there are none. Raises
    DeclarationError where it cannot be told.
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
        f"input_fn's dataset is batched (.{name}({size or ''})), and the model does not say what one example is",
        fix=f"Leave .{name} out and say batch_size = {size or 'N'} in the cell, or begin the model with keras.Input.",
    )


def batch_size(dataset: Any) -> int | None:
    """How many examples its batches have; None where that is not known."""
    size = getattr(_batching(dataset), "_batch_size", None)
    if size is not None:
        known = tensorflow().get_static_value(size)
    else:
        known = None
    if known is not None:
        return int(known)
    return None


def _fit(shapes: Sequence[Any], inputs: Sequence[Sequence[int | None]], skipped: int) -> bool:
    """Whether the features, without so many first dimensions, may be what one example is for the
    model.
    """
    tf = tensorflow()
    if len(shapes) != len(inputs) or any(
        shape.rank is None or shape.rank < skipped for shape in shapes
    ):
        return False
    if any(
        len(known) == 2 and known[1] == 1 and shape.rank < 2 for known in inputs for shape in shapes
    ):
        return False  # Keras takes a number for an array of one
    wanted = [tf.TensorShape(list(known[1:])) for known in inputs]
    there = [shape[skipped:] for shape in shapes]
    if len(wanted) == 1:
        return there[0].is_compatible_with(wanted[0])
    return sorted(shape.rank for shape in there) == sorted(shape.rank for shape in wanted)


def _batching(dataset: Any) -> Any:
    """The last transformation that made batches, if there is one whose batches have not been taken
    apart since.
    """
    return next(_makers(dataset), None)


def _makers(dataset: Any) -> Iterator[Any]:
    dataset = getattr(dataset, "_dataset", dataset)  # what TensorFlow 1 wraps them in
    if (kind := type(dataset).__name__) in BATCHING:
        yield dataset
    elif kind not in _REGROUPING:
        # Of datasets that are mixed, the first input says which one comes next.
        for given in dataset._inputs()[kind == "_DirectedInterleaveDataset" :]:
            yield from _makers(given)
