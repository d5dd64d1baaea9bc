"""The examples of a T2T problem, from its files to the pipelines of training and evaluation.

Problems whose examples all have one shape (images) give single examples, which a worker queues so
that a step can take any number of them. T2T itself batches others (text), by length and tokens.
`placeholders` needs no data: it builds the same pipeline on an empty file, which is how the chief
and a check find a problem's features.
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
"""The value of tf.data's AUTOTUNE; pipelines are not tuned here."""

_AT_ONCE = 8
"""Files, or parts of them, that are read at once; as many as Problem.dataset interleaves."""
_COUNTED_AT_ONCE = 1024
_MOST_FILES = 10_000
"""Files whose order is random; of more, the first in the folder come first."""


def training_pipeline(definition: Definition, directory: str, threads: int = 0) -> Pipeline:
    """Return training examples from `directory`, in a new random order per iterator.

    They are endless or, for records in blocks, those of one chunk.

    Parameters
    ----------
    definition
        The model, hparams and problem.
    directory
        The folder of the records.
    threads
        Threads that decode; 0 for one, or for as many as cores if records come in blocks.
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
    same_shapes = all(shape.is_fully_defined() for shape in shapes.values())
    if problem.batch_size_means_tokens or not same_shapes:
        endless = files is None
        batches = _batches(definition, examples, directory, training=True, endless=endless)
        return _pipeline(tf, batches.prefetch(2), directory, batched=True, files=files)
    if files is None:
        examples = examples.repeat()
    examples = examples.map(data_reader.cast_ints_to_int32)
    if shuffled := hparams.get("batch_shuffle_size"):
        examples = examples.batch(hparams.batch_size).shuffle(shuffled).unbatch()
    return _pipeline(tf, examples, directory, batched=False, files=files)


def record_files(definition: Definition, directory: str) -> list[Path]:
    """Return the training files if their records may be read in any order; else none."""
    tf = bridges.cross()
    return [Path(name) for name in files_in_any_order(tf, definition.problem, directory)]


def evaluation_pipeline(definition: Definition, directory: str) -> Pipeline:
    """Return the dev split once, in batches."""
    tf = bridges.cross()

    problem = definition.problem
    hparams = definition.hparams
    examples = problem.dataset(
        tf.estimator.ModeKeys.EVAL, data_dir=directory, num_threads=1, hparams=hparams
    )
    batches = _batches(definition, examples, directory, training=False)
    return _pipeline(tf, batches.prefetch(2), directory, batched=True)


def placeholders(definition: Definition) -> dict[str, Any]:
    """Return placeholders in the shape of a batch of the problem's training features."""
    tf = bridges.cross()

    with tempfile.TemporaryDirectory() as directory:
        problem = definition.problem
        for name in problem.training_filepaths(directory, 1, shuffled=True):
            with open(name, "wb"):
                pass
        pipeline = training_pipeline(definition, directory)
    inputs = {}
    for name, shape in pipeline.shapes.items():
        size = shape if pipeline.batched else [None, *shape.as_list()]
        inputs[name] = tf.placeholder(pipeline.types[name], size, name=name)
    return inputs


