"""Fits of a workload to measured speeds of clusters: GPUs, the servers' part, and scaling.

The input is cells (the workers, the number of parameter servers, steps per second, the run). The
output is a fit of the law in `throughput`, with its errors. The run is the unit: runs differ from
each other by more than the stretches of one run do, so the number of stretches does not determine
the error of the next run. The model is linear in logs, with random effects of runs:

    log speed = log law(parameters; cluster) + run + stretch

Priors hold what cells cannot separate: GPUs by their peak speeds, the servers' part by the size of
the model's variables. So the parameters are known jointly, not one by one: `Fit.draws` has joint
draws of them. In every draw a measured cluster has its measured speed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...catalog import ACCELERATORS, accelerator
from ..ranges import BETWEEN_ERROR, BETWEEN_FREEDOM, BLOCK_SECONDS, student
from .throughput import (
    SCALING,
    SERVICE_ERROR,
    SHARPNESS,
    capacity,
    cluster_speed,
    gpu_of,
    worker_speed,
)

Array = NDArray[np.float64]

BY_PEAK_ERROR = 0.3
"""Error of a step by peak speeds: 33 % from K80 to P100, 16 % from there to V100 (ResNet-32)."""
_UNKNOWN_RATIO_ERROR = 1.0
_UNKNOWN_SERVICE_ERROR = 2.0
"""Error of the log of the servers' part without a known size or a clear limit.

It only keeps draws finite.
"""
_SCALING_ERROR = 0.2
_REST_ERROR = 0.03
_REST_FREEDOM = 2.0
"""Prior relative deviation of a run's momentary speed from its mean, and degrees of freedom."""
_CORRELATED_SECONDS = 2500.0
"""Seconds over which the variance of a run's mean speed is half of the momentary one.

The value is between those for correlations over seconds and over two hours.
"""
YOUNG_SECONDS = 60.0
"""Seconds of measurement below which a run is young."""
_USUAL_ERROR = 0.05
_USUAL_WEIGHT = 2.0
"""Prior relative deviation of other measurements, and its degrees of freedom."""
_DRAWS = 2000


_LONG_SECONDS = 1e6


@dataclass(frozen=True, slots=True)
class Cell:
    """A cluster's measured speed in steps per second.

    It has the `workers` by GPU, `servers`, the `seconds` of measurement, and the `run` (empty: a
    separate run).
    """

    workers: Mapping[str, int]
    servers: int
    steps_per_second: float
    seconds: float = _LONG_SECONDS
    run: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """Joint draws of a workload's parameters with the uncertainty of measured runs. Shape (draws,).

    They are `factors` of the seconds of a step by kind of worker, `service` seconds of a parameter
    server, and `scaling`.
    """

    factors: Mapping[str, Array]
    service: Array
    scaling: Array


@dataclass(frozen=True, slots=True)
class Fit:
    """A fit: `compute_seconds` by GPU, `service_seconds` and `scaling`.

    `errors` has predicted over measured minus 1, per cell. `between` is the relative difference of
    runs of one cluster. `error` is the relative error of the speed of one more run, averaged over
    the clusters, with that of the parameters. Both are deviations of the normal distribution with
    the same middle 90 % as Student's. `guessed` GPUs were measured for less than a minute. `apart`
    is True if the clusters differ enough to separate the GPUs' seconds, and not only the sum of
    their speeds. `limited` is True if servers limited some cluster, so that their part is fitted.
    """

    compute_seconds: dict[str, float]
    service_seconds: float
    scaling: float
    sharpness: float
    errors: Array
    between: float = 0.0
    error: float = 0.0
    guessed: bool = False
    apart: bool = True
    limited: bool = False
    draws: Draws | None = field(default=None, compare=False, repr=False)

    def predict(self, cell: Cell) -> float:
        """Return steps per second of the cell's cluster."""
        offered = sum(
            count
            * float(worker_speed(self.compute_seconds[gpu], self.service_seconds, cell.servers))
            for gpu, count in cell.workers.items()
        )
        limit = capacity(self.service_seconds, cell.servers, self.scaling)
        return float(cluster_speed(offered, limit, self.sharpness))


