"""Models beyond what was watched: VMs that are ended by contract, and VMs that nobody ends."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...catalog.published import Tail
from .kaplan_meier import KaplanMeier
from .model import LifetimeModel
from .observations import Observations
from .resampling import Resampled, resampled, weighted


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

    def resampled(self, seed: int) -> Capped:
        """See `resampling`."""
        return Capped(resampled(self.model, seed), self.end)


@dataclass(frozen=True)
class Continued:
    """VMs as observed, which nobody watched beyond the age `watched` in hours: as many are revoked per hour of their
    lives as in the second half of what was watched. That is an assumption; a limit would be one too. That rate rests on
    few VMs, none of which may have been revoked: it leans on what was seen of others of the kind.
    """

    model: KaplanMeier
    watched: float
    seen: Tail
    """What was seen in the second half."""
    leaning: Tail
    """The same with what it leans on."""

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def rate(self) -> float:
        """Revocations per hour of a VM's life from `watched` on."""
        return self.leaning.rate

    def survival(self, hours: NDArray[np.float64]) -> NDArray[np.float64]:
        hours = np.asarray(hours)
        later = np.exp(-self.rate * np.maximum(hours - self.watched, 0.0))
        return self.model.survival(np.minimum(hours, self.watched)) * later

    def quantile(self, share: NDArray[np.float64], age: float | NDArray[np.float64] = 0.0) -> NDArray[np.float64]:
        found = self.model.quantile(share, np.minimum(age, self.watched))
        last = float(self.model.survival(np.array(self.watched)))
        if self.rate > 0 and last > 0:
            late = np.log(last / (share * self.survival(np.asarray(age)))) / self.rate
            found = np.where(np.isinf(found), self.watched + late, found)
        return np.maximum(found, np.nextafter(age, np.inf))  # where all that were watched are gone, at once

    def resampled(self, seed: int) -> Resampled:
        """See `resampling`; the rate is drawn from its posterior distribution."""
        observed = self.model.observed
        every, counts, random = weighted(observed, seed)
        ages, shares = KaplanMeier(every, self.model.end).falling(counts)
        if ages[-1] < self.watched:
            ages, shares = np.append(ages, self.watched), np.vstack([shares, shares[-1]])
        events = max(self.leaning.events, 0.5) / observed.design_effect
        rates = random.gamma(events, size=counts.shape[1]) / events * self.rate
        return Resampled(self.name, ages, shares, rates)


def continued(model: KaplanMeier, watched: float, kind: Observations | None = None) -> Continued:
    """The model beyond the age `watched` in hours; `kind`: more VMs of its kind, the same among them, to lean on."""

    def tail(observed: Observations) -> Tail:
        return Tail(*observed.between(watched / 2, watched))

    seen = tail(model.observed)
    return Continued(model, watched, seen, seen if kind is None else seen.among(tail(kind)))
