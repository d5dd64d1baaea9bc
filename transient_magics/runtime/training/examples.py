"""A worker's examples: from the pipeline of a model to the features of a step.

Single examples wait in a queue of TensorFlow, so that a step can take any number of them. Batches
that the pipeline makes itself (text, by length) are queued unchanged, or, for uneven mini-batches,
regrouped and fed. A thread of this module fills them. TensorFlow's QueueRunner would close the
queue when a session is lost; here another thread continues in the next session.

Records in blocks are read chunk by chunk. The pipeline starts again for each chunk, so everything
that it buffers (shuffled, sorted by length) has left it at the end of the chunk. A chunk is used
when steps have processed its last example in the queue.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy

from ...errors import DeclarationError, TransientError
from ..tf import placement
from ..tf.graph_mode import tensorflow
from .batching import LARGEST
from .trainable import Pipeline

_BLOCK = 4
"""Mini-batches that are added to the queue at once.

Every call into TensorFlow competes with the step (4 % of 25 ms).
"""
_PAUSE = 0.5
_LOST_WITHIN = 15.0
"""Seconds until the step has also noticed a lost session."""

_DATASET = "examples"
_PYTHON = ("PyFunc", "PyFuncStateless", "EagerPyFunc")

Batch = Mapping[str, Any]
"""Arrays by feature, with one row per example; a number belongs to the whole batch."""
AHEAD = 4
"""Number of mini-batches that are kept ready."""


class Chunk(Protocol):
    """Records that are read together."""

    @property
    def paths(self) -> Sequence[str]:
        """The files of the records."""
        ...


class Chunks(Protocol):
    """The source of a pipeline's chunks (worker/blocks.py)."""

    def expect(self, examples: int) -> None:
        """Note that a step takes this number of examples."""
        ...

    def next(self, wait: float, ended: threading.Event) -> Any:
        """Return the next chunk; None if there is none within `wait` seconds, or `ended` is set."""
        ...

    def used(self, chunk: Any) -> None:
        """Note that steps have processed all examples of this chunk."""
        ...

    def rewind(self) -> None:
        """Return unused chunks again, because the session is lost."""
        ...


@dataclass(frozen=True)
class Source:
    """The tensors and operations with which a graph reads its examples.

    Attributes
    ----------
    features
        Features of a step; placeholders for regrouped batches, which have no queue.
    batch
        The declared mini-batch.
    begin, feeds
        The initializer of the iterator, and its feeds.
    values
        The iterator's next element.
    enqueue, close, left
        Operations of the queue, and the number of its elements.
    requested
        Placeholder of the number of examples that a step takes, if the queue has single examples.
    files, count
        For records in blocks: placeholder of a chunk's files, and number of examples per enqueue.
    """

    features: Mapping[str, Any]
    batch: int
    begin: Any
    values: Mapping[str, Any]
    enqueue: Any = None
    close: Any = None
    requested: Any = None
    feeds: Mapping[Any, Any] = field(default_factory=dict)
    files: Any = None
    count: Any = None
    left: Any = None


def iterator_of(dataset: Any) -> Any:
    """Return an iterator for a session, without TensorFlow's autotuning.

    The thread that tunes sleeps twice as long each time, up to a minute. Sometimes it misses the
    end of its iterator (it is woken before it can see the reason). Then the session cannot close
    until that sleep ends, and keeps a lock that the next session needs: one in six workers stood
    still for that time after a restart of their parameter server. AUTOTUNE then means as many
    parallel calls as there are cores.
    """
    tf = tensorflow()
    options = tf.data.Options()
    options.autotune.enabled = False
    return tf.data.make_initializable_iterator(dataset.with_options(options))


def source(pipeline: Pipeline, name: str, batch: int, uneven: bool) -> Source:
    """Return the source of a pipeline's examples in the default graph.

    Parameters
    ----------
    pipeline
        The pipeline.
    name
        Shared name of the queue; only one queue may have it.
    batch
        The declared mini-batch.
    uneven
        Whether batches are regrouped to mini-batches of other sizes.
    """
    dataset = pipeline.dataset
    if not (pipeline.batched or pipeline.grouped):
        # Each example of a chunk is read once, so the dataset must not begin twice.
        if pipeline.files is None:
            dataset = _in_blocks(dataset, batch)
        else:
            dataset = dataset.batch(batch)
    iterator = iterator_of(dataset)
    values = iterator.get_next()
    if pipeline.batched and uneven:
        return _fed_source(pipeline, batch, iterator, values)
    return _queued_source(pipeline, name, batch, iterator, values)


