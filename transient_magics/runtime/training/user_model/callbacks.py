"""The callbacks of a recorded `model.fit`: which are called, which a run replaces, which it refuses.

A run calls the hooks of an epoch, and those at the beginning and at the end, in one process beside
the chief (programs/callbacks.py), with the metrics of the whole cluster and the weights of the
epoch's checkpoint. Callbacks are Keras's own objects and the user's, so their options mean what
they mean in Keras. No step of a worker runs Python, so hooks of batches cannot be called.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ....errors import CellError, DeclarationError
from ....protocol.chief_messages import Called
from ....protocol.objective import Objective
from ..usercode import to_transient_error

_REPLACED = frozenset(
    (
        "BackupAndRestore",
        "History",
        "ModelCheckpoint",
        "ProgbarLogger",
        "TensorBoard",
        "TerminateOnNaN",
    )
)
"""Callbacks whose work a run does for every model: checkpoints, curves (run.tensorboard), an end
with an error when a variable is not finite.
"""
_REFUSED: Mapping[str, str] = {
    "OrbaxCheckpoint": "Leave it out: a run saves checkpoints, and run.save() writes one.",
    "SwapEMAWeights": "Leave it out: a run does not average weights.",
}
_SETTING_RATES = ("LearningRateScheduler", "ReduceLROnPlateau")
_OF_BATCHES = tuple(
    f"on_{of}batch_{when}"
    for of in ("", "train_", "test_", "predict_")
    for when in ("begin", "end")
)
_MOST_OUTPUT = 2000
"""Characters of what callbacks print in one epoch that are kept; all of it is in the log."""


def called(callbacks: Any, optimizer: Any) -> tuple[Any, ...]:
    """Return the callbacks of `fit` that a run calls.

    Parameters
    ----------
    callbacks
        All callbacks of the call.
    optimizer
        The optimizer of the model.

    Raises
    ------
    DeclarationError
        For a callback that it neither calls nor replaces, or that Keras refuses as well.
    """
    found: list[Any] = []
    scheduled = has_schedule(optimizer)
    for callback in flat(callbacks):
        name = type(callback).__name__
        if is_of_keras(callback) and name in _REPLACED:
            continue
        if is_of_keras(callback) and name in _REFUSED:
            raise DeclarationError(f"a run does not call the callback {name}", fix=_REFUSED[name])
        if scheduled and is_of_keras(callback) and name in _SETTING_RATES:
            raise DeclarationError(
                f"{name} cannot be used with a schedule of the optimizer",
                fix="Leave one of them out.",
            )
        if hooks := [hook for hook in _OF_BATCHES if _overrides(callback, hook)]:
            raise DeclarationError(
                f"{hooks[0]} of the callback {name} is not called in a run, whose batches are "
                "computed on many servers",
                fix="Use on_epoch_begin or on_epoch_end.",
            )
        found.append(callback)
    return tuple(found)


def best_objective(callbacks: Any) -> str:
    """Return the objective of the checkpoint that callbacks keep as the best; "" for none."""
    found = ""
    for callback in flat(callbacks):
        name = type(callback).__name__
        kept = {"EarlyStopping": "restore_best_weights", "ModelCheckpoint": "save_best_only"}
        if is_of_keras(callback) and name in kept and getattr(callback, kept[name]):
            found = _objective(callback, name)
    return found


def monitors_validation(callbacks: Any) -> bool:
    """Return whether a callback monitors a metric of the validation data."""
    return any(
        str(getattr(callback, "monitor", "")).startswith("val_")
        for callback in flat(callbacks)
        if is_of_keras(callback) and getattr(callback, "save_best_only", True)
    )


def flat(callbacks: Any) -> list[Any]:
    """Return the callbacks of `fit` as a list."""
    if callbacks is None:
        return []
    if hasattr(callbacks, "callbacks"):  # a CallbackList
        return list(callbacks.callbacks)
    return list(importlib.import_module("keras").tree.flatten(callbacks))


def is_of_keras(callback: Any) -> bool:
    """Return whether the class of a callback is one of Keras's."""
    return type(callback).__module__.startswith("keras.")


def has_schedule(optimizer: Any) -> bool:
    """Return whether the learning rate of an optimizer is a schedule, which cannot be set."""
    schedule = importlib.import_module("keras").optimizers.schedules.LearningRateSchedule
    return isinstance(getattr(optimizer, "_learning_rate", None), schedule)


def _overrides(callback: Any, hook: str) -> bool:
    """Return whether a callback has a method of its own for a hook, also as an attribute."""
    base = importlib.import_module("keras").callbacks.Callback
    if hook in vars(callback):
        return vars(callback)[hook] is not None
    return getattr(type(callback), hook, None) is not getattr(base, hook, None)


def _objective(callback: Any, name: str) -> str:
    """Return the objective that a callback monitors, as evaluations name it."""
    monitor = str(callback.monitor)
    metric = monitor.removeprefix("val_")
    if metric == monitor:
        raise DeclarationError(
            f"{name} keeps the best {monitor}, which is a metric of the training data",
            fix=f"Write monitor='val_{monitor}', and pass validation data to fit.",
        )
    text = metric if callback.mode == "auto" else f"{callback.mode} {metric}"
    try:
        return str(Objective.parse(text))
    except ValueError as error:
        raise DeclarationError(
            f"{name}: {error}", fix="Pass mode='max' or mode='min' to the callback."
        ) from None


