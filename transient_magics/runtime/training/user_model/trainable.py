"""A model that the cell defines itself, as a run trains it. These names of the cell count:

    input_fn(mode)      (features, labels) for the mode "train" or "eval", for a Keras model also
    (features, labels,
                        weights): arrays, or a tf.data.Dataset of single examples; each of them is
                        one array, or a structure of several (dicts, tuples, namedtuples, nested).
                        Batches are taken where the model begins with a keras.Input, which tells
                        them from examples
    model               a compiled Keras model, or
    model_fn(features, labels, mode)
                        builds a batch's graph with TensorFlow's version-1 functions and returns a
                        dict:
                          loss             the batch's mean loss                            (train,
                          eval) optimizer        makes a tf.compat.v1.train optimizer of a rate
                          (train) learning_rate    a number or a tensor
                          (train) clip             what becomes of the list of gradients
                          (train, optional) predictions      a tensor, or several by name
                          (infer) eval_metric_ops  name -> (value, update), as of tf.metrics
                          (eval, optional)
                        The mode "infer" comes without labels.
    batch_size          examples of a worker's step (32)

The optimizer is not applied here: its learning rate follows the number of workers, and gradients
cross the network.
"""

from __future__ import annotations

import inspect
import operator
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....errors import DeclarationError, TrainingError
from ....protocol.run import RunSpec
from ...folder import RunFolder
from ...tf.graph_mode import tensorflow
from ..reproducibility import Generators, fingerprint_examples, seeded
from ..trainable import Drawn, EvaluationGraph, Objective, Pairs, Pipeline, ServingGraph, Texts
from ..usercode import run_program
from .data import Data, keep_as_constants
from .keras_model import declared_only, refuse_callbacks
from .structure import leaves, name_of, unique

if TYPE_CHECKING:
    from .keras_model import KerasModel

_ANSWERS = ("loss", "optimizer", "learning_rate", "clip", "predictions", "eval_metric_ops")
_BATCH = 32


