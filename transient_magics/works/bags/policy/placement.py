"""Place a bag's jobs on VMs, plan their checkpoints, and compare VM types. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from itertools import pairwise
from typing import Annotated, Self

import numpy as np
from numpy.typing import NDArray

from ....planner.checkpoints import Planner
from ....planner.lifetimes.parametric import LifetimeModel
from ....protocol import checks
from ....protocol.checks import Amount, within
from ....protocol.outputs import Policy

SPARE_HOURS = 1.0
"""Time for which a stable VM is kept without a job (HPDC 2020, section 5)."""

_PIECES = 60
_FURTHEST = 200.0
_FINE = 0.01
"""Survival is read from a table: an end by contract is blurred by half a minute."""


class Expectations:
    """Expected times of jobs of up to `longest` hours on VMs with the lifetimes of `model`.

    `restart` is the time from a loss until the job starts again on a new VM. `save` is the duration
    of a checkpoint (None: the job cannot be saved and starts over). Both are in hours. Raises
    PlanError if no VM lives long enough for a part of the work.
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
        """Return E[T_s] of the work at that age; infinite if no VM can complete it."""
        if self._planner:
            return self._planned(max(1, round(work / self._piece)), round(age / self._piece))
        lives, lost = self._chances(work, age)
        if lives < 1:
            again = self.restart + self._fresh(work)
        else:
            again = 0.0
        return lives * work + lost + ((1 - lives) * again if lives < 1 else 0.0)

    def risk(self, work: float, age: float = 0.0) -> float:
        """Return the probability that a VM of this age is revoked before the work is done."""
        return 1 - self._chances(work, age)[0]

    def saves(self, work: float, age: float) -> tuple[float, ...]:
        """Return the checkpoints on a VM of this age, in hours of the remaining work.

        They are computed again after a loss.
        """
        if not self._planner or work <= 0:
            return ()
        return tuple(
            save
            for save in self._schedule(max(1, round(work / self._piece)), round(age, 1))
            if save < work
        )

    def _fresh(self, work: float) -> float:
        lives, lost = self._chances(work, 0.0)
        if lives <= 0:
            return math.inf
        if lives < 1:
            return work + (lost + (1 - lives) * self.restart) / lives
        return work

    def _chances(self, work: float, age: float) -> tuple[float, float]:
        """Return the probability of surviving the work, and the expected lost hours.

        The lost hours include the probability of losing them.
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
    """A survival function of VMs, linear between points.

    `shares` are the shares of VMs that live longer than each of the `ages`, in hours. After the
    last age, VMs are revoked at `rate` per hour. A step down is two points at one age.
    """

    ages: tuple[Amount, ...]
    shares: tuple[_Share, ...]
    rate: Amount = 0.0

    def __post_init__(self) -> None:
        if len(self.ages) != len(self.shares) or not self.ages:
            raise ValueError("a survival function needs as many shares as ages, at least one")
        if self.ages[0] != 0 or self.shares[0] != 1:
            raise ValueError("the share at age 0 must be 1")
        if any(one > other for one, other in pairwise(self.ages)):
            raise ValueError("the ages must not decrease")
        if any(one < other for one, other in pairwise(self.shares)):
            raise ValueError("the shares must not increase")

    @classmethod
    def of(cls, model: LifetimeModel) -> Self:
        """Return the table of a model: every six minutes of two days, and the time of its end."""
        ages = np.arange(0.0, _END + _FINE_AGES / 2, _FINE_AGES)
        shares = np.minimum.accumulate(np.clip(model.survival(ages), 0.0, 1.0))
        shares[0] = 1.0
        gone = np.flatnonzero(shares <= 0)
        if len(gone):  # a contract ends all VMs at one time between two ages
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
        """The name of the distribution."""
        return "table"

    def survival(self, hours: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the shares of VMs that live longer than `hours`."""
        hours = np.asarray(hours, float)
        ages, shares = self._table
        inside = np.interp(np.minimum(hours, ages[-1]), ages, shares)
        return inside * np.exp(-self.rate * np.maximum(hours - ages[-1], 0.0))

    def quantile(
        self, share: NDArray[np.float64], age: float | NDArray[np.float64] = 0.0
    ) -> NDArray[np.float64]:
        """Return the age in hours to which a `share` of the VMs live that are `age` hours old."""
        ages, shares = self._table
        target = np.asarray(share, float) * self.survival(np.asarray(age, float))
        found = np.interp(-target, -shares, ages, right=np.inf)
        if self.rate > 0 and shares[-1] > 0:
            late = ages[-1] + np.log(shares[-1] / np.maximum(target, 1e-300)) / self.rate
            found = np.where(target < shares[-1], late, found)
        return np.maximum(found, np.nextafter(age, np.inf))

    def to_dict(self) -> dict[str, object]:
        """Return plain JSON values, from which `from_dict` creates an equal table."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Self:
        """Create a table from the values of `to_dict`. Raises ValueError."""
        return checks.built(cls, values)

    @cached_property
    def _table(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return np.array(self.ages), np.array(self.shares)


@dataclass(frozen=True, slots=True)
class Free:
    """A VM without a job, with its age and its idle time in hours.

    A `fresh` VM is younger than the bag's driver, so its age when first seen is the start-up time
    of a new VM.
    """

    vm: str
    age: float
    idle: float = 0.0
    fresh: bool = False


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job to start, with its remaining work in hours."""

    job: int
    work: float


