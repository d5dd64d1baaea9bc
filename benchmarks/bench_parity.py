"""Whether a run computes what Keras computes: small models in plain Keras and as a run builds them.

Both get the same data in the same order and begin with the same values. Compared are the initial values, the loss and
the gradients of a batch, and what `evaluate` says, before the first step and behind the twentieth; of models that draw
random numbers the mean loss of 200 draws. Deviations are relative to the largest value of their kind.

Models with layers that assign state, and every third random model, are also trained by 1, 2 and 4 workers: in
synchronous steps with equal and unequal mini-batches, and asynchronously with late gradients. Compared are loss,
gradients and the weights that are not trained, behind the first step and the twentieth (_workers.py).

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

import _workers
from _models import BATCH, STATES, STEPS, Drawn, draw

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
    **dict(_workers.kinds()),
}


class Ours:
    """The model of a cell as a run builds it."""

    def __init__(self, cell: str, folder: Path, unchanged: bool = False, sync: bool = False) -> None:
        """`unchanged`: TensorFlow computes the graph as it is; `sync`: its steps are synchronous."""
        from transient_magics.protocol.run import RunSpec
        from transient_magics.runtime.folder import RunFolder
        from transient_magics.runtime.tf.graph_mode import tensorflow
        from transient_magics.runtime.training.graph.step import training_graph
        from transient_magics.runtime.training.user_model.trainable import OwnModel

        self.tf = tf = tensorflow()
        (folder / "cell.py").write_text(cell, encoding="utf-8")
        self.trainable = OwnModel(RunFolder(folder), RunSpec("parity", STEPS))
        self.arrays: Mapping[str, Any] = {}
        """All training examples, by the name of their part."""
        with tf.Graph().as_default():
            self.features = self.trainable.placeholders()
            self.built = training_graph(self.trainable, self.features, sync=sync)
            if sync:
                self.built.accumulators.build_update(self.built.objective)
            self.variables = {variable.op.name: variable for variable in tf.global_variables()}
            pairs = self.built.objective.pairs
            self.gradients = {variable.op.name: tf.convert_to_tensor(gradient) for gradient, variable in pairs}
            self.configured = tf.ConfigProto()
            self.configured.graph_options.rewrite_options.disable_meta_optimizer = unchanged
            self.session = tf.Session(config=self.configured)
            self._initialise = tf.global_variables_initializer()
            self.begin()

    @property
    def model(self) -> Any:
        return self.trainable.keras_model.model  # type: ignore[attr-defined]

    def feeds(self, values: Mapping[str, Any]) -> dict[Any, Any]:
        return {self.features[name]: value for name, value in values.items()}

    def begin(self) -> None:
        """Have the initial values again."""
        self.session.run(self._initialise)
        if self.built.accumulators:
            self.built.accumulators.open(self.session)

    def fed(self, examples: Any) -> dict[str, Any]:
        """The values of these training examples."""
        return {name: array[examples] for name, array in self.arrays.items()}

    def step(self, values: Mapping[str, Any], read: Iterable[Any] = ()) -> None:
        """An asynchronous step, of a worker that has `read` these weights; by default those of now."""
        late = {
            tensor: value
            for weight, value in zip(self.model.weights, read, strict=False)
            for tensor in self._reads(self.variables[weight.path])
        }
        self.session.run(self.built.step, {**self.feeds(values), **late})

    def _reads(self, variable: Any) -> list[Any]:
        """Where a worker reads a variable; what a parameter server reads waits for the worker."""
        found = [reader for reader in variable.handle.consumers() if reader.type == "ReadVariableOp"]
        return [reader.outputs[0] for reader in found if not reader.control_inputs]

    def step_together(self, batches: Iterable[Mapping[str, Any]]) -> None:
        """A synchronous step of as many workers as there are mini-batches."""
        rounds, run, count = self.built.accumulators, self.session.run, 0
        number, _ = run(rounds.position)
        for values in batches:
            run(self.built.step, {**self.feeds(values), rounds.round: number})
            count += 1
        run(rounds.update, {rounds.round: number, rounds.needed: count})

    def loss(self, values: Mapping[str, Any]) -> float:
        return float(self.session.run(self.built.objective.loss, self.feeds(values)))

    def gradients_of(self, values: Mapping[str, Any]) -> list[Any]:
        names = [weight.path for weight in self.model.trainable_variables]
        found = self.session.run(self.gradients, self.feeds(values))
        return [found.get(name) for name in names]

    def weights(self) -> list[Any]:
        return self.session.run([self.variables[weight.path] for weight in self.model.weights])

    def states(self) -> list[Any]:
        """The weights that are not trained."""
        return self.session.run([self.variables[weight.path] for weight in self.model.non_trainable_weights])

    def evaluate(self) -> dict[str, float]:
        from transient_magics.runtime.programs.evaluate import all_batches

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
            loss = all_batches(session, built, batch, pipeline)[0]
            return {"loss": loss, **session.run(dict(built.values))}


class Plain:
    """The same cell's model in Keras alone."""

    def __init__(self, cell: str) -> None:
        import keras
        import tensorflow as tf

        names: dict[str, Any] = {}
        exec(compile(cell, "cell", "exec"), names)
        self.tf, self.model = tf, names["model"]
        apply = self.model.optimizer.apply
        self.model.optimizer.apply = lambda given, of=None: apply([_dense(tf, each) for each in given], of)
        self.train, self.held_out = (self._weighted(names["input_fn"](mode)) for mode in ("train", "eval"))
        x, *_ = self.batch(0)
        self.model(x)
        self.trained = [any(weight is each for each in self.model.trainable_weights) for weight in self.model.weights]
        self.shares = _workers.shares(self.model, names.get("shares", {}))
        self.examples = len(keras.tree.flatten(self.train)[0])
        self._initial = [_copy(each) for each in self._changing()]
        self._compute = tf.function(self._loss_and_gradients, reduce_retracing=True)

    def _weighted(self, given: Any) -> tuple[Any, Any, Any]:
        return (*given, None) if len(given) == 2 else given

    def batch(self, number: int) -> Any:
        return self.part(slice(number * BATCH, (number + 1) * BATCH))

    def part(self, examples: Any) -> Any:
        """These training examples."""
        import keras

        return keras.tree.map_structure(lambda each: None if each is None else _narrow(each)[examples], self.train)

    def _changing(self) -> list[Any]:
        """The variables that a step changes: those of the optimizer, which has them from its first step on, too."""
        self.model.optimizer.build(self.model.trainable_variables)
        return [*self.model.weights, *self.model.optimizer.variables]

    def begin(self) -> None:
        """Have the initial values again."""
        for variable, value in zip(self._changing(), self._initial, strict=True):
            variable.assign(value)

    def _loss_and_gradients(self, x: Any, y: Any, weight: Any) -> Any:
        model = self.model
        with self.tf.GradientTape() as tape:
            loss = model._compute_loss(x, y, model(x, training=True), weight, training=True)
        return loss, tape.gradient(loss, model.trainable_variables)

    def loss_and_gradients(self) -> tuple[float, list[Any]]:
        return self.computed(slice(BATCH))[:2]

    def computed(self, examples: Any, weights: Any = None) -> tuple[float, list[Any], list[Any]]:
        """The loss, the gradients and the new values that layers assign, of these examples at the `weights` (default:
        those of now), which stay as they are."""
        model, before = self.model, self.weights()
        if weights is not None:
            model.set_weights(weights)
        loss, gradients = self._compute(*self.part(examples))
        dense = [None if each is None else _dense(self.tf, each).numpy() for each in gradients]
        assigned = self.states()
        model.set_weights(before)
        return float(loss), dense, assigned

    def weights(self) -> list[Any]:
        return [_copy(weight) for weight in self.model.weights]

    def states(self) -> list[Any]:
        """The weights that are not trained."""
        return [_copy(weight) for weight in self.model.non_trainable_weights]

    def apply(self, gradients: Iterable[Any], states: Iterable[Any]) -> None:
        """A step with these gradients, behind which the weights that are not trained have the values `states`."""
        pairs = zip(gradients, self.model.trainable_variables, strict=True)
        found = [(self.tf.constant(gradient), weight) for gradient, weight in pairs if gradient is not None]
        self.model.optimizer.apply(*map(list, zip(*found, strict=True)))
        for weight, value in zip(self.model.non_trainable_weights, states, strict=True):
            weight.assign(value)

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