class OwnModel:
    """The Trainable that a cell defines."""

    def __init__(self, folder: RunFolder, spec: RunSpec) -> None:
        """Run the cell. Raises CellError, DeclarationError or TrainingError."""
        os.environ["KERAS_BACKEND"] = "tensorflow"
        keep_as_constants()
        with declared_only(folder):
            module = run_program(folder, spec)
        if not callable(input_fn := getattr(module, "input_fn", None)):
            raise DeclarationError("the cell defines no input_fn", fix=_needed())
        _check_parameters(input_fn, "mode")
        refuse_callbacks(module)
        model_fn = getattr(module, "model_fn", None)
        model = getattr(module, "model", None)
        if callable(model_fn):
            _check_parameters(model_fn, "features", "labels", "mode")
        elif model is None:
            raise DeclarationError("the cell defines neither model nor model_fn", fix=_needed())
        if callable(model_fn):
            inputs = ()
        else:
            inputs = [each.shape for each in getattr(model, "inputs", None) or ()]
        self._examples = SeededInput(input_fn, vars(module), spec.program_seed)
        self._data = Data(self._examples, inputs, _batch_size(getattr(module, "batch_size", None)))
        self.batch = self._data.batch or _BATCH
        self.keras_model: KerasModel | None = None
        if callable(model_fn):
            self._model_fn = self._without_weights(model_fn)
        else:
            self._model_fn = self.keras_model = _keras(model, self._data, spec)

    def prepare(self) -> None:
        """Nothing is missing."""

    def fingerprint(self) -> dict[str, str]:
        """Return what the examples are like."""
        return self._examples.fingerprint()

    def has_records(self) -> bool:
        """Every VM asks input_fn."""
        return True

    def record_files(self) -> Sequence[Path]:
        """None: the cell's input_fn reads what it likes."""
        return ()

    def generate(self, directory: str, temporary: str) -> None:
        """Nothing is shared: every VM asks input_fn."""

    @property
    def features(self) -> Any:
        """What the model is given of an example, with the keys of `placeholders` in place of
        values.
        """
        return self._data.structure

    def training_pipeline(self) -> Pipeline:
        """Endless training examples, whose order is drawn anew whenever reading begins."""
        return self._data.training(self.batch)

    def evaluation_pipeline(self, drawn: Drawn | None = None) -> Pipeline:
        """The examples of the mode "eval" once, or those that are drawn."""
        return self._data.evaluation(self.batch, drawn)

    def check_data(self) -> None:
        """Raise TrainingError where there is nothing to train on, or to evaluate."""
        self._data.check(self.batch)

    def counted_evaluation(self, seconds: float) -> tuple[int, int, bool]:
        """How many elements and examples that has, as far as they come within the time; and whether
        those are all.
        """
        return self._data.counted_evaluation(seconds)

    def placeholders(self) -> dict[str, Any]:
        """Placeholders for a batch."""
        return self._placeholders(self._data.types)

    def objective(self, features: Mapping[str, Any], divisor: Any) -> Objective:
        """The loss, and the gradients of all trainable variables that have one."""
        tf = tensorflow()

        made = self._build(features, "train", "loss", "optimizer", "learning_rate")
        loss = made["loss"]
        if loss.shape.rank != 0:
            raise TrainingError(
                "model_fn's loss must be one number", fix="Take the mean over the batch."
            )
        rate = tf.cast(made["learning_rate"], tf.float32) / divisor
        optimizer = made["optimizer"](rate)
        found = optimizer.compute_gradients(loss, tf.trainable_variables())
        pairs = [(gradient, variable) for gradient, variable in found if gradient is not None]
        if not pairs:
            raise TrainingError("no variable of the model gets a gradient from its loss")
        weight = tf.cast(_rows(features), tf.float32)
        clip = _clipping(made.get("clip"))
        return Objective(
            loss, pairs, optimizer, clip, lambda by: made["optimizer"](rate / by), weight
        )

    def evaluation_graph(self, features: Mapping[str, Any]) -> EvaluationGraph:
        """The metrics that the model has for itself."""
        tf = tensorflow()

        made = self._build(features, "eval", "loss")
        metrics = made.get("eval_metric_ops") or {}
        updates = tf.group(*(update for _, update in metrics.values()))
        values = {name: value for name, (value, _) in metrics.items()}
        return EvaluationGraph(values, updates, made["loss"], _rows(features))

    def serving_graph(self, given: Collection[str] = ()) -> ServingGraph:
        """The predictions, for the features without labels."""
        tf = tensorflow()

        names = {key: self._data.names[key] for key in self._data.features}
        if given and (wrong := sorted(set(names.values()) ^ set(given))):
            if wrong[0] in given:
                what = f"the model has no feature {wrong[0]!r}"
            else:
                what = f"the feature {wrong[0]!r} is missing"
            raise TrainingError(
                what, where="inputs", fix=f"Its features are: {', '.join(sorted(names.values()))}."
            )
        inputs = self._placeholders(names)
        made = self._build(inputs, "infer", "predictions")["predictions"]
        found = [(name_of("predictions", path), value) for path, value in leaves(made)]
        outputs = zip(unique(name for name, _ in found), (value for _, value in found), strict=True)
        return ServingGraph(
            {name: inputs[key] for key, name in names.items()},
            {
                name: tf.identity(value, name=f"output_{number}")
                for number, (name, value) in enumerate(outputs)
            },
        )

    def texts(self) -> Texts:
        """Raises TrainingError: whatever turns texts into numbers is the cell's, and not known
        here.
        """
        fix = "Give run.predict what input_fn gives."
        raise TrainingError(
            "a model that the cell defines takes and gives numbers, no texts", fix=fix
        )

    def _placeholders(self, names: Collection[str]) -> dict[str, Any]:
        tf = tensorflow()
        types = self._data.types
        shapes = self._data.shapes
        return {
            name: tf.placeholder(types[name], [None, *shapes[name].as_list()], name=name)
            for name in names
        }

    def _without_weights(self, model_fn: Callable[..., Any]) -> Callable[..., Any]:
        if self._data.weighted:
            fix = "Make them one of the features."
            raise DeclarationError(
                "input_fn gives sample weights, which model_fn does not take", fix=fix
            )
        return lambda features, labels, weights, mode: model_fn(features, labels, mode)

    def _build(self, features: Mapping[str, Any], mode: str, *needed: str) -> Mapping[str, Any]:
        made = self._model_fn(*self._data.structured(features), mode)
        if not isinstance(made, Mapping):
            raise TrainingError(
                f"model_fn returns a dict, and not {type(made).__name__}", fix=_has()
            )
        if strange := sorted(set(made) - set(_ANSWERS)):
            raise TrainingError(
                f"model_fn's answer cannot have {strange[0]!r}", where=f"mode {mode}", fix=_has()
            )
        if missing := [name for name in needed if made.get(name) is None]:
            raise TrainingError(
                f"model_fn's answer needs {missing[0]!r}", where=f"mode {mode}", fix=_has()
            )
        return made


