"""A Gaussian process with a length of its own for each parameter, and with each result's own error
as its noise.

scikit-learn finds the parameters (largest marginal likelihood, of a squared-exponential kernel and
of Matern's with nu = 5/2; Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006,
sections 2.2, 4.2 and 5.1). What predicts is here, from these numbers alone, so that they can be
kept and read again.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

_MOST_FITTED = 400
"""Of more results the kernel's parameters are found from so many; all of them are conditioned on.
"""
_LENGTHS = (0.05, 20.0)
_VARIANCES = (1e-3, 1e3)
_WHITE = (1e-8, 1.0)
_JITTER = 1e-10
_Array = NDArray[np.float64]
_Kernel = Literal["rbf", "matern"]
_KERNELS: tuple[_Kernel, ...] = ("rbf", "matern")


@dataclass(frozen=True, eq=False)
class Gaussian:
    """`rows` in the unit cube (n, d), `values` there, and the variance of each one's error
    (`noise`); the kernel, its `variance` and `lengths`. `white`: the variance that all values have
    besides, where jobs tell no error. Values are those of the output less `mean`, over `scale`;
    variances, too.
    """

    rows: _Array
    values: _Array
    noise: _Array
    kernel: _Kernel
    variance: float
    lengths: _Array
    white: float
    mean: float
    scale: float

    def predict(self, rows: _Array) -> tuple[_Array, _Array]:
        """The mean and the standard deviation of what the function is there, its noise not counted."""
        across = self._kernel(rows, self.rows)
        half = _solve(self._factor, across.T)
        variance = self.variance - (half**2).sum(axis=0)
        return self.mean + self.scale * (across @ self._weights), self.scale * np.sqrt(
            np.maximum(variance, 0.0)
        )

    def covariance(self, rows: _Array) -> _Array:
        """Of the function between places, given the data."""
        half = _solve(self._factor, self._kernel(rows, self.rows).T)
        return self.scale**2 * (self._kernel(rows, rows) - half.T @ half)

    @property
    def job_variance(self) -> float:
        """Of a further result's own error, as those before had."""
        return self.scale**2 * (float(np.median(self.noise)) + self.white)

    @cached_property
    def _factor(self) -> _Array:
        covariance = self._kernel(self.rows, self.rows)
        covariance[np.diag_indices_from(covariance)] += self.noise + self.white + _JITTER
        return np.asarray(np.linalg.cholesky(covariance), np.float64)

    @cached_property
    def _weights(self) -> _Array:
        return _solve(self._factor.T, _solve(self._factor, self.values), lower=False)

    def _kernel(self, one: _Array, other: _Array) -> _Array:
        from scipy.spatial.distance import cdist

        squared = cdist(one / self.lengths, other / self.lengths, "sqeuclidean")
        if self.kernel == "rbf":
            return self.variance * np.exp(-squared / 2)
        far = np.sqrt(5 * squared)
        return self.variance * (1 + far + far**2 / 3) * np.exp(-far)


def learn(rows: _Array, values: _Array, errors: _Array | None, seed: int = 0) -> Gaussian:
    """The process that makes the values most likely; `errors`: their standard errors (None: jobs
    told none).
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel

    mean = float(values.mean())
    scale = float(values.std()) or 1.0
    scaled = (values - mean) / scale
    if errors is None:
        noise = np.zeros(len(values))
    else:
        noise = (errors / scale) ** 2
    some = np.random.default_rng(seed).permutation(len(rows))[:_MOST_FITTED]
    lengths: Any = np.ones(
        rows.shape[1]
    )  # one number, as the type has it, or one for each dimension
    chosen = _KERNELS[0]
    found = cast("Any", None)
    likeliest = -math.inf
    for name in _KERNELS:
        if name == "rbf":
            shape = RBF(lengths, _LENGTHS)
        else:
            shape = Matern(lengths, _LENGTHS, nu=2.5)
        kernel = ConstantKernel(1.0, _VARIANCES) * shape
        if errors is None:
            kernel = kernel + WhiteKernel(1e-2, _WHITE)
        else:
            kernel = kernel
        process: Any = GaussianProcessRegressor(
            kernel,
            alpha=cast("Any", noise[some] + _JITTER),
            n_restarts_optimizer=2,
            random_state=seed,
        )
        with warnings.catch_warnings():  # a parameter at its bound is an answer
            warnings.simplefilter("ignore", ConvergenceWarning)
            process.fit(rows[some], scaled[some])
        likelihood = float(process.log_marginal_likelihood_value_)
        if found is None or likelihood > likeliest:
            chosen = name
            found = process.kernel_
            likeliest = likelihood
    if errors is not None:
        product = found
        white = 0.0
    else:
        product = found.k1
        white = float(found.k2.noise_level)
    return Gaussian(
        rows,
        scaled,
        noise,
        chosen,
        float(product.k1.constant_value),
        np.broadcast_to(np.asarray(product.k2.length_scale, float), lengths.shape).copy(),
        white,
        mean,
        scale,
    )


def _solve(factor: _Array, right: _Array, *, lower: bool = True) -> _Array:
    from scipy.linalg import solve_triangular

    return np.asarray(solve_triangular(factor, right, lower=lower), float)
