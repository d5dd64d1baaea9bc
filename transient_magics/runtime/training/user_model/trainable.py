"""A model that the cell defines itself, as a run trains it.

A cell that calls `fit` of a compiled Keras model declares all of this with that call (fit.py). Any
other cell defines these names:

`input_fn(mode)`
    Returns (features, labels) for the mode "train" or "eval"; for a Keras model also (features,
    labels, weights). They are arrays, or a tf.data.Dataset of single examples. Each of the three is
    one array, or a structure of several (dicts, tuples, namedtuples, nested). A dataset of batches
    is accepted if the model begins with a keras.Input, which distinguishes batches from examples.
`model`
    A compiled Keras model; or
`model_fn(features, labels, mode)`
    Builds the graph of a batch with TensorFlow's version-1 functions. The mode "infer" has no
    labels. Returns a dict:

    loss             the batch's mean loss                              train, eval
    optimizer        function of a rate: a tf.compat.v1.train optimizer train
    learning_rate    a number or a tensor                               train
    clip             function of the list of gradients                  train, optional
    predictions      a tensor, or a structure of several                infer
    eval_metric_ops  name -> (value, update), as from tf.metrics        eval, optional
`batch_size`
    Examples of a worker's step (default: 32).

The optimizer is not applied here: its learning rate follows the number of workers, and the
gradients cross the network.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import operator
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....errors import DeclarationError, TrainingError, TransientError
from ....protocol.fit_calls import last_fit, may_continue
from ....protocol.run import RunSpec
from ...folder import RunFolder
from ...phases import Phase, Phases
from ...tf.graph_mode import tensorflow
from ..reproducibility import VOCABULARIES, Generators, fingerprint_examples, seeded
from ..trainable import EvaluationGraph, Objective, Pairs, Pipeline, Sample, ServingGraph, Texts
from ..usercode import run_program
from . import preprocessing
from .data import Data, keep_as_constants
from .fit import Fit, Recorder
from .keras_model import build_model, check_model, declared_only, refuse_callbacks
from .replay import Ending, Replay
from .structure import is_text, leaves, name_of, read_arrays, unique, write_arrays

if TYPE_CHECKING:
    from .keras_model import KerasModel

_ANSWERS = ("loss", "optimizer", "learning_rate", "clip", "predictions", "eval_metric_ops")
_OF_KERAS = ("training_metrics",)
"""Keys of the answer of a Keras model alone."""
_BATCH = 32
_STEP = "global_step"
_REQUIRED = (
    "Without --model, call fit of a compiled Keras model; or define input_fn(mode), and model "
    "(a compiled Keras model) or model_fn(features, labels, mode)."
)


class OwnModel:
    """The Trainable that a cell defines."""

    def __init__(self, folder: RunFolder, spec: RunSpec, step: int | None = None) -> None:
        """Run the cell.

        Parameters
        ----------
        folder, spec
            The run's folder and declaration.
        step
            The step of a checkpoint, whose phase is built (None: the present one).

        Raises
        ------
        CellError, DeclarationError, TrainingError
            For an error of the cell, or a model that a run cannot train.
        """
        _prepare_keras()
        later = Phases(folder).until(step)
        recorder = Recorder(_replay(folder, spec, later), len(later))
        with declared_only(folder, recorder):
            module = run_program(folder, spec)
        self.fit = fit = recorder.fit
        begins = [0, *(phase.begin for phase in later)]
        optimizer_begin = 0
        self.begin = begins[-1]
        """The step at which its phase began."""
        self._keeps_optimizer = True
        self.continues = False
        """Whether the cell may call `fit` once more."""
        if recorder.earlier and not fit:
            raise DeclarationError(
                "the cell calls model.fit less often than before",
                fix="Let nothing that differs between processes decide how often.",
            )
        batch = _batch_size(getattr(module, "batch_size", None))
        model_fn = getattr(module, "model_fn", None)
        model = getattr(module, "model", None)
        input_fn = getattr(module, "input_fn", None)
        if fit:
            optimizer_begin = begins[fit.optimizer_phase]
            self._keeps_optimizer = fit.optimizer_phase < len(later)
            source = folder.cell.read_text(encoding="utf-8")
            self.continues = may_continue(ast.parse(source), fit.line)
            if self.continues and not spec.check:
                raise DeclarationError(
                    "the cell may call model.fit several times, and only the check of a run counts "
                    "the phases",
                    fix="Leave --no-check out.",
                )
            if callable(input_fn) or callable(model_fn):
                raise DeclarationError(
                    "the cell calls model.fit and defines input_fn or model_fn",
                    fix="Keep one of them.",
                )
            if spec.mode == "sync" and spec.workers > 1:
                fit = fit.shared(spec.workers)
            input_fn = fit.input_fn
            model = fit.model
            batch = fit.batch_size
        elif not callable(input_fn):
            raise DeclarationError("the cell does not train a model", fix=_REQUIRED)
        else:
            _check_parameters(input_fn, "mode")
            refuse_callbacks(module)
        if callable(model_fn):
            _check_parameters(model_fn, "features", "labels", "mode")
        elif model is None:
            raise DeclarationError("the cell defines neither model nor model_fn", fix=_REQUIRED)
        inputs: Sequence[Any] = ()
        if not callable(model_fn):
            inputs = [tensor.shape for tensor in getattr(model, "inputs", None) or ()]
        self.keras_model: KerasModel | None = None
        self._examples = SeededInput(input_fn, vars(module), spec.program_seed)
        self._data = Data(
            self._examples, inputs, batch, fit.batched if fit else None, labelled=not fit
        )
        self.batch = self._data.batch or _BATCH
        self.learned: Mapping[str, Any] = {}
        """Arrays that the model's preprocessing layers learned from data (preprocessing.py)."""
        if callable(model_fn):
            self._model_fn = self._without_weights(model_fn)
        else:
            from .keras_model import KerasModel

            stored = folder.checkpoints / preprocessing.FILE
            if stored.exists():
                preprocessing.restore(model, read_arrays(stored))
            self.keras_model = KerasModel(
                model, self._data, spec.batching != "uniform", optimizer_begin
            )
            self._model_fn = self.keras_model
            self.learned = preprocessing.learned(model)

    def prepare(self) -> None:
        """Do nothing: the definition is complete."""

    def fingerprint(self) -> dict[str, str]:
        """Return the fingerprint of the examples and of the model's vocabularies."""
        parts = self._examples.fingerprint()
        if vocabularies := preprocessing.fingerprint(self.learned):
            parts[VOCABULARIES] = vocabularies
        return parts

    def keep_vocabularies(self, checkpoints: Path) -> None:
        """Write what the model's preprocessing layers learned beside its checkpoints."""
        if self.learned:
            checkpoints.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_arrays(checkpoints / preprocessing.FILE, self.learned)

    def continued(self, step: int, values: dict[str, Any]) -> dict[str, Any]:
        """Return the values of the checkpoint of `step` with which variables continue.

        As a phase begins, its weights are those that the cell has given to the model. A new
        optimizer begins without states.
        """
        import numpy

        if step > self.begin or not self.begin or self.keras_model is None:
            return values
        weights = self.keras_model.weight_names
        kept: dict[str, Any] = {}
        if self._keeps_optimizer:
            kept = {name: value for name, value in values.items() if name not in weights}
        step_value = numpy.asarray(self.begin, values[_STEP].dtype)
        return {**kept, _STEP: step_value}

    def has_records(self) -> bool:
        """Return True: every VM calls input_fn."""
        return True

    def record_files(self) -> Sequence[Path]:
        """Return no files: the cell's input_fn reads the data."""
        return ()

    def generate(self, directory: str, temporary: str) -> None:
        """Do nothing: every VM calls input_fn."""

    @property
    def features(self) -> Any:
        """The model's features, with the keys of `placeholders` in place of values."""
        return self._data.structure

    def training_pipeline(self) -> Pipeline:
        """Return endless training examples, in a new random order per iterator."""
        return self._data.training(self.batch)

    def evaluation_pipeline(self, drawn: Sample | None = None) -> Pipeline:
        """Return the examples of the mode "eval" once, or the part of them that is `drawn`."""
        return self._data.evaluation(self.batch, drawn)

    def check_data(self) -> None:
        """Raise TrainingError if there are no examples to train on, or to evaluate."""
        self._data.check(self.batch)

    def training_results(self, total: Sequence[float]) -> dict[str, float]:
        """Return the training metrics of steps that added up to `total` (Objective.metrics)."""
        if self.keras_model is None:
            return {}
        return self.keras_model.metrics.results(total)

    def counted_evaluation(self, seconds: float) -> tuple[int, int, bool]:
        """Count the evaluation examples for at most `seconds`.

        Returns
        -------
        tuple of int, int, bool
            Elements, examples, and whether all were counted.
        """
        return self._data.counted_evaluation(seconds)

    def placeholders(self) -> dict[str, Any]:
        """Return the placeholders of a batch."""
        return self._placeholders(self._data.types)

    def objective(self, features: Mapping[str, Any], divisor: Any) -> Objective:
        """Return the loss, and the gradients of all trainable variables that have one."""
        tf = tensorflow()

        answer = self._build(features, "train", "loss", "optimizer", "learning_rate")
        loss = answer["loss"]
        if loss.shape.rank != 0:
            raise TrainingError(
                "model_fn's loss must be one number", fix="Return the mean over the batch."
            )
        rate = tf.cast(answer["learning_rate"], tf.float32) / divisor
        make_optimizer = answer["optimizer"]
        optimizer = make_optimizer(rate)
        found = optimizer.compute_gradients(loss, tf.trainable_variables())
        pairs = [(gradient, variable) for gradient, variable in found if gradient is not None]
        if not pairs:
            raise TrainingError("the loss has no gradient for any trainable variable")
        weight = tf.cast(_rows(features), tf.float32)
        clip = _clipping(answer.get("clip"))
        metrics = None
        if self.fit:  # only fit has epochs, whose metrics are reported
            metrics = answer.get("training_metrics")
        return Objective(
            loss,
            pairs,
            optimizer,
            clip,
            lambda by: make_optimizer(rate / by),
            weight,
            metrics=metrics,
        )

    def evaluation_graph(self, features: Mapping[str, Any]) -> EvaluationGraph:
        """Return the metrics that the model defines."""
        tf = tensorflow()

        answer = self._build(features, "eval", "loss")
        metrics = answer.get("eval_metric_ops") or {}
        updates = tf.group(*(update for _, update in metrics.values()))
        values = {name: value for name, (value, _) in metrics.items()}
        return EvaluationGraph(values, updates, answer["loss"], _rows(features))

    def serving_graph(self, given: Collection[str] = ()) -> ServingGraph:
        """Return the predictions for features without labels."""
        tf = tensorflow()

        names = {key: self._data.names[key] for key in self._data.features}
        different = sorted(set(names.values()) ^ set(given))
        if given and different:
            if different[0] in given:
                what = f"the model has no feature {different[0]!r}"
            else:
                what = f"the feature {different[0]!r} is missing"
            raise TrainingError(
                what, where="inputs", fix=f"Its features are: {', '.join(sorted(names.values()))}."
            )
        inputs = self._placeholders(names)
        predictions = self._build(inputs, "infer", "predictions")["predictions"]
        found = [(name_of("predictions", path), value) for path, value in leaves(predictions)]
        outputs = zip(unique(name for name, _ in found), (value for _, value in found), strict=True)
        return ServingGraph(
            {name: inputs[key] for key, name in names.items()},
            {
                name: tf.identity(value, name=f"output_{number}")
                for number, (name, value) in enumerate(outputs)
            },
        )

    def texts(self) -> Texts:
        """Raise TrainingError: only the cell can turn texts into numbers."""
        raise TrainingError(
            "the run cannot convert texts to numbers for a model that a cell defines",
            fix="Call run.predict with features like those that input_fn returns.",
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
            raise DeclarationError(
                "input_fn returns sample weights, which model_fn does not accept",
                fix="Make them one of the features.",
            )
        return lambda features, labels, weights, mode: model_fn(features, labels, mode)

    def _build(self, features: Mapping[str, Any], mode: str, *needed: str) -> Mapping[str, Any]:
        answer = self._model_fn(*self._data.structured(features), mode)
        fix = f"The allowed keys are {', '.join(_ANSWERS)}."
        if not isinstance(answer, Mapping):
            raise TrainingError(
                f"model_fn must return a dict, not {type(answer).__name__}", fix=fix
            )
        where = f"mode {mode}"
        if unknown := sorted(set(answer) - {*_ANSWERS, *_OF_KERAS}):
            raise TrainingError(
                f"model_fn returns the unknown key {unknown[0]!r}", where=where, fix=fix
            )
        if missing := [name for name in needed if answer.get(name) is None]:
            raise TrainingError(f"model_fn must return {missing[0]!r}", where=where, fix=fix)
        return answer


def expected_calls(
    folder: RunFolder, spec: RunSpec, later: Sequence[Phase] = (), ending: Ending | None = None
) -> tuple[list[Fit], str]:
    """Execute the whole cell, and return the calls of `fit` that are left.

    Parameters
    ----------
    folder, spec
        The run's folder and declaration.
    later
        The phases that have begun after the first.
    ending
        The present phase, if it has ended. None: the first phase has not begun.

    Returns
    -------
    list of Fit, str
        The first call is the next one of the run. The others are expected, with untrained weights;
        the text says why the cell could not be executed to its end, if so.

    Raises
    ------
    CellError, DeclarationError
        For an error of the cell before its next call, and for a call that a run cannot train.
    """
    _prepare_keras()
    ended = len(later) + (ending is not None)
    recorder = Recorder(_replay(folder, spec, later, ending), ended, expects=True)
    left = ""
    try:
        with declared_only(folder, recorder):
            run_program(folder, spec, last_fit)
    except TransientError as error:
        if recorder.fit is None or isinstance(error.__cause__, DeclarationError):
            raise
        left = str(error)
    return [*filter(None, [recorder.fit]), *recorder.later], left


def _replay(
    folder: RunFolder, spec: RunSpec, later: Sequence[Phase], ending: Ending | None = None
) -> Replay:
    def build(fit: Fit) -> Iterable[str]:
        check_model(fit.model)
        stored = folder.checkpoints / preprocessing.FILE
        if stored.exists():
            preprocessing.restore(fit.model, read_arrays(stored))
        if spec.mode == "sync" and spec.workers > 1:
            fit = fit.shared(spec.workers)
        inputs = [tensor.shape for tensor in getattr(fit.model, "inputs", None) or ()]
        data = Data(fit.input_fn, inputs, fit.batch_size, fit.batched, labelled=False)
        _, metrics, _ = build_model(fit.model, data)
        return metrics

    return Replay(folder, later, build, ending)


def _prepare_keras() -> None:
    os.environ["KERAS_BACKEND"] = "tensorflow"
    keep_as_constants()
    preprocessing.repeat_in_graphs()


def _rows(values: Mapping[str, Any]) -> Any:
    """Return the number of examples of a batch, as a tensor."""
    return tensorflow().shape(next(iter(values.values())))[0]


def _batch_size(value: Any) -> int | None:
    if value is None:
        return None
    size = 0
    if not isinstance(value, bool):
        with contextlib.suppress(TypeError):
            size = operator.index(value)  # also accepts NumPy's integers
    if size < 1:
        raise DeclarationError(f"batch_size must be a whole number of at least 1, not {value!r}")
    return size


def _check_parameters(function: Callable[..., Any], *names: str) -> None:
    """Raise DeclarationError if `function` does not accept these arguments."""
    try:
        inspect.signature(function).bind(*names)
    except TypeError:
        name = getattr(function, "__name__", type(function).__name__)
        if len(names) == 1:
            takes = "the mode"
        else:
            takes = f"{', '.join(names[:-1])} and {names[-1]}"
        raise DeclarationError(
            f"{name} must take {takes}", fix=f"Write def {name}({', '.join(names)})."
        ) from None
    except ValueError:  # an extension function without a signature
        return


def _clipping(clip: Callable[[list[Any]], list[Any]] | None) -> Callable[[Pairs], Pairs]:
    if clip is None:
        return lambda pairs: pairs

    def clipped(pairs: Pairs) -> Pairs:
        gradients = clip([gradient for gradient, _ in pairs])
        variables = [variable for _, variable in pairs]
        return list(zip(gradients, variables, strict=True))

    return clipped


# The cell's `input_fn` with seeded random numbers, the same ones in all processes of a run, and the
# fingerprint of its examples.


class SeededInput:
    """A callable that calls `input_fn(mode)` reproducibly.

    Each call finds all generators in the state in which the cell left them. So a split that
    `input_fn` draws is the same in both modes and in every process. Between two calls, while
    examples are read, each process draws different numbers.
    """

    def __init__(
        self, input_fn: Callable[[str], Any], variables: Mapping[str, Any], seed: int
    ) -> None:
        """Keep the states of the generators in the cell's `variables`; `seed` is the run's."""
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
            self._parts[mode] = {}
            if arrays := _arrays(given):
                self._parts[mode] = fingerprint_examples(mode, arrays)
        return given

    def fingerprint(self) -> dict[str, str]:
        """Return the fingerprint of both modes; empty if `input_fn` does not return arrays."""
        if not self._parts.get("train"):
            return {}
        if "eval" not in self._parts:
            self("eval")
        return {**self._parts["train"], **self._parts["eval"]}


def _arrays(given: Any) -> dict[str, Any] | None:
    """Return the arrays of `input_fn`'s answer by place; None if it has anything else."""
    import numpy

    arrays = dict[str, Any]()
    for name, value in _leaves("", given):
        if not hasattr(value, "__array__") and not isinstance(value, list):
            return None
        try:
            array = numpy.asarray(value)
        except (TypeError, ValueError, NotImplementedError):
            return None  # ragged lists or symbolic tensors, which other code refuses
        numeric = array.dtype.kind in "biuf"
        if not array.ndim or not (numeric or is_text(array)):
            return None
        arrays[name] = array
    return arrays


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(f"{name}/{key}", inner)
    elif isinstance(value, tuple):
        for number, inner in enumerate(value):
            yield from _leaves(f"{name}/{number}", inner)
    else:
        yield name, value
