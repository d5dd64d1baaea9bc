"""Whether a run computes what Keras computes: random small models in plain Keras and as a run builds them.

Both get the same data in the same order and begin with the same values. Compared are the initial values, the loss and
the gradients of a batch, and what `evaluate` says, before the first step and behind the twentieth; of models that draw
random numbers the mean loss of 200 draws. Deviations are relative to the largest value of their kind.

In one thing this is not plain Keras: it is given the gradients of embeddings as a run makes them, where a row that a
batch uses several times has one, the sum. By itself Keras on TensorFlow squares and clips the parts one by one, and
models with such rows deviate by far more than the goals.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from _models import BATCH, STEPS, Drawn, draw

DRAWS = 200
GOALS = {
    "initial values": 0.0,
    "loss, first step": 1e-5,
    "gradients, first step": 1e-5,
    "evaluation, first step": 1e-5,
    f"loss, {STEPS} steps": 1e-4,
    f"gradients, {STEPS} steps": 1e-4,
    f"evaluation, {STEPS} steps": 1e-4,
    "bfloat16, first step": 1e-5,
    f"bfloat16, {STEPS} steps": 1e-2,
    f"mean loss of {DRAWS} draws, in its standard errors": 4.5,
}


class Ours:
    """The model of a cell as a run builds it."""

    def __init__(self, cell: str, folder: Path, unchanged: bool = False) -> None:
        """`unchanged`: TensorFlow computes the graph as it is."""
        from transient_magics.protocol.run import RunSpec
        from transient_magics.runtime.folder import RunFolder
        from transient_magics.runtime.tf.graph_mode import tensorflow
        from transient_magics.runtime.training.graph.training import training_graph
        from transient_magics.runtime.training.user_model.trainable import OwnModel

        self.tf = tf = tensorflow()
        (folder / "cell.py").write_text(cell)
        self.trainable = OwnModel(RunFolder(folder), RunSpec("parity", STEPS))
        with tf.Graph().as_default():
            self.features = self.trainable.placeholders()
            self.built = training_graph(self.trainable, self.features)
            self.variables = {variable.op.name: variable for variable in tf.global_variables()}
            pairs = self.built.objective.pairs
            self.gradients = {variable.op.name: tf.convert_to_tensor(gradient) for gradient, variable in pairs}
            self.configured = tf.ConfigProto()
            self.configured.graph_options.rewrite_options.disable_meta_optimizer = unchanged
            self.session = tf.Session(config=self.configured)
            self.session.run(tf.global_variables_initializer())

    @property
    def model(self) -> Any:
        return self.trainable.keras_model.model  # type: ignore[attr-defined]

    def feeds(self, values: Mapping[str, Any]) -> dict[Any, Any]:
        return {self.features[name]: value for name, value in values.items()}

    def step(self, values: Mapping[str, Any]) -> None:
        self.session.run(self.built.step, self.feeds(values))

    def loss(self, values: Mapping[str, Any]) -> float:
        return float(self.session.run(self.built.objective.loss, self.feeds(values)))

    def gradients_of(self, values: Mapping[str, Any]) -> list[Any]:
        names = [weight.path for weight in self.model.trainable_variables]
        found = self.session.run(self.gradients, self.feeds(values))
        return [found.get(name) for name in names]

    def weights(self) -> list[Any]:
        return self.session.run([self.variables[weight.path] for weight in self.model.weights])

    def evaluate(self) -> dict[str, float]:
        from transient_magics.runtime.programs.evaluate import _all_batches

        tf, weights = self.tf, self.weights()
        with tf.Graph().as_default(), tf.Session(config=self.configured) as session:
            pipeline = self.trainable.evaluation_pipeline()
            iterator = tf.data.make_initializable_iterator(pipeline.dataset)
            batch = iterator.get_next()
            built = self.trainable.evaluation_graph(batch)
            session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
            session.run(iterator.initializer, pipeline.feeds)
            variables = {variable.op.name: variable for variable in tf.global_variables()}
            for weight, value in zip(self.model.weights, weights, strict=True):
                variables[weight.path].load(value, session)
            loss = _all_batches(tf, session, built, batch, 0)[0]
            return {"loss": loss, **session.run(dict(built.values))}


class Plain:
    """The same cell's model in Keras alone."""

    def __init__(self, cell: str) -> None:
        import tensorflow as tf

        names: dict[str, Any] = {}
        exec(compile(cell, "cell", "exec"), names)
        self.tf, self.model = tf, names["model"]
        apply = self.model.optimizer.apply
        self.model.optimizer.apply = lambda given, of=None: apply([_dense(tf, each) for each in given], of)
        self.train, self.held_out = (self._weighted(names["input_fn"](mode)) for mode in ("train", "eval"))
        self._built = False
        x, *_ = self.batch(0)
        self.model(x)

    def _weighted(self, given: Any) -> tuple[Any, Any, Any]:
        return (*given, None) if len(given) == 2 else given

    def batch(self, number: int) -> Any:
        import keras

        part = slice(number * BATCH, (number + 1) * BATCH)
        return keras.tree.map_structure(lambda each: None if each is None else _narrow(each)[part], self.train)

    def loss_and_gradients(self) -> tuple[float, list[Any]]:
        model, (x, y, weight), before = self.model, self.batch(0), self.model.get_weights()

        @self.tf.function
        def both() -> Any:
            with self.tf.GradientTape() as tape:
                loss = model._compute_loss(x, y, model(x, training=True), weight, training=True)
            return loss, tape.gradient(loss, model.trainable_variables)

        loss, gradients = both()
        model.set_weights(before)
        return float(loss), [None if each is None else _dense(self.tf, each).numpy() for each in gradients]

    def losses(self) -> list[float]:
        model, (x, y, weight), before = self.model, self.batch(0), self.model.get_weights()

        @self.tf.function
        def loss() -> Any:
            return model._compute_loss(x, y, model(x, training=True), weight, training=True)

        drawn = [float(loss()) for _ in range(DRAWS)]
        model.set_weights(before)
        return drawn

    def fit(self) -> None:
        x, y, weight = self.train
        self.model.fit(x, y, BATCH, sample_weight=weight, shuffle=False, verbose=0)

    def evaluate(self) -> dict[str, float]:
        x, y, weight = self.held_out
        return self.model.evaluate(x, y, BATCH, sample_weight=weight, verbose=0, return_dict=True)


