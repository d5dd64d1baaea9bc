"""A recorded `model.fit(...)`: what a run trains whose cell defines no input_fn.

Every server of a run executes the cell. Where the cell calls `fit`, the call is recorded and the
cell ends there: the run trains the model, on all workers, with the data and for the epochs of that
call. Keras's own functions split, weigh and batch the data, so that a batch is what it is under
`fit`.

A cell may call `fit` several times: each call is a phase (runtime/phases.py). Then the cell
continues behind the calls of earlier phases, with the weights with which these ended.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ....errors import DeclarationError, TrainingError
from ....protocol.run import FitDeclaration
from ..usercode import CellEnd, is_of_cell
from . import reading
from .callbacks import best_objective, called, monitors_validation
from .data import refuse
from .generators import MOST_BYTES, Replayed
from .structure import PARTS, is_text, leaves

_BATCH = 32
"""Keras's default, in examples."""
_COUNTING_SECONDS = 60.0


@dataclass(frozen=True)
class Fit:
    """The declarations of one call of `model.fit`.

    Attributes
    ----------
    model
        The compiled Keras model.
    training, validation
        (features, labels) or (features, labels, weights) as arrays, or a tf.data.Dataset of
        batches. Without validation data, `validation` is None.
    batch_size
        The examples of one step; None for a dataset, whose elements are the batches.
    steps_per_epoch
        The number of steps in one pass over the training data; 0 if it is unknown.
    epochs, initial_epoch
        The last epoch, and the number of epochs that are skipped.
    line
        The outermost line of the cell's file through which `fit` was called; 0: none.
    callbacks
        The callbacks that a run calls (callbacks.py).
    keep_best
        The objective by which callbacks keep the best checkpoint (protocol/objective.py).
    optimizer, trained
        The optimizer with which the model was compiled, and the identities of the trained
        variables once an earlier call has been completed.
    optimizer_phase
        The number of the call with which that optimizer began, from 0 on.
    """

    model: Any
    training: Any
    validation: Any
    batch_size: int | None
    steps_per_epoch: int
    epochs: int
    initial_epoch: int = 0
    line: int = 0
    callbacks: tuple[Any, ...] = ()
    keep_best: str = ""
    optimizer: Any = None
    trained: tuple[int, ...] = ()
    optimizer_phase: int = 0

    @property
    def steps(self) -> int:
        """The steps of all epochs; 0 if the length of an epoch is unknown."""
        return max(self.epochs - self.initial_epoch, 0) * self.steps_per_epoch

    @property
    def batched(self) -> bool:
        """Whether the elements of the data are batches."""
        return self.batch_size is None

    def declaration(self) -> FitDeclaration:
        """Return the part of the run's declaration that the call says.

        Counts the batches of a dataset that does not know their number, for a minute at most.
        """
        counted = self
        if not self.steps_per_epoch and reading.size_of(self.training) == reading.UNKNOWN:
            batches, _, ended = reading.counted_in(self.training, _COUNTING_SECONDS)
            if ended:
                counted = replace(self, steps_per_epoch=batches)
        return FitDeclaration(
            counted.steps,
            counted.steps_per_epoch,
            self.initial_epoch,
            0 if self.validation is None else counted.steps_per_epoch,
            self.keep_best,
            bool(self.callbacks),
        )

    def shared(self, workers: int) -> Fit:
        """Return the same with batches that several workers share, as under Keras's strategies.

        A synchronous step takes the mean over all workers, so each computes a part of the batch.
        Batches of a dataset are divided into single examples, and batched again.
        """
        size = self.batch_size
        if size is not None:
            return replace(self, batch_size=math.ceil(size / workers))
        size = reading.batch_size(self.training) or reading.first_batch_size(self.training)
        if not size:
            raise DeclarationError(
                "the batches of the dataset of model.fit have no known size",
                fix="Batch it with .batch(N), or leave out --mode sync.",
            )
        validation = self.validation
        if reading.is_dataset(validation):
            validation = validation.unbatch()
        return replace(
            self,
            training=self.training.unbatch(),
            validation=validation,
            batch_size=math.ceil(size / workers),
        )

    def input_fn(self, mode: str) -> Any:
        """Return the data of a mode, "train" or "eval".

        Without validation data, the evaluation has the training data.
        """
        if mode == "train" or self.validation is None:
            return self.training
        return self.validation


