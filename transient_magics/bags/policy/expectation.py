"""How long a job takes that begins on a VM of some age: E[T_s]. All times in hours.

After Kadupitiya, Jadhao and Sharma (HPDC 2020, arXiv 1911.05160), with probabilities that are conditional on the age
that the VM has reached, and the time that is lost counted from the job's begin: for work W on a VM of age s

    E[T_s] = W + (1 - p) * (lost - W + restart + E[T_0]),    E[T_0] = W + (1 - p0) / p0 * (lost0 + restart)

where p = S(s + W) / S(s), and lost = (integral of S from s to s + W, less W * S(s + W)) / (S(s) - S(s + W)): what a
VM of this age has done of it where it does not live so long. Where a job can be saved, E[T_s] is the checkpoint plan's.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from ...planner.checkpoints import Planner
from ...planner.lifetimes.model import LifetimeModel

_PIECES = 60
_FURTHEST, _FINE = 200.0, 0.01
"""Survival is read from a table: an end by contract is blurred by half a minute."""


class Expectations:
    """Of jobs of up to `longest` hours on VMs that live as `model` says.

    `restart`: what passes from a loss until the job begins again on a fresh VM; `save`: what a checkpoint takes (None:
    the job cannot be saved, and begins anew). Raises PlanError for work that no VM lives long enough to do a part of.
    """

    def __init__(
        self, model: LifetimeModel, longest: float, *, restart: float = 0.0, save: float | None = None
    ) -> None:
        self.model, self.restart, self.save, self.longest = model, restart, save, longest
        alive = model.survival(np.arange(0.0, _FURTHEST, _FINE))
        between = (alive[1:] + alive[:-1]) / 2 * _FINE
        self._alive: list[float] = alive.tolist()
        self._area: list[float] = [0.0, *np.cumsum(between).tolist()]
        self._planner = None if save is None else Planner(model, longest, save, restart, piece=longest / _PIECES)
        self._piece = longest / _PIECES
        self._planned = cache(self._planned_hours)
        self._schedule = cache(self._planned_saves)

    def hours(self, work: float, age: float = 0.0) -> float:
        """E[T_s] of so much work at that age; infinite where no VM ever gets it done."""
        if self._planner:
            return self._planned(max(1, round(work / self._piece)), round(age / self._piece))
        lives, lost = self._chances(work, age)
        again = self.restart + self._fresh(work) if lives < 1 else 0.0
        return lives * work + lost + ((1 - lives) * again if lives < 1 else 0.0)

    def risk(self, work: float, age: float = 0.0) -> float:
        """The probability that a VM of this age is gone before the work is done."""
        return 1 - self._chances(work, age)[0]

    def saves(self, work: float, age: float) -> tuple[float, ...]:
        """After which hours of the work left it is saved on a VM of this age; asked anew after a loss."""
        if not self._planner or work <= 0:
            return ()
        return tuple(each for each in self._schedule(max(1, round(work / self._piece)), round(age, 1)) if each < work)

    def _fresh(self, work: float) -> float:
        lives, lost = self._chances(work, 0.0)
        if lives <= 0:
            return math.inf
        return work + (lost + (1 - lives) * self.restart) / lives if lives < 1 else work

    def _chances(self, work: float, age: float) -> tuple[float, float]:
        """The probability of living through the work; and the hours lost, times the probability of losing them."""
        now, then = _read(self._alive, age), _read(self._alive, age + work)
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
