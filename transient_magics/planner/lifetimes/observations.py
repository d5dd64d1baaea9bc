"""What was seen of VMs' lives: each lasted somewhere between two ages, or at least to the age at
which one looked last.

A revocation that was watched has one age. One that is known by the hour only lies within that hour
(interval-censored). A VM that its user deleted, or that still runs, lived at least so long
(right-censored): leaving it out, as published fits did, makes VMs look as if they died earlier than
they do.
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
"""Revocations below which nothing is fitted: of 30, a share of one half is known to within 15 of
100 only.
"""
_SHORTEST = (
    1e-3  # some seconds: below that nobody measures, and densities that are infinite at 0 run away
)
CAP_HOURS = 24.0
"""Compute Engine ends preemptible VMs at this age; Spot VMs it does not."""
CAPPED_BY = 25.0
"""The age in hours by which preemptible VMs are gone: ending them takes a while, 24.83 hours is the
most published.
"""


@dataclass(frozen=True)
class Observations:
    """Lifetimes in hours: `count` VMs each ended above `lower` and not above `upper`, or at `lower`
    where both agree.

    `upper` is infinite for VMs that nobody saw being revoked. All three are one-dimensional, of the
    same length. `design_effect`: as many VMs tell as much as one that is revoked by itself, because
    waves take several at once (Kish, "Survey Sampling", 1965, section 8.2; see `in_cohorts`).
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
        """From ages at which VMs ended, or were seen last where they were not `revoked`."""
        age = np.maximum(np.asarray(hours, float), _SHORTEST)
        return cls(age, np.where(np.asarray(revoked, bool), age, np.inf), np.ones_like(age))

    @classmethod
    def hourly(cls, launched: int, revoked: Sequence[int]) -> Observations:
        """From how many of those `launched` together had been revoked by the end of hour 1, 2, ..."""
        ended = np.diff(revoked, prepend=0).astype(float)
        hour = np.arange(1.0, len(revoked) + 1)
        lower = np.append(hour - 1, hour[-1])
        upper = np.append(hour, np.inf)
        count = np.append(ended, launched - revoked[-1])
        return cls(lower, upper, count).some(count > 0)

    @classmethod
    def together(cls, parts: Sequence[Observations]) -> Observations:
        """All VMs of several sets."""

        def all_of(name: str) -> NDArray[np.float64]:
            return np.concatenate([getattr(part, name) for part in parts])

        effect = float(
            np.average(
                [part.design_effect for part in parts], weights=[max(part.vms, 1) for part in parts]
            )
        )
        return cls(all_of("lower"), all_of("upper"), all_of("count"), effect)

    def in_cohorts(self, sizes: Sequence[int]) -> Observations:
        """As of VMs that began in cohorts of these sizes, each of one GPU and zone: waves take
        several of one.
        """
        together = sum(size * size for size in sizes) / max(sum(sizes), 1)
        return replace(self, design_effect=1 + max(together - 1, 0.0) * WAVES**2)

    def __len__(self) -> int:
        return len(self.lower)

    @property
    def seen(self) -> NDArray[np.bool_]:
        """Which of them were revoked."""
        return np.isfinite(self.upper)

    @property
    def exact(self) -> NDArray[np.bool_]:
        """Which of them were revoked at a known age."""
        return self.lower == self.upper

    @cached_property
    def grouped(self) -> bool:
        """Whether some revocations before the cap are known by the hour only."""
        return bool(np.any(self.seen & ~self.exact & (self.lower < CAP_HOURS)))

    @property
    def vms(self) -> int:
        """How many VMs."""
        return round(float(self.count.sum()))

    @property
    def events(self) -> int:
        """How many of them were revoked."""
        return round(float(self.count[self.seen].sum()))

    @property
    def end(self) -> float:
        """The last age that anybody watched, in hours."""
        return float(np.where(self.seen, self.upper, self.lower).max(initial=0.0))

    @property
    def watched_hours(self) -> float:
        """Hours of all VMs together; of a revocation within an hour, half of it."""
        last = np.where(
            self.seen, (self.lower + np.where(self.seen, self.upper, 0)) / 2, self.lower
        )
        return float(last @ self.count)

    def between(self, low: float, high: float) -> tuple[float, float]:
        """Revocations between two ages, and the hours that all VMs together lived between them."""
        last = np.where(self.seen, self.upper, self.lower)
        began = np.where(
            self.seen, self.lower, last
        )  # of a revocation within an hour half of it was lived
        lived = (np.clip(last, low, high) + np.clip(began, low, high)) / 2 - low
        here = self.seen & (last > low) & (last <= high)
        return float(self.count[here].sum()), float(np.clip(lived, 0, None) @ self.count)

    def until(self, age: float) -> Observations:
        """As if nobody had watched beyond an age in hours. An hour that it lies within counts as
        not watched.
        """
        beyond = (self.lower >= age) | (self.seen & (self.upper > age))
        lower = np.where(beyond, np.minimum(self.lower, age), self.lower)
        return replace(self, lower=lower, upper=np.where(beyond, np.inf, self.upper))

    def without_cap(self) -> Observations:
        """As if nobody had watched beyond 24 hours: what ended preemptible VMs there says nothing
        about Spot VMs.
        """
        return self.until(CAP_HOURS)

    def with_cap(self) -> Observations:
        """With what the contract says of preemptible VMs that nobody watched beyond 24 hours: they
        ended soon after.
        """
        beyond = (self.lower >= CAP_HOURS) & ~self.seen
        lower = np.where(beyond, CAP_HOURS, self.lower)
        upper = np.where(beyond, CAPPED_BY, self.upper)
        return replace(self, lower=lower, upper=upper)

    def some(self, chosen: NDArray[np.bool_] | NDArray[np.intp]) -> Observations:
        """Those chosen, by a mask or by their places."""
        return replace(
            self, lower=self.lower[chosen], upper=self.upper[chosen], count=self.count[chosen]
        )

    def each(self) -> Observations:
        """The same with a row for each VM."""
        times = self.count.astype(int)
        lower, upper = (np.repeat(values, times) for values in (self.lower, self.upper))
        return replace(self, lower=lower, upper=upper, count=np.ones_like(lower))


def enough(observed: Observations, about: str, fix: str = "") -> Observations:
    """The observations, if they have revocations to learn from. Raises PlanError below 30."""
    if observed.events < LEAST_EVENTS:
        seen = f"{observed.events} revocation{'' if observed.events == 1 else 's'} of {observed.vms} VMs"
        what = f"{seen} say too little about how long VMs live: it takes {LEAST_EVENTS}"
        raise PlanError(what, where=about, fix=fix)
    return observed