class Recorder:
    """Records the calls of `model.fit`: of a cell with several, the one of the present phase.

    Parameters
    ----------
    passed
        Completes an earlier call: takes what it declares and its number, from 1 on, and returns
        its History. None: the first call is recorded.
    earlier
        The number of earlier calls.
    expects
        Whether to execute the whole cell, for the calls that will probably follow.
    """

    def __init__(
        self,
        passed: Callable[[Fit, int], Any] | None = None,
        earlier: int = 0,
        *,
        expects: bool = False,
    ) -> None:
        self.fit: Fit | None = None
        """The call of the present phase; None if the cell ended before it."""
        self.later: list[Fit] = []
        """Calls that will probably follow."""
        self.earlier: list[Fit] = []
        self._passed = passed
        self._earlier = earlier
        self._expects = expects

    @property
    def passing(self) -> bool:
        """Whether the cell has called `fit`, and continues."""
        return bool(self.earlier or self.fit)

    def record(self, model: Any, *given: Any, **options: Any) -> Any:
        """Stand in for `keras.Model.fit`, and return the History of an earlier call.

        Raises
        ------
        CellEnd
            After the call of the present phase was recorded.
        DeclarationError
            For arguments that a run cannot take, or that Keras refuses as well.
        """
        calls = [*self.earlier, *filter(None, [self.fit]), *self.later]
        fit = recorded(model, *given, **options)
        if calls:
            fit = continued(fit, calls)
        is_present = len(calls) == self._earlier
        if is_present:
            self.fit = fit
        if self._passed is None or (is_present and not self._expects):
            raise CellEnd
        history = self._passed(fit, len(calls) + 1)
        fit = replace(fit, trained=_trained(model))
        if is_present:
            self.fit = fit
        elif len(calls) < self._earlier:
            self.earlier.append(fit)
        else:
            self.later.append(fit)
        return history


def continued(fit: Fit, earlier: Sequence[Fit]) -> Fit:
    """Return a later call of `fit`, with the first phase of its optimizer.

    Raises DeclarationError for another model, or for layers that the optimizer does not train.
    """
    before = earlier[-1]
    if not fit.steps:
        raise DeclarationError(
            "a later model.fit does not say how many steps an epoch has",
            fix="Give it steps_per_epoch.",
        )
    if fit.model is not before.model:
        raise DeclarationError(
            "model.fit is called for a second model, and a run trains one",
            fix="Put the later fit into another cell.",
        )
    if fit.optimizer is not before.optimizer:
        return replace(fit, optimizer_phase=len(earlier))
    if _trained(fit.model) != before.trained:
        raise DeclarationError(
            "trainable was changed after model.compile, which has no effect before another compile",
            fix="Call model.compile again, above this fit.",
        )
    return replace(fit, optimizer_phase=before.optimizer_phase)


def _trained(model: Any) -> tuple[int, ...]:
    return tuple(id(variable) for variable in model.trainable_variables)


