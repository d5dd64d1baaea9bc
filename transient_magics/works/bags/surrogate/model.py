"""Surrogates: models learned from a bag's results."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from ....errors import PlanError
from ....protocol.literals import value_text
from ....protocol.outputs import ERROR, outputs_of
from ....protocol.run import Value
from ....protocol.space import Dimension
from .cube import Cube, inside, sobol

MOST_GAUSSIAN = 2000
"""Number of results above which networks are used.

The time of a Gaussian process grows with the cube of their number.
"""
LEAST_RESULTS = 8
"""Least number of results to learn from."""
_DENSE = 2048
_LEAST_PLAIN = 1e-5
_MOST_PLAIN = 100.0
"""Standard deviations between which a value reads well without an exponent."""
Kind = Literal["gp", "ensemble"]
Result = tuple[Mapping[str, Value], Mapping[str, float]]
"""A point with its returned values."""
_Array = NDArray[np.float64]

_MOST_FITTED = 400
"""Limit on the results that the kernel's parameters are fitted to.

The process is conditioned on all results.
"""
_LENGTHS = (0.05, 20.0)
_VARIANCES = (1e-3, 1e3)
_WHITE = (1e-8, 1.0)
_JITTER = 1e-10
_Kernel = Literal["rbf", "matern"]
_KERNELS: tuple[_Kernel, ...] = ("rbf", "matern")

_MEMBERS = 8
_HIDDEN = (32, 32)
_STEPS = 400
_FEW = 500


# An ensemble of small networks, for numbers of results at which a Gaussian process is too slow.
#
# Each member is learnt from results drawn with replacement. The deviation of the members times a
# factor is the standard deviation (Breiman 1996, doi 10.1007/BF00058655; Lakshminarayanan, Pritzel
# and Blundell, arXiv 1612.01474). The factor scales predicted deviations to the residuals at
# results that a member was not learnt from.


@dataclass(frozen=True, eq=False)
class Ensemble:
    """An ensemble of networks with tanh between layers.

    `weights` (in, out) and `biases` (out,) are by member and layer. `factor` scales the members'
    deviation. `noise` is the variance of a result's own error.
    """

    weights: tuple[tuple[_Array, ...], ...]
    biases: tuple[tuple[_Array, ...], ...]
    factor: float
    noise: float
    mean: float
    scale: float

    def predict(self, rows: _Array) -> tuple[_Array, _Array]:
        """Return the mean and the standard deviation of the function at places, without noise."""
        every = self._members(rows)
        return self.mean + self.scale * every.mean(axis=0), self.scale * self.factor * every.std(
            axis=0, ddof=1
        )

    def covariance(self, rows: _Array) -> _Array:
        """Return the covariance of the function between places, from the members."""
        every = self._members(rows)
        apart = every - every.mean(axis=0)
        return (self.scale * self.factor) ** 2 * apart.T @ apart / (len(every) - 1)

    @property
    def job_variance(self) -> float:
        """The variance of a further result's own error, typical of previous results."""
        return self.scale**2 * self.noise

    def _members(self, rows: _Array) -> _Array:
        return np.array(
            [_forward(*member, rows) for member in zip(self.weights, self.biases, strict=True)]
        )


def learn_ensemble(rows: _Array, values: _Array, errors: _Array | None, seed: int = 0) -> Ensemble:
    """Learn networks from values with standard `errors` (None: jobs returned none)."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPRegressor
    from threadpoolctl import threadpool_limits

    mean = float(values.mean())
    scale = float(values.std()) or 1.0
    scaled = (values - mean) / scale
    random = np.random.default_rng(seed)
    # With few results, a batch contains all of them, and a stochastic method needs more steps.
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
        # Products this small are slower on several threads.
        with (
            warnings.catch_warnings(),
            threadpool_limits(1),
        ):
            warnings.simplefilter("ignore", ConvergenceWarning)
            network.fit(rows[drawn], scaled[drawn])
        weights.append(tuple(np.asarray(layer, float) for layer in network.coefs_))
        biases.append(tuple(np.asarray(layer, float) for layer in network.intercepts_))
        left = np.setdiff1d(np.arange(len(rows)), drawn)
        out[member, left] = _forward(weights[-1], biases[-1], rows[left])
    left_out = out[:, (~np.isnan(out)).sum(axis=0) >= 2]
    columns = (~np.isnan(out)).sum(axis=0) >= 2
    residual = (scaled[columns] - np.nanmean(left_out, axis=0)) ** 2
    spread = np.nanvar(left_out, axis=0, ddof=1)
    if errors is not None:
        noise = (errors / scale) ** 2
    else:
        noise = np.full(len(rows), 0.5 * float(np.median(residual)))
    over = max(float((residual - noise[columns]).mean()), 0.05 * float(residual.mean()))
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


@dataclass(frozen=True, eq=False)
class Gaussian:
    """A Gaussian process.

    `values` are at `rows` of the unit cube (n, d), `noise` is the variance of their errors. The
    kernel has `variance` and `lengths`. `white` is an additional variance of all values, if jobs
    return no errors. Values are outputs minus `mean`, divided by `scale`; variances are scaled too.
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
        """Return the mean and the standard deviation of the function at places, without noise."""
        across = self._kernel(rows, self.rows)
        half = _solve(self._factor, across.T)
        variance = self.variance - (half**2).sum(axis=0)
        return self.mean + self.scale * (across @ self._weights), self.scale * np.sqrt(
            np.maximum(variance, 0.0)
        )

    def covariance(self, rows: _Array) -> _Array:
        """Return the covariance of the function between places, given the data."""
        half = _solve(self._factor, self._kernel(rows, self.rows).T)
        return self.scale**2 * (self._kernel(rows, rows) - half.T @ half)

    @property
    def job_variance(self) -> float:
        """The variance of a further result's own error, typical of previous results."""
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