def _fed_source(pipeline: Pipeline, batch: int, iterator: Any, values: Any) -> Source:
    """Return a source without a queue, whose features are fed."""
    tf = tensorflow()
    placeholders = {
        name: tf.placeholder(pipeline.types[name], pipeline.shapes[name], name=name)
        for name in sorted(pipeline.types)
    }
    return Source(
        placeholders,
        batch,
        iterator.initializer,
        values,
        feeds=pipeline.feeds,
        files=pipeline.files,
    )


def _queued_source(
    pipeline: Pipeline, shared_name: str, batch: int, iterator: Any, values: Any
) -> Source:
    """Return a source with a queue of single examples, or of batches that the pipeline made."""
    tf = tensorflow()
    names = sorted(pipeline.types)
    types = [pipeline.types[name] for name in names]
    if pipeline.batched:
        shapes = None
        capacity = 4
    else:
        shapes = [pipeline.shapes[name] for name in names]
        capacity = max(2 * _BLOCK, LARGEST) * batch
    queue = tf.FIFOQueue(capacity, types, shapes, names=names, shared_name=shared_name)
    picked = {name: values[name] for name in names}
    close = queue.close(cancel_pending_enqueues=True)
    left = queue.size()
    count = None
    if pipeline.files is not None:
        if pipeline.batched:
            count = tf.constant(1)
        else:
            count = tf.shape(values[names[0]])[0]
    requested = None
    if pipeline.batched:
        enqueue = queue.enqueue(picked)
        features = dict(queue.dequeue())
        for name in names:
            features[name].set_shape(pipeline.shapes[name])
    else:
        enqueue = queue.enqueue_many(picked)
        requested = tf.placeholder_with_default(tf.constant(batch), [], name="batch_size")
        features = dict(queue.dequeue_many(requested))
    return Source(
        features,
        batch,
        iterator.initializer,
        values,
        enqueue,
        close,
        requested,
        feeds=pipeline.feeds,
        files=pipeline.files,
        count=count,
        left=left,
    )


