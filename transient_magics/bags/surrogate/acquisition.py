"""Where to compute next: a batch of points, each where the surrogate knows least per expected
dollar.

Jobs in flight count as if they had returned what is predicted of them (the kriging believer of
Ginsbourger, Le Riche and Carraro 2010, doi 10.1007/978-3-642-10701-6_6): a Gaussian process'
standard deviation does not depend on values, so each one only takes its share of the covariance
away. Every fifth point fills the space instead, so that an error of the model itself is seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ...protocol.run import Value
from ...protocol.study import Dimension
from .cube import Cube, sobol
from .model import Surrogate

FILLING = 5
"""One in so many points fills the space."""
_CANDIDATES = 1024
_Array = NDArray[np.float64]
Point = Mapping[str, Value]


@dataclass(frozen=True)
class Proposal:
    """A point to compute at; `predicted`: by output the mean and standard deviation there, as they
    were before.
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
    """The jobs of numbers `first` to `first + count`, without a surrogate to fill the space, its
    corners first.

    `tolerances`: outputs weigh by them, else by their spread; `dollars`: what a job is expected to
    cost at each point.
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
        costs[best] = np.inf  # a point once: another one tells as much, and of another place
        chosen.append((points[best], False))
    if chosen:
        told = surrogate.predict([point for point, _ in chosen])
    else:
        told = {}
    return [
        Proposal(
            point,
            filling,
            {name: (float(mean[turn]), float(sd[turn])) for name, (mean, sd) in told.items()},
        )
        for turn, (point, filling) in enumerate(chosen)
    ]


def expected_seconds(
    space: Sequence[Dimension], results: Sequence[tuple[Point, float]], seed: int = 0
) -> Callable[[Sequence[Point]], Sequence[float]]:
    """What jobs take at points, learnt from what they took elsewhere (a Gaussian process of the
    logarithm).
    """
    from .gaussian import learn

    cube = Cube(tuple(space))
    taken = np.log(np.maximum([seconds for _, seconds in results], 1e-6))
    model = learn(cube.rows([point for point, _ in results]), taken, None, seed)

    def expected(points: Sequence[Point]) -> Sequence[float]:
        mean, sd = model.predict(cube.rows(points))
        return np.exp(mean + np.minimum(sd**2 / 2, 1.0)).tolist()

    return expected


class _Knowing:
    """What is not known at candidate places: the variance of each output in units of its tolerance,
    summed.
    """

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
            known = column[place] + noise + 1e-12
            self._covariances[turn] = (covariance - np.outer(column, column) / known, noise)
