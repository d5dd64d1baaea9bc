"""A synchronous step of a transformer on uneven mini-batches of text, beside one process's on all of them; prints JSON.

A program of its own, because TensorFlow is not imported into the process of the tests. Nothing listens here. The
arguments are an empty folder and, if each target is to have a weight of its own, `masked`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tests.runtime.test_other_runs import REVERSE, TEXT
from transient_magics.runtime.folder import RunFolder
from transient_magics.runtime.tf.graph_mode import tensorflow
from transient_magics.runtime.training.examples import Regrouped
from transient_magics.runtime.training.graph.step import training_graph
from transient_magics.runtime.training.loading import load_model
from transient_magics.runtime.training.trainable import Trainable

EXACT = (
    "num_hidden_layers=1,optimizer=sgd,learning_rate_schedule=constant,learning_rate_constant=1.0,"
    "layer_prepostprocess_dropout=0.0,attention_dropout=0.0,relu_dropout=0.0"
)
MASKED = """

import tensorflow.compat.v1 as tf


@registry.register_problem
class ReverseMaskedBits(ReverseBits):
    def preprocess_example(self, example, mode, hparams):
        places = tf.cast(tf.range(tf.size(example["targets"])), tf.float32)
        return {**example, "targets_mask": 0.5 * (places % 3)}
"""
PARTS = (1 / 3, 1.0, 5 / 3)
"""Of the declared mini-batch, for each of three workers."""


def uneven(tf: Any, trainable: Trainable) -> list[dict[str, Any]]:
    """A mini-batch for each worker, as its own pipeline and its own size give it."""
    found = []
    for part in PARTS:
        with tf.Graph().as_default(), tf.Session() as session:
            trainable.prepare()
            pipeline = trainable.training_pipeline()
            iterator = tf.data.make_initializable_iterator(pipeline.dataset)
            values = iterator.get_next()
            session.run(iterator.initializer, pipeline.feeds)
            regrouped = Regrouped(trainable.batch)
            for _ in range(20):
                regrouped.add(session.run(values))
            found.append(dict(regrouped.take(round(part * trainable.batch))))
    return found


def union(batches: list[dict[str, Any]]) -> dict[str, Any]:
    """All mini-batches below each other."""
    together = Regrouped(1)
    for batch in batches:
        for row in range(len(batch["targets"])):
            together.add({name: array[row : row + 1] for name, array in batch.items()})
    return dict(together.take(sum(len(batch["targets"]) for batch in batches)))


def mask(batch: dict[str, Any], masked: bool) -> Any:
    """The weight of every target."""
    return batch["targets_mask"].reshape(batch["targets"].shape) if masked else 1.0


def main() -> None:
    folder = RunFolder(Path(sys.argv[1]))
    declared = {**TEXT, "mode": "sync", "damping": "none", "batching": "dynamic", "hparams": EXACT}
    if masked := sys.argv[2:] == ["masked"]:
        declared["problem"] = "reverse_masked_bits"
    (folder.path / "run.json").write_text(json.dumps(declared), encoding="utf-8")
    folder.cell.write_text(REVERSE + MASKED * masked, encoding="utf-8")
    spec = folder.spec()
    trainable = load_model(folder, spec, str(folder.data))
    tf = tensorflow()
    trainable.generate(str(folder.data), str(folder.data / "tmp"))
    batches = uneven(tf, trainable)
    with tf.Graph().as_default(), tf.Session() as session:
        trainable.prepare()
        features = trainable.placeholders()
        built = training_graph(trainable, features, sync=True)
        objective, accumulators = built.objective, built.accumulators
        accumulators.build_update(objective)
        variables = [variable for _, variable in objective.pairs]
        gradients = [tf.convert_to_tensor(gradient) for gradient, _ in objective.pairs]
        session.run(tf.global_variables_initializer())

        def fed(batch: dict[str, Any]) -> dict[Any, Any]:
            return {features[name]: batch[name] for name in features}

        alone = session.run(gradients, fed(union(batches)))
        before = session.run(variables)
        accumulators.open(session)
        number, _ = session.run(accumulators.position)
        weights = [float(session.run([objective.weight, built.step], {**fed(batch), accumulators.round: number})[0])
                   for batch in batches]  # fmt: skip
        session.run(accumulators.update, {accumulators.round: number, accumulators.needed: len(batches)})
        pairs = zip(before, session.run(variables), alone, strict=True)  # plain descent with a rate of 1
        differences = [float(np.abs(old - new - gradient).max(initial=0)) for old, new, gradient in pairs]
    tokens = [float(((batch["targets"] != 0) * mask(batch, masked)).sum()) for batch in batches]
    largest = max(float(np.abs(gradient).max(initial=0)) for gradient in alone)
    print(json.dumps({"differences": differences, "weights": weights, "tokens": tokens, "largest": largest}))


if __name__ == "__main__":
    main()
