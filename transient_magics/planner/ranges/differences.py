"""How far runs of one cluster differ in speed, before any of them was measured."""

from __future__ import annotations

import math

from scipy import special

BETWEEN_ERROR, BETWEEN_FREEDOM = 0.03, 2.0
"""How far runs of one cluster differ, relatively, before any was measured. Over the 32 clusters of which ICAC'19 has 5
to 33 runs (`data/training`, log durations), the variance between runs is distributed as inverse chi-square with 2.3
degrees of freedom; the deviation is 3.0 % in the root mean square.
"""
BLOCK_SECONDS = 600.0
"""For so long a stretch deviates from its run about as far as runs differ: shorter ones as far, longer ones less, in
inverse proportion. Speeds of VMs are correlated over minutes to hours."""


def student(deviation: float, freedom: float) -> float:
    """Return the deviation of the normal distribution that has the same middle 90 % as Student's."""
    return deviation * float(special.stdtrit(freedom, 0.95) / special.ndtri(0.95))


def next_run_error(seconds: float, noise: float = 0.0) -> float:
    """Return how far off, relatively, the speed of one more run may be by that of one run, measured for `seconds`.

    Both runs differ from the usual one. The measured time differs from its run as usual, or by as much `noise` as its
    parts showed where that is more.
    """
    between = student(BETWEEN_ERROR, BETWEEN_FREEDOM)
    return math.hypot(math.sqrt(2) * between, max(between / math.sqrt(1 + seconds / BLOCK_SECONDS), noise))
