"""Calls of `fit` whose phases have ended: the cell continues behind them with trained weights.

A process that trains or evaluates the second phase executes the cell from its beginning. Where the
cell calls `fit` first, the model is built, gets the weights with which the first phase ended, and
the call returns a History with the metrics of the run. So the code between the calls does what it
does where the model trains in this process.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ....errors import DeclarationError
from ...files.checkpoints import Checkpoints
from ...folder import RunFolder
from ...phases import Phase, Phases
from .fit import Fit
from .structure import read_arrays, weight_names, write_arrays

Metrics = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Ending:
    """The phase from the step `begin` that ends with the checkpoint of `step`.

    `history` has the metrics of the run for its call of `fit`, and `rate` is the factor by which
    callbacks have changed the learning rate.
    """

    step: int
    begin: int
    history: Metrics
    rate: float = 1.0


class Replay:
    """Completes calls of `fit` of a run.

    Parameters
    ----------
    folder
        The run's folder.
    later
        The phases that have begun after the first.
    build
        Uses the model of a call once, and returns the names of its metrics.
    ending
        The present phase, if it has ended: its weights are read from its checkpoint and stored. A
        call after it, or any without `later` and `ending`, will probably follow: its weights stay
        as they are, and its History has no numbers.
    """

    def __init__(
        self,
        folder: RunFolder,
        later: Sequence[Phase],
        build: Callable[[Fit], Iterable[str]],
        ending: Ending | None = None,
    ) -> None:
        self._phases = Phases(folder)
        self._checkpoints = Checkpoints(folder.checkpoints)
        self._later = later
        self._build = build
        self._ending = ending

    def __call__(self, fit: Fit, number: int) -> Any:
        """Return the History of call `number`, from 1 on, and load the weights after it."""
        model = fit.model
        metrics = self._build(fit)
        begins = [0, *(phase.begin for phase in self._later)]
        if number <= len(self._later):
            self._load(model, read_arrays(self._phases.weights(number)))
            phase = self._later[number - 1]
            _set_optimizer(fit, begins, phase.begin, phase.rate)
            return _history(fit, phase.history)
        if self._ending and number == len(self._later) + 1:
            names = weight_names(model.weights)
            values = self._checkpoints.read(self._last_step(fit, self._ending))
            weights = {name: values[name] for name in names if name in values}
            write_arrays(self._phases.weights(number), weights)
            self._load(model, weights)
            _set_optimizer(fit, begins, self._ending.step, self._ending.rate)
            return _history(fit, self._ending.history)
        names = [*metrics, *(f"val_{name}" for name in metrics if fit.validation is not None)]
        unknown = [float("nan")] * max(fit.epochs - fit.initial_epoch, 0)
        return _history(fit, dict.fromkeys(names, unknown))

    def _last_step(self, fit: Fit, ending: Ending) -> int:
        """Return the step whose weights the phase ends with: those of its best, if requested."""
        best = self._checkpoints.best()
        restores = any(getattr(call, "restore_best_weights", False) for call in fit.callbacks)
        if restores and best and ending.begin < best.step:
            return best.step
        return ending.step

    def _load(self, model: Any, weights: Mapping[str, Any]) -> None:
        for name, weight in zip(weight_names(model.weights), model.weights, strict=True):
            if name not in weights:
                raise DeclarationError(
                    f"the model has a weight {name} that it did not have when its phase ended",
                    fix="Make the model depend on nothing that differs between processes.",
                )
            weight.assign(weights[name])


def _set_optimizer(fit: Fit, begins: Sequence[int], step: int, rate: float) -> None:
    """Set the steps that the optimizer has made, and its learning rate, as after the phase."""
    optimizer = fit.optimizer
    optimizer.iterations.assign(step - begins[fit.optimizer_phase])
    if rate != 1:  # callbacks change no schedule
        optimizer.learning_rate = float(optimizer.learning_rate) * rate


def _history(fit: Fit, metrics: Metrics) -> Any:
    """Return the History that the call of `fit` returns."""
    history = importlib.import_module("keras").callbacks.History()
    count = max((len(values) for values in metrics.values()), default=0)
    history.set_model(fit.model)
    history.history = {name: list(values) for name, values in metrics.items()}
    history.epoch = list(range(fit.initial_epoch, fit.initial_epoch + count))
    return history