def fit(
    cells: Sequence[Cell], *, service_seconds: float = 0.0, sharpness: float | None = SHARPNESS
) -> Fit:
    """Fit the law to cells of runs.

    Parameters
    ----------
    cells
        At least one.
    service_seconds
        The estimated seconds of a parameter server for a step, known within `SERVICE_ERROR`; 0:
        unknown, and fitted if servers limited some cluster.
    sharpness
        Sharpness of the law's bend; None fits it.
    """
    return _Fitting(cells, service_seconds, sharpness).fit()


class _Fitting:
    """The least squares of whitened log errors, with priors as further rows."""

    def __init__(
        self, cells: Sequence[Cell], service_seconds: float, sharpness: float | None
    ) -> None:
        self._cells = cells
        self._sharpness = sharpness
        self._service = service_seconds
        self._prior = service_seconds > 0
        self._gpus = sorted({gpu for cell in cells for gpu in cell.workers})
        self._singles = {gpu: _single(cells, gpu) for gpu in self._gpus}
        self._bent = _bent(cells, self._singles)
        self._fits_service = self._prior or self._bent
        if self._prior:
            self._usual_service = service_seconds
        else:
            self._usual_service = min(self._singles.values()) / 3
        several = len({cell.servers for cell in cells}) > 1
        self._fits_scaling = self._prior or (self._bent and several)
        self._merge()

    def _merge(self) -> None:
        """Merge stretches of one run with the same workers, weighted by their effective lengths."""
        together = dict[tuple[str, int, tuple[tuple[str, int], ...]], list[Cell]]()
        for place, cell in enumerate(self._cells):
            run = cell.run or f"{place}"
            together.setdefault(
                (run, cell.servers, tuple(sorted(cell.workers.items()))), []
            ).append(cell)
        merged = sorted(together.items())
        lengths = [
            np.array([1 + cell.seconds / BLOCK_SECONDS for cell in some]) for _, some in merged
        ]
        logs = [np.log([cell.steps_per_second for cell in some]) for _, some in merged]
        self._measured = np.array(
            [np.average(log, weights=length) for log, length in zip(logs, lengths, strict=True)]
        )
        self._noise = np.array([1 / length.sum() for length in lengths])
        self._counts = np.array(
            [[dict(workers).get(gpu, 0) for gpu in self._gpus] for (*_, workers), _ in merged]
        )
        self._servers = np.array([max(servers, 1) for (_, servers, _), _ in merged], dtype=float)
        names = [run for (run, *_), _ in merged]
        self._runs = [
            np.array([place for place, name in enumerate(names) if name == run])
            for run in sorted({*names})
        ]
        self._whitening = [
            np.linalg.inv(np.linalg.cholesky(1 + np.diag(self._noise[run]))) for run in self._runs
        ]

    def fit(self) -> Fit:
        """Return the parameters, the difference of runs, and joint draws."""
        # Imported here, because plans of published workloads do not need it.
        from scipy.optimize import least_squares

        values = self._start()
        scale = student(BETWEEN_ERROR, BETWEEN_FREEDOM)
        covariance = np.zeros((len(values), len(values)))
        # The difference of runs determines the weight of the priors.
        for _ in range(2):
            found = least_squares(self._rows, values, args=(scale,))
            values = np.asarray(found.x)
            jacobian = np.asarray(found.jac)
            covariance = np.linalg.pinv(jacobian.T @ jacobian)
            scale = self._between(values, covariance, scale)
        slopes = self._slopes(values)
        fitted = float(np.einsum("ij,jk,ik->i", slopes, covariance, slopes).mean())
        best = self._read(values)
        return replace(
            best,
            errors=np.array(
                [best.predict(cell) / cell.steps_per_second - 1 for cell in self._cells]
            ),
            between=scale,
            error=math.sqrt(scale**2 + fitted),
            guessed=sum(cell.seconds for cell in self._cells) < YOUNG_SECONDS,
            apart=int(np.linalg.matrix_rank(self._counts)) == len(self._gpus),
            limited=self._bent,
            draws=self._draws(values, covariance, scale),
        )

    def _start(self) -> Array:
        start = [math.log(self._singles[gpu]) for gpu in self._gpus]
        if self._fits_service:
            start.append(math.log(self._usual_service))
        if self._fits_scaling:
            start.append(SCALING)
        if self._sharpness is None:
            start.append(SHARPNESS)
        return np.array(start)

    def _parts(self, values: Array) -> tuple[Array, Array, Array, Array]:
        """Return seconds by GPU (the last axis), service seconds, scaling and sharpness.

        `values` may be one vector or many.
        """
        many = len(self._gpus)
        seconds = np.exp(values[..., :many])
        at = many
        shape = values.shape[:-1]
        service = np.full(shape, self._service)
        scaling = np.full(shape, SCALING)
        if self._fits_service:
            service = np.exp(values[..., at])
            at = at + 1
        if self._fits_scaling:
            scaling = values[..., at]
            at = at + 1
        if self._sharpness is None:
            sharpness = values[..., at]
        else:
            sharpness = np.full(shape, self._sharpness)
        return seconds, service, scaling, sharpness

    def _read(self, values: Array) -> Fit:
        seconds, service, scaling, sharpness = self._parts(values)
        by_gpu = dict(zip(self._gpus, seconds.tolist(), strict=True))
        return Fit(by_gpu, float(service), float(scaling), float(sharpness), np.zeros(0))

    def _logs(self, values: Array) -> Array:
        """Return log speeds of the merged cells: shape (..., cells)."""
        seconds, service, scaling, sharpness = self._parts(values)
        service, scaling, sharpness = (
            part[..., np.newaxis] for part in (service, scaling, sharpness)
        )
        one = 1 / (seconds[..., np.newaxis, :] + (service / self._servers)[..., np.newaxis])
        offered = (one * self._counts).sum(axis=-1)
        with np.errstate(divide="ignore"):
            limit = self._servers**scaling / service
        return np.log(cluster_speed(offered, limit, sharpness))

    def _rows(self, values: Array, scale: float) -> Array:
        """Return the residuals: whitened log errors of runs, and the distances to priors."""
        missed = self._logs(values) - self._measured
        runs = [
            (missed[..., run] @ white.T) / scale
            for run, white in zip(self._runs, self._whitening, strict=True)
        ]
        return np.concatenate([*runs, self._priors(values)], axis=-1)

    def _priors(self, values: Array) -> Array:
        rows = list[Array]()
        first = self._gpus[0]
        for place, gpu in enumerate(self._gpus[1:], 1):
            ratio, error = _peak_ratio(first, gpu)
            rows.append((values[..., place] - values[..., 0] - math.log(ratio)) / error)
        at = len(self._gpus)
        if self._fits_service:
            error = SERVICE_ERROR if self._prior else _UNKNOWN_SERVICE_ERROR
            rows.append((values[..., at] - math.log(self._usual_service)) / error)
        if self._prior:
            rows.append((values[..., at + 1] - SCALING) / _SCALING_ERROR)
        if rows:
            return np.stack(rows, axis=-1)
        return np.zeros((*values.shape[:-1], 0))

    def _slopes(self, values: Array) -> Array:
        """Return the derivatives of the log speeds: shape (cells, parameters)."""
        step = 1e-5 * np.eye(len(values))
        return ((self._logs(values + step) - self._logs(values - step)) / 2e-5).T

    def _between(self, values: Array, covariance: Array, scale: float) -> float:
        """Return the difference of runs.

        Its degrees of freedom are those of the runs, less the parameters fitted to them.
        """
        missed = self._logs(values) - self._measured
        slopes = self._slopes(values)
        squares = 0.0
        fitted = 0.0
        for run in self._runs:
            weights = 1 / self._noise[run]
            noise = 1 / weights.sum()
            mean = weights @ slopes[run] * noise
            squares += float(np.average(missed[run], weights=weights)) ** 2 / (1 + noise)
            fitted += float(mean @ covariance @ mean) / (scale**2 * (1 + noise))
        freedom = BETWEEN_FREEDOM + max(len(self._runs) - fitted, 0.0)
        return student(math.sqrt((BETWEEN_FREEDOM * BETWEEN_ERROR**2 + squares) / freedom), freedom)

    def _draws(self, values: Array, covariance: Array, scale: float) -> Draws:
        """Return draws of the normal approximation, resampled by likelihood.

        The law is not linear, so the approximation alone is too coarse.
        """
        random = np.random.default_rng(0)
        tried = random.multivariate_normal(values, covariance, size=2 * _DRAWS, method="eigh")
        tried[0] = values
        if self._fits_scaling:
            place = len(self._gpus) + self._fits_service
            tried[:, place] = np.maximum(tried[:, place], 0.0)
        away = tried - values
        near = np.einsum("ij,jk,ik->i", away, np.linalg.pinv(covariance), away)
        with np.errstate(over="ignore", invalid="ignore"):
            logs = (near - (self._rows(tried, scale) ** 2).sum(axis=1)) / 2
        logs[~np.isfinite(logs)] = -np.inf
        likely = np.exp(logs - logs.max())
        chosen = tried[random.choice(len(tried), _DRAWS, p=likely / likely.sum())]
        seconds, service, scaling, _ = self._parts(chosen)
        factors = {
            gpu: seconds[:, place] / np.exp(values[place]) for place, gpu in enumerate(self._gpus)
        }
        return Draws(factors, service, scaling)


