"""Spaces as unit cubes: places of points, the convex hull of data, and space-filling points."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ....protocol.literals import as_number, same
from ....protocol.run import Value
from ....protocol.space import Dimension

_MOST_CORNERS = 16
_FEW = 4
"""Dimensions up to which all corners may have been computed."""
_ROUNDING = 1e-7
_Array = NDArray[np.float64]


@dataclass(frozen=True)
class Cube:
    """The unit cube of a space of numbers; logarithmic ranges are uniform in the logarithm."""

    space: tuple[Dimension, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the dimensions."""
        return tuple(dimension.name for dimension in self.space)

    def rows(self, points: Sequence[Mapping[str, Value]]) -> _Array:
        """Return the places of points as rows. Raises KeyError for a missing parameter."""
        return np.array(
            [
                [
                    _place(dimension, _number(dimension, point[dimension.name]))
                    for dimension in self.space
                ]
                for point in points
            ]
        ).reshape(len(points), len(self.space))

    def point(self, row: _Array) -> dict[str, Value]:
        """Return the point of the space nearest to a place in the cube."""
        return {
            dimension.name: _value(dimension, float(place))
            for dimension, place in zip(self.space, row, strict=True)
        }

    def corners(self) -> list[dict[str, Value]]:
        """Return all corners of the space if there are at most 16, else none.

        All other points lie between them.
        """
        if 2 ** len(self.space) > _MOST_CORNERS:
            return []
        return [
            self.point(np.array(ends))
            for ends in itertools.product((0.0, 1.0), repeat=len(self.space))
        ]

    def filling(self, count: int, seed: int, first: int = 0) -> list[dict[str, Value]]:
        """Return `count` points that fill the space evenly, from the `first`-th.

        They are a scrambled Sobol sequence.
        """
        return [self.point(row) for row in sobol(len(self.space), first + count, seed)[first:]]


def sobol(dimensions: int, count: int, seed: int) -> _Array:
    """Return the first `count` rows of the Sobol sequence, scrambled by the seed."""
    from scipy.stats import qmc

    # The sequence is uniform for powers of two.
    size = 1 << max(count - 1, 1).bit_length()
    return qmc.Sobol(dimensions, rng=np.random.default_rng(seed)).random(size)[:count]


def inside(data: _Array, row: _Array) -> bool:
    """Return whether a place lies in the convex hull of the data.

    It does if it is a weighted mean of the data.
    """
    from scipy.optimize import linprog

    if (
        len(data) == 0
        or (row < data.min(axis=0) - _ROUNDING).any()
        or (row > data.max(axis=0) + _ROUNDING).any()
    ):
        return False
    # Minimize the deviation of a weighted mean from the place: it is 0 inside the hull.
    count, dimensions = data.shape
    off = np.eye(dimensions)
    equal = np.block([[data.T, off, -off], [np.ones((1, count)), np.zeros((1, 2 * dimensions))]])
    cost = np.append(np.zeros(count), np.ones(2 * dimensions))
    found = linprog(cost, A_eq=equal, b_eq=np.append(row, 1.0), bounds=(0, None), method="highs")
    return bool(found.status == 0 and found.fun <= _ROUNDING * dimensions)


def all_inside(data: _Array, rows: _Array) -> NDArray[np.bool_]:
    """Return `inside` for each row of places in the unit cube."""
    from scipy.spatial import Delaunay, QhullError

    dimensions = data.shape[1]
    if dimensions <= _FEW:
        corners = np.array(list(itertools.product((0.0, 1.0), repeat=dimensions)))
    else:
        corners = None
    if corners is not None and all(
        (abs(data - corner) < _ROUNDING).all(axis=1).any() for corner in corners
    ):
        return np.asarray(((rows >= -_ROUNDING) & (rows <= 1 + _ROUNDING)).all(axis=1), bool)
    if dimensions in (2, 3):
        try:
            return np.asarray(Delaunay(data).find_simplex(rows, tol=_ROUNDING) >= 0)
        except QhullError:  # they lie on a line, or in a plane
            pass
    return np.array([inside(data, row) for row in rows], bool)


def _number(dimension: Dimension, value: Value) -> float:
    """Return the value as a number; its index if not all choices are numbers."""
    if dimension.kind != "choice" or all(
        math.isfinite(as_number(choice)) for choice in dimension.choices
    ):
        return as_number(value)
    return next(
        (float(place) for place, choice in enumerate(dimension.choices) if same(choice, value)),
        math.nan,
    )


def _ends(dimension: Dimension) -> tuple[float, float]:
    if dimension.kind == "choice":
        numbers = [_number(dimension, choice) for choice in dimension.choices]
        return min(numbers), max(numbers)
    return dimension.low, dimension.high


def _place(dimension: Dimension, value: float) -> float:
    low, high = _ends(dimension)
    if dimension.kind == "log":
        low = math.log(low)
        high = math.log(high)
        if value > 0:
            value = math.log(value)
        else:
            value = -math.inf
    if high > low:
        return (value - low) / (high - low)
    return 0.5 + (value - low)


def _value(dimension: Dimension, place: float) -> Value:
    low, high = _ends(dimension)
    match dimension.kind:
        case "choice":
            return min(
                dimension.choices,
                key=lambda choice: abs(_place(dimension, _number(dimension, choice)) - place),
            )
        case "int":
            return round(low + place * (high - low))
        case "log":
            value = math.exp(math.log(low) + place * (math.log(high) - math.log(low)))
        case _:
            value = low + place * (high - low)
    return min(max(value, low), high)