def has_records(definition: Definition, directory: str) -> bool:
    """Return whether `directory`, which may be a bucket, has training files that are not empty."""
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
    """Return batches of examples, as T2T makes them."""
    from tensor2tensor.utils import data_reader

    tf = bridges.cross()

    problem = definition.problem
    hparams = definition.hparams
    mode = tf.estimator.ModeKeys.EVAL
    if training:
        mode = tf.estimator.ModeKeys.TRAIN
    return data_reader.input_fn(
        examples,
        problem.filepattern(directory, mode),
        False,  # `training_examples` has already skipped a random number
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
    """Return only the features; T2T's batches are (features, targets)."""
    shapes = tf.data.get_output_shapes(dataset)
    if isinstance(shapes, Mapping):
        return dataset
    return dataset.map(lambda features, targets: {**features, "targets": targets})


# A vocabulary of the declared size, to measure a model before its data are generated.
#
# Tensor2Tensor generates the vocabulary of most text problems with their data. The computations of
# a model depend only on the vocabulary's size, which these problems declare (`approx_vocab_size`)
# and almost reach.


def assume_vocabulary(problem: Any) -> int:
    """Give a text problem a vocabulary without words, and return its size.

    Returns 0 for a problem that declares no size.
    """
    from tensor2tensor.data_generators import text_encoder, text_problems

    if not isinstance(problem, text_problems.Text2TextProblem):
        return 0
    if problem.vocab_type != text_problems.VocabType.SUBWORD:
        return 0

    class Assumed(text_encoder.TextEncoder):
        """An encoder that has only a size."""

        @property
        def vocab_size(self) -> int:
            return int(problem.approx_vocab_size)

    def vocabulary(data_dir: Any, tmp_dir: Any, force_get: bool = False) -> Assumed:
        return Assumed()

    problem.get_or_create_vocab = vocabulary
    return int(problem.approx_vocab_size)


# The random order of a problem's training examples, a new one in every session of every worker.
#
# In Tensor2Tensor every replica skips a random number of examples and then shuffles 512 batches,
# which must all be read before the first step. Workers that live for minutes cannot wait for that,
# and cannot begin where others began: late records would never be used. So the files come in random
# order, and each is read from a random place to its end and then from its start. If there are few
# files, several parts of each are read at once, like files. Operations of the graph draw the order,
# so a graph from a file draws as well.
#
# Records in blocks (files/blocks.py) already have a random order, the chief's. Those of a chunk are
# read at once, and then shuffled as Tensor2Tensor does.


def files_in_any_order(tf: Any, problem: Any, directory: str) -> list[str]:
    """Return the problem's training files if any record may come first; else none."""
    if not problem.skip_random_fraction_when_training or not _reads_records_one_by_one(problem):
        return []
    return sorted(tf.gfile.Glob(problem.filepattern(directory, tf.estimator.ModeKeys.TRAIN)))


def chunk_examples(
    tf: Any, problem: Any, directory: str, hparams: Any, threads: int
) -> tuple[Any, Any]:
    """Return the examples of one chunk, and a placeholder.

    The placeholder takes the names of the files that have the chunk's blocks.
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
    """Return the problem's examples, in a new random order per iterator.

    They are endless if only the beginning can be random. `threads` decode them. For a problem that
    skips nothing (`skip_random_fraction_when_training`), only the files are shuffled.
    """
    mode = tf.estimator.ModeKeys.TRAIN
    files = sorted(tf.gfile.Glob(problem.filepattern(directory, mode)))
    anywhere = bool(problem.skip_random_fraction_when_training)
    by_file = anywhere and _reads_records_one_by_one(problem)
    parts = 0
    if by_file:
        parts = max(1, _AT_ONCE // max(1, len(files)))
    with _drawn(tf, parts):
        examples = problem.dataset(
            mode, data_dir=directory, num_threads=threads, hparams=hparams, output_buffer_size=None
        )
    if anywhere and not by_file:  # skip some examples, as Tensor2Tensor does
        examples = examples.repeat()
        count = _count(tf, tf.data.TFRecordDataset(files[:1]))
        examples = examples.skip(_below(tf, count))
    return examples


def _reads_records_one_by_one(problem: Any) -> bool:
    """Return whether any record may come first.

    Records of videos, for example, are frames of which examples are made.
    """
    from tensor2tensor.data_generators.problem import Problem

    kind = type(problem)
    return kind.dataset is Problem.dataset and kind.preprocess is Problem.preprocess


@contextlib.contextmanager
def _drawn(tf: Any, parts: int) -> Iterator[None]:
    """Let Problem.dataset shuffle its files, and begin at random places in `parts` of each.

    Both happen in the middle of Problem.dataset, so the functions that it calls are replaced.
    """
    interleave = tf.data.experimental.parallel_interleave
    records = tf.data.TFRecordDataset

    def shuffled_and_interleaved(*given: Any, **settings: Any) -> Any:
        apply = interleave(*given, **settings)

        def shuffle_files(dataset: Any) -> Any:
            if _has_file_names(tf, dataset):
                dataset = dataset.shuffle(_MOST_FILES)
            return apply(dataset)

        return shuffle_files

    def from_anywhere(*given: Any, **settings: Any) -> Any:
        read = records(*given, **settings)
        count = _count(tf, read)
        if parts == 1:
            return _rotated(tf, read, count)

        def part(number: Any) -> Any:
            first = number * count // parts
            end = (number + 1) * count // parts
            return _rotated(tf, read.skip(first).take(end - first), end - first)

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
    """Let Problem.dataset read `files`, not the files that it finds in the folder."""
    interleave = tf.data.experimental.parallel_interleave

    def of_the_chunk(*given: Any, **settings: Any) -> Any:
        apply = interleave(*given, **settings)

        def replace_files(dataset: Any) -> Any:
            if _has_file_names(tf, dataset):
                dataset = tf.data.Dataset.from_tensor_slices(files)
            return apply(dataset)

        return replace_files

    tf.data.experimental.parallel_interleave = of_the_chunk
    try:
        yield
    finally:
        tf.data.experimental.parallel_interleave = interleave


def _has_file_names(tf: Any, dataset: Any) -> bool:
    """Return whether the elements are names of files, not examples."""
    return tf.data.get_output_types(dataset) == tf.string


def _rotated(tf: Any, records: Any, count: Any) -> Any:
    """Return the records from a random place to the end, and then those before that place."""
    place = _below(tf, count)
    return records.skip(place).concatenate(records.take(place))


def _count(tf: Any, records: Any) -> Any:
    """Return the number of records, as a tensor."""
    sizes = records.batch(_COUNTED_AT_ONCE).map(lambda batch: tf.size(batch, out_type=tf.int64))
    return sizes.reduce(tf.constant(0, tf.int64), lambda total, size: total + size)


def _below(tf: Any, count: Any) -> Any:
    """Return a random number below `count`."""
    return tf.random_uniform([], maxval=tf.maximum(count, 1), dtype=tf.int64)
