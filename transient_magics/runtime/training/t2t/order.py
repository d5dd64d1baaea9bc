"""The order of a problem's training examples, drawn anew whenever reading begins: in every session of every worker.

Tensor2Tensor has every replica skip a random number of examples and then shuffle 512 batches, which must all be read
before the first step. Workers that live for minutes can neither wait for that nor begin where others began: late
records would never be reached. So the files come in an order that is drawn, and each is read from a place that is
drawn, round to it; of few files, several parts are read at once, as if they were files. What draws are operations of
the graph, so a graph from a file draws as well.

Records that come in blocks (files/blocks.py) are in a drawn order already: the chief's. Those of a chunk of blocks are
read at once, and then shuffled as Tensor2Tensor does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

_AT_ONCE = 8
"""Files, or parts of them, that are read at once; as many as Problem.dataset interleaves."""
_COUNTED_AT_ONCE = 1024
_MOST_FILES = 10_000
"""Of more, those are drawn first that stand first in the folder."""


def record_files(tf: Any, problem: Any, directory: str) -> list[str]:
    """The problem's training files, where any record of them may come first; else none."""
    if not problem.skip_random_fraction_when_training or not _reads_records_one_by_one(problem):
        return []
    return sorted(tf.gfile.Glob(problem.filepattern(directory, tf.estimator.ModeKeys.TRAIN)))


def chunk_examples(tf: Any, problem: Any, directory: str, hparams: Any, threads: int) -> tuple[Any, Any]:
    """The problem's examples of one chunk, and the placeholder for the names of the files in which its blocks are."""
    files = tf.placeholder(tf.string, [None], name="chunk")
    with _from_files(tf, files):
        examples = problem.dataset(
            tf.estimator.ModeKeys.TRAIN, data_dir=directory, num_threads=threads, hparams=hparams,
            output_buffer_size=None,
        )  # fmt: skip
    return examples, files


def training_examples(tf: Any, problem: Any, directory: str, hparams: Any, threads: int = 1) -> Any:
    """The problem's examples, in an order of their own each time; endless where only a beginning can be drawn.

    `threads` decode them. A problem that says that nothing is skipped (`skip_random_fraction_when_training`) has only
    its files shuffled.
    """
    mode = tf.estimator.ModeKeys.TRAIN
    files = sorted(tf.gfile.Glob(problem.filepattern(directory, mode)))
    anywhere = bool(problem.skip_random_fraction_when_training)
    by_file = anywhere and _reads_records_one_by_one(problem)
    parts = max(1, _AT_ONCE // max(1, len(files))) if by_file else 0
    with _drawn(tf, parts):
        examples = problem.dataset(
            mode, data_dir=directory, num_threads=threads, hparams=hparams, output_buffer_size=None
        )
    if anywhere and not by_file:  # as Tensor2Tensor does: some examples of the stream are skipped
        examples = examples.repeat().skip(_below(tf, _count(tf, tf.data.TFRecordDataset(files[:1]))))
    return examples


def _reads_records_one_by_one(problem: Any) -> bool:
    """Whether any record may come first; those of videos, for one, are frames of which examples are made."""
    from tensor2tensor.data_generators.problem import Problem

    kind = type(problem)
    return kind.dataset is Problem.dataset and kind.preprocess is Problem.preprocess


@contextlib.contextmanager
def _drawn(tf: Any, parts: int) -> Iterator[None]:
    """Inside, the files that T2T interleaves are shuffled by the graph, and so many parts of each begin anywhere.

    Both are in the middle of Problem.dataset, which nothing but the names that it calls leads to.
    """
    interleave, records = tf.data.experimental.parallel_interleave, tf.data.TFRecordDataset

    def shuffled_and_interleaved(*given: Any, **settings: Any) -> Any:
        apply = interleave(*given, **settings)

        def of(dataset: Any) -> Any:
            if tf.data.get_output_types(dataset) == tf.string:  # of names of files, and not of examples
                dataset = dataset.shuffle(_MOST_FILES)
            return apply(dataset)

        return of

    def from_anywhere(*given: Any, **settings: Any) -> Any:
        read = records(*given, **settings)
        count = _count(tf, read)
        if parts == 1:
            return _round(tf, read, count)

        def part(number: Any) -> Any:
            first, end = number * count // parts, (number + 1) * count // parts
            return _round(tf, read.skip(first).take(end - first), end - first)

        return tf.data.Dataset.range(parts).interleave(part, cycle_length=parts, block_length=1)

    tf.data.experimental.parallel_interleave = shuffled_and_interleaved
    if parts:
        tf.data.TFRecordDataset = from_anywhere
    try:
        yield
    finally:
        tf.data.experimental.parallel_interleave, tf.data.TFRecordDataset = interleave, records


@contextlib.contextmanager
def _from_files(tf: Any, files: Any) -> Iterator[None]:
    """Inside, T2T interleaves the records of `files`, whatever files it found in the folder."""
    interleave = tf.data.experimental.parallel_interleave

    def of_the_chunk(*given: Any, **settings: Any) -> Any:
        apply = interleave(*given, **settings)

        def of(dataset: Any) -> Any:
            if tf.data.get_output_types(dataset) == tf.string:  # of names of files, and not of examples
                dataset = tf.data.Dataset.from_tensor_slices(files)
            return apply(dataset)

        return of

    tf.data.experimental.parallel_interleave = of_the_chunk
    try:
        yield
    finally:
        tf.data.experimental.parallel_interleave = interleave


def _round(tf: Any, records: Any, count: Any) -> Any:
    place = _below(tf, count)
    return records.skip(place).concatenate(records.take(place))


def _count(tf: Any, records: Any) -> Any:
    sizes = records.batch(_COUNTED_AT_ONCE).map(lambda batch: tf.size(batch, out_type=tf.int64))
    return sizes.reduce(tf.constant(0, tf.int64), lambda so_far, size: so_far + size)


def _below(tf: Any, count: Any) -> Any:
    return tf.random_uniform([], maxval=tf.maximum(count, 1), dtype=tf.int64)
