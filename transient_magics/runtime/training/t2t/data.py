"""From a T2T problem's files to what a training step eats.

Problems whose examples all have one shape (images) give single examples, which a worker queues so
that a step can take any number of them. Others (text) are batched by T2T itself, by length and
tokens. `shapes` needs no data: it builds the same pipeline on an empty file, which is how the chief
and a check learn a problem's features.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ...files import blocks
from ..trainable import Pipeline
from . import bridges
from .registry import Definition

AS_MANY_AS_CORES = -1
"""What tf.data calls AUTOTUNE; pipelines are not tuned here."""

_AT_ONCE = 8
"""Files, or parts of them, that are read at once; as many as Problem.dataset interleaves."""
_COUNTED_AT_ONCE = 1024
_MOST_FILES = 10_000
"""Of more, those are drawn first that stand first in the folder."""


def training_pipeline(definition: Definition, directory: str, threads: int = 0) -> Pipeline:
    """Training examples from `directory`, in an order that is drawn anew whenever reading begins.

    They are endless, or where records come in blocks those of one chunk. So many `threads` decode
    them (0: as many as cores of a chunk, else one).
    """
    from tensor2tensor.utils import data_reader

    tf = bridges.cross()

    problem = definition.problem
    hparams = definition.hparams
    files = None
    if blocks.are_streamed(Path(directory)):
        examples, files = chunk_examples(
            tf, problem, directory, hparams, threads or AS_MANY_AS_CORES
        )
    else:
        examples = training_examples(tf, problem, directory, hparams, threads or 1)
    shapes = tf.data.get_output_shapes(examples)
    if problem.batch_size_means_tokens or not all(
        shape.is_fully_defined() for shape in shapes.values()
    ):
        batches = _batches(
            definition, examples, directory, training=True, endless=files is None
        ).prefetch(2)
        return _pipeline(tf, batches, directory, batched=True, files=files)
    examples = (examples.repeat() if files is None else examples).map(
        data_reader.cast_ints_to_int32
    )
    if shuffled := hparams.get("batch_shuffle_size"):
        examples = examples.batch(hparams.batch_size).shuffle(shuffled).unbatch()
    return _pipeline(tf, examples, directory, batched=False, files=files)


def record_files(definition: Definition, directory: str) -> list[Path]:
    """The training files, where their records may be read one by one in any order; else none."""
    return [
        Path(name) for name in files_in_any_order(bridges.cross(), definition.problem, directory)
    ]


def evaluation_pipeline(definition: Definition, directory: str) -> Pipeline:
    """The dev split once, in batches."""
    tf = bridges.cross()

    problem = definition.problem
    hparams = definition.hparams
    examples = problem.dataset(
        tf.estimator.ModeKeys.EVAL, data_dir=directory, num_threads=1, hparams=hparams
    )
    return _pipeline(
        tf,
        _batches(definition, examples, directory, training=False).prefetch(2),
        directory,
        batched=True,
    )


def placeholders(definition: Definition) -> dict[str, Any]:
    """Placeholders shaped like a batch of the problem's training features."""
    tf = bridges.cross()

    with tempfile.TemporaryDirectory() as directory:
        problem = definition.problem
        for name in problem.training_filepaths(directory, 1, shuffled=True):
            with open(name, "wb"):
                pass
        pipeline = training_pipeline(definition, directory)
    return {
        name: tf.placeholder(
            pipeline.types[name], shape if pipeline.batched else [None, *shape.as_list()], name=name
        )
        for name, shape in pipeline.shapes.items()
    }


def has_records(definition: Definition, directory: str) -> bool:
    """Whether training files of the problem with anything in them are in `directory` (which may be
    a bucket).
    """
    tf = bridges.cross()

    found = tf.gfile.Glob(definition.problem.filepattern(directory, tf.estimator.ModeKeys.TRAIN))
    return any(tf.gfile.Stat(name).length for name in found)


