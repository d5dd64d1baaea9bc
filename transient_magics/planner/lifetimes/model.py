"""What every model of a VM's lifetime can tell, whatever it was fitted from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class LifetimeModel(Protocol):
    """How long VMs live, counted in hours from the moment they run."""

    @property
    def name(self) -> str:
        """What people call it, as `Weibull`."""
        ...

    def survival(self, hours: NDArray[np.float64]) -> NDArray[np.float64]:
        """The probability that a VM lives longer than `hours`: 1 at 0, never rising."""
        ...

    def quantile(self, share: NDArray[np.float64], age: float | NDArray[np.float64] = 0.0) -> NDArray[np.float64]:
        """Total lifetimes in hours, all above `age`: of the VMs that have reached it, `share` (above 0, up to 1) live
        longer. Infinite: never revoked within the model's support."""
        ...


def drawn(
    model: LifetimeModel,
    random: np.random.Generator,
    shape: int | tuple[int, ...],
    age: float | NDArray[np.float64] = 0.0,
) -> NDArray[np.float64]:
    """Total lifetimes in hours of VMs that have reached `age`, drawn by chance."""
    return model.quantile(1 - random.random(shape), age)


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
