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
    reached = np.broadcast_to(np.asarray(age, float), shape)
    wanted = random.random(shape) * survival(reached)
    # The first place whose share is not above the wanted one; the age lies on the way there.
    place = np.searchsorted(-shares, -wanted, side="left")
    after = np.minimum(place, len(ages) - 1)
    before = np.maximum(after - 1, 0)
    fall = shares[before] - shares[after]
    part = np.divide(shares[before] - wanted, fall, out=np.ones_like(wanted), where=fall > 0)
    drawn = ages[before] + np.clip(part, 0, 1) * (ages[after] - ages[before])
    return np.maximum(np.where(place < len(ages), drawn, np.inf), np.nextafter(reached, np.inf))