def generate(definition: Definition, directory: str, temporary: str) -> None:
    """Run the problem's own generate_data into `directory`."""
    tf = bridges.cross()

    os.makedirs(directory, exist_ok=True)
    os.makedirs(temporary, exist_ok=True)
    with tf.Graph().as_default():
        definition.problem.generate_data(directory, temporary)


def _batches(
    definition: Definition, examples: Any, directory: str, training: bool, endless: bool = True
) -> Any:
    from tensor2tensor.utils import data_reader

    tf = bridges.cross()

    problem = definition.problem
    hparams = definition.hparams
    if training:
        mode = tf.estimator.ModeKeys.TRAIN
    else:
        mode = tf.estimator.ModeKeys.EVAL
    return data_reader.input_fn(
        examples,
        problem.filepattern(directory, mode),
        False,  # nothing is skipped at the start any more: see data.py
        problem.batch_size_means_tokens,
        problem.get_hparams(hparams).batch_size_multiplier,
        problem.max_length(hparams),
        mode,
        hparams,
        data_dir=directory,
        prevent_repeat=not endless,
    )


def _pipeline(
    tf: Any, dataset: Any, directory: str, *, batched: bool, files: Any = None
) -> Pipeline:
    dataset = _features_only(tf, dataset)
    types = tf.data.get_output_types(dataset)
    shapes = tf.data.get_output_shapes(dataset)
    return Pipeline(dataset, types, shapes, batched, directory=directory, files=files)


def _features_only(tf: Any, dataset: Any) -> Any:
    """T2T's batches come as (features, targets); the targets are among the features."""
    shapes = tf.data.get_output_shapes(dataset)
    if isinstance(shapes, Mapping):
        return dataset
    return dataset.map(lambda features, targets: {**features, "targets": targets})


# A vocabulary of the size that a problem declares, to count its model before its data are made.
#
# Tensor2Tensor makes the vocabulary of most text problems together with their data. What a model
# computes depends on the vocabulary's size alone, which these problems declare
# (`approx_vocab_size`), and come near to when they make it.


def assume_vocabulary(problem: Any) -> int:
    """Give a text problem a vocabulary without words and return its size; 0 for a problem that
    declares no size.
    """
    from tensor2tensor.data_generators import text_encoder, text_problems

    if not isinstance(problem, text_problems.Text2TextProblem):
        return 0
    if problem.vocab_type != text_problems.VocabType.SUBWORD:
        return 0

    class Assumed(text_encoder.TextEncoder):
        """Nothing but a size."""

        @property
        def vocab_size(self) -> int:
            return int(problem.approx_vocab_size)

    def vocabulary(data_dir: Any, tmp_dir: Any, force_get: bool = False) -> Assumed:
        return Assumed()

    problem.get_or_create_vocab = vocabulary
    return int(problem.approx_vocab_size)


# The order of a problem's training examples, drawn anew whenever reading begins: in every session
# of every worker.
#
# Tensor2Tensor has every replica skip a random number of examples and then shuffle 512 batches,
# which must all be read before the first step. Workers that live for minutes can neither wait for
# that nor begin where others began: late records would never be reached. So the files come in an
# order that is drawn, and each is read from a place that is drawn, round to it; of few files,
# several parts are read at once, as if they were files. What draws are operations of the graph, so
# a graph from a file draws as well.
#
# Records that come in blocks (files/blocks.py) are in a drawn order already: the chief's. Those of
# a chunk of blocks are read at once, and then shuffled as Tensor2Tensor does.


def files_in_any_order(tf: Any, problem: Any, directory: str) -> list[str]:
    """The problem's training files, where any record of them may come first; else none."""
    if not problem.skip_random_fraction_when_training or not _reads_records_one_by_one(problem):
        return []
    return sorted(tf.gfile.Glob(problem.filepattern(directory, tf.estimator.ModeKeys.TRAIN)))


