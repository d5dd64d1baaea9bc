"""Drawing lifetimes from a table of survival, given the ages that VMs have reached."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray


def from_table(
    random: np.random.Generator,
    shape: int | tuple[int, ...],
    age: float | NDArray[np.float64],
    ages: NDArray[np.float64],
    shares: NDArray[np.float64],
    survival: Callable[[NDArray[np.float64]], NDArray[np.float64]],
) -> NDArray[np.float64]:
    """Total lifetimes in hours, by inversion: above `age`, infinite where the share never falls so low.

    `ages` rise and `shares` fall, from (0, 1) on; between them survival is straight. `survival` tells the share at
    any age.
    """
    reached = np.asarray(age, float)
    wanted = random.random(shape) * survival(reached)
    drawn = np.interp(-wanted, -shares, ages, right=np.inf)
    return np.maximum(drawn, np.nextafter(reached, np.inf))
