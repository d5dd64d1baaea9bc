"""Observed lifetimes of VMs: each between two ages, or at least the age of the last observation.

A watched revocation has one age. A revocation that is known by the hour only lies within that hour
(interval-censored). A VM that its user deleted, or that still runs, lived at least until then
(right-censored). Published fits leave such VMs out, so that VMs appear to live shorter than they
do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...catalog.published import WAVES
from ...errors import PlanError

LEAST_EVENTS = 30
"""Smallest number of revocations for a fit: 30 determine a share of one half to within 0.15."""
_SHORTEST = (
    # Some seconds: nothing is measured below that, and densities that are infinite at 0 diverge.
    1e-3
)
CAP_HOURS = 24.0
"""The age at which Compute Engine ends preemptible VMs; it does not end Spot VMs."""
CAPPED_BY = 25.0
"""The age in hours by which preemptible VMs are gone.

Ending them takes a while: 24.83 hours is the longest published lifetime.
"""


@dataclass(frozen=True)
class Observations:
    """Lifetimes in hours: `count` VMs ended above `lower` and not above `upper`.

    Where both are equal, they ended at exactly that age. `upper` is infinite for VMs that were not
    revoked. All three are one-dimensional, of the same length. `design_effect` is the number of VMs
    that have as much information as one independent revocation, because waves take several
    simultaneously (Kish, "Survey Sampling", 1965, section 8.2; see `in_cohorts`).
    """

    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    count: NDArray[np.float64]
    design_effect: float = 1.0

    @classmethod
    def of(
        cls,
        hours: Sequence[float] | NDArray[np.float64],
        revoked: Sequence[bool] | NDArray[np.bool_],
    ) -> Observations:
        """Return observations from ages of revocation, or last observed ages if not `revoked`."""
        age = np.maximum(np.asarray(hours, float), _SHORTEST)
        return cls(age, np.where(np.asarray(revoked, bool), age, np.inf), np.ones_like(age))

    @classmethod
    def hourly(cls, launched: int, revoked: Sequence[int]) -> Observations:
        """Return observations of VMs launched together, from those `revoked` in hours 1, 2, ..."""
        ended = np.diff(revoked, prepend=0).astype(float)
        hour = np.arange(1.0, len(revoked) + 1)
        lower = np.append(hour - 1, hour[-1])
        upper = np.append(hour, np.inf)
        count = np.append(ended, launched - revoked[-1])
        return cls(lower, upper, count).some(count > 0)

    @classmethod
    def together(cls, parts: Sequence[Observations]) -> Observations:
        """Return all VMs of several sets."""

        def all_of(name: str) -> NDArray[np.float64]:
            return np.concatenate([getattr(part, name) for part in parts])

        effect = float(
            np.average(
                [part.design_effect for part in parts], weights=[max(part.vms, 1) for part in parts]
            )
        )
        return cls(all_of("lower"), all_of("upper"), all_of("count"), effect)

    def in_cohorts(self, sizes: Sequence[int]) -> Observations:
        """Return the observations of VMs that began in cohorts of these sizes.

        A cohort has one GPU and zone, and a wave takes several of its VMs.
        """
        together = sum(size * size for size in sizes) / max(sum(sizes), 1)
        return replace(self, design_effect=1 + max(together - 1, 0.0) * WAVES**2)

    def __len__(self) -> int:
        return len(self.lower)

    @property
    def seen(self) -> NDArray[np.bool_]:
        """Mask of the VMs that were revoked."""
        return np.isfinite(self.upper)

    @property
    def exact(self) -> NDArray[np.bool_]:
        """Mask of the VMs that were revoked at a known age."""
        return self.lower == self.upper

    @cached_property
    def grouped(self) -> bool:
        """Whether some revocations before the cap are known by the hour only."""
        return bool(np.any(self.seen & ~self.exact & (self.lower < CAP_HOURS)))

    @property
    def vms(self) -> int:
        """The number of VMs."""
        return round(float(self.count.sum()))

    @property
    def events(self) -> int:
        """The number of revoked VMs."""
        return round(float(self.count[self.seen].sum()))

    @property
    def end(self) -> float:
        """The last observed age, in hours."""
        return float(np.where(self.seen, self.upper, self.lower).max(initial=0.0))

    @property
    def watched_hours(self) -> float:
        """Observed hours of all VMs together; for a revocation within an hour, half of it."""
        last = np.where(
            self.seen, (self.lower + np.where(self.seen, self.upper, 0)) / 2, self.lower
        )
        return float(last @ self.count)

    def between(self, low: float, high: float) -> tuple[float, float]:
        """Return the revocations between two ages, and the hours that all VMs lived in between."""
        last = np.where(self.seen, self.upper, self.lower)
        # Of an hour with a revocation, half was lived.
        began = np.where(self.seen, self.lower, last)
        lived = (np.clip(last, low, high) + np.clip(began, low, high)) / 2 - low
        here = self.seen & (last > low) & (last <= high)
        return float(self.count[here].sum()), float(np.clip(lived, 0, None) @ self.count)

    def until(self, age: float) -> Observations:
        """Return the observations without anything beyond an age in hours.

        An hour that contains the age counts as not observed.
        """
        beyond = (self.lower >= age) | (self.seen & (self.upper > age))
        lower = np.where(beyond, np.minimum(self.lower, age), self.lower)
        return replace(self, lower=lower, upper=np.where(beyond, np.inf, self.upper))

    def without_cap(self) -> Observations:
        """Return the observations without anything beyond 24 hours.

        Ends of preemptible VMs at that age do not apply to Spot VMs.
        """
        return self.until(CAP_HOURS)

    def with_cap(self) -> Observations:
        """Return the observations with the contractual end of preemptible VMs soon after 24 hours.

        It is added for VMs that were not observed beyond that age.
        """
        beyond = (self.lower >= CAP_HOURS) & ~self.seen
        lower = np.where(beyond, CAP_HOURS, self.lower)
        upper = np.where(beyond, CAPPED_BY, self.upper)
        return replace(self, lower=lower, upper=upper)

    def some(self, chosen: NDArray[np.bool_] | NDArray[np.intp]) -> Observations:
        """Return the chosen rows, by a mask or by indices."""
        return replace(
            self, lower=self.lower[chosen], upper=self.upper[chosen], count=self.count[chosen]
        )

    def each(self) -> Observations:
        """Return the observations with a row for each VM."""
        times = self.count.astype(int)
        lower, upper = (np.repeat(values, times) for values in (self.lower, self.upper))
        return replace(self, lower=lower, upper=upper, count=np.ones_like(lower))


def enough(observed: Observations, about: str, fix: str = "") -> Observations:
    """Return the observations. Raises PlanError with fewer than 30 revocations."""
    if observed.events < LEAST_EVENTS:
        seen = (
            f"{observed.events} revocation{'' if observed.events == 1 else 's'} of "
            f"{observed.vms} VMs"
        )
        what = f"{seen} are not enough for an estimate of lifetimes: {LEAST_EVENTS} are needed"
        raise PlanError(what, where=about, fix=fix)
    return observed