def chunk_examples(
    tf: Any, problem: Any, directory: str, hparams: Any, threads: int
) -> tuple[Any, Any]:
    """The problem's examples of one chunk, and the placeholder for the names of the files in which
    its blocks are.
    """
    files = tf.placeholder(tf.string, [None], name="chunk")
    with _from_files(tf, files):
        examples = problem.dataset(
            tf.estimator.ModeKeys.TRAIN,
            data_dir=directory,
            num_threads=threads,
            hparams=hparams,
            output_buffer_size=None,
        )
    return examples, files


def training_examples(tf: Any, problem: Any, directory: str, hparams: Any, threads: int = 1) -> Any:
    """The problem's examples, in an order of their own each time; endless where only a beginning
    can be drawn.

    `threads` decode them. A problem that says that nothing is skipped
    (`skip_random_fraction_when_training`) has only its files shuffled.
    """
    mode = tf.estimator.ModeKeys.TRAIN
    files = sorted(tf.gfile.Glob(problem.filepattern(directory, mode)))
    anywhere = bool(problem.skip_random_fraction_when_training)
    by_file = anywhere and _reads_records_one_by_one(problem)
    if by_file:
        parts = max(1, _AT_ONCE // max(1, len(files)))
    else:
        parts = 0
    with _drawn(tf, parts):
        examples = problem.dataset(
            mode, data_dir=directory, num_threads=threads, hparams=hparams, output_buffer_size=None
        )
    if anywhere and not by_file:  # as Tensor2Tensor does: some examples of the stream are skipped
        examples = examples.repeat().skip(
            _below(tf, _count(tf, tf.data.TFRecordDataset(files[:1])))
        )
    return examples


def _reads_records_one_by_one(problem: Any) -> bool:
    """Whether any record may come first; those of videos, for one, are frames of which examples are
    made.
    """
    from tensor2tensor.data_generators.problem import Problem

    kind = type(problem)
    return kind.dataset is Problem.dataset and kind.preprocess is Problem.preprocess


@contextlib.contextmanager
def _drawn(tf: Any, parts: int) -> Iterator[None]:
    """Inside, the files that T2T interleaves are shuffled by the graph, and so many parts of each
    begin anywhere.

    Both are in the middle of Problem.dataset, which nothing but the names that it calls leads to.
    """
    interleave = tf.data.experimental.parallel_interleave
    records = tf.data.TFRecordDataset

    def shuffled_and_interleaved(*given: Any, **settings: Any) -> Any:
        apply = interleave(*given, **settings)

        def of(dataset: Any) -> Any:
            if (
                tf.data.get_output_types(dataset) == tf.string
            ):  # of names of files, and not of examples
                dataset = dataset.shuffle(_MOST_FILES)
            return apply(dataset)

        return of

    def from_anywhere(*given: Any, **settings: Any) -> Any:
        read = records(*given, **settings)
        count = _count(tf, read)
        if parts == 1:
            return _round(tf, read, count)

        def part(number: Any) -> Any:
            first = number * count // parts
            end = (number + 1) * count // parts
            return _round(tf, read.skip(first).take(end - first), end - first)

        return tf.data.Dataset.range(parts).interleave(part, cycle_length=parts, block_length=1)

    tf.data.experimental.parallel_interleave = shuffled_and_interleaved
    if parts:
        tf.data.TFRecordDataset = from_anywhere
    try:
        yield
    finally:
        tf.data.experimental.parallel_interleave = interleave
        tf.data.TFRecordDataset = records


@contextlib.contextmanager
def _from_files(tf: Any, files: Any) -> Iterator[None]:
    """Inside, T2T interleaves the records of `files`, whatever files it found in the folder."""
    interleave = tf.data.experimental.parallel_interleave

    def of_the_chunk(*given: Any, **settings: Any) -> Any:
        apply = interleave(*given, **settings)

        def of(dataset: Any) -> Any:
            if (
                tf.data.get_output_types(dataset) == tf.string
            ):  # of names of files, and not of examples
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
