"""The common parts of the rows of `bench_calibration.py`: trials, rows, simulated worlds and best intervals.

Each `_calibration_*.py` holds the rows of one part in its `ROWS`. A trial measures something in a simulated world, asks
the product for its 90 % interval, and draws what comes. Trials of a row are seeded by its name and their number, so
that a row gives the same figures wherever it runs, and after others are added.
"""

from __future__ import annotations

import importlib
import math
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from zlib import crc32

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

Array = NDArray[np.float64]

LEVEL = 0.9
COVERAGE = (0.85, 0.95)
MOST_WIDTH = 1.5
CORRELATED_HOURS = (30 / 3600, 10 / 60, 0.5, 2.0)


@dataclass(frozen=True)
class Trial:
    """The interval from `low` to `high` that a user sees, and what `came`.

    `best`: the middle 90 % of the predictive distribution given the same measurements, for one who knows the laws of
    the world; None where it is not computed.
    """

    low: float
    high: float
    came: float
    best: tuple[float, float] | None = None


@dataclass(frozen=True)
class Row:
    """An interval of the product, by what was measured before. A trial is None where the product shows none.

    `target`: whether the goals apply to it; a row of one noise level, or of a guess, is reported without them.
    """

    interval: str
    measured: str
    trial: Callable[[np.random.Generator], Trial | None]
    trials: int = 400
    target: bool = True

    @property
    def name(self) -> str:
        return f"{self.interval}: {self.measured}"


@dataclass(frozen=True)
class Result:
    """The summary of a row's trials. `best_coverage` and `best_width`: of the best interval; None without one."""

    interval: str
    measured: str
    trials: int
    shown: int
    coverage: float
    below: float
    """The share of trials in which less came than the interval's low end."""
    above: float
    width: float
    best_coverage: float | None
    best_width: float | None
    target: bool

    @property
    def error(self) -> float:
        """The standard error of the coverage."""
        return math.sqrt(max(self.coverage * (1 - self.coverage), 1e-4) / max(self.shown, 1))

    @property
    def ratio(self) -> float | None:
        """How many times as wide as the best interval, in medians."""
        return self.width / self.best_width if self.best_width else None

    @property
    def holds(self) -> bool | None:
        """Whether the goals are met; None where they do not apply."""
        if not self.target or not self.shown:
            return None
        covers = COVERAGE[0] <= round(self.coverage, 6) <= COVERAGE[1]
        return covers and (self.ratio is None or self.ratio <= MOST_WIDTH)

    def to_dict(self) -> dict[str, object]:
        return {**asdict(self), "error": self.error, "ratio": self.ratio, "holds": self.holds}

    def __str__(self) -> str:
        name = f"{self.interval}: {self.measured}"
        if not self.shown:
            return f"{name:76} no interval shown"
        best = "" if self.best_coverage is None else f"best holds {self.best_coverage:.0%}"
        ratio = "    -" if self.ratio is None else f"{self.ratio:5.2f}"
        verdict = {True: "holds", False: "MISSES", None: "no target"}[self.holds]
        shown = f"{self.shown / self.trials:4.0%}"
        return (
            f"{name:76} {self.coverage:6.1%} ± {self.error:4.1%} (below {self.below:5.1%}, above {self.above:5.1%})  "
            f"width {self.width:8.3g}  ratio {ratio}  shown {shown}  {verdict:9}  {best}".rstrip()
        )


def run(row: Row, trials: int | None = None) -> Result:
    """All trials of a row, or fewer."""
    return summary(row, drawn(row, 0, trials or row.trials))


def drawn(row: Row, first: int, end: int) -> list[Trial | None]:
    """The trials of a row with the numbers from `first` to before `end`."""
    seed = crc32(row.name.encode())
    return [row.trial(np.random.default_rng([seed, number])) for number in range(first, end)]


