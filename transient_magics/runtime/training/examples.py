"""A worker's examples: from the pipeline of what is trained to the features of a step.

Single examples wait in a queue of TensorFlow's, so that a step can take any number of them. Batches that the pipeline
has made itself (text, by length) are queued as they are, or, where mini-batches are to be uneven, regrouped and fed. A
thread of our own fills either (TensorFlow's QueueRunner would close it when a session is lost); its successor goes on
in the next session.

Records that come in blocks are read chunk by chunk: the pipeline is begun anew for each, so that whatever it keeps
(shuffled, sorted by length) has come out at the chunk's end. Of what then waits in the queue it is known when steps
have had it, and the chunk is used.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ...errors import TransientError
from ..tf import placement
from ..tf.graph_mode import tensorflow
from .batching import LARGEST
from .regroup import Regrouped
from .trainable import Pipeline

_BLOCK = 4
"""Mini-batches that the queue takes at once: every call into TensorFlow competes with the step (4 % of 25 ms)."""
_PAUSE = 0.5
_LOST_WITHIN = 15.0
"""Seconds until a lost session has been noticed by the step too."""


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

    `features` are the tensors of a step's features, `batch` is the declared mini-batch. `begin` makes the iterator
    start, fed with `feeds`, and `values` are the next that it has. A queue has `enqueue`, `close`, `left` (what is in
    it) and, where a step may take any number, `wanted`. Without one the features are placeholders, for regrouped
    batches.
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

    The thread that tunes sleeps twice as long each time, up to a minute. Now and then it misses that its iterator ends
    (it is woken before it can see why), and whoever closes the session waits until it has slept, with a lock that the
    next session needs: one in six workers stood still for so long when their parameter server had come back.
    What AUTOTUNE asks for is then as many calls at once as there are cores.
    """
    tf = tensorflow()
    options = tf.data.Options()
    options.autotune.enabled = False
    return tf.data.make_initializable_iterator(dataset.with_options(options))


def source(pipeline: Pipeline, name: str, batch: int, uneven: bool) -> Source:
    """The examples of `pipeline` in the default graph; `batch` is declared. A queue is the only one of that `name`."""
    tf = tensorflow()
    dataset = pipeline.dataset
    if not (pipeline.batched or pipeline.grouped):
        # Of a chunk each example is read once, which beginning twice would not do.
        dataset = _in_blocks(dataset, batch) if pipeline.files is None else dataset.batch(batch)
    iterator = iterator_of(dataset)
    values, names = iterator.get_next(), sorted(pipeline.types)
    if pipeline.batched and uneven:
        held = {name: tf.placeholder(pipeline.types[name], pipeline.shapes[name], name=name) for name in names}
        return Source(held, batch, iterator.initializer, values, feeds=pipeline.feeds, files=pipeline.files)

    types = [pipeline.types[name] for name in names]
    shapes = None if pipeline.batched else [pipeline.shapes[name] for name in names]
    capacity = 4 if pipeline.batched else max(2 * _BLOCK, LARGEST) * batch
    queue = tf.FIFOQueue(capacity, types, shapes, names=names, shared_name=name)
    picked = {name: values[name] for name in names}
    close = queue.close(cancel_pending_enqueues=True)
    counted: dict[str, Any] = {"left": queue.size()}
    if pipeline.files is not None:
        many = tf.constant(1) if pipeline.batched else tf.shape(values[names[0]])[0]
        counted |= {"files": pipeline.files, "count": many}
    if not pipeline.batched:
        enqueue = queue.enqueue_many(picked)
        wanted = tf.placeholder_with_default(tf.constant(batch), [], name="batch_size")
        taken = dict(queue.dequeue_many(wanted))
        return Source(taken, batch, iterator.initializer, values, enqueue, close, wanted, pipeline.feeds, **counted)
    enqueue = queue.enqueue(picked)
    features: Mapping[str, Any] = queue.dequeue()
    for name in names:
        features[name].set_shape(pipeline.shapes[name])
    return Source(dict(features), batch, iterator.initializer, values, enqueue, close, feeds=pipeline.feeds, **counted)


class Examples:
    """The examples of a graph, for session after session; `feeds` is what a step of a size is fed with."""

    def __init__(self, source: Source, chunks: Chunks | None = None) -> None:
        """`chunks`: where records that come in blocks are from."""
        self._source = source
        self._chunks = chunks if source.files is not None else None
        self._regrouped = Regrouped(source.batch) if source.enqueue is None else None
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
        fill = self._fill_queue if self._regrouped is None else self._regroup
        self._thread = threading.Thread(target=fill, args=(session, self._ended), daemon=True, name="examples")
        self._thread.start()

    def stepped(self) -> None:
        """A step has ended, and has had whatever was taken from the queue before it."""
        self._stepped += 1

    def stop(self) -> None:
        """The session is over."""
        self._ended.set()

    @property
    def stopped(self) -> bool:
        """Whether nothing is read any more; once told to stop, what is being read is read to its end."""
        return self._thread is None or not self._thread.is_alive()

    def feeds(self, size: int) -> dict[Any, Any]:
        """What a step of `size` examples is fed with. Raises what reading them raised."""
        if self._chunks is not None and self._source.wanted is not None:
            self._chunks.expect(size)
        if self._regrouped is None:
            wanted = self._source.wanted
            return {wanted: size} if wanted is not None else {}
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
            with contextlib.suppress(errors.OpError, RuntimeError):  # it is lost as well, and so is the step
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
                session.run(self._source.begin, {**self._source.feeds, self._source.files: list(chunk.paths)})
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

        Some errors could be either. A lost session ends the step too, which is then the end of this one.
        """
        return ended.wait(_LOST_WITHIN if isinstance(error, placement.transient_errors()) else 0)


class _Queued:
    """Chunks whose examples are in a queue, first in, first out; `added` counts what ever went in.

    What has left the queue by a look at it has been in a step once one more has ended: there may be one under way.
    """

    def __init__(self, chunks: Chunks, left: int) -> None:
        self._chunks, self.added = chunks, left
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