def compared(drawn: Drawn, folder: Path) -> dict[str, float]:
    """The deviations of one model, by their kind."""
    import keras
    import numpy

    from transient_magics.runtime.training.user_model import data

    with _fresh():
        plain = Plain(drawn.cell)
    with _fresh():
        ours = Ours(drawn.cell, folder, drawn.narrow)
        # Joined operations round less often to bfloat16, and which ones are joined differs between the two.
        plain.tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": drawn.narrow})
        arrays = data._as_arrays(data._in_parts(tuple(each for each in plain.train if each is not None)))

        def batch(number: int) -> dict[str, Any]:
            return {name: array[number * BATCH : (number + 1) * BATCH] for name, array in arrays.items()}

        found = {"initial values": deviation(ours.weights(), plain.model.get_weights())}
        if drawn.random:
            here, there = numpy.array([ours.loss(batch(0)) for _ in range(DRAWS)]), numpy.array(plain.losses())
            error = float(numpy.sqrt((here.var() + there.var()) / DRAWS)) or 1e-9
            found[f"mean loss of {DRAWS} draws, in its standard errors"] = abs(here.mean() - there.mean()) / error
            found["evaluation, first step"] = _apart(ours.evaluate(), plain.evaluate())
            return found
        for after in ("first step", f"{STEPS} steps"):
            loss, gradients = plain.loss_and_gradients()
            found[f"loss, {after}"] = deviation([ours.loss(batch(0))], [loss])
            found[f"gradients, {after}"] = deviation(ours.gradients_of(batch(0)), gradients)
            found[f"evaluation, {after}"] = _apart(ours.evaluate(), plain.evaluate())
            if after == "first step":
                plain.fit()
                for number in range(STEPS):
                    ours.step(batch(number))
        keras.config.set_dtype_policy("float32")
    return _in_bfloat16(found) if drawn.narrow else found


def _in_bfloat16(found: Mapping[str, float]) -> dict[str, float]:
    """The largest deviations, but of later gradients: a weight rounded up is up to 0.8 % from the same rounded down."""
    first, last = "first step", f"{STEPS} steps"
    return {
        "initial values": found["initial values"],
        f"bfloat16, {first}": _largest(found[f"{each}, {first}"] for each in ("loss", "gradients", "evaluation")),
        f"bfloat16, {last}": _largest(found[f"{each}, {last}"] for each in ("loss", "evaluation")),
    }