def rest_error(errors: ArrayLike, seconds: ArrayLike, parameters: int, left: float) -> float:
    """Return the relative error of the speed of the rest of a run, from its stretches so far.

    The run is the same, so the difference of runs is irrelevant. Its speed is correlated in time,
    so the mean over a time t has the share 1 / (1 + t / `_CORRELATED_SECONDS`) of the variance.
    Stretches that are shorter than a block count as parts of one measurement.

    Parameters
    ----------
    errors, seconds
        For each stretch: predicted over measured speed minus 1, and the seconds of measurement.
    parameters
        Number of parameters fitted to the stretches.
    left
        Seconds of the rest.
    """
    length = np.asarray(seconds, float)
    counts = np.minimum(length / BLOCK_SECONDS, 1.0)
    squares = float((counts * np.asarray(errors, float) ** 2 / _averaged(length)).sum())
    freedom = _REST_FREEDOM + max(float(counts.sum()) - parameters, 0.0)
    deviation = math.sqrt((_REST_FREEDOM * _REST_ERROR**2 + squares) / freedom)
    return student(deviation * math.sqrt(_averaged(float(length.sum())) + _averaged(left)), freedom)


def _averaged(seconds: Any) -> Any:
    """Return the variance of the mean over that time, relative to the momentary one."""
    return _CORRELATED_SECONDS / (_CORRELATED_SECONDS + seconds)