@contextlib.contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Replace `keras.Model.fit` by a recorder within the block."""
    kind: Any = importlib.import_module("keras").Model
    own = vars(kind).get("fit")

    def fit(self: Any, *given: Any, **options: Any) -> Any:
        return recorder.record(self, *given, **options)

    kind.fit = fit
    try:
        yield
    finally:
        if own is None:
            del kind.fit
        else:
            kind.fit = own


def recorded(model: Any, *given: Any, **options: Any) -> Fit:
    """Return what a call `model.fit(*given, **options)` declares.

    Raises
    ------
    DeclarationError
        For arguments that a run cannot take, or that Keras refuses as well.
    """
    call = _arguments(given, options)
    callbacks = called(call["callbacks"], model.optimizer)
    keep_best = best_objective(call["callbacks"])
    if call["shuffle"] is not True:
        raise DeclarationError(
            f"shuffle={call['shuffle']} of model.fit is not supported: each worker reads the "
            "examples from a different position",
            fix="Leave it out.",
        )
    if call["validation_freq"] != 1:
        raise DeclarationError(
            "validation_freq of model.fit is not supported",
            fix="Leave it out, and write %%train --eval-every STEPS.",
        )
    x, y, weights = _texts_as_tensors((call["x"], call["y"], call["sample_weight"]))
    validation = call["validation_data"]
    if call["validation_split"] and validation is None:
        (x, y, weights), validation = _split(x, y, weights, call["validation_split"])
    training, batch_size, per_epoch = _examples(
        x,
        y,
        weights,
        call["batch_size"],
        call["class_weight"],
        "x",
        limited=call["steps_per_epoch"] is not None,
    )
    _refuse_unlabelled(model, training)
    _refuse_values(training)
    if validation is not None:
        validation = _validation(validation, call["validation_steps"])
        if batch_size is not None and reading.is_dataset(validation):
            validation = validation.unbatch()  # its elements are single examples, as in the arrays
    if validation is None and (keep_best or monitors_validation(call["callbacks"])):
        raise DeclarationError(
            "the callbacks of model.fit monitor validation metrics, but there are no validation "
            "data",
            fix="Pass validation_data or validation_split to model.fit.",
        )
    if call["steps_per_epoch"] is not None:
        per_epoch = _count(call["steps_per_epoch"], "steps_per_epoch", 1)
    epochs = _count(call["epochs"], "epochs", 1)
    begin = _count(call["initial_epoch"], "initial_epoch", 0)
    if inspect.isgenerator(x) and call["steps_per_epoch"] is None:
        epochs = min(epochs, begin + 1)  # as in Keras, a generator ends with its first epoch
    if callbacks and not per_epoch:
        raise DeclarationError(
            "callbacks need to know how many steps an epoch has",
            fix="Give steps_per_epoch to model.fit.",
        )
    return Fit(
        model=model,
        training=training,
        validation=validation,
        batch_size=batch_size,
        steps_per_epoch=per_epoch,
        epochs=epochs,
        initial_epoch=begin,
        line=_line_of_cell(),
        optimizer=model.optimizer,
        callbacks=callbacks,
        keep_best=keep_best,
    )


def _arguments(given: Sequence[Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `fit` by name, with Keras's defaults."""
    trainer = importlib.import_module("keras.src.backend.tensorflow.trainer").TensorFlowTrainer
    signature = inspect.signature(inspect.unwrap(trainer.fit))
    try:
        bound = signature.bind(None, *given, **options)
    except TypeError as error:
        raise DeclarationError(f"model.fit: {error}") from None
    bound.apply_defaults()
    return dict(bound.arguments)


def _texts_as_tensors(arrays: Any) -> Any:
    """Return a structure with tensors in place of arrays of texts.

    Keras slices tensors of texts, but not NumPy's arrays of them, except those of objects.
    """
    import numpy

    constant = importlib.import_module("tensorflow").constant

    def converted(value: Any) -> Any:
        if isinstance(value, numpy.ndarray) and is_text(value):
            return constant(value.astype(object))
        return value

    return importlib.import_module("keras").tree.map_structure(converted, arrays)


def _split(x: Any, y: Any, weights: Any, share: Any) -> tuple[Any, Any]:
    """Return the training and the validation part, as Keras splits them: the last part validates."""
    slicing = importlib.import_module("keras.src.trainers.data_adapters.array_slicing")
    try:
        return slicing.train_validation_split((x, y, weights), validation_split=share)
    except ValueError as error:
        raise DeclarationError(f"model.fit: {error}") from None


def _examples(
    x: Any,
    y: Any,
    weights: Any,
    batch_size: Any,
    class_weight: Any,
    name: str,
    *,
    limited: bool = False,
) -> tuple[Any, int | None, int]:
    """Return the data, the batch size (None for batches), and the steps of one pass (0: unknown).

    `limited`: the call says how many batches of a generator it reads.
    """
    adapters = importlib.import_module("keras.src.trainers.data_adapters")
    arrays = adapters.array_data_adapter.can_convert_arrays((x, y, weights))
    if arrays and not _has_sparse((x, y, weights)):
        if class_weight is not None:
            if weights is not None:
                raise DeclarationError(
                    "model.fit cannot have both class_weight and sample_weight",
                    fix="Multiply one by the other.",
                )
            utils = importlib.import_module("keras.src.trainers.data_adapters.data_adapter_utils")
            weights = utils.class_weight_to_sample_weights(y, class_weight)
        size = _BATCH if batch_size is None else _count(batch_size, "batch_size", 1)
        first = importlib.import_module("keras").tree.flatten(x)[0]
        parts = [x, y, weights]
        while parts[-1] is None:
            parts.pop()
        return tuple(parts), size, math.ceil(int(first.shape[0]) / size)
    own_epochs = isinstance(x, importlib.import_module("keras").utils.PyDataset) and name == "x"
    if own_epochs:
        # Threads and processes of an epoch that is not read to its end would not stop.
        x.workers = 1
        x.use_multiprocessing = False
    try:
        adapter = adapters.get_data_adapter(
            x,
            y,
            weights,
            batch_size=batch_size,
            class_weight=class_weight,
            shuffle=arrays or own_epochs,
        )
    except ValueError as error:
        raise DeclarationError(f"model.fit: {error}") from None
    steps = adapter.num_batches or 0
    if own_epochs:
        adapter._get_iterator = partial(_epoch, x, adapter._get_iterator)
    if inspect.isgenerator(x):
        adapter.generator = elements = Replayed(adapter.generator())
        if not limited:
            steps = _count_generator(elements, name)
    dataset: Any = x
    if class_weight is not None or not adapters.is_tf_dataset(x):
        dataset = adapter.get_tf_dataset()
    if not isinstance(dataset.element_spec, tuple):
        dataset = dataset.map(lambda features: (features,))
    if _has_sparse(dataset.element_spec):
        dataset = dataset.map(_dense)
    return dataset, None, steps