class CallbackError(CellError):
    """A callback of the cell failed."""


class CallbackCalls:
    """The calls of a run's callbacks, in their order.

    Parameters
    ----------
    model
        The Keras model, which callbacks may use and whose optimizer they may change.
    callbacks
        The callbacks (`called`).
    epochs, steps
        The number of epochs, and of steps in each.
    line_offset
        The line of the notebook's cell at which its file begins.
    """

    def __init__(
        self, model: Any, callbacks: Iterable[Any], epochs: int, steps: int, line_offset: int
    ) -> None:
        keras = importlib.import_module("keras")
        self._model = model
        self._convert = keras.ops.convert_to_numpy
        self._list = keras.callbacks.CallbackList(
            list(callbacks), add_history=True, model=model, epochs=epochs, steps=steps, verbose=1
        )
        self._line_offset = line_offset
        self._epochs = epochs
        self._rate = self._learning_rate()
        self._output = io.StringIO()
        self._stop = ""
        self._over = False
        """Whether the hooks at the end of the training were called."""
        self._logs: dict[str, float] = {}
        """The metrics of the last epoch."""

    def begin(self, first: int, past: Iterable[tuple[int, Mapping[str, float]]]) -> Called:
        """Call the hooks before the first step.

        Parameters
        ----------
        first
            The number of the first epoch.
        past
            Epochs that were over when the run's parameter server started again, with their metrics.
            Callbacks receive them once more, and what they print then is not kept.
        """
        self._model.stop_training = False
        self._call("on_train_begin")
        epoch = first
        for epoch_before, logs in past:
            self._call("on_epoch_begin", epoch_before)
            self._call("on_epoch_end", epoch_before, dict(logs))
            self._logs = dict(logs)
            epoch = epoch_before + 1
            self._output = io.StringIO()
        if not self._stop and epoch < self._epochs:
            self._call("on_epoch_begin", epoch)
        return self._answer({})

    def test_begin(self) -> None:
        """Call the hooks before an evaluation."""
        self._call("on_test_begin")

    def test_end(self, metrics: Mapping[str, float]) -> None:
        """Call the hooks after an evaluation."""
        self._call("on_test_end", dict(metrics))

    def end_epoch(self, epoch: int, logs: Mapping[str, float], *, last: bool) -> Called:
        """Call the hooks at the end of an epoch, and those at the beginning of the next one.

        Parameters
        ----------
        epoch, logs
            Its number and its metrics; a number below 0 for none.
        last
            Whether no epoch follows.
        """
        if epoch >= 0:
            self._logs = dict(logs)
            self._call("on_epoch_end", epoch, self._logs)
        if last or self._stop:
            if not self._over:
                self._over = True
                self._call("on_train_end", self._logs)
        elif epoch >= 0:
            self._call("on_epoch_begin", epoch + 1)
        return self._answer(self._logs)

    def _call(self, hook: str, *given: Any) -> None:
        """Call one hook of all callbacks. Raises CallbackError."""
        for callback in self._list.callbacks:
            name = type(callback).__name__
            try:
                with self._kept_output():
                    getattr(callback, hook)(*given)
            except Exception as error:  # user code raises anything
                converted = to_transient_error(error, self._line_offset)
                what = converted.what if isinstance(converted, CellError) else str(converted)
                raise CallbackError(
                    f"{what.rstrip('.')} ({hook} of the callback {name})"
                ) from error
            if self._model.stop_training and not self._stop and hook == "on_epoch_end":
                self._stop = f"the callback {name} ended it after epoch {given[0] + 1}"

    def _answer(self, logs: Mapping[str, Any]) -> Called:
        output = self._output.getvalue()
        self._output = io.StringIO()
        if len(output) > _MOST_OUTPUT:
            output = f"...{output[-_MOST_OUTPUT:]}"
        rate = self._learning_rate()
        factor = 1.0
        if rate is not None and self._rate:
            factor = rate / self._rate
        return Called(logs=_numbers(logs), rate=factor, stop=self._stop, output=output)

    def _learning_rate(self) -> float | None:
        """Return the learning rate of the optimizer; None for a schedule, which steps follow."""
        optimizer = self._model.optimizer
        if has_schedule(optimizer):
            return None
        return float(self._convert(optimizer.learning_rate))

    @contextlib.contextmanager
    def _kept_output(self) -> Iterator[None]:
        """Keep what is printed inside, and print it to the log as well."""
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                yield
        finally:
            text = printed.getvalue()
            self._output.write(text)
            print(text, end="", flush=True)


def _numbers(logs: Mapping[str, Any]) -> dict[str, float]:
    """Return the finite numbers among the metrics of an epoch."""
    found: dict[str, float] = {}
    for name, value in logs.items():
        with contextlib.suppress(TypeError, ValueError):
            number = float(value)
            if math.isfinite(number):
                found[str(name)] = number
    return found
