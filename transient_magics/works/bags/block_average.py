"""Standard error of the mean of a correlated series, by block averages.

Flyvbjerg and Petersen (1989, doi 10.1063/1.457480) average neighbours repeatedly; the error
estimated from the blocks grows until the blocks are independent. The level is chosen as in Jonsson
(2018, doi 10.1103/PhysRevE.98.043304): the first from which independence is not rejected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...errors import PlanError

LEAST_VALUES = 64
_LEAST_BLOCKS = 8


@dataclass(frozen=True, slots=True)
class BlockMean:
    """The mean of a series and its standard error.

    `block` is the number of values per independent block (1: all values are independent).
    `enough` is whether the series is long enough; if it is not, the error is too small.
    """

    mean: float
    error: float
    block: int
    enough: bool


def block_mean(series: Sequence[float] | NDArray[np.float64]) -> BlockMean:
    """Return the mean of an equilibrated series and its standard error.

    Raises
    ------
    PlanError
        If there are fewer than 64 values, or values that are not numbers.
    """
    values = np.asarray(series, float)
    if values.ndim != 1 or len(values) < LEAST_VALUES or not np.isfinite(values).all():
        raise PlanError(f"A block average needs a series of at least {LEAST_VALUES} finite numbers")
    from scipy.stats import chi2

    mean = float(values.mean())
    levels = []
    blocks = values
    while len(blocks) >= _LEAST_BLOCKS:
        levels.append(_level(blocks))
        blocks = blocks[: len(blocks) // 2 * 2].reshape(-1, 2).mean(axis=1)
    left = np.cumsum([against for _, against in levels][::-1])[::-1]
    for level, (error, _) in enumerate(levels):
        if left[level] < chi2.ppf(0.99, len(levels) - level):
            return BlockMean(mean, error, 2**level, len(values) >> level >= 2 * _LEAST_BLOCKS)
    return BlockMean(mean, max(error for error, _ in levels), 2 ** (len(levels) - 1), False)


def _level(blocks: NDArray[np.float64]) -> tuple[float, float]:
    """Return the error of the mean for independent blocks, and a test statistic.

    If the blocks are independent, the statistic is about chi-square with one degree of freedom.
    """
    count = len(blocks)
    apart = blocks - blocks.mean()
    variance = float((apart**2).mean())
    if variance <= 0:
        return 0.0, 0.0
    neighbours = float((apart[1:] * apart[:-1]).mean())
    against = (neighbours / variance + 1 / count) ** 2 * count
    # A mean that is estimated takes one degree of freedom, and what is left of a correlation a
    # little more.
    correlation = min(max(neighbours / variance, 0.0), 0.5)
    return float(np.sqrt(variance / (count - 1) * (1 + correlation) / (1 - correlation))), against