class Examples:
    """The examples of a graph, across sessions."""

    def __init__(self, source: Source, chunks: Chunks | None = None) -> None:
        """Create the examples of a source.

        `chunks` are those of records in blocks.
        """
        self._source = source
        self._chunks = chunks if source.files is not None else None
        self._regrouped: Regrouped | None = None
        if source.enqueue is None:
            self._regrouped = Regrouped(source.batch)
        self._ended = threading.Event()
        self._stepped = 0
        self._thread: threading.Thread | None = None
        self.added_at = 0.0
        """Time of the last examples, by `time.monotonic`."""
        self.failure: BaseException | None = None
        """Why reading ended; steps then fail with OutOfRangeError, or with this error."""

    def start(self, session: Any) -> None:
        """Read in a new random order, until the session ends or `stop` is called."""
        if self._chunks is None:
            session.run(self._source.begin, dict(self._source.feeds))
        else:
            self._chunks.rewind()
        self.resume(session)

    def resume(self, session: Any) -> None:
        """Continue after `stop`, in the same session."""
        self._ended = threading.Event()
        fill = self._fill_queue
        if self._regrouped is not None:
            self._regrouped.resume()
            fill = self._regroup
        self._thread = threading.Thread(
            target=fill, args=(session, self._ended), daemon=True, name="examples"
        )
        self._thread.start()

    def stepped(self) -> None:
        """Note that a step ended, which processed all examples that had left the queue."""
        self._stepped += 1

    def stop(self) -> None:
        """Stop reading."""
        self._ended.set()

    @property
    def stopped(self) -> bool:
        """Whether reading has ended; after `stop` the current element is still read."""
        return self._thread is None or not self._thread.is_alive()

    def feeds(self, size: int) -> dict[Any, Any]:
        """Return the feeds of a step of `size` examples. Raises the error of the reading thread."""
        requested = self._source.requested
        if self._chunks is not None and requested is not None:
            self._chunks.expect(size)
        if self._regrouped is not None:
            batch = self._regrouped.take(size)
            return {placeholder: batch[name] for name, placeholder in self._source.features.items()}
        if requested is not None:
            return {requested: size}
        return {}

    def _fill_queue(self, session: Any, ended: threading.Event) -> None:
        errors = tensorflow().errors
        try:
            if self._chunks is not None:
                self._fill_by_chunks(session, ended, self._chunks)
                return
            call = session.make_callable(self._source.enqueue)
            while not ended.is_set():
                call()
                self.added_at = time.monotonic()
        except (errors.OpError, RuntimeError, TransientError) as error:
            if self._lost(error, ended):
                return
            self.failure = error
            # A lost session has no queue, and its step has ended as well.
            with contextlib.suppress(errors.OpError, RuntimeError):
                session.run(self._source.close)

    def _fill_by_chunks(self, session: Any, ended: threading.Event, chunks: Chunks) -> None:
        source = self._source
        left = session.make_callable(source.left)
        add = session.make_callable([source.enqueue, source.count])
        queued = _Queued(chunks, int(left()))
        while not ended.is_set():
            if (chunk := chunks.next(_PAUSE, ended)) is None:
                queued.update(int(left()), self._stepped)
                continue
            session.run(source.begin, {**source.feeds, source.files: list(chunk.paths)})
            with contextlib.suppress(tensorflow().errors.OutOfRangeError):  # the chunk's end
                while not ended.is_set():
                    queued.added += int(add()[1])
                    queued.update(int(left()), self._stepped)
            if not ended.is_set():
                queued.end_of(chunk)

    def _regroup(self, session: Any, ended: threading.Event) -> None:
        assert self._regrouped is not None
        call = session.make_callable(dict(self._source.values))
        errors = tensorflow().errors

        def take_all() -> None:
            assert self._regrouped is not None
            while not ended.is_set():
                batch = call()
                self.added_at = time.monotonic()
                while not ended.is_set() and not self._regrouped.add(batch, _PAUSE):
                    pass

        try:
            if self._chunks is None:
                take_all()
                return
            queued = _Queued(self._chunks, self._regrouped.left)
            while not ended.is_set():
                queued.update(self._regrouped.left, self._stepped)
                if (chunk := self._chunks.next(_PAUSE, ended)) is None:
                    continue
                session.run(
                    self._source.begin,
                    {**self._source.feeds, self._source.files: list(chunk.paths)},
                )
                before = self._regrouped.added
                with contextlib.suppress(errors.OutOfRangeError):
                    take_all()
                queued.added += self._regrouped.added - before
                if not ended.is_set():
                    queued.end_of(chunk)
        except (errors.OpError, RuntimeError, TransientError) as error:
            if not self._lost(error, ended):
                self.failure = error
                self._regrouped.fail(errors.OutOfRangeError(None, None, str(error)))

    def _lost(self, error: BaseException, ended: threading.Event) -> bool:
        """Return whether the session failed, and not what reads the examples.

        Some errors may be either. A lost session also ends the step, which then calls `stop`.
        """
        wait = 0.0
        if isinstance(error, placement.transient_errors()):
            wait = _LOST_WITHIN
        return ended.wait(wait)


class _Queued:
    """Chunks whose examples are in a first-in-first-out queue; `added` counts all that entered it.

    Examples that have left the queue may be in a step in progress. They are processed when one more
    step has ended.
    """

    def __init__(self, chunks: Chunks, left: int) -> None:
        self._chunks = chunks
        self.added = left
        self._waiting: deque[tuple[int, Any]] = deque()
        self._left = 0
        """Number of examples that had left the queue at the last update with a new step."""
        self._stepped = 0

    def end_of(self, chunk: Any) -> None:
        """Note that all examples of a chunk are in the queue."""
        self._waiting.append((self.added, chunk))

    def update(self, left: int, stepped: int) -> None:
        """Update the number of examples in the queue, and the number of finished steps."""
        if stepped > self._stepped:
            while self._waiting and self._waiting[0][0] <= self._left:
                self._chunks.used(self._waiting.popleft()[1])
            self._left = self.added - left
            self._stepped = stepped


def _in_blocks(examples: Any, batch: int) -> Any:
    """Return blocks for the queue; the first is small, because a joining worker waits for it."""
    return examples.take(batch).batch(batch).concatenate(examples.skip(batch).batch(_BLOCK * batch))


