"""The training metrics of a compiled Keras model, as numbers that steps and workers can add up.

Keras's metrics keep sums over examples (a mean is a total and a count, AUC a histogram), and an
epoch's result follows from the sums of all its steps, on whatever workers. So each step computes
what its mini-batch adds to these sums. A metric that keeps anything else (a maximum, a moving
average), or more than `_MOST` numbers, cannot be added up: its result for an epoch is the mean over
the mini-batches, each weighted by its examples.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ...tf.graph_mode import tensorflow

_MOST = 2048
"""Numbers of one variable that are still sent: a confusion matrix of 45 classes."""
_STATES = (3, 5)
"""Values with which it is tried whether a variable is a sum."""


def numbers(results: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield metrics as single numbers: `f1_score_0`, `f1_score_1` where one has several."""
    ops = importlib.import_module("keras").ops
    for name, result in results.items():
        # A result may be a variable, whose value in the present scope counts.
        value = ops.convert_to_tensor(result)
        if not len(value.shape):
            yield name, value
            continue
        values = ops.reshape(value, [-1])
        for number in range(math.prod(value.shape)):
            yield f"{name}_{number}", values[number]


class TrainingMetrics:
    """The training metrics of one model. Create it outside of any graph.

    Parameters
    ----------
    model
        The built and compiled model.
    update
        Updates the metrics with a batch of examples.
    """

    def __init__(self, model: Any, update: Callable[[], object]) -> None:
        self._model = model
        keras = importlib.import_module("keras")
        self._scope = keras.StatelessScope
        self._tensor = keras.ops.convert_to_tensor
        self._begin = {id(state): state.numpy() for state in model.metrics_variables}
        changes = [self._changes(update, value) for value in (0, *_STATES)]
        self._sums = [
            state
            for number, state in enumerate(model.metrics_variables)
            if _is_sum(state, [change[number] for change in changes])
        ]
        self._averaged = self._depending(self._sums)
        self.size = 1 + sum(state.numpy().size for state in self._sums) + len(self._averaged)
        """How many numbers a step adds."""

    def added(self, scope: Any, results: Mapping[str, Any], examples: Any) -> Any:
        """Return what a mini-batch adds, as a vector in the default graph. Call it in the scope.

        Parameters
        ----------
        scope
            The scope in which the metrics were updated, from their first values.
        results
            The metrics of this mini-batch.
        examples
            Its number of examples.
        """
        tf = tensorflow()
        rows = tf.cast(examples, tf.float32)
        parts = [tf.reshape(rows, [1])]
        for state in self._sums:
            change = scope.get_current_value(state) - tf.constant(self._begin[id(state)])
            parts.append(tf.reshape(tf.cast(change, tf.float32), [-1]))
        named = dict(numbers(results)) if self._averaged else {}
        for name in self._averaged:
            value = tf.cast(named[name], tf.float32)
            parts.append(tf.reshape(value * rows, [1]))
        return tf.concat(parts, 0)

    def results(self, total: Sequence[float]) -> dict[str, float]:
        """Return the metrics of the steps whose vectors have this total; those that are finite."""
        import numpy

        if len(total) != self.size or not total[0]:
            return {}
        vector = numpy.asarray(total, "float64")
        at = 1
        values: list[tuple[Any, Any]] = []
        for state in self._sums:
            begin = self._begin[id(state)]
            part = vector[at : at + begin.size].reshape(begin.shape)
            values.append((state, (begin + part).astype(begin.dtype)))
            at += begin.size
        found = self._read(values)
        averages = vector[at:] / vector[0]
        found.update(zip(self._averaged, map(float, averages), strict=True))
        return {name: value for name, value in found.items() if math.isfinite(value)}

    def _read(self, values: Sequence[tuple[Any, Any]]) -> dict[str, float]:
        """Return the results of the metrics where these variables have these values."""
        states = [(state, self._tensor(value, state.dtype)) for state, value in values]
        with self._scope(state_mapping=states):
            results = dict(numbers(self._model.get_metrics_result()))
            return {name: float(value) for name, value in results.items()}

    def _changes(self, update: Callable[[], object], value: int) -> list[Any]:
        """Return what an update adds to each variable, where all have this value."""
        import numpy

        states = [
            (state, self._tensor(self._filled(state, value), state.dtype))
            for state in self._model.metrics_variables
        ]
        # Keras finds the regularized weights in the scope only, and never falls back to the layers.
        weights = [(weight, self._tensor(weight)) for weight in self._model.trainable_variables]
        with self._scope(state_mapping=[*states, *weights]) as scope:
            update()
            after = [scope.get_current_value(state) for state, _ in states]
        return [numpy.asarray(result, "float64") - value for result in after]

    def _depending(self, sums: Sequence[Any]) -> list[str]:
        """Return the names of the results that depend on variables which are not sums."""
        of_sums = {id(state) for state in sums}
        others = [state for state in self._model.metrics_variables if id(state) not in of_sums]
        if not others:
            return []
        same = [(state, self._filled(state, _STATES[0])) for state in sums]
        one, other = (
            self._read([*same, *((state, self._filled(state, value)) for state in others)])
            for value in _STATES
        )
        return [name for name, value in one.items() if not _equal(value, other[name])]

    def _filled(self, state: Any, value: int) -> Any:
        """Return the values of a variable of which each number is `value`."""
        import numpy

        return numpy.full_like(self._begin[id(state)], value)


def _is_sum(state: Any, changes: Sequence[Any]) -> bool:
    """Return whether a variable changes by the same number, whatever its value is."""
    import numpy

    if state.numpy().size > _MOST or not numpy.issubdtype(state.numpy().dtype, numpy.number):
        return False
    first = changes[0]
    return all(numpy.allclose(change, first, rtol=1e-3, atol=1e-4) for change in changes[1:])


def _equal(one: float, other: float) -> bool:
    return one == other or (math.isnan(one) and math.isnan(other))