def learn_gaussian(rows: _Array, values: _Array, errors: _Array | None, seed: int = 0) -> Gaussian:
    """Return the most likely process for values with standard `errors`.

    `errors` is None if jobs returned none.
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
    # scikit-learn annotates one length, but accepts one for each dimension.
    lengths: Any = np.ones(rows.shape[1])
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
        with warnings.catch_warnings():  # a parameter at its bound is valid
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


@dataclass(frozen=True)
class Answer:
    """A value, its standard deviation, and their source: `surrogate` or `simulation`."""

    value: float
    sd: float
    source: str = "surrogate"

    def __str__(self) -> str:
        value = f"{self.value:.6g}"
        # Digits below the standard deviation are not significant.
        if _LEAST_PLAIN <= self.sd < _MOST_PLAIN:
            value = f"{self.value:.{max(0, 1 - math.floor(math.log10(self.sd)))}f}"
        return f"{value} ± {self.sd:.2g} (from the {self.source})"

    __repr__ = __str__


@dataclass(frozen=True, eq=False)
class Surrogate:
    """A surrogate: `models` by output, learnt from results at `rows` of the unit cube."""

    space: tuple[Dimension, ...]
    models: Mapping[str, Gaussian | Ensemble]
    rows: _Array

    @property
    def kind(self) -> Kind:
        """The kind of the models."""
        if all(isinstance(model, Gaussian) for model in self.models.values()):
            return "gp"
        return "ensemble"

    @property
    def cube(self) -> Cube:
        """The unit cube of the space."""
        return Cube(self.space)

    def predict(self, points: Sequence[Mapping[str, Value]]) -> Mapping[str, tuple[_Array, _Array]]:
        """Return means and standard deviations at any points, by output."""
        rows = self.cube.rows(points)
        return {output: model.predict(rows) for output, model in self.models.items()}

    def __call__(self, **parameters: Value) -> Answer | dict[str, Answer]:
        """Return the value at a point; with several outputs, the values by name.

        Raises PlanError if the point is outside of the data or not a point of the space.
        """
        names = self.cube.names
        if wrong := sorted({*parameters} ^ {*names}):
            what = (
                f"'{wrong[0]}' is "
                f"{'missing' if wrong[0] in names else 'not a parameter of this bag'}"
            )
            raise PlanError(what, fix=f"Its parameters are {', '.join(names)}.")
        if bad := next(
            (name for name, value in parameters.items() if not isinstance(value, int | float)), None
        ):
            raise PlanError(f"{bad} must be a number, not {value_text(parameters[bad])}")
        row = self.cube.rows([parameters])
        if not np.isfinite(row).all() or not inside(self.rows, row[0]):
            where = ", ".join(f"{name}={value}" for name, value in parameters.items())
            alone = f'%%bag --over "{where.replace(", ", " ")}" --jobs 1 --surrogate none'
            raise PlanError(
                f"{where} is outside of the computed points, and the surrogate does not "
                "extrapolate",
                fix=f"Use a point between its results, or compute it with the same cell: {alone}",
            )
        found = {}
        for output, model in self.models.items():
            mean, sd = model.predict(row)
            found[output] = Answer(float(mean[0]), float(sd[0]))
        if len(found) == 1:
            return next(iter(found.values()))
        return found

    def largest(self) -> Mapping[str, float]:
        """Return the largest standard deviation by output, on a dense grid and in the corners."""
        rows = np.vstack(
            [
                sobol(len(self.space), _DENSE, 0),
                *map(self.cube.rows, filter(None, [self.cube.corners()])),
            ]
        )
        return {
            output: float(model.predict(rows)[1].max()) for output, model in self.models.items()
        }


def learn(
    space: Sequence[Dimension], results: Sequence[Result], kind: Kind | None = None, seed: int = 0
) -> Surrogate:
    """Learn a surrogate from results.

    By default, their number determines `kind`. Errors count as noise if all results have one.
    Raises PlanError for too few results.
    """
    if len(results) < LEAST_RESULTS:
        raise PlanError(
            f"{len(results)} results are too few for a surrogate",
            fix=f"Wait for {LEAST_RESULTS} results.",
        )
    cube = Cube(tuple(space))
    rows = cube.rows([point for point, _ in results])
    chosen = kind or ("gp" if len(results) <= MOST_GAUSSIAN else "ensemble")
    teach = learn_gaussian if chosen == "gp" else learn_ensemble
    models = {}
    for output in outputs_of(results[0][1]):
        values = np.array([returned[output] for _, returned in results], float)
        given = [returned.get(output + ERROR) for _, returned in results]
        if any(not error for error in given):
            errors = None
        else:
            errors = np.array(given, float)
        models[output] = teach(rows, values, errors, seed)
    return Surrogate(cube.space, models, rows)
