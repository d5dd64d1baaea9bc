"""How long a job takes that begins on a VM of some age: E[T_s]. All times in hours.

After Kadupitiya, Jadhao and Sharma (HPDC 2020, arXiv 1911.05160), with probabilities that are
conditional on the age that the VM has reached, and the time that is lost counted from the job's
begin: for work W on a VM of age s

    E[T_s] = W + (1 - p) * (lost - W + restart + E[T_0]),    E[T_0] = W + (1 - p0) / p0 * (lost0 +
    restart)

where p = S(s + W) / S(s), and lost = (integral of S from s to s + W, less W * S(s + W)) / (S(s) -
S(s + W)): what a VM of this age has done of it where it does not live so long. Where a job can be
saved, E[T_s] is the checkpoint plan's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from itertools import pairwise
from typing import Annotated, Self

import numpy as np
from numpy.typing import NDArray

from ...planner.checkpoints import Planner
from ...planner.lifetimes.parametric import LifetimeModel
from ...protocol import checks
from ...protocol.checks import Amount, within

_PIECES = 60
_FURTHEST = 200.0
_FINE = 0.01
"""Survival is read from a table: an end by contract is blurred by half a minute."""


class Expectations:
    """Of jobs of up to `longest` hours on VMs that live as `model` says.

    `restart`: what passes from a loss until the job begins again on a fresh VM; `save`: what a
    checkpoint takes (None: the job cannot be saved, and begins anew). Raises PlanError for work
    that no VM lives long enough to do a part of.
    """

    def __init__(
        self,
        model: LifetimeModel,
        longest: float,
        *,
        restart: float = 0.0,
        save: float | None = None,
    ) -> None:
        self.model = model
        self.restart = restart
        self.save = save
        self.longest = longest
        alive = model.survival(np.arange(0.0, _FURTHEST, _FINE))
        between = (alive[1:] + alive[:-1]) / 2 * _FINE
        self._alive: list[float] = alive.tolist()
        self._area: list[float] = [0.0, *np.cumsum(between).tolist()]
        if save is None:
            self._planner = None
        else:
            self._planner = Planner(model, longest, save, restart, piece=longest / _PIECES)
        self._piece = longest / _PIECES
        self._planned = cache(self._planned_hours)
        self._schedule = cache(self._planned_saves)

    def hours(self, work: float, age: float = 0.0) -> float:
        """E[T_s] of so much work at that age; infinite where no VM ever gets it done."""
        if self._planner:
            return self._planned(max(1, round(work / self._piece)), round(age / self._piece))
        lives, lost = self._chances(work, age)
        if lives < 1:
            again = self.restart + self._fresh(work)
        else:
            again = 0.0
        return lives * work + lost + ((1 - lives) * again if lives < 1 else 0.0)

    def risk(self, work: float, age: float = 0.0) -> float:
        """The probability that a VM of this age is gone before the work is done."""
        return 1 - self._chances(work, age)[0]

    def saves(self, work: float, age: float) -> tuple[float, ...]:
        """After which hours of the work left it is saved on a VM of this age; asked anew after a
        loss.
        """
        if not self._planner or work <= 0:
            return ()
        return tuple(
            each
            for each in self._schedule(max(1, round(work / self._piece)), round(age, 1))
            if each < work
        )

    def _fresh(self, work: float) -> float:
        lives, lost = self._chances(work, 0.0)
        if lives <= 0:
            return math.inf
        if lives < 1:
            return work + (lost + (1 - lives) * self.restart) / lives
        return work

    def _chances(self, work: float, age: float) -> tuple[float, float]:
        """The probability of living through the work; and the hours lost, times the probability of
        losing them.
        """
        now = _read(self._alive, age)
        then = _read(self._alive, age + work)
        if now <= 0:
            return 0.0, 0.0
        lived = _read(self._area, age + work) - _read(self._area, age)
        return then / now, max((lived - work * then) / now, 0.0)

    def _planned_hours(self, pieces: int, age: int) -> float:
        assert self._planner
        return float(self._planner.expected(age * self._piece, pieces * self._piece))

    def _planned_saves(self, pieces: int, age: float) -> tuple[float, ...]:
        assert self._planner
        return self._planner.plan(age, min(pieces, _PIECES) * self._piece).checkpoints


def _read(table: list[float], age: float) -> float:
    place = age / _FINE
    below = min(int(place), len(table) - 2)
    part = min(place - below, 1.0)
    return table[below] + part * (table[below + 1] - table[below])


_FINE_AGES = 0.1
_END = 48.0
_Share = Annotated[float, within(0, 1)]


@dataclass(frozen=True)
class Survival:
    """The `shares` of VMs that live longer than each of the `ages` in hours; straight between them.
    Beyond the last one VMs are revoked at `rate` per hour. A step down is two points at one age.
    """

    ages: tuple[Amount, ...]
    shares: tuple[_Share, ...]
    rate: Amount = 0.0

    def __post_init__(self) -> None:
        if len(self.ages) != len(self.shares) or not self.ages:
            raise ValueError("as many shares as ages, and one at least")
        if self.ages[0] != 0 or self.shares[0] != 1:
            raise ValueError("at age 0 all VMs live")
        if any(one > other for one, other in pairwise(self.ages)):
            raise ValueError("ages rise")
        if any(one < other for one, other in pairwise(self.shares)):
            raise ValueError("no VM comes back to life")

    @classmethod
    def of(cls, model: LifetimeModel) -> Self:
        """Another model's, every six minutes of the first two days, and where it falls at once."""
        ages = np.arange(0.0, _END + _FINE_AGES / 2, _FINE_AGES)
        shares = np.minimum.accumulate(np.clip(model.survival(ages), 0.0, 1.0))
        shares[0] = 1.0
        gone = np.flatnonzero(shares <= 0)
        if len(gone):  # a contract ends them: at one moment between two of these
            low = ages[gone[0] - 1]
            high = ages[gone[0]]
            for _ in range(40):
                middle = (low + high) / 2
                if float(model.survival(np.array(middle))) > 0:
                    low = middle
                    high = high
                else:
                    low = low
                    high = middle
            last = min(float(model.survival(np.array(low))), float(shares[gone[0] - 1]))
            ages = np.concatenate([ages[: gone[0]], [low, high]])
            shares = np.concatenate([shares[: gone[0]], [last, 0.0]])
            return cls(tuple(map(float, ages)), tuple(map(float, shares)))
        before, last = (float(model.survival(np.array(age))) for age in (2 * _END, 4 * _END))
        if 0 < last < before:
            rate = float(np.log(before / last)) / (2 * _END)
        else:
            rate = 0.0
        return cls(tuple(map(float, ages)), tuple(map(float, shares)), rate)

    @property
    def name(self) -> str:
        return "table"

    def survival(self, hours: NDArray[np.float64]) -> NDArray[np.float64]:
        hours, (ages, shares) = np.asarray(hours, float), self._table
        inside = np.interp(np.minimum(hours, ages[-1]), ages, shares)
        return inside * np.exp(-self.rate * np.maximum(hours - ages[-1], 0.0))

    def quantile(
        self, share: NDArray[np.float64], age: float | NDArray[np.float64] = 0.0
    ) -> NDArray[np.float64]:
        ages, shares = self._table
        wanted = np.asarray(share, float) * self.survival(np.asarray(age, float))
        found = np.interp(-wanted, -shares, ages, right=np.inf)
        if self.rate > 0 and shares[-1] > 0:
            late = ages[-1] + np.log(shares[-1] / np.maximum(wanted, 1e-300)) / self.rate
            found = np.where(wanted < shares[-1], late, found)
        return np.maximum(found, np.nextafter(age, np.inf))

    def to_dict(self) -> dict[str, object]:
        """Plain JSON values; `from_dict` reads them back as an equal table."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Self:
        """Read what `to_dict` wrote. Raises ValueError with what is wrong."""
        return checks.built(cls, values)

    @cached_property
    def _table(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return np.array(self.ages), np.array(self.shares)