def summary(row: Row, trials: Sequence[Trial | None]) -> Result:
    """Summarize these trials of a row."""
    count, shown = len(trials), [trial for trial in trials if trial is not None]
    low, high, came = (np.array([getattr(trial, name) for trial in shown]) for name in ("low", "high", "came"))
    best = np.array([trial.best for trial in shown if trial.best is not None]).reshape(-1, 2)
    known = np.array([trial.came for trial in shown if trial.best is not None])
    below, above = (float(np.mean(out)) if shown else math.nan for out in (came < low, came > high))
    return Result(
        interval=row.interval, measured=row.measured, trials=count, shown=len(shown),
        coverage=1 - below - above, below=below, above=above,
        width=float(np.median(high - low)) if shown else math.nan,
        best_coverage=float(np.mean((best[:, 0] <= known) & (known <= best[:, 1]))) if len(best) else None,
        best_width=float(np.median(best[:, 1] - best[:, 0])) if len(best) else None,
        target=row.target,
    )  # fmt: skip


def modules() -> list[str]:
    """The names of the modules that hold rows."""
    found = pkgutil.iter_modules([str(Path(__file__).parent)])
    return sorted(module.name for module in found if module.name.startswith("_calibration_"))


def rows() -> Iterator[tuple[str, int, Row]]:
    """All rows: the module, the place in its `ROWS`, the row."""
    for module in modules():
        for place, row in enumerate(importlib.import_module(module).ROWS):
            yield module, place, row


def drawn_of(module: str, place: int, first: int, end: int) -> list[Trial | None]:
    """These trials of the row at that place of a module: what another process can be asked for."""
    return drawn(importlib.import_module(module).ROWS[place], first, end)


@dataclass(frozen=True)
class World:
    """How log speeds vary in one world; estimators do not know it. All but `hours` are standard deviations.

    `run`: between runs. `vm`: between VMs. `noise`: in time, of an AR(1) process whose correlation falls to 1/e within
    `hours`.
    """

    run: float
    vm: float
    noise: float
    hours: float

    @classmethod
    def draw(cls, random: np.random.Generator) -> World:
        """One of the worlds that the targets are about."""
        return cls(
            float(random.uniform(0.02, 0.06)), float(random.uniform(0.01, 0.05)), float(random.uniform(0.01, 0.05)),
            float(random.choice(CORRELATED_HOURS)),
        )  # fmt: skip

    def run_effect(self, random: np.random.Generator) -> float:
        """The log of how much faster one run is than the usual one."""
        return self.run * float(random.normal())

    def vm_effects(self, random: np.random.Generator, count: int) -> Array:
        """The logs of how much faster these VMs are than the usual one."""
        return self.vm * random.normal(size=count)

    def noise_at(self, random: np.random.Generator, hours: ArrayLike) -> Array:
        """The AR(1) process at these moments, which do not decrease."""
        at = np.asarray(hours, float)
        kept = np.exp(-np.diff(at, prepend=at[:1]) / self.hours)
        fresh = random.normal(size=len(at))
        values = np.empty(len(at))
        last = fresh[0] if len(at) else 0.0
        for place in range(len(at)):
            last = kept[place] * last + math.sqrt(1 - kept[place] ** 2) * fresh[place] if place else last
            values[place] = last
        return self.noise * values

    def mean_noise(self, random: np.random.Generator, begin: ArrayLike, end: ArrayLike) -> Array:
        """The means of the AR(1) process over these stretches of one run, which do not overlap (hours)."""
        covariance = mean_correlation(begin, end, self.hours)
        factor = np.linalg.cholesky(covariance + 1e-10 * np.eye(len(covariance)))
        return self.noise * (factor @ random.normal(size=len(covariance)))


def mean_correlation(begin: ArrayLike, end: ArrayLike, hours: float) -> Array:
    """The covariance of means over stretches of an AR(1) process in continuous time with the variance 1.

    Integrals of exp(-|s - t| / hours) over two stretches; these are in order of time and do not overlap. Shape (n, n).
    """
    start, stop = np.asarray(begin, float), np.asarray(end, float)
    lengths = (stop - start) / hours
    apart = np.maximum(start[np.newaxis, :] - stop[:, np.newaxis], 0.0) / hours
    each = -np.expm1(-lengths) / lengths
    upper = np.triu(np.exp(-apart) * each[:, np.newaxis] * each[np.newaxis, :], 1)
    alone = 2 * (1 - each) / lengths
    return upper + upper.T + np.diag(alone)


