"""A worker's examples: from the pipeline of what is trained to the features of a step.

Single examples wait in a queue of TensorFlow's, so that a step can take any number of them. Batches
that the pipeline has made itself (text, by length) are queued as they are, or, where mini-batches
are to be uneven, regrouped and fed. A thread of our own fills either (TensorFlow's QueueRunner
would close it when a session is lost); its successor goes on in the next session.

Records that come in blocks are read chunk by chunk: the pipeline is begun anew for each, so that
whatever it keeps (shuffled, sorted by length) has come out at the chunk's end. Of what then waits
in the queue it is known when steps have had it, and the chunk is used.
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
"""Mini-batches that the queue takes at once: every call into TensorFlow competes with the step (4 %
of 25 ms).
"""
_PAUSE = 0.5
_LOST_WITHIN = 15.0
"""Seconds until a lost session has been noticed by the step too."""

_DATASET = "examples"
_PYTHON = ("PyFunc", "PyFuncStateless", "EagerPyFunc")

Batch = Mapping[str, Any]
"""Arrays by the feature's name, all with one row for each example; a number stands for the whole
batch.
"""
AHEAD = 4
"""Mini-batches that are kept ready."""


class Chunk(Protocol):
    """Records that are read together."""

    @property
    def paths(self) -> Sequence[str]:
        """The files in which they are."""
        ...


class Chunks(Protocol):
    """Where a pipeline has its chunks from (worker/blocks.py)."""

    def expect(self, examples: int) -> None:
        """A step takes so many examples."""
        ...

    def next(self, wait: float, ended: threading.Event) -> Any:
        """The next chunk, or None if none is there within `wait` seconds, or who asks has `ended`."""
        ...

    def used(self, chunk: Any) -> None:
        """Steps have had all examples of this chunk."""
        ...

    def rewind(self) -> None:
        """The session is lost: chunks that are not used come again."""
        ...


@dataclass(frozen=True)
class Source:
    """Where a graph has its examples from.

    `features` are the tensors of a step's features, `batch` is the declared mini-batch. `begin`
    makes the iterator start, fed with `feeds`, and `values` are the next that it has. A queue has
    `enqueue`, `close`, `left` (what is in it) and, where a step may take any number, `wanted`.
    Without one the features are placeholders, for regrouped batches.
    """

    features: Mapping[str, Any]
    batch: int
    begin: Any
    values: Mapping[str, Any]
    enqueue: Any = None
    close: Any = None
    wanted: Any = None
    feeds: Mapping[Any, Any] = field(default_factory=dict)
    files: Any = None
    count: Any = None
    left: Any = None


def iterator_of(dataset: Any) -> Any:
    """An iterator for a session, whose pipeline TensorFlow does not tune while it runs.

    The thread that tunes sleeps twice as long each time, up to a minute. Now and then it misses
    that its iterator ends (it is woken before it can see why), and whoever closes the session waits
    until it has slept, with a lock that the next session needs: one in six workers stood still for
    so long when their parameter server had come back. What AUTOTUNE asks for is then as many calls
    at once as there are cores.
    """
    tf = tensorflow()
    options = tf.data.Options()
    options.autotune.enabled = False
    return tf.data.make_initializable_iterator(dataset.with_options(options))


def source(pipeline: Pipeline, name: str, batch: int, uneven: bool) -> Source:
    """The examples of `pipeline` in the default graph; `batch` is declared. A queue is the only one
    of that `name`.
    """
    tf = tensorflow()
    dataset = pipeline.dataset
    if not (pipeline.batched or pipeline.grouped):
        # Of a chunk each example is read once, which beginning twice would not do.
        if pipeline.files is None:
            dataset = _in_blocks(dataset, batch)
        else:
            dataset = dataset.batch(batch)
    iterator = iterator_of(dataset)
    values = iterator.get_next()
    names = sorted(pipeline.types)
    if pipeline.batched and uneven:
        held = {
            name: tf.placeholder(pipeline.types[name], pipeline.shapes[name], name=name)
            for name in names
        }
        return Source(
            held, batch, iterator.initializer, values, feeds=pipeline.feeds, files=pipeline.files
        )

    types = [pipeline.types[name] for name in names]
    if pipeline.batched:
        shapes = None
    else:
        shapes = [pipeline.shapes[name] for name in names]
    if pipeline.batched:
        capacity = 4
    else:
        capacity = max(2 * _BLOCK, LARGEST) * batch
    queue = tf.FIFOQueue(capacity, types, shapes, names=names, shared_name=name)
    picked = {name: values[name] for name in names}
    close = queue.close(cancel_pending_enqueues=True)
    counted: dict[str, Any] = {"left": queue.size()}
    if pipeline.files is not None:
        if pipeline.batched:
            many = tf.constant(1)
        else:
            many = tf.shape(values[names[0]])[0]
        counted |= {"files": pipeline.files, "count": many}
    if not pipeline.batched:
        enqueue = queue.enqueue_many(picked)
        wanted = tf.placeholder_with_default(tf.constant(batch), [], name="batch_size")
        taken = dict(queue.dequeue_many(wanted))
        return Source(
            taken,
            batch,
            iterator.initializer,
            values,
            enqueue,
            close,
            wanted,
            pipeline.feeds,
            **counted,
        )
    enqueue = queue.enqueue(picked)
    features: Mapping[str, Any] = queue.dequeue()
    for name in names:
        features[name].set_shape(pipeline.shapes[name])
    return Source(
        dict(features),
        batch,
        iterator.initializer,
        values,
        enqueue,
        close,
        feeds=pipeline.feeds,
        **counted,
    )


class Examples:
    """The examples of a graph, for session after session; `feeds` is what a step of a size is fed
    with.
    """

    def __init__(self, source: Source, chunks: Chunks | None = None) -> None:
        """`chunks`: where records that come in blocks are from."""
        self._source = source
        self._chunks = chunks if source.files is not None else None
        if source.enqueue is None:
            self._regrouped = Regrouped(source.batch)
        else:
            self._regrouped = None
        self._ended = threading.Event()
        self._stepped = 0
        self._thread: threading.Thread | None = None
        self.added_at = 0.0
        """When the last examples came, by `time.monotonic`."""
        self.failure: BaseException | None = None
        """Why no examples come any more; steps then fail with OutOfRangeError, or with this."""

    def start(self, session: Any) -> None:
        """Read in an order drawn anew, for as long as this session lives or until `stop`."""
        if self._chunks is None:
            session.run(self._source.begin, dict(self._source.feeds))
        else:
            self._chunks.rewind()
        self.resume(session)

    def resume(self, session: Any) -> None:
        """Read on after `stop`, in the session in which reading began."""
        self._ended = threading.Event()
        if self._regrouped is not None:
            self._regrouped.resume()
        if self._regrouped is None:
            fill = self._fill_queue
        else:
            fill = self._regroup
        self._thread = threading.Thread(
            target=fill, args=(session, self._ended), daemon=True, name="examples"
        )
        self._thread.start()

    def stepped(self) -> None:
        """A step has ended, and has had whatever was taken from the queue before it."""
        self._stepped += 1

    def stop(self) -> None:
        """The session is over."""
        self._ended.set()

    @property
    def stopped(self) -> bool:
        """Whether nothing is read any more; once told to stop, what is being read is read to its
        end.
        """
        return self._thread is None or not self._thread.is_alive()

    def feeds(self, size: int) -> dict[Any, Any]:
        """What a step of `size` examples is fed with. Raises what reading them raised."""
        if self._chunks is not None and self._source.wanted is not None:
            self._chunks.expect(size)
        if self._regrouped is None:
            wanted = self._source.wanted
            if wanted is not None:
                return {wanted: size}
            return {}
        taken = self._regrouped.take(size)
        return {placeholder: taken[name] for name, placeholder in self._source.features.items()}

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
            with contextlib.suppress(
                errors.OpError, RuntimeError
            ):  # it is lost as well, and so is the step
                session.run(self._source.close)

    def _fill_by_chunks(self, session: Any, ended: threading.Event, chunks: Chunks) -> None:
        source = self._source
        left = session.make_callable(source.left)
        add = session.make_callable([source.enqueue, source.count])
        queued = _Queued(chunks, int(left()))
        while not ended.is_set():
            if (chunk := chunks.next(_PAUSE, ended)) is None:
                queued.look(int(left()), self._stepped)
                continue
            session.run(source.begin, {**source.feeds, source.files: list(chunk.paths)})
            with contextlib.suppress(tensorflow().errors.OutOfRangeError):  # the chunk's end
                while not ended.is_set():
                    queued.added += int(add()[1])
                    queued.look(int(left()), self._stepped)
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
                queued.look(self._regrouped.left, self._stepped)
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
        """Whether it was the session that failed, and not what reads the examples.

        Some errors could be either. A lost session ends the step too, which is then the end of this
        one.
        """
        return ended.wait(_LOST_WITHIN if isinstance(error, placement.transient_errors()) else 0)


class _Queued:
    """Chunks whose examples are in a queue, first in, first out; `added` counts what ever went in.

    What has left the queue by a look at it has been in a step once one more has ended: there may be
    one under way.
    """

    def __init__(self, chunks: Chunks, left: int) -> None:
        self._chunks = chunks
        self.added = left
        self._waiting: deque[tuple[int, Any]] = deque()
        self._looked = 0, 0

    def end_of(self, chunk: Any) -> None:
        """All of it is in."""
        self._waiting.append((self.added, chunk))

    def look(self, left: int, stepped: int) -> None:
        """So many are in the queue, and so many steps have ended."""
        taken, at = self._looked
        if stepped > at:
            while self._waiting and self._waiting[0][0] <= taken:
                self._chunks.used(self._waiting.popleft()[1])
            self._looked = self.added - left, stepped


def _in_blocks(examples: Any, batch: int) -> Any:
    """Blocks for the queue; the first is small, because a joining worker waits for it."""
    return examples.take(batch).batch(batch).concatenate(examples.skip(batch).batch(_BLOCK * batch))


# Mini-batches that other VMs prepare: a pipeline whose dataset is run by tf.data service.
#
# The worker registers its dataset with the dispatcher once for all (the first worker's stays), and
# takes elements of it from whichever preparation VM has some. Every file of records goes to one of
# these at a time: an element comes once or, where a preparation VM is lost, not at all in that
# epoch. Names of files are below the run's folder, in which the processes of a run are started on
# every VM.


def prepared(pipeline: Pipeline, dispatcher: str, run: str, batch: int) -> Pipeline:
    """The same examples, in mini-batches of `batch` where they come one by one, from the service at
    `dispatcher`.

    Raises DeclarationError where only the worker's own Python can make them.
    """
    service = _service("--prep")
    return _come(
        pipeline,
        batch,
        dispatcher,
        {},
        processing_mode=service.ShardingPolicy.DYNAMIC,
        job_name=run,
    )


def shared(pipeline: Pipeline, dispatcher: str, study: str, run: str, batch: int) -> Pipeline:
    """The same from the service of this VM, which prepares each mini-batch once for all runs of the
    study there.

    The run takes each at most once, whoever else does: what is prepared is kept for a while, and
    who takes none for long holds up nobody, but passes over what is not kept any more. One that
    begins takes what is kept first. Raises DeclarationError as `prepared`.
    """
    service = _service("--share-input")
    return _come(
        replace(
            pipeline, dataset=pipeline.dataset.repeat()
        ),  # without an end, as the service insists
        batch,
        dispatcher,
        {"compression": None},
        processing_mode=service.ShardingPolicy.OFF,
        job_name=study,
        cross_trainer_cache=service.CrossTrainerCache(trainer_id=run),
    )


def _service(option: str) -> Any:
    if python := next(_python_operations(tensorflow().get_default_graph()), ""):
        what = f"the problem decodes its records in Python ({python}), which other processes cannot run"
        raise DeclarationError(
            what, where=option, fix=f"Leave {option} out, or decode with TensorFlow's operations."
        )
    return importlib.import_module("tensorflow").data.experimental.service


def _come(
    pipeline: Pipeline, batch: int, dispatcher: str, registered: dict[str, Any], **how: Any
) -> Pipeline:
    tf = tensorflow()
    service = importlib.import_module("tensorflow").data.experimental.service
    if pipeline.batched:
        dataset = pipeline.dataset
    else:
        dataset = pipeline.dataset.batch(batch)
    address = f"grpc://{dispatcher}"
    identity = service.register_dataset(address, dataset, dataset_id=_DATASET, **registered)
    spec = tf.data.experimental.get_structure(dataset)
    come = service.from_dataset_id(service=address, dataset_id=identity, element_spec=spec, **how)
    return replace(pipeline, dataset=come, grouped=not pipeline.batched, directory="")


def _python_operations(graph: Any) -> Iterator[str]:
    definition = graph.as_graph_def()
    functions = (function.node_def for function in definition.library.function)
    for nodes in (definition.node, *functions):
        yield from (node.op for node in nodes if node.op in _PYTHON)


# Mini-batches of any size out of batches that somebody else has made (text: Tensor2Tensor's, by
# length and tokens).
#
# A batch of the declared size has as many rows as belong together: of long sentences few, of short
# ones many. A mini-batch of half that size is half of one, a mini-batch of twice that size is two
# with the same number of rows, whose lengths are alike. What is left of a batch begins the next
# mini-batch, so no example is lost. Whole rows are not always the exact part; what is missing is
# made up for by the next mini-batch of that kind. Pure NumPy.


class _Kind:
    """Batches with the same number of rows. `since` is the number of the oldest that is not used
    up.
    """

    def __init__(self, rows: int) -> None:
        self._whole = rows
        self._owed = 0.0
        self._parts: deque[tuple[int, Batch]] = deque()
        self.rows = 0

    @property
    def since(self) -> int:
        return self._parts[0][0]

    def add(self, number: int, batch: Batch) -> None:
        self._parts.append((number, batch))
        self.rows += self._whole

    def wanted(self, part: float) -> int:
        """The rows of `part` of a batch."""
        return max(1, int(self._whole * part + self._owed + 1e-9))

    def take(self, part: float) -> Batch:
        wanted = missing = self.wanted(part)
        self._owed = max(0.0, self._whole * part + self._owed - wanted)
        taken: list[Batch] = []
        while missing:
            number, batch = self._parts.popleft()
            there = _rows(batch)
            taken.append(_cut(batch, 0, missing))
            if there > missing:
                self._parts.appendleft((number, _cut(batch, missing, there)))
            missing -= min(there, missing)
        self.rows -= wanted
        return _joined(taken)


class Regrouped:
    """Batches of the size `declared` come in, mini-batches of any size go out; two threads may
    share it.
    """

    def __init__(self, declared: int) -> None:
        self._declared = declared
        self._part = 1.0
        self._kinds: dict[int, _Kind] = {}
        self._number = 0
        self._changed = threading.Condition()
        self._error: BaseException | None = None

    def add(self, batch: Batch, wait: float = 0.0) -> bool:
        """Add a batch; while enough is there, wait for `wait` seconds at most. False if it was not
        added.
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
        """No batch comes any more: a waiting thread gets this error, until `resume`."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def resume(self) -> None:
        """Batches come again."""
        with self._changed:
            self._error = None

    def take(self, size: int) -> Batch:
        """A mini-batch of `size`, filled up with zeros where lengths differ; waits until there is
        one.

        It is of the kind whose oldest batch has waited longest. Raises the error of `fail`.
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
            taken = chosen.take(self._part)
            self._changed.notify_all()
            return taken

    @property
    def added(self) -> int:
        """Batches that ever came in."""
        return self._number

    @property
    def left(self) -> int:
        """Of those, how many came in since the oldest that is not used up, with it."""
        with self._changed:
            oldest = [kind.since for kind in self._kinds.values() if kind.rows]
            if oldest:
                return self._number - min(oldest) + 1
            return 0

    def _has(self, kind: _Kind) -> bool:
        return kind.rows >= kind.wanted(self._part)

    def _ready(self) -> int:
        return sum(kind.rows // kind.wanted(self._part) for kind in self._kinds.values())


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
    """The rows of all arrays below each other, as long as the longest."""
    if not numpy.ndim(arrays[0]):
        return arrays[0]
    longest = numpy.max([array.shape[1:] for array in arrays], axis=0, initial=0)
    filled = [
        numpy.pad(
            array,
            [
                (0, 0),
                *(
                    (0, int(most) - here)
                    for most, here in zip(longest, array.shape[1:], strict=True)
                ),
            ],
        )
        for array in arrays
    ]
    return numpy.concatenate(filled)
