"""A worker's examples: from the pipeline of what is trained to the features of a step.

Single examples wait in a queue of TensorFlow's, so that a step can take any number of them. Batches that the pipeline
has made itself (text, by length) are queued as they are, or, where mini-batches are to be uneven, regrouped and fed. A
thread of our own fills either (TensorFlow's QueueRunner would close it when a session is lost); its successor goes on
in the next session.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

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


@dataclass(frozen=True)
class Source:
    """Where a graph has its examples from.

    `features` are the tensors of a step's features, `batch` is the declared mini-batch. `begin` makes the iterator
    start, fed with `feeds`, and `values` are the next that it has. A queue has `enqueue`, `close` and, where a step may
    take any number, `wanted`. Without one the features are placeholders, for regrouped batches.
    """

    features: Mapping[str, Any]
    batch: int
    begin: Any
    values: Mapping[str, Any]
    enqueue: Any = None
    close: Any = None
    wanted: Any = None
    feeds: Mapping[Any, Any] = field(default_factory=dict)


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
    dataset = pipeline.dataset if pipeline.batched else _in_blocks(pipeline.dataset, batch)
    iterator = iterator_of(dataset)
    values, names = iterator.get_next(), sorted(pipeline.types)
    if pipeline.batched and uneven:
        held = {name: tf.placeholder(pipeline.types[name], pipeline.shapes[name], name=name) for name in names}
        return Source(held, batch, iterator.initializer, values, feeds=pipeline.feeds)

    types = [pipeline.types[name] for name in names]
    shapes = None if pipeline.batched else [pipeline.shapes[name] for name in names]
    capacity = 4 if pipeline.batched else max(2 * _BLOCK, LARGEST) * batch
    queue = tf.FIFOQueue(capacity, types, shapes, names=names, shared_name=name)
    picked = {name: values[name] for name in names}
    close = queue.close(cancel_pending_enqueues=True)
    if not pipeline.batched:
        enqueue = queue.enqueue_many(picked)
        wanted = tf.placeholder_with_default(tf.constant(batch), [], name="batch_size")
        taken = dict(queue.dequeue_many(wanted))
        return Source(taken, batch, iterator.initializer, values, enqueue, close, wanted, pipeline.feeds)
    enqueue = queue.enqueue(picked)
    features: Mapping[str, Any] = queue.dequeue()
    for name in names:
        features[name].set_shape(pipeline.shapes[name])
    return Source(dict(features), batch, iterator.initializer, values, enqueue, close, feeds=pipeline.feeds)


class Examples:
    """The examples of a graph, for session after session; `feeds` is what a step of a size is fed with."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._regrouped = Regrouped(source.batch) if source.enqueue is None else None
        self._ended = threading.Event()
        self.failure: BaseException | None = None
        """Why no examples come any more; steps then fail with OutOfRangeError, or with this."""

    def start(self, session: Any) -> None:
        """Read in an order drawn anew, for as long as this session lives or until `stop`."""
        session.run(self._source.begin, dict(self._source.feeds))
        self._ended = threading.Event()
        if self._regrouped is not None:
            self._regrouped.resume()
        fill = self._fill_queue if self._regrouped is None else self._regroup
        threading.Thread(target=fill, args=(session, self._ended), daemon=True, name="examples").start()

    def stop(self) -> None:
        """The session is over."""
        self._ended.set()

    def feeds(self, size: int) -> dict[Any, Any]:
        """What a step of `size` examples is fed with. Raises what reading them raised."""
        if self._regrouped is None:
            wanted = self._source.wanted
            return {wanted: size} if wanted is not None else {}
        taken = self._regrouped.take(size)
        return {placeholder: taken[name] for name, placeholder in self._source.features.items()}

    def _fill_queue(self, session: Any, ended: threading.Event) -> None:
        errors = tensorflow().errors
        try:
            call = session.make_callable(self._source.enqueue)
            while not ended.is_set():
                call()
        except (errors.OpError, RuntimeError) as error:
            if self._lost(error, ended):
                return
            self.failure = error
            with contextlib.suppress(errors.OpError, RuntimeError):  # it is lost as well, and so is the step
                session.run(self._source.close)

    def _regroup(self, session: Any, ended: threading.Event) -> None:
        assert self._regrouped is not None
        call = session.make_callable(dict(self._source.values))
        try:
            while not ended.is_set():
                batch = call()
                while not ended.is_set() and not self._regrouped.add(batch, _PAUSE):
                    pass
        except (tensorflow().errors.OpError, RuntimeError) as error:
            if not self._lost(error, ended):
                self.failure = error
                self._regrouped.fail(tensorflow().errors.OutOfRangeError(None, None, str(error)))

    def _lost(self, error: BaseException, ended: threading.Event) -> bool:
        """Whether it was the session that failed, and not what reads the examples.

        Some errors could be either. A lost session ends the step too, which is then the end of this one.
        """
        return ended.wait(_LOST_WITHIN if isinstance(error, placement.transient_errors()) else 0)


def _in_blocks(examples: Any, batch: int) -> Any:
    """Blocks for the queue; the first is small, because a joining worker waits for it."""
    return examples.take(batch).batch(batch).concatenate(examples.skip(batch).batch(_BLOCK * batch))