def _epoch(examples: Any, batches: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    """Yield the batches of one epoch of a PyDataset, then call its `on_epoch_end`."""
    yield from batches()
    examples.on_epoch_end()


def _has_sparse(structure: Any) -> bool:
    """Return whether a structure has a sparse matrix or tensor, or the specification of one."""
    values = importlib.import_module("keras").tree.flatten(structure)
    names = {kind.__name__ for value in values for kind in type(value).__mro__}
    return not names.isdisjoint({"SparseTensor", "SparseTensorSpec", "_spbase", "spmatrix"})


def _dense(*element: Any) -> Any:
    """Return an element of a dataset with dense tensors in place of sparse ones."""
    tf = importlib.import_module("tensorflow")

    def converted(value: Any) -> Any:
        return tf.sparse.to_dense(value) if isinstance(value, tf.SparseTensor) else value

    return importlib.import_module("keras").tree.map_structure(converted, element)


def _count_generator(elements: Replayed, name: str) -> int:
    """Return the number of a generator's batches, all of which are read for that."""
    if steps := elements.count():
        return steps
    option = "validation_steps" if name == "validation_data" else "steps_per_epoch"
    raise DeclarationError(
        f"{name} of model.fit is a generator that does not end within {MOST_BYTES >> 30} GiB",
        fix=f"Give {option} to model.fit.",
    )


def _refuse_values(examples: Any) -> None:
    """Raise DeclarationError for values of a type that workers cannot read, such as ragged ones."""
    parts = examples.element_spec if reading.is_dataset(examples) else examples
    for part, structure in zip(PARTS, parts, strict=False):
        for path, value in leaves(structure):
            try:
                refuse(part, path, value, "model.fit has")
            except TrainingError as error:
                raise DeclarationError(error.what, fix=error.fix) from None


def _refuse_unlabelled(model: Any, training: Any) -> None:
    """Raise DeclarationError for examples without labels whose model compares with labels."""
    if reading.is_dataset(training):
        parts = len(training.element_spec)
    else:
        parts = len(training)
    keras = importlib.import_module("keras")
    own_loss = type(model).compute_loss is not keras.Model.compute_loss
    if parts == 1 and not own_loss and model._compile_loss is not None:
        raise DeclarationError(
            "model.fit has features without labels, and the model is compiled with a loss",
            fix="Give y as well; for a model that adds its own losses, compile it without loss.",
        )


def _validation(given: Any, steps: Any) -> Any:
    utils = importlib.import_module("keras.src.trainers.data_adapters.data_adapter_utils")
    x, y, weights = _texts_as_tensors(utils.unpack_x_y_sample_weight(given))
    examples, _, _ = _examples(
        x, y, weights, None, None, "validation_data", limited=steps is not None
    )
    if steps is not None and reading.is_dataset(examples):
        return examples.take(_count(steps, "validation_steps", 1))
    return examples


def _count(value: Any, name: str, least: int) -> int:
    try:
        count = int(value)
    except (TypeError, ValueError):
        count = least - 1
    if count < least or count != value:
        raise DeclarationError(
            f"{name} of model.fit must be a whole number of at least {least}, not {value!r}"
        )
    return count


def _line_of_cell() -> int:
    """Return the line of the outermost frame whose code is the cell's; 0 if there is none."""
    line = 0
    frame = sys._getframe(1)
    while frame is not None:
        if is_of_cell(frame.f_code.co_filename):
            line = frame.f_lineno
        frame = frame.f_back
    return line
