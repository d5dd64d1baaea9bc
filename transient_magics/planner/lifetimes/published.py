"""Lifetimes as they were published: the hourly counts of one GPU and region, even within each hour.

They are of preemptible VMs in 2018 and 2019, which ended after 24 hours in any case. Spot VMs have no such wall:
beyond the last hour that was watched, the mean rate of hours 12 to 24 goes on.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...catalog.published import LAST_HOUR, lifetimes

_MIDDLE = LAST_HOUR // 2


class PublishedLifetimes:
    """A `LifetimeModel` of one GPU in one region, or in the nearest that was published (`stand_in` tells which)."""

    def __init__(self, gpu: str, region: str) -> None:
        table = lifetimes(gpu, region)
        self._hours = np.arange(LAST_HOUR + 1, dtype=float)
        self._revoked = np.concatenate([[0.0], np.array(table.revoked) / table.launched])
        self._late_rate = float(np.log((1 - self._revoked[_MIDDLE]) / (1 - self._revoked[-1])) / (LAST_HOUR - _MIDDLE))
        self.stand_in = (table.gpu, table.region) != (gpu, region)
        self.name = f"{table.gpu.upper()} in {table.region}, published 2019"

    def survival(self, hours: NDArray[np.float64]) -> NDArray[np.float64]:
        """The probability that a VM lives longer than `hours`."""
        hours = np.asarray(hours, dtype=float)
        watched = 1 - np.interp(hours, self._hours, self._revoked)
        return watched * np.exp(-self._late_rate * np.maximum(hours - LAST_HOUR, 0.0))

    def sample(
        self, random: np.random.Generator, shape: int | tuple[int, ...], age: float | NDArray[np.float64] = 0.0
    ) -> NDArray[np.float64]:
        """Total lifetimes in hours of VMs that have reached `age`; infinite where none was revoked late."""
        left = random.random(shape) * self.survival(np.asarray(age, dtype=float))  # of all, still alive at the end
        early = np.interp(1 - left, self._revoked, self._hours)
        if not self._late_rate:
            late = np.full_like(left, np.inf)
        else:
            late = LAST_HOUR + np.log((1 - self._revoked[-1]) / np.maximum(left, 1e-300)) / self._late_rate
        return np.where(1 - left < self._revoked[-1], early, late)