def compared(drawn: Drawn, folder: Path, workers: bool = False) -> dict[str, float]:
    """The deviations of one model, by their kind; `workers`: also of several workers."""
    import keras
    import numpy

    with _fresh():
        plain = Plain(drawn.cell)
    with _fresh():
        ours = Ours(drawn.cell, folder, drawn.narrow)
        # Joined operations round less often to bfloat16, and which ones are joined differs between the two.
        plain.tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": drawn.narrow})
        with ours.tf.Graph().as_default():
            ours.arrays = ours.trainable._data._given("train").values

        def batch(number: int) -> dict[str, Any]:
            return ours.fed(slice(number * BATCH, (number + 1) * BATCH))

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
        if workers:
            together = Ours(drawn.cell, folder, drawn.narrow, sync=True)
            together.arrays = ours.arrays
            found |= _workers.compared(together, ours, plain, _workers.is_whole(drawn.cell))
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


def _copy(variable: Any) -> Any:
    """A value that stays as it is: what `numpy` gives may be the variable's own memory."""
    import numpy

    return numpy.array(variable.numpy())


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
    parser.add_argument("--quick", action="store_true", help="12 random models instead of 120")
    parser.add_argument("--models", type=int, help="how many random models")
    parser.add_argument("--first", type=int, default=0, help="the number of the first one (0)")
    parser.add_argument("--only", nargs="+", help=f"the numbers of random models to compare, or {', '.join(STATES)}")
    parser.add_argument("--alone", action="store_true", help="compare one worker only")
    parser.add_argument(
        "--show", action="store_true", help="print each model's deviations, and the cell where one is too large"
    )
    parser.add_argument("--gpu", action="store_true", help="on this machine's GPU, in float32 (without TF32)")
    given = parser.parse_args()
    numbers = range(given.first, given.first + (given.models or (12 if given.quick else 120)))
    names = given.only or [*STATES, *map(str, numbers)]
    if unknown := [name for name in names if name not in STATES and not name.isdigit()]:
        parser.error(f"unknown model {unknown[0]}: models are numbers, or {', '.join(STATES)}")
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "2", "KERAS_BACKEND": "tensorflow"}
    os.environ |= {"NVIDIA_TF32_OVERRIDE": "0"} if given.gpu else {"CUDA_VISIBLE_DEVICES": "-1"}
    worst: dict[str, tuple[float, str]] = {}
    failed, several = 0, 0
    for number in names:
        drawn = STATES[number] if number in STATES else draw(int(number))
        workers = not given.alone and (number in STATES or int(number) % 3 == 0)
        several += workers
        try:
            with tempfile.TemporaryDirectory() as folder:
                found = compared(drawn, Path(folder), workers)
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
    print(f"{'models compared':70} {len(names) - failed:9} target {len(names)}")
    print(f"{'of these with 1, 2 and 4 workers':70} {several:9}")
    for name, goal in GOALS.items():
        if name in worst:
            value, number = worst[name]
            print(f"{f'worst {name}':70} {value:9.1e} target <= {goal:g} (model {number})")
    sys.exit(bool(failed) or any(not value <= GOALS[name] for name, (value, _) in worst.items()))


if __name__ == "__main__":
    main()
