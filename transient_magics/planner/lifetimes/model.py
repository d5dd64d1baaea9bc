"""What every model of a VM's lifetime can tell, whatever it was fitted from."""

from __future__ import annotations

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

    def sample(
        self, random: np.random.Generator, shape: int | tuple[int, ...], age: float | NDArray[np.float64] = 0.0
    ) -> NDArray[np.float64]:
        """Total lifetimes in hours of VMs that have reached `age`, all above it; infinite: never revoked within the
        model's support."""
        ...
