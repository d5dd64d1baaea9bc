"""The metrics of a run by epoch, in the form that Keras's `model.fit` returns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from ...protocol.vm_events import TrainEpoch


class FitHistory:
    """The metrics of a run by epoch, with the attributes of `keras.callbacks.History`.

    `model.fit` returns when training is over. `%%train` does not, so `history`, `epoch` and
    `params` wait for the end of the run. `run.epochs()` has the epochs so far, without waiting.

    Parameters
    ----------
    name
        The name of the run.
    wait
        Waits for the end of the run. Raises TrainingError if the run failed.
    epochs
        Returns the epochs that are over.
    params
        Returns the parameters of the call of `fit`.
    """

    def __init__(
        self,
        name: str,
        wait: Callable[[], object],
        epochs: Callable[[], Iterable[TrainEpoch]],
        params: Callable[[], Mapping[str, int]],
    ) -> None:
        self._name = name
        self._wait = wait
        self._epochs = epochs
        self._params = params

    @property
    def history(self) -> dict[str, list[float]]:
        """The values of each metric, one for each epoch; NaN where an epoch lacks it."""
        logs = [event.logs for event in self._over()]
        names = dict.fromkeys(name for values in logs for name in values)
        return {name: [values.get(name, math.nan) for values in logs] for name in names}

    @property
    def epoch(self) -> list[int]:
        """The numbers of the epochs, as Keras counts them."""
        return [event.epoch for event in self._over()]

    @property
    def params(self) -> dict[str, int]:
        """The parameters of the call: `epochs`, and `steps` of an epoch."""
        self._wait()
        return dict(self._params())

    def _over(self) -> list[TrainEpoch]:
        self._wait()
        return list(self._epochs())

    def __repr__(self) -> str:
        return f"<history of {self._name}: history.history waits for its end>"
