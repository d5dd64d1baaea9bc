"""How far a mean speed may be off: speeds drift with time, and VMs differ from each other. Pure.

The logarithm of the speed is a stationary AR(1) process about its mean. Its standard deviation is unknown, and its
correlation time is one of `TIMES`: the marginal likelihood of each, given block means of `BLOCK` seconds and more,
weighs them (conjugate scaled-inverse-chi-squared prior on the variance, flat prior on the mean; Gelman et al.,
Bayesian Data Analysis, 3rd ed., 3.3). Each VM has an effect of its own, which a change of VMs shows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

BLOCK = 600.0
"""Seconds of a block at least: shorter ones say little of what lasts."""
TIMES = (30.0, 600.0, 1800.0, 7200.0)
"""Correlation times in seconds."""
USUAL = 0.034
"""Standard deviation before anything is measured, of either kind; ICAC'19's runs of one cluster differ by 1.3 to
5.8 %."""
_SURE = 5.0
"""Observations that count as much as `USUAL` does."""


class Deviation(NamedTuple):
    """A block: its end and length in seconds, and the deviation of its logarithmic speed."""

    at: float
    seconds: float
    value: float


@dataclass(frozen=True, slots=True)
class Noise:
    """`between`: standard deviation of VMs' effects; `disturbances`: correlation time, weight and variance."""

    between: float
    disturbances: tuple[tuple[float, float, float], ...]

    def variance(self, seconds: float) -> float:
        """Variance of a mean over `seconds` about the long-term mean."""
        return sum(weight * variance * averaged(seconds, time) for time, weight, variance in self.disturbances)

    def ahead(self, seconds: float, rest: float) -> float:
        """Variance of the difference between the mean of the next `rest` seconds and that of the `seconds` before."""
        if math.isinf(rest):
            return self.variance(seconds)
        found = 0.0
        for time, weight, variance in self.disturbances:
            together = adjacent(seconds / time, rest / time)
            found += weight * variance * (averaged(seconds, time) + averaged(rest, time) - 2 * together)
        return found


def averaged(seconds: float, time: float) -> float:
    """Variance of the mean of an AR(1) process over `seconds`, in that of a moment: 2 (x - 1 + exp(-x)) / x^2
    for x in correlation times."""
    x = seconds / time
    return 1 - x / 3 if x < 1e-3 else 2 * (x + math.expm1(-x)) / (x * x)


def adjacent(before: float, after: float) -> float:
    """Covariance of the means of an AR(1) process over two adjacent stretches, in its variance; lengths in correlation
    times."""
    return math.expm1(-before) * math.expm1(-after) / (before * after)


def measured(blocks: Sequence[Deviation], changes: Sequence[tuple[float, float]]) -> Noise:
    """The noise that these blocks show, oldest first.

    `changes` of VMs: the difference of the logarithmic speed, and its variance where that of a VM is 1.
    """
    found: list[tuple[float, float, float]] = []
    for time in TIMES:
        determinant = ones = both = squares = 0.0
        before: Deviation | None = None
        for block in blocks:
            variance, correlation = _averaged(round(block.seconds), time), 0.0
            if before is not None:
                gap = max(block.at - block.seconds - before.at, 0.0)
                correlation = _correlation(round(before.seconds), round(block.seconds), time) * math.exp(-gap / time)
            rest = variance * (1 - correlation * correlation)
            one = 1 - correlation
            value = block.value - correlation * (before.value if before else 0.0)
            determinant += math.log(rest)
            ones += one * one / rest
            both += one * value / rest
            squares += value * value / rest
            before = block
        count = max(len(blocks) - 1, 0)
        total = _SURE * USUAL**2 + (squares - both * both / ones if ones else 0.0)
        likelihood = -0.5 * (determinant + (math.log(ones) if ones else 0.0) + (_SURE + count) * math.log(total))
        found.append((time, likelihood, total / (_SURE + count)))
    most = max(likelihood for _, likelihood, _ in found)
    weights = [math.exp(likelihood - most) for _, likelihood, _ in found]
    all_ = sum(weights)
    disturbances = tuple(
        (time, weight / all_, variance) for (time, _, variance), weight in zip(found, weights, strict=True)
    )
    # A change of one VM among many shows little of what a VM differs by: it counts as much less than one observation.
    counts = [(min(variance, 1.0), difference**2 / variance) for difference, variance in changes]
    between = _SURE * USUAL**2 + sum(weight * square for weight, square in counts)
    return Noise(math.sqrt(between / (_SURE + sum(weight for weight, _ in counts))), disturbances)


@cache
def _averaged(seconds: int, time: float) -> float:
    return averaged(max(seconds, 1), time)


@cache
def _correlation(before: int, after: int, time: float) -> float:
    """Between the means of two adjacent blocks."""
    covariance = adjacent(max(before, 1) / time, max(after, 1) / time)
    return covariance / math.sqrt(_averaged(before, time) * _averaged(after, time))
