"""Survival as a table of numbers: what a driver on a VM is told of lifetimes, which it has no source for itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Self

import numpy as np
from numpy.typing import NDArray

from ...planner.lifetimes.model import LifetimeModel
from ...protocol import checks
from ...protocol.checks import Amount, within

_FINE, _END = 0.1, 48.0
_Share = Annotated[float, within(0, 1)]


@dataclass(frozen=True)
class Survival:
    """The `shares` of VMs that live longer than each of the `ages` in hours; straight between them. Beyond the last one
    VMs are revoked at `rate` per hour. A step down is two points at one age."""

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
        ages = np.arange(0.0, _END + _FINE / 2, _FINE)
        shares = np.minimum.accumulate(np.clip(model.survival(ages), 0.0, 1.0))
        shares[0] = 1.0
        gone = np.flatnonzero(shares <= 0)
        if len(gone):  # a contract ends them: at one moment between two of these
            low, high = ages[gone[0] - 1], ages[gone[0]]
            for _ in range(40):
                middle = (low + high) / 2
                low, high = (middle, high) if float(model.survival(np.array(middle))) > 0 else (low, middle)
            last = min(float(model.survival(np.array(low))), float(shares[gone[0] - 1]))
            ages = np.concatenate([ages[: gone[0]], [low, high]])
            shares = np.concatenate([shares[: gone[0]], [last, 0.0]])
            return cls(tuple(map(float, ages)), tuple(map(float, shares)))
        before, last = (float(model.survival(np.array(age))) for age in (2 * _END, 4 * _END))
        rate = float(np.log(before / last)) / (2 * _END) if 0 < last < before else 0.0
        return cls(tuple(map(float, ages)), tuple(map(float, shares)), rate)

    @property
    def name(self) -> str:
        return "table"

    def survival(self, hours: NDArray[np.float64]) -> NDArray[np.float64]:
        hours, (ages, shares) = np.asarray(hours, float), self._table
        inside = np.interp(np.minimum(hours, ages[-1]), ages, shares)
        return inside * np.exp(-self.rate * np.maximum(hours - ages[-1], 0.0))

    def quantile(self, share: NDArray[np.float64], age: float | NDArray[np.float64] = 0.0) -> NDArray[np.float64]:
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
