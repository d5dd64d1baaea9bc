"""Models beyond what was watched: VMs that are ended by contract, and VMs that nobody ends."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from .model import LifetimeModel


@dataclass(frozen=True)
class Capped:
    """Another model's VMs, all of which are ended at the age `end` in hours at the latest: preemptible VMs."""

    model: LifetimeModel
    end: float

    @property
    def name(self) -> str:
        return self.model.name

    def survival(self, hours: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.where(np.asarray(hours) < self.end, self.model.survival(hours), 0.0)

    def quantile(self, share: NDArray[np.float64], age: float | NDArray[np.float64] = 0.0) -> NDArray[np.float64]:
        found = np.minimum(self.model.quantile(share, age), self.end)
        return np.maximum(found, np.nextafter(age, np.inf))


@dataclass(frozen=True)
class Continued:
    """Another model's VMs, which nobody watched beyond the age `watched` in hours: as many are revoked per hour of
    their lives as on average in the second half of what was watched. That is an assumption; a limit would be one too.
    """

    model: LifetimeModel
    watched: float

    @property
    def name(self) -> str:
        return self.model.name

    @cached_property
    def rate(self) -> float:
        """Revocations per hour of a VM's life from `watched` on."""
        middle, end = self.model.survival(np.array([self.watched / 2, self.watched]))
        return float(np.log(middle / end) / (self.watched / 2)) if end > 0 else 0.0

    def survival(self, hours: NDArray[np.float64]) -> NDArray[np.float64]:
        hours = np.asarray(hours)
        later = np.exp(-self.rate * np.maximum(hours - self.watched, 0.0))
        return self.model.survival(np.minimum(hours, self.watched)) * later

    def quantile(self, share: NDArray[np.float64], age: float | NDArray[np.float64] = 0.0) -> NDArray[np.float64]:
        found = self.model.quantile(share, np.minimum(age, self.watched))
        if self.rate > 0:
            reached = share * self.survival(np.asarray(age))
            late = np.log(self.model.survival(np.array(self.watched)) / reached) / self.rate
            found = np.where(np.isinf(found), self.watched + late, found)
        return np.maximum(found, np.nextafter(age, np.inf))  # where all that were watched are gone, at once
