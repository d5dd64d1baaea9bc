"""Compare optimizers on a parameter server with plain Keras: `python -m tests.runtime.keras_optimizers`.

Prints a line of JSON: for each case the largest difference of a weight after six steps, and what two
workers that apply gradients at the same time leave of a variable.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from transient_magics.runtime.tf import graph_mode

graph_mode.everything()

import keras  # noqa: E402
import tensorflow  # noqa: E402

from transient_magics.runtime.training.user_model.keras_optimizer import KerasOptimizer  # noqa: E402

kinds = keras.optimizers
SHAPES = {"table": (6, 4), "bias": (4,)}
STEPS = 6
UPDATES = 200
CASES: Mapping[str, Callable[[], Any]] = {
    "SGD": lambda: kinds.SGD(0.1),
    "SGD with weight decay": lambda: kinds.SGD(0.1, weight_decay=0.01),
    "SGD with momentum": lambda: kinds.SGD(0.1, 0.9, nesterov=True),
    "Adam": lambda: kinds.Adam(0.1),
    "Adam with amsgrad": lambda: kinds.Adam(0.1, amsgrad=True),
    "AdamW": lambda: kinds.AdamW(0.1, weight_decay=0.05),
    "AdamW with a schedule": lambda: kinds.AdamW(kinds.schedules.CosineDecay(0.1, 10), weight_decay=0.05),
    "RMSprop": lambda: kinds.RMSprop(0.1, momentum=0.5, centered=True),
    "Nadam": lambda: kinds.Nadam(0.1),
    "Adagrad": lambda: kinds.Adagrad(0.1),
    "Adamax": lambda: kinds.Adamax(0.1),
    "Adadelta": lambda: kinds.Adadelta(1.0),
    "Ftrl": lambda: kinds.Ftrl(0.1),
    "Lion": lambda: kinds.Lion(0.01),
    "Lamb": lambda: kinds.Lamb(0.1),
    "Muon": lambda: kinds.Muon(0.1),
    "Adafactor": lambda: kinds.Adafactor(0.1),
}


class Flipped(kinds.SGD):
    """An optimizer of the user's own, which goes uphill."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        super().update_step(-gradient, variable, learning_rate)


def weights(constraint: Any = None) -> dict[str, Any]:
    """Return the weights with which every case begins."""
    random = np.random.default_rng(0)
    made: dict[str, Any] = {}
    for name, shape in SHAPES.items():
        made[name] = keras.Variable(random.normal(size=shape).astype("float32"), name=name)
        made[name].constraint = constraint
    return made


def gradients() -> list[dict[str, Any]]:
    """Return a gradient of each weight for each step."""
    random = np.random.default_rng(1)
    return [{name: random.normal(size=shape).astype("float32") for name, shape in SHAPES.items()} for _ in range(STEPS)]


def by_keras(optimizer: Any, constraint: Any = None) -> list[Any]:
    """Return the weights after Keras's own steps."""
    variables = list(weights(constraint).values())
    optimizer.build(variables)
    for step in gradients():
        optimizer.apply([tensorflow.constant(gradient) for gradient in step.values()], variables)
    return [variable.numpy() for variable in variables]


def on_server(optimizer: Any, constraint: Any = None, rows: bool = False) -> list[Any]:
    """Return the weights after the same steps in a graph; `rows`: gradients come as rows of embeddings."""
    given = weights(constraint)
    begin = {name: weight.numpy() for name, weight in given.items()}
    rule = KerasOptimizer(optimizer)
    rule.build(given)
    tf = graph_mode.tensorflow()
    with tf.Graph().as_default():
        variables = [tf.get_variable(name, initializer=begin[name], use_resource=True) for name in given]
        step = tf.train.get_or_create_global_step()
        fed = [tf.placeholder(tf.float32, shape) for shape in SHAPES.values()]
        parts = rule.parts()
        pairs = list(zip(fed, variables, strict=True))
        if rows:
            indices = tf.range(SHAPES["table"][0])
            pairs[0] = (tf.IndexedSlices(fed[0], indices, tf.constant(SHAPES["table"])), variables[0])
        applied = parts["optimizer"](parts["learning_rate"]).apply_gradients(pairs, global_step=step)
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            for gradient in gradients():
                session.run(applied, dict(zip(fed, gradient.values(), strict=True)))
            return session.run(variables)


def concurrently() -> float:
    """Return what two workers of one server leave of a number that every update lowers by 0.001."""
    tf = graph_mode.tensorflow()
    server = tf.distribute.Server.create_local_server()
    barrier = threading.Barrier(2)
    left: list[float] = []

    def work(first: bool) -> None:
        weight = keras.Variable(np.zeros((3,), "float32"), name="weight")
        rule = KerasOptimizer(kinds.Lion(0.001))
        rule.build({"weight": weight})
        with tf.Graph().as_default():
            variable = tf.get_variable("weight", initializer=np.zeros(3, "float32"), use_resource=True)
            tf.train.get_or_create_global_step()
            parts = rule.parts()
            pairs = [(tf.ones_like(variable), variable)]
            applied = parts["optimizer"](parts["learning_rate"]).apply_gradients(pairs)
            with tf.Session(server.target) as session:
                if first:
                    session.run(tf.global_variables_initializer())
                barrier.wait()
                for _ in range(UPDATES):
                    session.run(applied)
                barrier.wait()
                if first:
                    left.append(float(session.run(variable)[0]))

    threads = [threading.Thread(target=work, args=(first,)) for first in (True, False)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return left[0]


def difference(first: list[Any], second: list[Any]) -> float:
    return max(float(np.abs(one - other).max()) for one, other in zip(first, second, strict=True))


def main() -> None:
    """Print the differences."""
    worst = {name: difference(by_keras(make()), on_server(make())) for name, make in CASES.items()}
    worst["an optimizer of the user's own"] = difference(by_keras(Flipped(0.1)), on_server(Flipped(0.1)))
    for name in ("SGD with momentum", "Adam", "RMSprop", "Adagrad", "Nadam"):
        worst[f"rows of {name}"] = difference(by_keras(CASES[name]()), on_server(CASES[name](), rows=True))
    limit = keras.constraints.MaxNorm(0.5)
    worst["a constraint"] = difference(by_keras(kinds.Adam(0.1), limit), on_server(kinds.Adam(0.1), limit))
    print(json.dumps({"worst": worst, "concurrently": concurrently()}))


if __name__ == "__main__":
    main()
