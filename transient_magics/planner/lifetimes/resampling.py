"""Lifetimes as uncertain as the VMs they were learned from are few.

The Bayesian bootstrap (Rubin 1981, doi 10.1214/aos/1176345338; of censored lifetimes Lo 1993, doi
10.1214/aos/1176349016): every VM counts with a random weight of mean 1, which gives another survival that fits the
observations as well. Where waves take several VMs at once the weights vary as much as if there were fewer. Of few VMs
that is too sure of itself: what none of them did would never happen. So one VM more counts among them that nobody saw,
as Jeffreys' prior has one trial more (the prior is a Dirichlet process, Ferguson 1973, doi 10.1214/aos/1176342360): in
each block another one, of minutes to days. Simulated courses are cut into blocks, each of which takes place with
survival of its own.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from .model import LifetimeModel
from .observations import Observations
from .parametric import Weibull

BLOCKS = 100
"""Into so many parts courses are cut."""
_VAGUE = 0.5
"""The shape of Weibull's lifetimes of the VM that nobody saw: 13 % end before a hundredth of their mean, 14 % after
twice as much."""
_Array = NDArray[np.float64]


@runtime_checkable
class Learned(LifetimeModel, Protocol):
    """A model that was learned from VMs."""

    def resampled(self, seed: int) -> LifetimeModel:
        """The same as it might be as well: another one for each block of courses."""
        ...


@lru_cache(maxsize=256)
def resampled(model: LifetimeModel, seed: int) -> LifetimeModel:
    """`Learned.resampled`; models that were not learned are what they are. Asked again, the same."""
    return model.resampled(seed) if isinstance(model, Learned) else model


def weighted(observed: Observations, seed: int) -> tuple[Observations, _Array, np.random.Generator]:
    """The observations with one VM more, another one in each block; how often each row counts, one column per block;
    and what draws what is to be drawn with it. The same observations get the same, others independent ones."""
    content = zlib.crc32(observed.upper.tobytes(), zlib.crc32(observed.lower.tobytes()))
    random = np.random.default_rng((seed, content))
    counts = np.vstack(
        [np.repeat(observed.count[:, np.newaxis], BLOCKS, axis=1), observed.design_effect * np.eye(BLOCKS)]
    )
    weights = random.gamma(counts / observed.design_effect) * observed.design_effect
    every = Observations.together([observed, _unseen(observed, random)])
    return replace(every, design_effect=observed.design_effect), weights + 1e-12 * (counts > 0), random


def _unseen(observed: Observations, random: np.random.Generator) -> Observations:
    """A VM for each block, of lifetimes whose mean is that of the observed, told as exactly and watched as long."""
    mean = observed.watched_hours / max(observed.events, 0.5)
    lived = Weibull(mean / math.gamma(1 + 1 / _VAGUE), _VAGUE).quantile(1 - random.random(BLOCKS))
    lived = np.clip(lived, 1e-3, 2 * observed.end)
    if not observed.grouped:
        return Observations(lived, lived, np.ones(BLOCKS)).until(observed.end)
    return Observations(np.floor(lived), np.ceil(lived), np.ones(BLOCKS)).until(observed.end)


@dataclass(frozen=True, eq=False)
class Resampled:
    """Survival of each block, falling in straight lines through `shares` (a column per block) at `ages`; beyond them at
    `rates` per hour, or not at all. Of arrays the first axis is that of courses, which the blocks divide evenly."""

    name: str
    ages: _Array
    shares: _Array
    rates: _Array

    def survival(self, hours: _Array) -> _Array:
        """On average over the blocks."""
        flat = np.asarray(hours, float)
        return np.mean([self._alive(np.full(flat.shape, block), flat) for block in range(BLOCKS)], axis=0)

    def quantile(self, share: _Array, age: float | _Array = 0.0) -> _Array:
        block = np.arange(len(share)) * BLOCKS // len(share)
        block = np.broadcast_to(block.reshape(-1, *[1] * (share.ndim - 1)), share.shape)
        reached = np.broadcast_to(np.asarray(age, float), share.shape)
        wanted = share * self._alive(block, reached) if reached.any() else share
        found = np.interp(2 * block + 1 - wanted, *self._inverse)
        last, rate = self.shares[-1][block], self.rates[block]
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