def deviation(ours: list[Any], theirs: list[Any]) -> float:
    """The largest difference, relative to the largest value of its variable, or to a thousandth of all of them."""
    import numpy

    if [each is None for each in ours] != [each is None for each in theirs]:
        return float("inf")
    pairs = [(numpy.float64(a), numpy.float64(b)) for a, b in zip(ours, theirs, strict=True) if a is not None]
    largest = max((float(numpy.abs(b).max()) for _, b in pairs if b.size), default=0.0)
    return _largest(numpy.abs(a - b).max() / max(numpy.abs(b).max(), largest * 1e-3, 1e-12) for a, b in pairs if b.size)


def _largest(values: Iterable[float]) -> float:
    """No number where one of them is none: `max` would pass it over."""
    import numpy

    return float(numpy.max(list(values), initial=0.0))


def _apart(ours: Mapping[str, float], theirs: Mapping[str, float]) -> float:
    """The largest difference of all that was evaluated, which must have the same names.

    Relative to each value, or to a tenth: means of both signs may come close to 0.
    """
    if ours.keys() != theirs.keys():
        print("names differ:", sorted(ours), sorted(theirs), file=sys.stderr)
        return float("inf")
    pairs = [(float(ours[name]), value) for name, value in theirs.items()]
    if any(math.isnan(a) != math.isnan(b) for a, b in pairs):  # undefined in both: of a text without a word
        return float("inf")
    return _largest(abs(a - b) / max(abs(b), 0.1) for a, b in pairs if not math.isnan(b))


def _dense(tf: Any, gradient: Any) -> Any:
    return gradient if gradient is None else tf.convert_to_tensor(gradient)


def _narrow(array: Any) -> Any:
    return array.astype("float32") if array.dtype == "float64" else array


@contextlib.contextmanager
def _fresh() -> Iterator[None]:
    """Keras as it is when a process begins: names and policies are its own state."""
    import keras

    keras.utils.clear_session()
    keras.config.set_dtype_policy("float32")
    yield


def main() -> None:
    """Print how many models were compared, and the worst deviation of each kind."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="12 models instead of 120")
    parser.add_argument("--models", type=int, help="how many models")
    parser.add_argument("--first", type=int, default=0, help="the number of the first one (0)")
    parser.add_argument("--only", type=int, nargs="+", help="the numbers of those to compare")
    parser.add_argument(
        "--show", action="store_true", help="print each model's deviations, and the cell where one is too large"
    )
    parser.add_argument("--gpu", action="store_true", help="on this machine's GPU, in float32 (without TF32)")
    given = parser.parse_args()
    numbers = given.only or range(given.first, given.first + (given.models or (12 if given.quick else 120)))
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "2", "KERAS_BACKEND": "tensorflow"}
    os.environ |= {"NVIDIA_TF32_OVERRIDE": "0"} if given.gpu else {"CUDA_VISIBLE_DEVICES": "-1"}
    worst: dict[str, tuple[float, int]] = {}
    failed = 0
    for number in numbers:
        drawn = draw(number)
        try:
            with tempfile.TemporaryDirectory() as folder:
                found = compared(drawn, Path(folder))
        except Exception as error:  # noqa: BLE001 - a model that cannot be compared is told, with its number
            print(f"model {number}: {type(error).__name__}: {str(error)[:300]}", file=sys.stderr)
            failed += 1
            continue
        if given.show:
            print(number, {name: float(f"{value:.2g}") for name, value in found.items()}, flush=True)
            if any(value > GOALS[name] for name, value in found.items()):
                print(drawn.cell.removeprefix("\n").partition("axis=-1)\n\n")[2], flush=True)
        for name, value in found.items():
            if name not in worst or not value <= worst[name][0]:
                worst[name] = (value, number)
    print(f"{'models compared':58} {len(numbers) - failed:9} target {len(numbers)}")
    for name, goal in GOALS.items():
        if name in worst:
            value, number = worst[name]
            print(f"{f'worst {name}':58} {value:9.1e} target <= {goal:g} (model {number})")
    sys.exit(bool(failed) or any(not value <= GOALS[name] for name, (value, _) in worst.items()))


if __name__ == "__main__":
    main()
