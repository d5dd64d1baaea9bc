"""Observed survival without a formula: Kaplan and Meier (1958, doi 10.1080/01621459.1958.10501452).

The band is Greenwood's variance on the log-log scale (Kalbfleisch and Prentice, "The Statistical
Analysis of Failure Time Data", 2002, section 1.4), which keeps it between 0 and 1. After the last
revocation, VMs leave the observation unrevoked, so fewer VMs support an unchanged share. For the
lower end, the variance is multiplied by the ratio of the VMs left at that revocation to those left
now (F. J. Dorey, E. L. Korn, "Effective sample sizes for confidence intervals for survival
probabilities", Statistics in Medicine 6, 1987). Before the first revocation the variance is zero;
there the band is the exact one of no event among this number of VMs. Where revocations are known by
the hour only, their times within the hour are unknown: the band reaches from the lower end at the
end of the hour to the upper end at its start.

`Capped` and `Continued` are models beyond the observed ages: VMs that end by contract, and VMs
without such an end.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from scipy import special

from ...catalog.published import Tail
from .observations import Observations
from .parametric import LifetimeModel, Weibull, from_table

_NODES = 40

BLOCKS = 100
"""Number of blocks that simulated courses are cut into."""
_VAGUE = 0.5
"""Weibull shape of the lifetime of the additional, unobserved VM.