@cache
def worlds(count: int = 128) -> tuple[World, ...]:
    """Worlds evenly spread over their law: by them `best` is computed."""
    from scipy.stats import qmc

    places = qmc.Sobol(3, seed=0).random(count // len(CORRELATED_HOURS))
    return tuple(
        World(0.02 + 0.04 * run, 0.01 + 0.04 * vm, 0.01 + 0.04 * noise, hours)
        for run, vm, noise in places.tolist() for hours in CORRELATED_HOURS
    )  # fmt: skip


@dataclass(frozen=True)
class Gaussian:
    """A mixture of normal distributions, one for each world that may be: `weights`, `means`, `deviations`."""

    weights: Array
    means: Array
    deviations: Array

    def quantile(self, share: float) -> float:
        """Bisect the distribution function."""
        low = float((self.means - 9 * self.deviations).min())
        high = float((self.means + 9 * self.deviations).max())
        for _ in range(60):
            middle = (low + high) / 2
            below = float(self.weights @ special.ndtr((middle - self.means) / self.deviations))
            low, high = (middle, high) if below < share else (low, middle)
        return (low + high) / 2

    def draw(self, random: np.random.Generator, count: int) -> Array:
        which = random.choice(len(self.weights), count, p=self.weights)
        return self.means[which] + self.deviations[which] * random.normal(size=count)


def predictive(
    measured: Sequence[Array], design: Sequence[Array], covariances: Callable[[World], Sequence[Array]],
    target: Callable[[World], tuple[Array, float, Sequence[Array]]],
) -> Gaussian:  # fmt: skip
    """The predictive distribution of a number, given measurements of independent blocks (as runs), over `worlds`.

    Linear and Gaussian given the world: block b is `measured[b]` = `design[b]` @ coefficients + an error with
    `covariances(world)[b]`, the coefficients have a flat prior. `target(world)`: the number's own row of the design,
    its variance, and its covariance with each block.
    """
    targets = [target(world) for world in worlds()]
    stacked = [np.stack(block) for block in zip(*(covariances(world) for world in worlds()), strict=True)]
    row = targets[0][0].astype(float)
    many, size = len(targets), len(row)
    information, pulled, gain = np.zeros((many, size, size)), np.zeros((many, size)), np.tile(row, (many, 1))
    logs, square, mean, known = np.zeros(many), np.zeros(many), np.zeros(many), np.zeros(many)
    for block, (y, x, covariance) in enumerate(zip(measured, design, stacked, strict=True)):
        factor = np.linalg.cholesky(covariance)
        crosses = np.stack([each[2][block] for each in targets])[:, :, np.newaxis]
        same = np.broadcast_to(np.column_stack([y, x]), (many, len(y), 1 + size))
        solved = np.linalg.solve(factor, np.concatenate([same, crosses], axis=2))
        white, tall, cross = solved[:, :, 0], solved[:, :, 1:-1], solved[:, :, -1]
        information += np.einsum("wni,wnj->wij", tall, tall)
        pulled += np.einsum("wni,wn->wi", tall, white)
        gain -= np.einsum("wni,wn->wi", tall, cross)
        mean += (cross * white).sum(axis=1)
        known += (cross**2).sum(axis=1)
        square += (white**2).sum(axis=1)
        logs += np.log(np.diagonal(factor, axis1=1, axis2=2)).sum(axis=1)
    both = np.linalg.solve(information, np.stack([pulled, gain], axis=2))
    logs += np.linalg.slogdet(information)[1] / 2
    fitted = -logs - (square - (pulled * both[:, :, 0]).sum(axis=1)) / 2
    mean += (gain * both[:, :, 0]).sum(axis=1)
    variance = np.array([each[1] for each in targets]) - known + (gain * both[:, :, 1]).sum(axis=1)
    likely = np.exp(fitted - fitted.max())
    return Gaussian(likely / likely.sum(), mean, np.sqrt(np.maximum(variance, 1e-12)))
