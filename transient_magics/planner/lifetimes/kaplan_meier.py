"""Survival as it was observed, without any formula: Kaplan and Meier (1958, doi
10.1080/01621459.1958.10501452).

The band is Greenwood's variance on the log-log scale (Kalbfleisch and Prentice, "The Statistical
Analysis of Failure Time Data", 2002, section 1.4), which keeps it between 0 and 1. Since the last
revocation VMs have left unrevoked, and the share stays though fewer are left to show that it falls:
for the lower end the variance grows by how many were left then for each that is left now (F. J.
Dorey, E. L. Korn, "Effective sample sizes for confidence intervals for survival probabilities",
Statistics in Medicine 6, 1987). Before the first revocation the variance has no width; there the
band is the exact one of no event among so many VMs. Within an hour of which only the number of
revocations is known nobody saw when they came: the band reaches from the hour's end to its begin,
and from the one's lower to the other's upper end.

`Capped` and `Continued` are models beyond the observed ages: VMs that end by contract, and VMs that
nobody ends.
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
"""Into so many parts courses are cut."""
_VAGUE = 0.5
"""The shape of Weibull's lifetimes of the VM that nobody saw: 13 % end before a hundredth of their
mean, 14 % after twice as much.
"""
_Array = NDArray[np.float64]

FALSE_ALARMS = 0.01
"""In how many blocks there is an alarm where nothing changed."""
LATEST = 30
"""How many VMs are a block."""
VMS_PER_FALSE_ALARM = round(LATEST / FALSE_ALARMS)
_LEAST_EXPECTED = 3.0


@dataclass(frozen=True, eq=False)
class KaplanMeier:
    """The share of VMs that live longer than an age.

    Where revocations are known by the hour only, they are taken as even within it. Beyond the last
    age that anybody watched the share stays as it is there: of VMs older than that nothing is
    known.
    """

    observed: Observations
    end: float = np.inf
    """The age in hours at which every VM ends, by contract."""

    @property
    def name(self) -> str:
        return "Kaplan-Meier"

    @cached_property
    def steps(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Ages in hours, from 0 on, and the share that lives longer than each."""
        ages, ended, at_risk = self.risks
        return np.append(0.0, ages), np.append(1.0, np.cumprod(1 - ended / at_risk))

    def survival(self, hours: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.where(np.asarray(hours) < self.end, self._read(self.steps[1], hours), 0.0)

    def band(
        self, hours: NDArray[np.float64], level: float = 0.9
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Between which shares the true one lies at each age, with probability `level`."""
        return self._quantile(hours, (1 - level) / 2), self._quantile(hours, (1 + level) / 2)

    def alive_of(self, vms: int, age: float, level: float = 0.9) -> tuple[int, int]:
        """Of so many other VMs, how many live longer than an age in hours: between which numbers,
        with probability `level`. Chance among them counts, and what is not known about the share
        (as in `band`).
        """
        shares = self._quantile(np.array(age), (np.arange(_NODES) + 0.5) / _NODES)
        chance = special.bdtr(np.arange(vms + 1)[:, None], vms, shares).mean(axis=1)
        return int(np.searchsorted(chance, (1 - level) / 2)), int(
            np.searchsorted(chance, (1 + level) / 2)
        )

    def variance(self, hours: NDArray[np.float64]) -> NDArray[np.float64]:
        """Greenwood's variance of the share at each age."""
        return self._read(self._greenwood, hours) * self.survival(hours) ** 2

    def quantile(
        self, share: NDArray[np.float64], age: float | NDArray[np.float64] = 0.0
    ) -> NDArray[np.float64]:
        return from_table(share, age, *self._falling, self.survival)

    def resampled(self, seed: int) -> Resampled:
        """See `resampling`."""
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
        """Points between which the share falls in straight lines if there were `counts` of the VMs,
        in each column other ones: ages, and shares in as many columns.
        """
        ages, ended, at_risk = self._counted(counts)
        left = np.divide(
            np.maximum(at_risk - ended, 0.0), at_risk, out=np.zeros_like(ended), where=at_risk > 0
        )
        begin = np.ones((1, counts.shape[1]), np.float64)
        ages = np.append(0.0, ages)
        shares = np.cumprod(np.vstack([begin, left]), axis=0, dtype=np.float64)
        if not self.observed.grouped:  # a step down is two points at one age
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
        """Ages at which the share changes, how many were revoked there, and how many had reached
        the age.
        """
        ages, ended, at_risk = self._counted(self.observed.count[:, np.newaxis])
        return ages, ended[:, 0], at_risk[:, 0]

    def _counted(
        self, counts: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        observed = self.observed
        seen = self.observed.seen
        begun = observed.lower[
            seen & ~observed.exact & (observed.lower > 0)
        ]  # of the hours: level up to there
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
        """Below which share the true one lies with the probability `part`, at each age."""
        low = np.asarray(part) < 0.5
        hours = np.where(low, self._outer(hours, "left"), self._outer(hours, "right"))
        shares = self.survival(hours)
        least = self.steps[1][self.steps[1] > 0][
            -1
        ]  # where all are gone, as uncertain as just before
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
        """How many VMs had been watched to each age, and lived; one at least."""
        observed = self.observed
        last = np.where(observed.seen, observed.upper, observed.lower)
        order = np.argsort(last)
        left = np.append(np.cumsum(observed.count[order][::-1])[::-1], 0.0)
        return np.maximum(left[np.searchsorted(last[order], hours, side="left")], 1.0)

    def _thinned(self, hours: NDArray[np.float64]) -> NDArray[np.float64]:
        """For each VM that is left at an age, how many were at the last revocation before it."""
        at_risk = np.append(float(self.observed.vms), self.risks[2])
        place = np.searchsorted(self.steps[0], np.asarray(hours), side="right") - 1
        return np.maximum(at_risk[place] / self._left(hours), 1.0)

    def _outer(
        self, hours: NDArray[np.float64], side: Literal["left", "right"]
    ) -> NDArray[np.float64]:
        """The end (`left`: the later) of the hour in which nobody saw the share at an age; else the
        age itself.
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
    """Another model's VMs, all of which are ended at the age `end` in hours at the latest:
    preemptible VMs.
    """

    model: LifetimeModel
    end: float

    @property
    def name(self) -> str:
        return self.model.name

    def survival(self, hours: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.where(np.asarray(hours) < self.end, self.model.survival(hours), 0.0)

    def quantile(
        self, share: NDArray[np.float64], age: float | NDArray[np.float64] = 0.0
    ) -> NDArray[np.float64]:
        found = np.minimum(self.model.quantile(share, age), self.end)
        return np.maximum(found, np.nextafter(age, np.inf))

    def resampled(self, seed: int) -> Capped:
        """See `resampling`."""
        return Capped(resampled(self.model, seed), self.end)


@dataclass(frozen=True)
class Continued:
    """VMs as observed, which nobody watched beyond the age `watched` in hours: as many are revoked
    per hour of their lives as in the second half of what was watched. That is an assumption; a
    limit would be one too. That rate rests on few VMs, none of which may have been revoked: it
    leans on what was seen of others of the kind.
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

    def quantile(
        self, share: NDArray[np.float64], age: float | NDArray[np.float64] = 0.0
    ) -> NDArray[np.float64]:
        found = self.model.quantile(share, np.minimum(age, self.watched))
        last = float(self.model.survival(np.array(self.watched)))
        if self.rate > 0 and last > 0:
            late = np.log(last / (share * self.survival(np.asarray(age)))) / self.rate
            found = np.where(np.isinf(found), self.watched + late, found)
        return np.maximum(
            found, np.nextafter(age, np.inf)
        )  # where all that were watched are gone, at once

    def resampled(self, seed: int) -> Resampled:
        """See `resampling`; the rate is drawn from its posterior distribution."""
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
    """The model beyond the age `watched` in hours; `kind`: more VMs of its kind, the same among
    them, to lean on.
    """

    def tail(observed: Observations) -> Tail:
        return Tail(*observed.between(watched / 2, watched))

    seen = tail(model.observed)
    return Continued(model, watched, seen, seen if kind is None else seen.among(tail(kind)))


# Lifetimes as uncertain as the VMs they were learned from are few.
#
# The Bayesian bootstrap (Rubin 1981, doi 10.1214/aos/1176345338; of censored lifetimes Lo 1993, doi
# 10.1214/aos/1176349016): every VM counts with a random weight of mean 1, which gives another survival that fits the
# observations as well. Where waves take several VMs at once the weights vary as much as if there
# were fewer. Of few VMs that is too sure of itself: what none of them did would never happen. So
# one VM more counts among them that nobody saw, as Jeffreys' prior has one trial more (the prior is
# a Dirichlet process, Ferguson 1973, doi
# 10.1214/aos/1176342360): in each block another one, of minutes to days. Simulated courses are cut into blocks, each
# of which takes place with survival of its own.


@runtime_checkable
class Learned(LifetimeModel, Protocol):
    """A model that was learned from VMs."""

    def resampled(self, seed: int) -> LifetimeModel:
        """The same as it might be as well: another one for each block of courses."""
        ...


@lru_cache(maxsize=256)
def resampled(model: LifetimeModel, seed: int) -> LifetimeModel:
    """`Learned.resampled`; models that were not learned are what they are. Asked again, the same."""
    if isinstance(model, Learned):
        return model.resampled(seed)
    return model


def weighted(observed: Observations, seed: int) -> tuple[Observations, _Array, np.random.Generator]:
    """The observations with one VM more, another one in each block; how often each row counts, one
    column per block; and what draws what is to be drawn with it. The same observations get the
    same, others independent ones.
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
    """A VM for each block, of lifetimes whose mean is that of the observed, told as exactly and
    watched as long.
    """
    mean = observed.watched_hours / max(observed.events, 0.5)
    lived = Weibull(mean / math.gamma(1 + 1 / _VAGUE), _VAGUE).quantile(1 - random.random(BLOCKS))
    lived = np.clip(lived, 1e-3, 2 * observed.end)
    if not observed.grouped:
        return Observations(lived, lived, np.ones(BLOCKS)).until(observed.end)
    return Observations(np.floor(lived), np.ceil(lived), np.ones(BLOCKS)).until(observed.end)


@dataclass(frozen=True, eq=False)
class Resampled:
    """Survival of each block, falling in straight lines through `shares` (a column per block) at
    `ages`; beyond them at `rates` per hour, or not at all. Of arrays the first axis is that of
    courses, which the blocks divide evenly.
    """

    name: str
    ages: _Array
    shares: _Array
    rates: _Array

    def survival(self, hours: _Array) -> _Array:
        """On average over the blocks."""
        flat = np.asarray(hours, float)
        return np.mean(
            [self._alive(np.full(flat.shape, block), flat) for block in range(BLOCKS)], axis=0
        )

    def quantile(self, share: _Array, age: float | _Array = 0.0) -> _Array:
        block = np.arange(len(share)) * BLOCKS // len(share)
        block = np.broadcast_to(block.reshape(-1, *[1] * (share.ndim - 1)), share.shape)
        reached = np.broadcast_to(np.asarray(age, float), share.shape)
        if reached.any():
            wanted = share * self._alive(block, reached)
        else:
            wanted = share
        found = np.interp(2 * block + 1 - wanted, *self._inverse)
        last = self.shares[-1][block]
        rate = self.rates[block]
        with np.errstate(divide="ignore", invalid="ignore"):
            late = np.where(rate > 0, self.ages[-1] + np.log(last / wanted) / rate, np.inf)
        return np.maximum(np.where(wanted < last, late, found), np.nextafter(reached, np.inf))

    def _alive(self, block: NDArray[np.intp], age: _Array) -> _Array:
        end = self.ages[-1]
        inside = np.interp(np.minimum(age, end) + 2 * end * block, *self._forward)
        return inside * np.exp(-self.rates[block] * np.maximum(age - end, 0.0))

    @cached_property
    def _forward(self) -> tuple[_Array, _Array]:
        """All blocks in one line, one after the other: ages and shares."""
        starts = 2 * self.ages[-1] * np.arange(BLOCKS)
        return (starts[:, np.newaxis] + self.ages).ravel(), self.shares.T.ravel()

    @cached_property
    def _inverse(self) -> tuple[_Array, _Array]:
        """The same with shares that were lost, and ages."""
        starts = 2.0 * np.arange(BLOCKS)
        return (starts[:, np.newaxis] + 1 - self.shares.T).ravel(), np.tile(self.ages, BLOCKS)


# Whether new lifetimes still agree with a model: a one-sample log-rank test (Breslow 1975, doi 10.2307/1402659).
#
# Under the model each VM is expected to be revoked as often as its cumulative hazard up to the age at which it was
# last seen says. What that was learned from is as uncertain as its revocations at those ages are few: their number,
# weighted by how much each tells (`_expected`), and the new one are binomial (Przyborowski and Wilenski 1940, doi
# 10.1093/biomet/31.3-4.313). Of VMs that began together waves take several, so that fewer count.
#
# VMs are looked at in blocks of `LATEST`, in the order of their begins, each against all before it. Nobody looks
# once: a block is looked at again while its VMs grow older, which doubles a chance at most (revocations less their
# expectation are a martingale, and the reflection principle holds for its limit), so each look has half of the stated
# rate. The rate is that of a block, however often one looks: a false alarm once in `VMS_PER_FALSE_ALARM` VMs.


@dataclass(frozen=True)
class Change:
    """`revoked` new VMs of `vms`, where `expected` were to be.

    `chance`: how likely a block shows a difference as large, at any of the looks at it, if nothing
    changed.
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
    """Where the latest block of so many VMs begins and ends: the last one that is full, or the
    first.
    """
    end = max(vms // LATEST * LATEST, min(vms, LATEST))
    return max(end - LATEST, 0), end


def compare(model: KaplanMeier, new: Observations) -> Change | None:
    """New lifetimes against what was learned from others; None where they are too few to say
    anything.
    """
    known = model.observed
    new = new.until(known.end)
    expected, told = _expected(model, new)
    if max(expected, float(new.events)) < _LEAST_EXPECTED:
        return None
    if not told:  # at these ages none of the known was revoked: half of one, in as many hours as they lived there
        oldest = float(np.where(new.seen, new.upper, new.lower).max())
        expected = 0.5 * new.between(0, oldest)[1] / max(known.between(0, oldest)[1], 1e-9)
        told = 0.5
    revoked = new.events / new.design_effect
    foreseen = expected / new.design_effect
    told = max(told / known.design_effect, 1e-9)
    part = foreseen / (foreseen + told)
    if revoked:
        at_least = special.betainc(revoked, told + 1, part)
    else:
        at_least = 1.0
    at_most = special.betainc(told, revoked + 1, 1 - part)
    return Change(new.vms, new.events, expected, float(min(4 * min(at_least, at_most), 1.0)))


def _expected(model: KaplanMeier, new: Observations) -> tuple[float, float]:
    """How many of the new VMs were to be revoked by the hazard of the known ones (Nelson and
    Aalen), and as how many known revocations that is certain: the square of the one over its
    variance.
    """
    (ages, ended, at_risk), known = model.risks, model.observed
    hazard = ended / at_risk
    if known.grouped:  # within an hour fewer and fewer are left
        hazard = -np.log(np.maximum(1 - hazard, 0.5 / at_risk))
    if known.grouped:
        began = np.append(0.0, ages[:-1])
    else:
        began = ages
    age = np.where(new.seen, new.upper, new.lower)[:, np.newaxis]
    span = np.maximum(ages - began, 1e-12)
    if known.grouped:
        lived = np.clip((age - began) / span, 0, 1)
    else:
        lived = (age >= ages).astype(float)
    exposed = new.count @ lived
    expected = float(exposed @ hazard)
    variance = float((exposed**2) @ (hazard / at_risk))
    return expected, expected**2 / variance if variance > 0 else 0.0
