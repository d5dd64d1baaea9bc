"""Lifetimes from a table of survival, given the ages that VMs have reached."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray


def from_table(
    share: NDArray[np.float64],
    age: float | NDArray[np.float64],
    ages: NDArray[np.float64],
    shares: NDArray[np.float64],
    survival: Callable[[NDArray[np.float64]], NDArray[np.float64]],
) -> NDArray[np.float64]:
    """Total lifetimes in hours that `share` of those who reached `age` exceed; infinite where no share is so low.

    `ages` rise and `shares` fall, from (0, 1) on; between them survival is straight. `survival` tells the share at
    any age.
    """
    reached = np.asarray(age, float)
    found = np.interp(-share * survival(reached), -shares, ages, right=np.inf)
    return np.maximum(found, np.nextafter(reached, np.inf))
