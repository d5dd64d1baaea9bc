"""How far figures may be off: differences between runs of one cluster, and the middle of simulated
values.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

BETWEEN_ERROR = 0.03
BETWEEN_FREEDOM = 2.0
"""How far runs of one cluster differ, relatively, before any was measured. Over the 32 clusters of
which ICAC'19 has 5 to 33 runs (`data/training`, log durations), the variance between runs is
distributed as inverse chi-square with 2.3 degrees of freedom; the deviation is 3.0 % in the root
mean square.
"""
BLOCK_SECONDS = 600.0
"""For so long a stretch deviates from its run about as far as runs differ: shorter ones as far,
longer ones less, in inverse proportion. Speeds of VMs are correlated over minutes to hours.
"""


def student(deviation: float, freedom: float) -> float:
    """Return the deviation of the normal distribution that has the same middle 90 % as Student's."""
    return deviation * float(special.stdtrit(freedom, 0.95) / special.ndtri(0.95))


def next_run_error(seconds: float, noise: float = 0.0) -> float:
    """Return how far off, relatively, the speed of one more run may be by that of one run, measured
    for `seconds`.

    Both runs differ from the usual one. The measured time differs from its run as usual, or by as
    much `noise` as its parts showed where that is more.
    """
    between = student(BETWEEN_ERROR, BETWEEN_FREEDOM)
    return math.hypot(
        math.sqrt(2) * between, max(between / math.sqrt(1 + seconds / BLOCK_SECONDS), noise)
    )


def middle(values: ArrayLike, level: float = 0.9) -> tuple[float, float]:
    """Return the ends of the middle `level` of the values.

    As many values are left out below as above. Where many are equal to one end, fewer can be left
    out there, and so many more are at the other one: the hours of a run that is seldom revoked
    reach from those of the undisturbed run to their 90th percentile.

    Parameters
    ----------
    values
        One at least, each as likely as the others.
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
