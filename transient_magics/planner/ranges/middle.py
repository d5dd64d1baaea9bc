"""The middle of simulated values."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


def middle(values: ArrayLike, level: float = 0.9) -> tuple[float, float]:
    """Return the ends of the middle `level` of the values.

    As many values are left out below as above. Where many are equal to one end, fewer can be left out there, and so
    many more are at the other one: the hours of a run that is seldom revoked reach from those of the undisturbed run to
    their 90th percentile.

    Parameters
    ----------
    values
        One at least, each as likely as the others.
    level
        0 to 1.
    """
    found, tail = np.asarray(values, float), (1 - level) / 2
    low, high = np.quantile(found, [tail, 1 - tail])
    below, above = float((found < low).mean()), float((found > high).mean())
    low, high = np.quantile(found, [2 * tail - min(above, tail), 1 - 2 * tail + min(below, tail)])
    return float(low), float(high)
