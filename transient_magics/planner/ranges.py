"""Errors of figures: differences between runs of one cluster, and ranges of simulated values."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

BETWEEN_ERROR = 0.03
BETWEEN_FREEDOM = 2.0
"""Prior relative deviation of runs of one cluster, and its degrees of freedom.

Over the 32 clusters of which ICAC'19 has 5 to 33 runs (`data/training`, log durations), the
variance between runs is distributed as inverse chi-square with 2.3 degrees of freedom; the
deviation is 3.0 % in the root mean square.
"""
BLOCK_SECONDS = 600.0
"""The length of a stretch, in seconds, that deviates from its run as much as runs differ.

Shorter ones deviate as much, longer ones less, in inverse proportion. Speeds of VMs are correlated
over minutes to hours.
"""


def student(deviation: float, freedom: float) -> float:
    """Return the deviation of the normal distribution with the same middle 90 % as Student's."""
    return deviation * float(special.stdtrit(freedom, 0.95) / special.ndtri(0.95))


def next_run_error(seconds: float, noise: float = 0.0) -> float:
    """Return the relative error of the next run's speed, predicted from one run.

    Both runs differ from the usual run. The measured time differs from its run as usual, or by
    `noise` if its parts showed more.

    Parameters
    ----------
    seconds
        Length of the measurement.
    noise
        Relative deviation of its parts.
    """
    between = student(BETWEEN_ERROR, BETWEEN_FREEDOM)
    return math.hypot(
        math.sqrt(2) * between, max(between / math.sqrt(1 + seconds / BLOCK_SECONDS), noise)
    )


def middle(values: ArrayLike, level: float = 0.9) -> tuple[float, float]:
    """Return the ends of the middle `level` of the values.

    As many values are left out below as above. If many equal one end, fewer can be left out there,
    and more are left out at the other end: the hours of a run with few revocations reach from those
    of the undisturbed run to their 90th percentile.

    Parameters
    ----------
    values
        At least one, all equally likely.
    level
        0 to 1.
    """
    found = np.asarray(values, float)
    tail = (1 - level) / 2
    low, high = np.quantile(found, [tail, 1 - tail])
    below = float((found < low).mean())
    above = float((found > high).mean())
    low, high = np.quantile(found, [2 * tail - min(above, tail), 1 - 2 * tail + min(below, tail)])
    return float(low), float(high)