# Mini-batches that other VMs prepare: a pipeline whose dataset tf.data service runs.
#
# The worker registers its dataset with the dispatcher (the first registration stays), and receives
# elements from any preparation VM. Each file of records goes to one of these VMs at a time: an
# element comes once or, if a preparation VM is lost, not at all in that epoch. File names are
# relative to the run's folder, in which all processes of a run start.


def prepared(pipeline: Pipeline, dispatcher: str, run: str, batch: int) -> Pipeline:
    """Return the examples as the service at `dispatcher` prepares them.

    Parameters
    ----------
    pipeline
        The pipeline of the worker.
    dispatcher
        Address of the service, `host:port`.
    run
        Name of the run.
    batch
        Mini-batch, if the pipeline has single examples.

    Raises
    ------
    DeclarationError
        If only the worker's own Python can make the examples.
    """
    service = _service("--prep")
    return _from_service(
        pipeline,
        batch,
        dispatcher,
        {},
        processing_mode=service.ShardingPolicy.DYNAMIC,
        job_name=run,
    )


def shared(pipeline: Pipeline, dispatcher: str, study: str, run: str, batch: int) -> Pipeline:
    """Return the examples as the service of this VM prepares them, once for all runs of a study.

    Each run gets an element at most once. The service keeps elements for some time. A run that is
    slow does not delay the others, but misses elements that are no longer kept. A new run first
    gets the kept elements.

    Parameters
    ----------
    pipeline
        The pipeline of the worker.
    dispatcher
        Address of the service, `host:port`.
    study, run
        Names of the study and of its run.
    batch
        Mini-batch, if the pipeline has single examples.

    Raises
    ------
    DeclarationError
        If only the worker's own Python can make the examples.
    """
    service = _service("--share-input")
    return _from_service(
        replace(pipeline, dataset=pipeline.dataset.repeat()),  # the service needs endless datasets
        batch,
        dispatcher,
        {"compression": None},
        processing_mode=service.ShardingPolicy.OFF,
        job_name=study,
        cross_trainer_cache=service.CrossTrainerCache(trainer_id=run),
    )


def _service(option: str) -> Any:
    """Return tf.data service, for an option that needs a graph without Python."""
    if python := next(_python_operations(tensorflow().get_default_graph()), ""):
        raise DeclarationError(
            f"the problem decodes its records in Python ({python}), which other processes cannot "
            "run",
            where=option,
            fix=f"Remove {option}, or decode with TensorFlow's operations.",
        )
    return importlib.import_module("tensorflow").data.experimental.service


def _from_service(
    pipeline: Pipeline, batch: int, dispatcher: str, registered: dict[str, Any], **how: Any
) -> Pipeline:
    """Return the pipeline with a dataset that the service runs."""
    tf = tensorflow()
    service = importlib.import_module("tensorflow").data.experimental.service
    if pipeline.batched:
        dataset = pipeline.dataset
    else:
        dataset = pipeline.dataset.batch(batch)
    address = f"grpc://{dispatcher}"
    identity = service.register_dataset(address, dataset, dataset_id=_DATASET, **registered)
    spec = tf.data.experimental.get_structure(dataset)
    remote = service.from_dataset_id(service=address, dataset_id=identity, element_spec=spec, **how)
    return replace(pipeline, dataset=remote, grouped=not pipeline.batched, directory="")


def _python_operations(graph: Any) -> Iterator[str]:
    definition = graph.as_graph_def()
    functions = (function.node_def for function in definition.library.function)
    for nodes in (definition.node, *functions):
        yield from (node.op for node in nodes if node.op in _PYTHON)


# Mini-batches of any size from the batches of a pipeline (for text: Tensor2Tensor's, by length and
# tokens).
#
# The number of rows in a batch of the declared size depends on its lengths: few long sentences, or
# many short ones. A mini-batch of half that size is half of a batch. A mini-batch of twice that
# size is two batches with the same number of rows, which have similar lengths. The rest of a batch
# begins the next mini-batch, so no example is lost. Whole rows are not always the exact part: the
# next mini-batch of that kind makes up for the difference. Pure NumPy.