def spread(
    errors: ArrayLike,
    parameters: int,
    weights: ArrayLike,
    usual: float = _USUAL_ERROR,
    prior: float = _USUAL_WEIGHT,
) -> float:
    """Return the relative standard deviation of one more measurement about a fit.

    `errors` are those of a fit with `parameters` parameters. The variance has its degrees of
    freedom, including `prior` ones of the `usual` deviation, and the error of the fit is added to
    it. With few of them the distribution is Student's; the result is for the normal one with the
    same middle 90 %.
    """
    left = np.asarray(errors, float)
    weight = np.asarray(weights, float)
    many = _many(weights)
    freedom = prior + max(many - parameters, 0.0)
    squares = prior * usual**2 + many * float(np.average(left**2, weights=weight))
    return student(math.sqrt(squares / freedom * (1 + parameters / many)), freedom)


def _many(weights: ArrayLike) -> float:
    """Return the equivalent number of measurements of equal weight."""
    weight = np.asarray(weights, float)
    return float(weight.sum() ** 2 / (weight**2).sum())


def _single(cells: Sequence[Cell], gpu: str) -> float:
    """Return the seconds of a step of one worker, from the smallest cluster with this GPU.

    The other GPUs in it are faster in proportion to their peaks.
    """
    least = min(
        (cell for cell in cells if gpu in cell.workers), key=lambda cell: sum(cell.workers.values())
    )
    return (
        sum(count * _peak_ratio(worker_gpu, gpu)[0] for worker_gpu, count in least.workers.items())
        / least.steps_per_second
    )


def _peak_ratio(one: str, other: str) -> tuple[float, float]:
    """Return the ratio of the seconds on two GPUs by their peaks, and the error of its log."""
    gpus = (gpu_of(one), gpu_of(other))
    peaks = [accelerator(gpu).teraflops if gpu in ACCELERATORS else 0.0 for gpu in gpus]
    if all(peaks):
        return (peaks[0] / peaks[1], BY_PEAK_ERROR)
    return (1.0, _UNKNOWN_RATIO_ERROR)


def _bent(cells: Sequence[Cell], singles: Mapping[str, float]) -> bool:
    """Return whether some cluster is clearly slower than the sum of its workers' speeds.

    Their speeds are those in the smallest clusters.
    """
    if len(cells) < len(singles) + 2:
        return False
    sums = [
        (sum(n / singles[gpu] for gpu, n in cell.workers.items()), cell.steps_per_second)
        for cell in cells
    ]
    return any(speed < 0.85 * offered for offered, speed in sums)
