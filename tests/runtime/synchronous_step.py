"""Synchronous steps of a small model beside those of one process on the same batches; prints what came out as JSON.

A program of its own, because TensorFlow is not imported into the process of the tests. Nothing listens here.
"""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np

from transient_magics.runtime.tf.graph_mode import tensorflow
from transient_magics.runtime.training.graph.step import Accumulators
from transient_magics.runtime.training.t2t.optimizer import noisy_and_clipped
from transient_magics.runtime.training.trainable import Objective

WORDS, WIDTH = 6, 3
HPARAMS = SimpleNamespace(grad_noise_scale=0.0, clip_grad_norm=0.5)


def model(tf: Any, words: Any, targets: Any) -> Any:
    """The mean loss of a batch: an embedding (its gradient is sparse) and a dense layer."""
    start = lambda *shape: np.random.RandomState(7).normal(size=shape).astype(np.float32)  # noqa: E731
    table = tf.get_variable("table", initializer=start(WORDS, WIDTH), use_resource=True)
    weights = tf.get_variable("weights", initializer=start(WIDTH, 1), use_resource=True)
    return tf.reduce_mean(tf.square(tf.nn.embedding_lookup(table, words) @ weights - targets))


class Small:
    """One graph with the model, the accumulators of synchronous steps, and the plain step of one process."""

    def __init__(self, tf: Any, optimizer: Any) -> None:
        self.words, self.targets = tf.placeholder(tf.int32, [None]), tf.placeholder(tf.float32, [None, 1])
        global_step = tf.train.get_or_create_global_step()
        self.variables = None
        loss = model(tf, self.words, self.targets)
        self.variables = tf.trainable_variables()
        pairs = optimizer.compute_gradients(loss, self.variables)
        self.accumulators = Accumulators(self.variables, global_step)
        weight = tf.cast(tf.shape(self.words)[0], tf.float32)
        weighted = [(tf.convert_to_tensor(gradient) * weight, variable) for gradient, variable in pairs]
        self.pushed = self.accumulators.push(weighted, weight)
        self.half = self.accumulators._gradients[0].apply_grad(weighted[0][0], local_step=self.accumulators.round)
        objective = Objective(
            loss, pairs, optimizer, lambda given: noisy_and_clipped(given, HPARAMS), lambda by: optimizer, weight
        )
        self.accumulators.build_update(objective)
        # Dense here too: the norm of a sparse gradient counts a repeated row as several.
        dense = [(tf.convert_to_tensor(gradient), variable) for gradient, variable in pairs]
        self.plain = optimizer.apply_gradients(objective.finished(dense))
        self.session = tf.Session()
        self.session.run(tf.global_variables_initializer())

    def feeds(self, batch: tuple[Any, Any], number: int = 0) -> dict[Any, Any]:
        return {self.words: batch[0], self.targets: batch[1], self.accumulators.round: number}

    def end_round(self, number: int, count: int) -> int:
        feeds = {self.accumulators.round: number, self.accumulators.needed: count}
        return int(self.session.run(self.accumulators.update, feeds))

    def values(self) -> list[Any]:
        return self.session.run(self.variables)


def both(batches: list[tuple[Any, Any]]) -> tuple[Any, Any]:
    return tuple(np.concatenate(each) for each in zip(*batches, strict=True))  # type: ignore[return-value]


def main() -> None:
    tf = tensorflow()
    random = np.random.RandomState(3)
    draw = lambda words: (np.array(words, np.int32), random.normal(size=(len(words), 1)).astype(np.float32))  # noqa: E731

    def small() -> Small:
        with tf.Graph().as_default():
            return Small(tf, tf.train.MomentumOptimizer(0.1, 0.9))

    sync, alone = small(), small()
    run, rounds = sync.session.run, sync.accumulators
    found: dict[str, Any] = {"differences": [], "steps": [], "rounds": []}
    rounds.open(sync.session)
    # Word 5 is the first worker's alone, and repeated; mini-batches are uneven; the membership is 2, 2, 1, 3.
    for members in (2, 2, 1, 3):
        batches = [draw([0, 1, 5, 5]), draw([1, 2, 3, 3, 1, 0, 4]), draw([4, 2])][:members]
        number, step = run(rounds.position)
        found["rounds"].append(int(number))
        for batch in batches:
            run(sync.pushed, sync.feeds(batch, number))
        run(sync.pushed, sync.feeds(draw([2, 2, 2, 2]), number - 1))  # late by one round: dropped
        found["steps"].append([int(step), sync.end_round(number, members)])
        alone.session.run(alone.plain, alone.feeds(both(batches)))
        pairs = zip(sync.values(), alone.values(), strict=True)
        found["differences"].append(max(float(np.abs(mine - theirs).max()) for mine, theirs in pairs))

    # A worker dies in the middle of its push: it is not counted, and the step is still one of means.
    number, _ = run(rounds.position)
    run(sync.half, sync.feeds(draw([0, 1, 2, 3]), number))
    found["counted after half a push"] = int(run(rounds.complete))
    run(sync.pushed, sync.feeds(draw([0, 1, 2, 3]), number))
    found["counted after a whole one"] = int(run(rounds.complete))
    sync.end_round(number, 1)

    # A restore: what was pushed before it is gone, and what is pushed late is dropped although the step is the same.
    number, _ = run(rounds.position)
    run(sync.pushed, sync.feeds(draw([0, 1, 2, 3]), number))
    rounds.open(sync.session)
    run(sync.pushed, sync.feeds(draw([0, 1, 2, 3]), number))
    found["counted after a restore"] = int(run(rounds.complete))
    run(sync.pushed, sync.feeds(draw([0, 1, 2, 3]), run(rounds.position)[0]))
    found["counted in the new round"] = int(run(rounds.complete))
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