class _Kind:
    """Batches with the same number of rows."""

    def __init__(self, rows: int) -> None:
        self._whole = rows
        self._owed = 0.0
        self._parts: deque[tuple[int, Batch]] = deque()
        self.rows = 0

    @property
    def since(self) -> int:
        """The number of the oldest batch that is not used up."""
        return self._parts[0][0]

    def add(self, number: int, batch: Batch) -> None:
        self._parts.append((number, batch))
        self.rows += self._whole

    def rows_of(self, part: float) -> int:
        """Return the number of rows of `part` of a batch."""
        return max(1, int(self._whole * part + self._owed + 1e-9))

    def take(self, part: float) -> Batch:
        """Remove `part` of a batch and return it."""
        rows = self.rows_of(part)
        self._owed = max(0.0, self._whole * part + self._owed - rows)
        pieces: list[Batch] = []
        missing = rows
        while missing:
            number, batch = self._parts.popleft()
            available = _rows(batch)
            pieces.append(_cut(batch, 0, missing))
            if available > missing:
                self._parts.appendleft((number, _cut(batch, missing, available)))
            missing -= min(available, missing)
        self.rows -= rows
        return _joined(pieces)


class Regrouped:
    """Mini-batches of any size from batches of the size `declared`.

    Two threads may use it, one to add and one to take.
    """

    def __init__(self, declared: int) -> None:
        self._declared = declared
        self._part = 1.0
        self._kinds: dict[int, _Kind] = {}
        self._number = 0
        self._changed = threading.Condition()
        self._error: BaseException | None = None

    def add(self, batch: Batch, wait: float = 0.0) -> bool:
        """Add a batch, and return True.

        While enough are ready, wait for up to `wait` seconds, and then return False without adding
        it.
        """
        with self._changed:
            if wait and not self._changed.wait_for(lambda: self._ready() < AHEAD, wait):
                return False
            rows = _rows(batch)
            self._number += 1
            self._kinds.setdefault(rows, _Kind(rows)).add(self._number, batch)
            self._changed.notify_all()
            return True

    def fail(self, error: BaseException) -> None:
        """Let a waiting thread raise this error, until `resume`."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def resume(self) -> None:
        """Forget the error of `fail`: batches are added again."""
        with self._changed:
            self._error = None

    def take(self, size: int) -> Batch:
        """Return a mini-batch of `size`, padded with zeros if lengths differ.

        Waits until there is one. Takes the kind whose oldest batch has waited longest. Raises the
        error of `fail`.
        """
        with self._changed:
            self._part = size / self._declared
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._error or self._ready())
            if self._error:
                raise self._error
            chosen = min(
                (kind for kind in self._kinds.values() if self._has(kind)),
                key=lambda kind: kind.since,
            )
            batch = chosen.take(self._part)
            self._changed.notify_all()
            return batch

    @property
    def added(self) -> int:
        """Number of all batches that were added."""
        return self._number

    @property
    def left(self) -> int:
        """Number of batches added since the oldest one that is not used up, including it."""
        with self._changed:
            oldest = [kind.since for kind in self._kinds.values() if kind.rows]
            if oldest:
                return self._number - min(oldest) + 1
            return 0

    def _has(self, kind: _Kind) -> bool:
        return kind.rows >= kind.rows_of(self._part)

    def _ready(self) -> int:
        return sum(kind.rows // kind.rows_of(self._part) for kind in self._kinds.values())


def _rows(batch: Batch) -> int:
    return next(len(array) for array in batch.values() if numpy.ndim(array))


def _cut(batch: Batch, first: int, last: int) -> Batch:
    return {
        name: array[first:last] if numpy.ndim(array) else array for name, array in batch.items()
    }


def _joined(parts: Sequence[Batch]) -> Batch:
    if len(parts) == 1:
        return parts[0]
    return {name: _padded([part[name] for part in parts]) for name in parts[0]}


def _padded(arrays: Sequence[Any]) -> Any:
    """Return the rows of all arrays in one array, padded to the longest."""
    if not numpy.ndim(arrays[0]):
        return arrays[0]
    longest = numpy.max([array.shape[1:] for array in arrays], axis=0, initial=0)
    filled = []
    for array in arrays:
        sizes = zip(longest, array.shape[1:], strict=True)
        missing = [(0, int(most) - size) for most, size in sizes]
        filled.append(numpy.pad(array, [(0, 0), *missing]))
    return numpy.concatenate(filled)
