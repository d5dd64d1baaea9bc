"""How much of the training data workers see that start several times, beside Tensor2Tensor's own pipeline.

`python -m tests.runtime.records_seen` prints all of it; with `--quick` it is the program of test_order.py.

Numbered records take the place of examples. A cluster's epoch: four workers make as many steps together as one pass
over the records has. Short lives: workers one after the other, each of so many steps that together they could see every
record four times and more; each is a session of the same graph, as of workers that read it from a file.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np

from transient_magics.runtime.training.t2t import bridges, data
from transient_magics.runtime.training.t2t.registry import Definition

tf = bridges.cross()
WORKERS = 4


def definition(directory: str, files: int, records: int, batch: int, shuffled: int) -> Definition:
    """A problem of single numbers in so many files, which are written; `shuffled` is its batch_shuffle_size."""
    from tensor2tensor.data_generators import generator_utils
    from tensor2tensor.data_generators.problem import Problem
    from tensor2tensor.layers import common_hparams, modalities

    class Numbers(Problem):
        name = f"numbers_{files}_{shuffled}"

        def example_reading_spec(self) -> tuple[dict[str, Any], None]:
            return {name: tf.FixedLenFeature([1], tf.int64) for name in ("inputs", "targets")}, None

        def preprocess_example(self, example: Any, mode: str, hparams: Any) -> Any:
            return example

        def hparams(self, defaults: Any, unused_model_hparams: Any) -> None:
            defaults.modality = {"targets": modalities.ModalityType.IDENTITY}
            defaults.vocab_size = {"targets": 1}

    problem = Numbers()
    paths = problem.training_filepaths(directory, files, shuffled=True)
    for number, path in enumerate(paths):
        with tf.python_io.TFRecordWriter(path) as writer:
            for record in range(number, records, files):
                example = generator_utils.to_example({"inputs": [record], "targets": [0]})
                writer.write(example.SerializeToString())
    hparams = common_hparams.basic_params1()
    hparams.batch_size, hparams.batch_shuffle_size, hparams.problem = batch, shuffled, problem
    hparams.add_hparam("data_dir", directory)
    return Definition(None, hparams, problem)


def ours(made: Definition, directory: str, steps: int) -> Iterator[Any]:
    """The records of one life after the other, each of so many steps; of one graph."""
    with tf.Graph().as_default() as graph:
        pipeline = data.training_pipeline(made, directory)
        iterator = tf.data.make_initializable_iterator(pipeline.dataset.batch(made.hparams.batch_size))
        batch = iterator.get_next()["inputs"]
    while True:
        with tf.Session(graph=graph) as session:
            session.run(iterator.initializer, pipeline.feeds)
            yield np.unique([session.run(batch) for _ in range(steps)])


def theirs(made: Definition, directory: str, steps: int) -> Iterator[Any]:
    """The same of Problem.input_fn, each life a process of its own."""
    while True:
        random.seed()
        with tf.Graph().as_default(), tf.Session() as session:
            batches = made.problem.input_fn(tf.estimator.ModeKeys.TRAIN, made.hparams, data_dir=directory)
            batch = tf.data.make_one_shot_iterator(batches).get_next()[0]["inputs"]
            yield np.unique([session.run(batch).ravel() for _ in range(steps)])


def seen(lives: Iterator[Any], count: int, records: int) -> tuple[float, float]:
    """The part of the records that so many lives saw together, and what the first two have in common."""
    found = [next(lives) for _ in range(count)]
    return len(np.unique(np.concatenate(found))) / records, len(np.intersect1d(*found[:2])) / len(found[0])


def say(name: str, value: float, goal: str = "") -> None:
    """Print a share of the records, and its goal."""
    print(f"{name:58} {value:9.3f} {goal}".rstrip(), flush=True)


def main() -> None:
    """Print parts of the records, and of one worker's that another saw too."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few records in ten files, and only our pipeline")
    quick = parser.parse_args().quick
    records, batch, lives, passes = (3_000, 32, 20, 4) if quick else (50_000, 128, 40, 5.12)
    with tempfile.TemporaryDirectory() as directory:
        for files in (10,) if quick else (1, 10, 100):
            steps = records // WORKERS // batch
            mine = definition(directory, files, records, batch, shuffled=0)
            distinct, overlap = seen(ours(mine, directory, steps), WORKERS, records)
            say(f"a cluster's epoch, {files} files: seen", distinct, "> 0.5")
            say(f"a cluster's epoch, {files} files: two workers' overlap", overlap, "~ 0.25")
            if not quick:
                original = definition(directory, files, records, batch, shuffled=512)
                distinct, overlap = seen(theirs(original, directory, steps), WORKERS, records)
                say(f"a cluster's epoch, {files} files: seen by T2T's", distinct)
                say(f"a cluster's epoch, {files} files: T2T's overlap", overlap)
            steps = int(passes * records / lives / batch)
            distinct, _ = seen(ours(mine, directory, steps), lives, records)
            say(f"{lives} lives of {steps} steps, {files} files: seen", distinct, "> 0.95")
            if not quick:
                distinct, _ = seen(theirs(original, directory, steps), lives, records)
                say(f"{lives} lives of {steps} steps, {files} files: seen by T2T's", distinct)


if __name__ == "__main__":
    main()
