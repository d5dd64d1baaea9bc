"""From a T2T problem's files to what a training step eats.

Problems whose examples all have one shape (images) give single examples, which a worker queues so that a step can
take any number of them. Others (text) are batched by T2T itself, by length and tokens. `shapes` needs no data: it
builds the same pipeline on an empty file, which is how the chief and a check learn a problem's features.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...files import blocks
from ..trainable import Pipeline
from . import bridges, order
from .registry import Definition

AS_MANY_AS_CORES = -1
"""What tf.data calls AUTOTUNE; pipelines are not tuned here."""


def training_pipeline(definition: Definition, directory: str, threads: int = 0) -> Pipeline:
    """Training examples from `directory`, in an order that is drawn anew whenever reading begins.

    They are endless, or where records come in blocks those of one chunk. So many `threads` decode them (0: as many as
    cores of a chunk, else one).
    """
    from tensor2tensor.utils import data_reader

    tf = bridges.cross()

    problem, hparams = definition.problem, definition.hparams
    files = None
    if blocks.are_streamed(Path(directory)):
        examples, files = order.chunk_examples(tf, problem, directory, hparams, threads or AS_MANY_AS_CORES)
    else:
        examples = order.training_examples(tf, problem, directory, hparams, threads or 1)
    shapes = tf.data.get_output_shapes(examples)
    if problem.batch_size_means_tokens or not all(shape.is_fully_defined() for shape in shapes.values()):
        batches = _batches(definition, examples, directory, training=True, endless=files is None).prefetch(2)
        return _pipeline(tf, batches, directory, batched=True, files=files)
    examples = (examples.repeat() if files is None else examples).map(data_reader.cast_ints_to_int32)
    if shuffled := hparams.get("batch_shuffle_size"):
        examples = examples.batch(hparams.batch_size).shuffle(shuffled).unbatch()
    return _pipeline(tf, examples, directory, batched=False, files=files)


def record_files(definition: Definition, directory: str) -> list[Path]:
    """The training files, where their records may be read one by one in any order; else none."""
    return [Path(name) for name in order.record_files(bridges.cross(), definition.problem, directory)]


def evaluation_pipeline(definition: Definition, directory: str) -> Pipeline:
    """The dev split once, in batches."""
    tf = bridges.cross()

    problem, hparams = definition.problem, definition.hparams
    examples = problem.dataset(tf.estimator.ModeKeys.EVAL, data_dir=directory, num_threads=1, hparams=hparams)
    return _pipeline(tf, _batches(definition, examples, directory, training=False).prefetch(2), directory, batched=True)


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
        name: tf.placeholder(pipeline.types[name], shape if pipeline.batched else [None, *shape.as_list()], name=name)
        for name, shape in pipeline.shapes.items()
    }


def has_records(definition: Definition, directory: str) -> bool:
    """Whether training files of the problem with anything in them are in `directory` (which may be a bucket)."""
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


def _batches(definition: Definition, examples: Any, directory: str, training: bool, endless: bool = True) -> Any:
    from tensor2tensor.utils import data_reader

    tf = bridges.cross()

    problem, hparams = definition.problem, definition.hparams
    mode = tf.estimator.ModeKeys.TRAIN if training else tf.estimator.ModeKeys.EVAL
    return data_reader.input_fn(
        examples,
        problem.filepattern(directory, mode),
        False,  # nothing is skipped at the start any more: see order.py
        problem.batch_size_means_tokens,
        problem.get_hparams(hparams).batch_size_multiplier,
        problem.max_length(hparams),
        mode,
        hparams,
        data_dir=directory,
        prevent_repeat=not endless,
    )


def _pipeline(tf: Any, dataset: Any, directory: str, *, batched: bool, files: Any = None) -> Pipeline:
    dataset = _features_only(tf, dataset)
    types, shapes = tf.data.get_output_types(dataset), tf.data.get_output_shapes(dataset)
    return Pipeline(dataset, types, shapes, batched, directory=directory, files=files)


def _features_only(tf: Any, dataset: Any) -> Any:
    """T2T's batches come as (features, targets); the targets are among the features."""
    shapes = tf.data.get_output_shapes(dataset)
    if isinstance(shapes, Mapping):
        return dataset
    return dataset.map(lambda features, targets: {**features, "targets": targets})
