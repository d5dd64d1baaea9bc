"""Choose where to compute next, and decide when the surrogate is good enough."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np
from numpy.typing import NDArray

from ....protocol.outputs import ERROR
from ....protocol.run import Value
from ....protocol.space import Dimension
from ..events import BagLearnt
from .cube import Cube, sobol
from .model import Surrogate

FILLING = 5
"""Interval of the points that fill the space: one in `FILLING`."""
_CANDIDATES = 1024
_Array = NDArray[np.float64]
Point = Mapping[str, Value]

LEAST_JUDGED = 20
"""Least number of results of a judged batch; with fewer, 97 % and 100 % are equal."""
IN_A_ROW = 2
COVERED = (0.80, 0.97)
_NINETY = 1.6448536269514722  # standard deviations to each side that hold 90 %


@dataclass(frozen=True)
class Proposal:
    """A point to compute.

    `predicted` is the mean and standard deviation by output, as predicted before the computation.
    """

    point: Mapping[str, Value]
    filling: bool
    predicted: Mapping[str, tuple[float, float]] = field(
        default_factory=dict[str, tuple[float, float]]
    )


def propose(
    space: Sequence[Dimension],
    surrogate: Surrogate | None,
    count: int,
    *,
    first: int,
    seed: int = 0,
    in_flight: Sequence[Point] = (),
    tolerances: Mapping[str, float] | None = None,
    dollars: Callable[[Sequence[Point]], Sequence[float]] | None = None,
) -> list[Proposal]:
    """Return the jobs with numbers from `first` to `first + count - 1`.

    Without a surrogate, they fill the space, its corners first. Outputs are weighted by
    `tolerances`, else by their spread. `dollars` returns the expected cost of a job at each point.
    """
    cube = Cube(tuple(space))
    if surrogate is None:
        corners = cube.corners()
        filled = [*corners, *cube.filling(max(first + count - len(corners), 0), seed)]
        return [Proposal(point, True) for point in filled[first : first + count]]
    fillers = iter(cube.filling(first + count, seed + 1))
    for _ in range(first):
        next(fillers)
    chosen: list[tuple[Point, bool]] = []
    candidates = np.clip(sobol(len(cube.space), _CANDIDATES, seed + 2 + first), 0, 1)
    points = [cube.point(row) for row in candidates]
    knowing = _Knowing(surrogate, cube.rows([*points, *in_flight]), tolerances or {})
    for place in range(len(points), len(points) + len(in_flight)):
        knowing.believe(place)
    if dollars:
        costs = np.maximum(np.asarray(dollars(points), float), 1e-12)
    else:
        costs = np.ones(len(points))
    for number in range(first, first + count):
        filler = next(fillers)
        if number % FILLING == FILLING - 1:
            chosen.append((filler, True))
            continue
        best = int(np.argmax(knowing.unknown[: len(points)] / costs))
        knowing.believe(best)
        costs[best] = np.inf  # choose each point once: a different point adds more information
        chosen.append((points[best], False))
    if chosen:
        predictions = surrogate.predict([point for point, _ in chosen])
    else:
        predictions = {}
    return [
        Proposal(
            point,
            filling,
            {
                name: (float(mean[turn]), float(sd[turn]))
                for name, (mean, sd) in predictions.items()
            },
        )
        for turn, (point, filling) in enumerate(chosen)
    ]


def expected_seconds(
    space: Sequence[Dimension], results: Sequence[tuple[Point, float]], seed: int = 0
) -> Callable[[Sequence[Point]], Sequence[float]]:
    """Return a function that predicts the durations of jobs at points.

    It is a Gaussian process of the logarithm, learnt from the durations at other points.
    """
    from .model import learn_gaussian

    cube = Cube(tuple(space))
    log_seconds = np.log(np.maximum([seconds for _, seconds in results], 1e-6))
    model = learn_gaussian(cube.rows([point for point, _ in results]), log_seconds, None, seed)

    def expected(points: Sequence[Point]) -> Sequence[float]:
        mean, sd = model.predict(cube.rows(points))
        return np.exp(mean + np.minimum(sd**2 / 2, 1.0)).tolist()

    return expected


class _Knowing:
    """The uncertainty at candidate points: summed variances of outputs in units of tolerance."""

    def __init__(self, surrogate: Surrogate, rows: _Array, tolerances: Mapping[str, float]) -> None:
        self._covariances: list[tuple[_Array, float]] = []
        for output, model in surrogate.models.items():
            if not tolerances or output in tolerances:
                unit = tolerances.get(output, model.scale)
            else:
                unit = np.inf
            if np.isfinite(unit):
                self._covariances.append(
                    (model.covariance(rows) / unit**2, model.job_variance / unit**2)
                )

    @property
    def unknown(self) -> _Array:
        total = np.sum(
            [np.maximum(np.diag(covariance), 0.0) for covariance, _ in self._covariances], axis=0
        )
        return np.sqrt(total)

    def believe(self, place: int) -> None:
        for turn, (covariance, noise) in enumerate(self._covariances):
            column = covariance[:, place].copy()
            variance = column[place] + noise + 1e-12
            self._covariances[turn] = (covariance - np.outer(column, column) / variance, noise)


@dataclass(frozen=True, slots=True)
class Judgement:
    """The quality of predictions for `judged` results.

    By output, `coverage` is the share inside the 90 % intervals, and `residual` the median residual
    in its own standard deviations.
    """

    judged: int
    coverage: Mapping[str, float]
    residual: Mapping[str, float]


def judge(
    predicted: Sequence[Mapping[str, tuple[float, float]]], returned: Sequence[Mapping[str, float]]
) -> Judgement:
    """Judge predictions (mean and standard deviation by output) by the returned values.

    Each returned value counts with its own error.
    """
    pairs = [(before, after) for before, after in zip(predicted, returned, strict=True) if before]
    coverage = {}
    residual = {}
    for output in pairs[0][0] if pairs else ():
        scores = [
            abs(after[output] - mean)
            / max((sd**2 + after.get(output + ERROR, 0.0) ** 2) ** 0.5, 1e-300)
            for before, after in pairs
            for mean, sd in [before[output]]
        ]
        coverage[output] = sum(score <= _NINETY for score in scores) / len(scores)
        residual[output] = min(median(scores), 1e18)
    return Judgement(len(pairs), coverage, residual)


def good_enough(learnt: Sequence[BagLearnt], tolerances: Mapping[str, float]) -> bool:
    """Return whether the last two judged batches pass, for all outputs with a tolerance."""
    judged = [batch for batch in learnt if batch.judged >= LEAST_JUDGED][-IN_A_ROW:]
    return (
        bool(tolerances)
        and len(judged) == IN_A_ROW
        and all(_passes(batch, tolerances) for batch in judged)
    )


def _passes(learnt: BagLearnt, tolerances: Mapping[str, float]) -> bool:
    return all(
        COVERED[0] <= learnt.coverage.get(output, 0.0) <= COVERED[1]
        and learnt.residual.get(output, 2.0) <= 1
        and learnt.largest.get(output, float("inf")) <= tolerance
        for output, tolerance in tolerances.items()
    )


@dataclass(frozen=True, slots=True)
class Speedup:
    """The effective speed-up of a surrogate, from times in seconds.

    `sequential` is the time of one simulation alone, and `lookup` that of one lookup. `train` is
    the time of the bag per result, losses included, and `learn` that of learning per result.
    """

    sequential: float
    lookup: float
    train: float
    learn: float
    results: int

    def at(self, lookups: float) -> float:
        """Return the effective speed-up S with this number of lookups."""
        spent = self.lookup * lookups + (self.train + self.learn) * self.results
        if spent > 0:
            return self.sequential * (lookups + self.results) / spent
        return math.inf

    @property
    def limit(self) -> float:
        """The limit of the speed-up for many lookups."""
        if self.lookup > 0:
            return self.sequential / self.lookup
        return math.inf

    @property
    def break_even(self) -> float:
        """The number of lookups from which it pays (0: the first, infinite: never)."""
        more = self.results * (self.train + self.learn - self.sequential)
        if more <= 0:
            return 0.0
        if self.sequential > self.lookup:
            return more / (self.sequential - self.lookup)
        return math.inf

    def __str__(self) -> str:
        if math.isfinite(self.break_even):
            pays = f"{self.break_even:,.0f}"
        else:
            pays = "no number of"
        return (
            f"{self.at(self.results):.3g} times as fast with as many look-ups as results; it "
            f"pays from {pays} on"
        )

    __repr__ = __str__