def _keras(model: Any, data: Data, spec: RunSpec) -> KerasModel:
    from .keras_model import KerasModel

    texts = [data.names[key] for key in data.features if data.types[key] == tensorflow().string]
    if texts:
        what = f"input_fn gives {texts[0]!r} as text, and a Keras model of a run takes numbers only"
        fix = "Turn it into numbers above input_fn, as with numbers = StringLookup(vocabulary=words)(texts).numpy()."
        raise DeclarationError(what, fix=fix)
    return KerasModel(model, data, spec.batching != "uniform")


def _rows(values: Mapping[str, Any]) -> Any:
    """How many examples a batch has."""
    return tensorflow().shape(next(iter(values.values())))[0]


def _batch_size(value: Any) -> int | None:
    if value is None:
        return None
    try:
        # NumPy's whole numbers are no int
        if isinstance(value, bool):
            size = 0
        else:
            size = operator.index(value)
    except TypeError:
        size = 0
    if size < 1:
        raise DeclarationError(f"batch_size is a whole number from 1 on, not {value!r}")
    return size


def _check_parameters(function: Callable[..., Any], *names: str) -> None:
    """Raise DeclarationError where `function` cannot be called with so many arguments."""
    try:
        inspect.signature(function).bind(*names)
    except TypeError:
        name = getattr(function, "__name__", type(function).__name__)
        if len(names) == 1:
            takes = "the mode"
        else:
            takes = f"{', '.join(names[:-1])} and {names[-1]}"
        raise DeclarationError(
            f"{name} takes {takes}", fix=f"Write def {name}({', '.join(names)})."
        ) from None
    except ValueError:  # written in another language, it has no signature
        return


def _clipping(clip: Callable[[list[Any]], list[Any]] | None) -> Callable[[Pairs], Pairs]:
    if clip is None:
        return lambda pairs: pairs
    return lambda pairs: list(
        zip(
            clip([gradient for gradient, _ in pairs]),
            [variable for _, variable in pairs],
            strict=True,
        )
    )


def _needed() -> str:
    return (
        "Without --model, the cell defines input_fn(mode), and model (a compiled Keras model) or "
        "model_fn(features, labels, mode)."
    )


def _has() -> str:
    return f"It may have {', '.join(_ANSWERS)}."


# The cell's `input_fn`, called so that what it draws is the same in all processes of a run, and its
# fingerprint.


class SeededInput:
    """Calls `input_fn(mode)`.

    Every call finds all generators in the state that they had when the cell had run: a split that
    `input_fn` draws is the same one for both modes, in every process. Between two calls, while
    examples are read, each process draws for itself.
    """

    def __init__(
        self, input_fn: Callable[[str], Any], variables: Mapping[str, Any], seed: int
    ) -> None:
        """`variables` are those of the cell's module, `seed` is the run's."""
        self._input_fn = input_fn
        self._seed = seed
        self._generators = Generators(variables)
        self._generators.renew()
        self._parts: dict[str, dict[str, str]] = {}

    def __call__(self, mode: str) -> Any:
        """Return what `input_fn` returns."""
        self._generators.restore()
        with seeded(self._seed, "input_fn"):
            given = self._input_fn(mode)
        self._generators.renew()
        if mode not in self._parts:
            arrays = _arrays(given)
            if arrays:
                self._parts[mode] = fingerprint_examples(mode, arrays)
            else:
                self._parts[mode] = {}
        return given

    def fingerprint(self) -> dict[str, str]:
        """Return what the examples of both modes are like; nothing where `input_fn` does not return
        arrays.
        """
        if not self._parts.get("train"):
            return {}
        if "eval" not in self._parts:
            self("eval")
        return {**self._parts["train"], **self._parts["eval"]}


def _arrays(given: Any) -> dict[str, Any] | None:
    """The arrays that `input_fn` returned, by a name of their place; None if some of it is
    something else.
    """
    import numpy

    arrays = dict[str, Any]()
    for name, value in _leaves("", given):
        if not hasattr(value, "__array__") and not isinstance(value, list):
            return None
        try:
            array = numpy.asarray(value)
        except (
            TypeError,
            ValueError,
            NotImplementedError,
        ):  # ragged lists, tensors of a graph: refused elsewhere
            return None
        if array.dtype.kind not in "biufSU" or not array.ndim:
            return None
        arrays[name] = array
    return arrays


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _leaves(f"{name}/{key}", each)
    elif isinstance(value, tuple):
        for number, each in enumerate(value):
            yield from _leaves(f"{name}/{number}", each)
    else:
        yield name, value