13 % end before a hundredth of their mean, 14 % after twice the mean.
"""
_Array = NDArray[np.float64]

FALSE_ALARMS = 0.01
"""Rate of false alarms: the share of blocks with an alarm where nothing changed."""
LATEST = 30
"""Number of VMs in a block."""
VMS_PER_FALSE_ALARM = round(LATEST / FALSE_ALARMS)
_LEAST_EXPECTED = 3.0


@dataclass(frozen=True, eq=False)
class KaplanMeier:
    """The share of VMs that live longer than an age.

    Where revocations are known by the hour only, they are taken as even within it. Beyond the last
    observed age the share stays constant, because nothing is known of older VMs.
    """

    observed: Observations
    end: float = np.inf
    """The age in hours at which every VM ends, by contract."""

    @property
    def name(self) -> str:
        """The name of the model."""
        return "Kaplan-Meier"

    @cached_property
    def steps(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Ages in hours, from 0 on, and the share that lives longer than each."""
        ages, ended, at_risk = self.risks
        return np.append(0.0, ages), np.append(1.0, np.cumprod(1 - ended / at_risk))

    def survival(self, hours: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the share that lives longer than each of `hours`."""
        return np.where(np.asarray(hours) < self.end, self._read(self.steps[1], hours), 0.0)

    def band(
        self, hours: NDArray[np.float64], level: float = 0.9
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the interval of the true share at each age, with probability `level`."""
        return self._quantile(hours, (1 - level) / 2), self._quantile(hours, (1 + level) / 2)

    def alive_of(self, vms: int, age: float, level: float = 0.9) -> tuple[int, int]:
        """Return the interval of how many of `vms` other VMs live longer than `age`, in hours.

        It has the probability `level`, and includes chance among these VMs and the uncertainty of
        the share (as in `band`).
        """
        shares = self._quantile(np.array(age), (np.arange(_NODES) + 0.5) / _NODES)
        chance = special.bdtr(np.arange(vms + 1)[:, None], vms, shares).mean(axis=1)
        return int(np.searchsorted(chance, (1 - level) / 2)), int(
            np.searchsorted(chance, (1 + level) / 2)
        )

    def variance(self, hours: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return Greenwood's variance of the share at each age."""
        return self._read(self._greenwood, hours) * self.survival(hours) ** 2

    def quantile(
        self, share: NDArray[np.float64], age: float | NDArray[np.float64] = 0.0
    ) -> NDArray[np.float64]:
        """Return total lifetimes that `share` of the VMs that reached `age` exceed."""
        return from_table(share, age, *self._falling, self.survival)

    def resampled(self, seed: int) -> Resampled:
        """Return the model with resampled VMs, for each block; see `weighted`."""
        observed, counts, _ = weighted(self.observed, seed)
        ages, shares = KaplanMeier(observed, self.end).falling(counts)
        ages = np.append(ages, max(ages[-1], self.observed.end))
        shares = np.vstack([shares, shares[-1]])
        return Resampled(self.name, ages, shares, np.zeros(counts.shape[1]))

    @cached_property
    def _falling(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Points between which the share falls in straight lines: ages and shares."""
        ages, shares = self.falling(self.observed.count[:, np.newaxis])
        return ages, shares[:, 0]

    def falling(
        self, counts: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return points between which the share falls in straight lines, for weighted VMs.

        `counts` has the weights, a column for each sample. Return ages, and shares with a column
        for each sample.
        """
        ages, ended, at_risk = self._counted(counts)
        left = np.divide(
            np.maximum(at_risk - ended, 0.0), at_risk, out=np.zeros_like(ended), where=at_risk > 0
        )
        begin = np.ones((1, counts.shape[1]), np.float64)
        ages = np.append(0.0, ages)
        shares = np.cumprod(np.vstack([begin, left]), axis=0, dtype=np.float64)
        # A step down is two points at one age.
        if not self.observed.grouped:
            ages = np.repeat(ages, 2)[1:]
            shares = np.repeat(shares, 2, axis=0)[:-1]
        if np.isfinite(self.end):
            inside = ages < self.end
            after = int(inside.sum())
            if after < len(ages):
                part = (self.end - ages[after - 1]) / (ages[after] - ages[after - 1])
            else:
                part = 0.0
            last = shares[after - 1] + part * (
                shares[min(after, len(ages) - 1)] - shares[after - 1]
            )
            ages = np.append(ages[inside], [self.end, self.end])
            shares = np.vstack([shares[inside], last, np.zeros_like(last)])
        return ages, shares

    @cached_property
    def risks(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Ages at which the share changes, and the VMs revoked there and at risk there."""
        ages, ended, at_risk = self._counted(self.observed.count[:, np.newaxis])
        return ages, ended[:, 0], at_risk[:, 0]

    def _counted(
        self, counts: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        observed = self.observed
        seen = self.observed.seen
        # Starts of the hours with revocations: the share is constant up to there.
        begun = observed.lower[seen & ~observed.exact & (observed.lower > 0)]
        ages = np.unique(np.append(observed.upper[seen], begun))
        ended = np.zeros((len(ages), counts.shape[1]))
        np.add.at(ended, np.searchsorted(ages, observed.upper[seen]), counts[seen])
        last = np.where(seen, observed.upper, observed.lower)
        order = np.argsort(last)
        left = np.cumsum(counts[order][::-1], axis=0)[::-1]
        if len(ages):
            at_risk = left[np.searchsorted(last[order], ages, side="left")]
        else:
            at_risk = left[:0]
        return ages, ended, at_risk

    @cached_property
    def _greenwood(self) -> NDArray[np.float64]:
        _, ended, at_risk = self.risks
        remaining = at_risk - ended
        terms = np.divide(ended, at_risk * remaining, out=np.zeros_like(ended), where=remaining > 0)
        terms *= self.observed.design_effect
        return np.append(0.0, np.cumsum(terms))

    def _quantile(
        self, hours: NDArray[np.float64], part: float | NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return the share below which the true one lies with probability `part`, at each age."""
        low = np.asarray(part) < 0.5
        hours = np.where(low, self._outer(hours, "left"), self._outer(hours, "right"))
        shares = self.survival(hours)
        # Where all VMs are gone, the uncertainty is that just before.
        least = self.steps[1][self.steps[1] > 0][-1]
        logarithm = np.log(np.minimum(np.maximum(shares, least), 1 - 1e-9))
        alone = np.maximum(
            np.where(low, self._left(hours), self.observed.vms) / self.observed.design_effect, 1
        )
        variance = self._read(self._greenwood, hours) * np.where(low, self._thinned(hours), 1.0)
        spread = np.exp(-special.ndtri(part) * np.sqrt(variance) / np.abs(logarithm))
        none_ended = np.where(low & (np.asarray(hours) > 0), np.asarray(part) ** (1 / alone), 1.0)
        found = np.where(shares < 1, np.exp(logarithm * spread), none_ended)
        return np.where((shares <= 0) & (low | (np.asarray(hours) >= self.end)), 0.0, found)

    def _left(self, hours: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return how many VMs were observed alive up to each age; at least one."""
        observed = self.observed
        last = np.where(observed.seen, observed.upper, observed.lower)
        order = np.argsort(last)
        left = np.append(np.cumsum(observed.count[order][::-1])[::-1], 0.0)
        return np.maximum(left[np.searchsorted(last[order], hours, side="left")], 1.0)

    def _thinned(self, hours: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the VMs at the last revocation before each age, per VM left at the age."""
        at_risk = np.append(float(self.observed.vms), self.risks[2])
        place = np.searchsorted(self.steps[0], np.asarray(hours), side="right") - 1
        return np.maximum(at_risk[place] / self._left(hours), 1.0)

    def _outer(
        self, hours: NDArray[np.float64], side: Literal["left", "right"]
    ) -> NDArray[np.float64]:
        """Return the end (`left`) or start (`right`) of the hour that hides the share at an age.

        Return the age itself where ages are exact.
        """
        if not self.observed.grouped:
            return np.asarray(hours, float)
        ages = self.steps[0]
        place = np.searchsorted(ages, hours, side=side) - (side == "right")
        inside = (np.asarray(hours) > 0) & (np.asarray(hours) < ages[-1])
        return np.where(inside, ages[np.minimum(place, len(ages) - 1)], hours)

    def _read(self, values: NDArray[np.float64], hours: NDArray[np.float64]) -> NDArray[np.float64]:
        ages = self.steps[0]
        if self.observed.grouped:
            return np.interp(hours, ages, values)
        return values[np.searchsorted(ages, np.asarray(hours), side="right") - 1]


@dataclass(frozen=True)
class Capped:
    """VMs of another model, all of which end at the age `end` in hours: preemptible VMs."""

    model: LifetimeModel
    end: float

    @property
    def name(self) -> str:
        """The name of the model."""
        return self.model.name

    def survival(self, hours: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the share that lives longer than each of `hours`."""
        return np.where(np.asarray(hours) < self.end, self.model.survival(hours), 0.0)

    def quantile(
        self, share: NDArray[np.float64], age: float | NDArray[np.float64] = 0.0
    ) -> NDArray[np.float64]:
        """Return total lifetimes that `share` of the VMs that reached `age` exceed."""
        found = np.minimum(self.model.quantile(share, age), self.end)
        return np.maximum(found, np.nextafter(age, np.inf))

    def resampled(self, seed: int) -> Capped:
        """Return the capped model with resampled VMs, for each block."""
        return Capped(resampled(self.model, seed), self.end)


@dataclass(frozen=True)
class Continued:
    """Observed VMs with an assumed rate of revocations beyond the age `watched`, in hours.

    The rate per hour of life is that of the second half of the observed ages. That is an
    assumption, as a limit would be. The rate is based on few VMs, and possibly on no revocation, so
    it is combined with the observations of other VMs of the kind.
    """

    model: KaplanMeier
    watched: float
    seen: Tail
    """The observed second half."""
    leaning: Tail
    """The second half, combined with other VMs of the kind."""

    @property
    def name(self) -> str:
        """The name of the model."""
        return self.model.name

    @property
    def rate(self) -> float:
        """Revocations per hour of a VM's life from `watched` on."""
        return self.leaning.rate

    def survival(self, hours: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the share that lives longer than each of `hours`."""
        hours = np.asarray(hours)
        later = np.exp(-self.rate * np.maximum(hours - self.watched, 0.0))
        return self.model.survival(np.minimum(hours, self.watched)) * later

    def quantile(
        self, share: NDArray[np.float64], age: float | NDArray[np.float64] = 0.0
    ) -> NDArray[np.float64]:
        """Return total lifetimes that `share` of the VMs that reached `age` exceed."""
        found = self.model.quantile(share, np.minimum(age, self.watched))
        last = float(self.model.survival(np.array(self.watched)))
        if self.rate > 0 and last > 0:
            late = np.log(last / (share * self.survival(np.asarray(age)))) / self.rate
            found = np.where(np.isinf(found), self.watched + late, found)
        # Where all observed VMs are gone, the lifetime ends immediately after `age`.
        return np.maximum(found, np.nextafter(age, np.inf))

    def resampled(self, seed: int) -> Resampled:
        """Return the model with resampled VMs, and a rate from its posterior distribution."""
        observed = self.model.observed
        every, counts, random = weighted(observed, seed)
        ages, shares = KaplanMeier(every, self.model.end).falling(counts)
        if ages[-1] < self.watched:
            ages = np.append(ages, self.watched)
            shares = np.vstack([shares, shares[-1]])
        events = max(self.leaning.events, 0.5) / observed.design_effect
        rates = random.gamma(events, size=counts.shape[1]) / events * self.rate
        return Resampled(self.name, ages, shares, rates)


def continued(model: KaplanMeier, watched: float, kind: Observations | None = None) -> Continued:
    """Return the model, continued beyond the age `watched` in hours.

    `kind` has more VMs of the kind, those of the model included, for the rate.
    """

    def tail(observed: Observations) -> Tail:
        return Tail(*observed.between(watched / 2, watched))

    seen = tail(model.observed)
    return Continued(model, watched, seen, seen if kind is None else seen.among(tail(kind)))


# Uncertainty of lifetimes that were learned from few VMs.
#
# The Bayesian bootstrap (Rubin 1981, doi 10.1214/aos/1176345338; for censored lifetimes Lo 1993,
# doi 10.1214/aos/1176349016): every VM has a random weight of mean 1, which gives another survival
# that fits the observations as well. Where waves take several VMs simultaneously, the weights vary
# as much as if there were fewer VMs. With few VMs the bootstrap is overconfident: an event that
# none of them had would never happen. So one unobserved VM is added, as Jeffreys' prior has one
# more trial (the prior is a Dirichlet process, Ferguson 1973, doi 10.1214/aos/1176342360). It
# differs by block, with a lifetime from minutes to days. Simulated courses are cut into blocks,
# each with a survival of its own.


@runtime_checkable
class Learned(LifetimeModel, Protocol):
    """A model that was learned from VMs."""

    def resampled(self, seed: int) -> LifetimeModel:
        """Return a model that is as likely as this one, with a different survival in each block."""
        ...


@lru_cache(maxsize=256)
def resampled(model: LifetimeModel, seed: int) -> LifetimeModel:
    """Return `Learned.resampled`, or the model itself if it was not learned. Results are cached."""
    if isinstance(model, Learned):
        return model.resampled(seed)
    return model


def weighted(observed: Observations, seed: int) -> tuple[Observations, _Array, np.random.Generator]:
    """Return the observations with one more VM for each block, their weights, and the generator.

    The weights have a column for each block. The generator is the source of further draws. Equal
    observations get equal results, others get independent ones.
    """
    content = zlib.crc32(observed.upper.tobytes(), zlib.crc32(observed.lower.tobytes()))
    random = np.random.default_rng((seed, content))
    counts = np.vstack(
        [
            np.repeat(observed.count[:, np.newaxis], BLOCKS, axis=1),
            observed.design_effect * np.eye(BLOCKS),
        ]
    )
    weights = random.gamma(counts / observed.design_effect) * observed.design_effect
    every = Observations.together([observed, _unseen(observed, random)])
    return (
        replace(every, design_effect=observed.design_effect),
        weights + 1e-12 * (counts > 0),
        random,
    )


def _unseen(observed: Observations, random: np.random.Generator) -> Observations:
    """Return a VM for each block, with lifetimes around the observed mean.

    They are as exact as the observed ones, and watched for as long.
    """
    mean = observed.watched_hours / max(observed.events, 0.5)
    lived = Weibull(mean / math.gamma(1 + 1 / _VAGUE), _VAGUE).quantile(1 - random.random(BLOCKS))
    lived = np.clip(lived, 1e-3, 2 * observed.end)
    if not observed.grouped:
        return Observations(lived, lived, np.ones(BLOCKS)).until(observed.end)
    return Observations(np.floor(lived), np.ceil(lived), np.ones(BLOCKS)).until(observed.end)


@dataclass(frozen=True, eq=False)
class Resampled:
    """Survival of each block, in straight lines through `shares` at `ages`.

    `shares` has a column for each block. Beyond the ages survival falls at `rates` per hour, or not
    at all. The first axis of arrays is that of courses, which the blocks divide evenly.
    """

    name: str
    ages: _Array
    shares: _Array
    rates: _Array

    def survival(self, hours: _Array) -> _Array:
        """Return survival, averaged over the blocks."""
        flat = np.asarray(hours, float)
        return np.mean(
            [self._alive(np.full(flat.shape, block), flat) for block in range(BLOCKS)], axis=0
        )

    def quantile(self, share: _Array, age: float | _Array = 0.0) -> _Array:
        """Return total lifetimes that `share` of the VMs that reached `age` exceed."""
        block = np.arange(len(share)) * BLOCKS // len(share)
        block = np.broadcast_to(block.reshape(-1, *[1] * (share.ndim - 1)), share.shape)
        reached = np.broadcast_to(np.asarray(age, float), share.shape)
        if reached.any():
            target = share * self._alive(block, reached)
        else:
            target = share
        found = np.interp(2 * block + 1 - target, *self._inverse)
        last = self.shares[-1][block]
        rate = self.rates[block]
        with np.errstate(divide="ignore", invalid="ignore"):
            late = np.where(rate > 0, self.ages[-1] + np.log(last / target) / rate, np.inf)
        return np.maximum(np.where(target < last, late, found), np.nextafter(reached, np.inf))

    def _alive(self, block: NDArray[np.intp], age: _Array) -> _Array:
        end = self.ages[-1]
        inside = np.interp(np.minimum(age, end) + 2 * end * block, *self._forward)
        return inside * np.exp(-self.rates[block] * np.maximum(age - end, 0.0))

    @cached_property
    def _forward(self) -> tuple[_Array, _Array]:
        """Ages and shares of all blocks, one block after the other."""
        starts = 2 * self.ages[-1] * np.arange(BLOCKS)
        return (starts[:, np.newaxis] + self.ages).ravel(), self.shares.T.ravel()

    @cached_property
    def _inverse(self) -> tuple[_Array, _Array]:
        """Lost shares (1 - share) and ages of all blocks, one block after the other."""
        starts = 2.0 * np.arange(BLOCKS)
        return (starts[:, np.newaxis] + 1 - self.shares.T).ravel(), np.tile(self.ages, BLOCKS)


# Agreement of new lifetimes with a model: a one-sample log-rank test (Breslow 1975, doi
# 10.2307/1402659).
#
# Under the model, the expected revocations of each VM are its cumulative hazard up to the age at
# which it was last seen. The hazard is as uncertain as the number of earlier revocations at those
# ages is small. Their effective number (`_expected`) and the number of new ones are binomial
# (Przyborowski and Wilenski 1940, doi 10.1093/biomet/31.3-4.313). Waves take several of the VMs
# that began together, so fewer of them count.
#
# VMs are compared in blocks of `LATEST`, in the order of their starts, each with all VMs before it.
# A block is tested repeatedly while its VMs grow older. That at most doubles a chance: revocations
# less their expectation are a martingale, and the reflection principle holds for its limit. So each
# test has half of the stated rate. The rate is that of a block, for any number of tests: a false
# alarm once in `VMS_PER_FALSE_ALARM` VMs.


@dataclass(frozen=True)
class Change:
    """A comparison: `revoked` new VMs of `vms`, and the `expected` number.

    `chance` is the probability that a block shows a difference this large in any of its tests, if
    nothing changed.
    """

    vms: int
    revoked: int
    expected: float
    chance: float

    @property
    def alarm(self) -> bool:
        """Whether they disagree, at the stated rate of false alarms."""
        return self.chance < FALSE_ALARMS


def blocks(vms: int) -> tuple[int, int]:
    """Return the start and end of the latest block of VMs: the last full one, or the first."""
    end = max(vms // LATEST * LATEST, min(vms, LATEST))
    return max(end - LATEST, 0), end


def compare(model: KaplanMeier, new: Observations) -> Change | None:
    """Return how new lifetimes compare with the model; None with too few of them."""
    earlier = model.observed
    new = new.until(earlier.end)
    expected, precision = _expected(model, new)
    if max(expected, float(new.events)) < _LEAST_EXPECTED:
        return None
    # No earlier VM was revoked at these ages: count half a revocation in the hours lived there.
    if not precision:
        oldest = float(np.where(new.seen, new.upper, new.lower).max())
        expected = 0.5 * new.between(0, oldest)[1] / max(earlier.between(0, oldest)[1], 1e-9)
        precision = 0.5
    revoked = new.events / new.design_effect
    foreseen = expected / new.design_effect
    precision = max(precision / earlier.design_effect, 1e-9)
    part = foreseen / (foreseen + precision)
    if revoked:
        at_least = special.betainc(revoked, precision + 1, part)
    else:
        at_least = 1.0
    at_most = special.betainc(precision, revoked + 1, 1 - part)
    return Change(new.vms, new.events, expected, float(min(4 * min(at_least, at_most), 1.0)))


def _expected(model: KaplanMeier, new: Observations) -> tuple[float, float]:
    """Return the expected revocations of the new VMs, and their precision as a number.

    The expectation is from the hazard of the earlier VMs (Nelson and Aalen). The precision is the
    equivalent number of earlier revocations: the squared expectation over its variance.
    """
    (ages, ended, at_risk), earlier = model.risks, model.observed
    hazard = ended / at_risk
    # Within an hour the number of VMs falls.
    if earlier.grouped:
        hazard = -np.log(np.maximum(1 - hazard, 0.5 / at_risk))
    if earlier.grouped:
        began = np.append(0.0, ages[:-1])
    else:
        began = ages
    age = np.where(new.seen, new.upper, new.lower)[:, np.newaxis]
    span = np.maximum(ages - began, 1e-12)
    if earlier.grouped:
        lived = np.clip((age - began) / span, 0, 1)
    else:
        lived = (age >= ages).astype(float)
    exposed = new.count @ lived
    expected = float(exposed @ hazard)
    variance = float((exposed**2) @ (hazard / at_risk))
    return expected, expected**2 / variance if variance > 0 else 0.0
