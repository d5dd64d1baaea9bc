"""An ensemble of small networks, for more results than a Gaussian process has time for.

Each member is learnt from results drawn with replacement; how far the members differ, times a
factor, is the standard deviation (Breiman 1996, doi 10.1007/BF00058655; Lakshminarayanan, Pritzel
and Blundell, arXiv 1612.01474). The factor makes residuals as large as they are said to be at the
results that a member was not learnt from.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_MEMBERS = 8
_HIDDEN = (32, 32)
_STEPS = 400
_FEW = 500
_Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Ensemble:
    """By member and layer the `weights` (in, out) and `biases` (out,); between layers there is
    tanh. `factor`: on the members' deviation; `noise`: the variance of a result's own error.
    """

    weights: tuple[tuple[_Array, ...], ...]
    biases: tuple[tuple[_Array, ...], ...]
    factor: float
    noise: float
    mean: float
    scale: float

    def predict(self, rows: _Array) -> tuple[_Array, _Array]:
        """The mean and the standard deviation of what the function is there, its noise not counted."""
        every = self._members(rows)
        return self.mean + self.scale * every.mean(axis=0), self.scale * self.factor * every.std(
            axis=0, ddof=1
        )

    def covariance(self, rows: _Array) -> _Array:
        """Of the function between places, as the members differ."""
        every = self._members(rows)
        apart = every - every.mean(axis=0)
        return (self.scale * self.factor) ** 2 * apart.T @ apart / (len(every) - 1)

    @property
    def job_variance(self) -> float:
        """Of a further result's own error, as those before had."""
        return self.scale**2 * self.noise

    def _members(self, rows: _Array) -> _Array:
        return np.array(
            [_forward(*member, rows) for member in zip(self.weights, self.biases, strict=True)]
        )


def learn(rows: _Array, values: _Array, errors: _Array | None, seed: int = 0) -> Ensemble:
    """Networks learnt from the values; `errors`: their standard errors (None: jobs told none)."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPRegressor
    from threadpoolctl import threadpool_limits

    mean = float(values.mean())
    scale = float(values.std()) or 1.0
    scaled = (values - mean) / scale
    random = np.random.default_rng(seed)
    # Of few results a batch is all of them, and so many steps of a stochastic method are too few.
    if len(rows) <= _FEW:
        solver = "lbfgs"
        penalty = 1e-2
    else:
        solver = "adam"
        penalty = 1e-5
    weights = []
    biases = []
    out = np.full((_MEMBERS, len(rows)), np.nan)
    for member in range(_MEMBERS):
        drawn = random.integers(len(rows), size=len(rows))
        network = MLPRegressor(
            hidden_layer_sizes=_HIDDEN,
            activation="tanh",
            solver=solver,
            alpha=penalty,
            learning_rate_init=5e-3,
            max_iter=_STEPS,
            tol=1e-6,
            random_state=seed + member,
        )
        with (
            warnings.catch_warnings(),
            threadpool_limits(1),
        ):  # so small products are slower on several
            warnings.simplefilter("ignore", ConvergenceWarning)
            network.fit(rows[drawn], scaled[drawn])
        weights.append(tuple(np.asarray(each, float) for each in network.coefs_))
        biases.append(tuple(np.asarray(each, float) for each in network.intercepts_))
        left = np.setdiff1d(np.arange(len(rows)), drawn)
        out[member, left] = _forward(weights[-1], biases[-1], rows[left])
    told = out[:, (~np.isnan(out)).sum(axis=0) >= 2]
    known = (~np.isnan(out)).sum(axis=0) >= 2
    residual = (scaled[known] - np.nanmean(told, axis=0)) ** 2
    spread = np.nanvar(told, axis=0, ddof=1)
    if errors is not None:
        noise = (errors / scale) ** 2
    else:
        noise = np.full(len(rows), 0.5 * float(np.median(residual)))
    over = max(float((residual - noise[known]).mean()), 0.05 * float(residual.mean()))
    factor = float(np.sqrt(over / max(float(spread.mean()), 1e-12)))
    return Ensemble(tuple(weights), tuple(biases), factor, float(np.median(noise)), mean, scale)


def _forward(weights: Sequence[_Array], biases: Sequence[_Array], rows: _Array) -> _Array:
    for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        rows = rows @ weight + bias
        if layer < len(weights) - 1:
            rows = np.tanh(rows)
        else:
            rows = rows
    return rows[:, 0]