@dataclass(frozen=True, slots=True)
class Placement:
    """A placement: `pairs` of a job and its VM, and VMs to give up.

    VMs in `renew` are replaced by new ones, those in `drop` are not.
    """

    pairs: tuple[tuple[int, str], ...] = ()
    renew: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()


def place(
    waiting: Sequence[Waiting],
    free: Sequence[Free],
    expected: Expectations,
    policy: Policy,
    boot: float = 0.0,
) -> Placement:
    """Return the placement of jobs on VMs.

    `waiting` is in the order in which the jobs were proposed. `boot` is the time until a new VM is
    available, in hours. At most as many VMs are renewed as jobs wait. Stable VMs without a job are
    kept for an hour.
    """
    if policy == "memoryless":
        pairs = [(job.job, vm.vm) for job, vm in zip(waiting, free, strict=False)]
        dropped = [vm.vm for vm in free[len(pairs) :] if vm.idle >= SPARE_HOURS]
        return Placement(tuple(pairs), drop=tuple(dropped))
    queue = {job.job: job for job in waiting}
    if waiting:
        usual = waiting[len(waiting) // 2].work
    else:
        usual = expected.longest
    first = sorted(waiting[: len(free)], key=lambda job: job.work)
    pairs = []
    refused = []
    for turn, vm in enumerate(sorted(free, key=lambda vm: -expected.risk(usual, vm.age))):
        shortest = min(queue.values(), key=lambda job: job.work, default=None)
        offered = [job for job in (*first[turn : turn + 1], shortest) if job and job.job in queue]
        chosen = next((job for job in offered if takes(expected, job.work, vm.age, boot)), None)
        if chosen is None:
            refused.append(vm)
        else:
            pairs.append((chosen.job, vm.vm))
            del queue[chosen.job]
    renewed = refused[: len(queue)]
    rest = refused[len(queue) :]
    dropped = [
        vm.vm for vm in rest if vm.idle >= SPARE_HOURS or not takes(expected, usual, vm.age, boot)
    ]
    return Placement(tuple(pairs), tuple(vm.vm for vm in renewed), tuple(dropped))


def takes(expected: Expectations, work: float, age: float, boot: float = 0.0) -> bool:
    """Return whether a job prefers a VM of this age to a new one: E[T_s] <= E[T_0]."""
    return expected.hours(work, age) <= boot + expected.hours(work, 0.0)


@dataclass(frozen=True, slots=True)
class Kind:
    """A candidate VM type: the number of VMs, US dollars per VM and hour, and its jobs."""

    name: str
    vms: int
    hourly: float
    expected: Expectations
    work: float

    @property
    def cost(self) -> float:
        """The cost of one round of jobs, one on each VM: n x price x E[T]."""
        return self.vms * self.hourly * self.expected.hours(self.work)

    @property
    def job_cost(self) -> float:
        """The cost of one job, in US dollars."""
        return self.hourly * self.expected.hours(self.work)


def cheapest(kinds: Sequence[Kind]) -> Kind:
    """Return the type with the least cost per job, then the least n x price x E[T]."""
    return min(kinds, key=lambda kind: (kind.job_cost, kind.cost))
