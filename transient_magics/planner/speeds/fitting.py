"""A workload's numbers from measured speeds of clusters: each GPU's seconds, the servers' part, how servers add up.

Cells go in (which workers, how many parameter servers, steps per second), a fit of the law in `speed` comes out, with
the errors that it leaves. What cells cannot tell is not fitted: without a cell in which the servers hold workers back
their part is taken from `service_seconds` (0 if unknown), without different numbers of servers their scaling too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special
from scipy.optimize import least_squares

from ...catalog import ACCELERATORS, accelerator
from .preparation import gpu_of
from .speed import SCALING, SHARPNESS, capacity, cluster_speed, worker_speed

_USUAL_ERROR, _USUAL_WEIGHT = 0.05, 2.0
"""What is known before anything was measured: how far stretches of one run differ, relatively, and how many of them
that knowledge is worth. Runs of ICAC'19 and CM-DARE on one cluster differ by 2 to 3 %, at worst by 7 %. How far is no
law: over CM-DARE's 96 clusters the variance itself varies as inverse chi-square of 2.1 degrees of freedom.
"""
_LEAST_FREEDOM = 0.5


@dataclass(frozen=True, slots=True)
class Cell:
    """A cluster's measured speed in steps per second: `workers` by GPU, `servers`, and the `weight` of the cell."""

    workers: Mapping[str, int]
    servers: int
    steps_per_second: float
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Fit:
    """`compute_seconds` by GPU, `service_seconds`, `scaling`; `errors`: predicted over measured minus 1, per cell.

    `error`: how far off, relatively, the speed of one more such cluster may be (as `spread` has it). `guessed`: that is
    what is usual, for there are as many parameters as cells. `apart`: the GPUs were in so different clusters that each
    one's seconds are known, and not only the sum of their speeds. `limited`: some cluster was held back by its servers,
    so that their part is fitted.
    """

    compute_seconds: dict[str, float]
    service_seconds: float
    scaling: float
    sharpness: float
    errors: NDArray[np.float64]
    error: float = 0.0
    guessed: bool = False
    apart: bool = True
    limited: bool = False

    def predict(self, cell: Cell) -> float:
        """Steps per second of the cell's cluster."""
        offered = sum(
            count * float(worker_speed(self.compute_seconds[gpu], self.service_seconds, cell.servers))
            for gpu, count in cell.workers.items()
        )
        limit = capacity(self.service_seconds, cell.servers, self.scaling)
        return float(cluster_speed(offered, limit, self.sharpness))


def fit(cells: Sequence[Cell], *, service_seconds: float = 0.0, sharpness: float | None = SHARPNESS) -> Fit:
    """The least squares of relative errors; `sharpness` None fits that, too."""
    gpus = sorted({gpu for cell in cells for gpu in cell.workers})
    singles = {gpu: _single(cells, gpu) for gpu in gpus}
    bent = _bent(cells, singles)
    servers = bent and len({cell.servers for cell in cells}) > 1
    start = [*np.log([singles[gpu] for gpu in gpus])]
    start += [np.log(min(singles.values()) / 3)] if bent else []
    start += [SCALING] if servers else []
    start += [SHARPNESS] if sharpness is None else []

    def read(values: NDArray[np.float64]) -> Fit:
        found = list(values)
        seconds = dict(zip(gpus, np.exp(found[: len(gpus)]).tolist(), strict=True))
        rest = found[len(gpus) :]
        service = float(np.exp(rest.pop(0))) if bent else service_seconds
        scaling = float(rest.pop(0)) if servers else SCALING
        return Fit(seconds, service, scaling, float(rest[0]) if sharpness is None else sharpness, np.zeros(0))

    def misses(values: NDArray[np.float64]) -> NDArray[np.float64]:
        tried = read(values)
        return np.array([cell.weight**0.5 * np.log(tried.predict(cell) / cell.steps_per_second) for cell in cells])

    best = read(np.asarray(least_squares(misses, start).x))
    errors = np.array([best.predict(cell) / cell.steps_per_second - 1 for cell in cells])
    weights = [cell.weight for cell in cells]
    counts = [[cell.workers.get(gpu, 0) for gpu in gpus] for cell in cells]
    return replace(
        best, errors=errors, error=spread(errors, len(start), weights), guessed=not tell(len(start), weights),
        apart=int(np.linalg.matrix_rank(counts)) == len(gpus), limited=bent,
    )  # fmt: skip


def spread(
    errors: ArrayLike, parameters: int, weights: ArrayLike, usual: float = _USUAL_ERROR, prior: float = _USUAL_WEIGHT
) -> float:
    """The relative standard deviation of one more measurement about a fit of so many parameters that left `errors`.

    The variance has its degrees of freedom, the `prior` ones of what is `usual` among them, and the error of the fit
    itself adds to it. So few of them make a t distribution; told is the normal one with the same middle 90 %.
    """
    left, weight, many = np.asarray(errors, float), np.asarray(weights, float), _many(weights)
    freedom = prior + max(many - parameters, 0.0)
    squares = prior * usual**2 + many * float(np.average(left**2, weights=weight))
    wider = special.stdtrit(freedom, 0.95) / special.ndtri(0.95)
    return float(wider * (squares / freedom * (1 + parameters / many)) ** 0.5)


def tell(parameters: int, weights: ArrayLike) -> bool:
    """Whether measurements of such weights tell how far off a fit of so many parameters is; else `spread` guesses."""
    return _many(weights) - parameters >= _LEAST_FREEDOM


def _many(weights: ArrayLike) -> float:
    """As how many measurements of equal weight these count."""
    weight = np.asarray(weights, float)
    return float(weight.sum() ** 2 / (weight**2).sum())


def _single(cells: Sequence[Cell], gpu: str) -> float:
    """Seconds of a step of one worker, from the smallest cluster that has this GPU; the others in it are as much faster
    as their peak is."""
    least = min((cell for cell in cells if gpu in cell.workers), key=lambda cell: sum(cell.workers.values()))
    return sum(count * _faster(each, gpu) for each, count in least.workers.items()) / least.steps_per_second


def _faster(one: str, other: str) -> float:
    gpus = (gpu_of(one), gpu_of(other))
    peaks = [accelerator(gpu).teraflops if gpu in ACCELERATORS else 0.0 for gpu in gpus]
    return peaks[0] / peaks[1] if all(peaks) else 1.0


def _bent(cells: Sequence[Cell], singles: Mapping[str, float]) -> bool:
    """Whether some cluster is clearly slower than the sum of what its workers reach in the smallest."""
    if len(cells) < len(singles) + 2:
        return False
    sums = [(sum(n / singles[gpu] for gpu, n in cell.workers.items()), cell.steps_per_second) for cell in cells]
    return any(speed < 0.85 * offered for offered, speed in sums)
