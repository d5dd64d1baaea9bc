"""A bag's surrogate: one model for each output, asked by parameters, silent outside of the data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ...errors import PlanError
from ...protocol.bag.spec import ERROR, outputs_of
from ...protocol.literals import value_text
from ...protocol.run import Value
from ...protocol.study import Dimension
from . import ensemble, gaussian
from .cube import Cube, inside, sobol

MOST_GAUSSIAN = 2000
"""Results beyond which networks take over: a Gaussian process takes time with the cube of their
number.
"""
LEAST_RESULTS = 8
"""Below which nothing is learnt."""
_DENSE = 2048
_LEAST_PLAIN = 1e-5
_MOST_PLAIN = 100.0
"""Standard deviations between which a value reads well without an exponent."""
Kind = Literal["gp", "ensemble"]
Result = tuple[Mapping[str, Value], Mapping[str, float]]
"""A point, and what was returned there."""
_Array = NDArray[np.float64]


@dataclass(frozen=True)
class Answer:
    """A value, its standard deviation, and where both come from: `surrogate` or `simulation`."""

    value: float
    sd: float
    source: str = "surrogate"

    def __str__(self) -> str:
        value = f"{self.value:.6g}"
        if (
            _LEAST_PLAIN <= self.sd < _MOST_PLAIN
        ):  # no digit of the value says more than its deviation leaves open
            value = f"{self.value:.{max(0, 1 - math.floor(math.log10(self.sd)))}f}"
        return f"{value} ± {self.sd:.2g} (from the {self.source})"

    __repr__ = __str__


@dataclass(frozen=True, eq=False)
class Surrogate:
    """`models` by output, learnt from results at `rows` of the unit cube of the `space`."""

    space: tuple[Dimension, ...]
    models: Mapping[str, gaussian.Gaussian | ensemble.Ensemble]
    rows: _Array

    @property
    def kind(self) -> Kind:
        """What the models are."""
        if all(isinstance(model, gaussian.Gaussian) for model in self.models.values()):
            return "gp"
        return "ensemble"

    @property
    def cube(self) -> Cube:
        """The unit cube of the space."""
        return Cube(self.space)

    def predict(self, points: Sequence[Mapping[str, Value]]) -> Mapping[str, tuple[_Array, _Array]]:
        """By output, means and standard deviations at points, wherever they are."""
        rows = self.cube.rows(points)
        return {output: model.predict(rows) for output, model in self.models.items()}

    def __call__(self, **parameters: Value) -> Answer | dict[str, Answer]:
        """The value at a point, of several outputs all by their names.

        Raises PlanError for a point outside of the data, where nothing is known, or that is not of
        the space.
        """
        names = self.cube.names
        if wrong := sorted({*parameters} ^ {*names}):
            what = (
                f"'{wrong[0]}' is {'missing' if wrong[0] in names else 'no parameter of this bag'}"
            )
            raise PlanError(what, fix=f"It takes {', '.join(names)}.")
        if bad := next(
            (name for name, value in parameters.items() if not isinstance(value, int | float)), None
        ):
            raise PlanError(f"{bad} must be a number, not {value_text(parameters[bad])}")
        row = self.cube.rows([parameters])
        if not np.isfinite(row).all() or not inside(self.rows, row[0]):
            where = ", ".join(f"{name}={value}" for name, value in parameters.items())
            alone = f'%%bag --over "{where.replace(", ", " ")}" --jobs 1 --surrogate none'
            raise PlanError(
                f"{where} lies outside of what was computed, and the surrogate does not guess",
                fix=f"Ask between the points of its results, or compute it: {alone}, with the same cell.",
            )
        found = {}
        for output, model in self.models.items():
            mean, sd = model.predict(row)
            found[output] = Answer(float(mean[0]), float(sd[0]))
        if len(found) == 1:
            return next(iter(found.values()))
        return found

    def largest(self) -> Mapping[str, float]:
        """By output, the largest standard deviation anywhere: on a dense grid, and in the corners."""
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
    """Learn from results; `kind`: by their number. Their errors count as noise where all of them
    tell one.

    Raises PlanError for too few results.
    """
    if len(results) < LEAST_RESULTS:
        raise PlanError(
            f"{len(results)} results are too few to learn from", fix=f"It takes {LEAST_RESULTS}."
        )
    cube = Cube(tuple(space))
    rows = cube.rows([point for point, _ in results])
    chosen = kind or ("gp" if len(results) <= MOST_GAUSSIAN else "ensemble")
    teach = gaussian.learn if chosen == "gp" else ensemble.learn
    models = {}
    for output in outputs_of(results[0][1]):
        values = np.array([returned[output] for _, returned in results], float)
        told = [returned.get(output + ERROR) for _, returned in results]
        if any(not each for each in told):
            errors = None
        else:
            errors = np.array(told, float)
        models[output] = teach(rows, values, errors, seed)
    return Surrogate(cube.space, models, rows)
