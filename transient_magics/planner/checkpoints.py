"""Checkpoint schedules for jobs whose work is lost with their VM. All times in hours.

It also computes how long a VM is unlikely to be revoked (`trusted_hours`).

The plan is a dynamic program over the work that is left, W, and the VM's age, a, as in Kadupitiya,
Jadhao and Sharma (HPDC 2020, arXiv 1911.05160). hours(W, a) is the expected time until the work W
is done on a VM of age a. Of all lengths i of work before the next checkpoint, the plan takes the
one with the least

    p * (L + hours(W - i, a + L)) + (1 - p) * (lost + restart + hours(W, 0)),    L = i + cost

S(a) is the probability that a VM reaches the age a, and p = S(a + L) / S(a) the probability that a
VM of age a lives for another L. If it does not, the expected loss of time is
(integral of S from a to a + L, less L * S(a + L)) / (S(a) - S(a + L)). On a fresh VM hours(W, 0) is
on both sides, and the equation is solved for it. `as_published` selects the published version for
comparison. It has F(a + L) - F(a) for 1 - p, where F = 1 - S, and L / 2 for the loss. Work that is
repeated after a failure does not fail again, and the work ends with a checkpoint.

On a cluster of this package the model is on parameter servers, which are not revoked, and a
revocation loses at most one step. There the interval follows from the cost of a checkpoint
(`--checkpoint-every auto`), not from lifetimes of workers. This module is for work on the transient
VM itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import PlanError
from .lifetimes.parametric import LifetimeModel

_PIECES = 200
"""Pieces of a job in the finest plan by default; planning time grows with their cube."""
_FURTHEST = 26.0
"""The greatest age of the tables, in hours. Older VMs are treated as if they had this age."""

_Array = NDArray[np.float64]


@dataclass(frozen=True)
class Plan:
    """The expected `hours` until `work` hours of work are done, and the checkpoints of the plan.

    `checkpoints` lists the hours of completed work after which a checkpoint is saved, if the VM is
    not revoked. After a failure the remaining work is planned again.
    """

    hours: float
    work: float
    checkpoints: tuple[float, ...]

    @property
    def overhead(self) -> float:
        """The additional time for checkpoints and lost work, as a share of the work."""
        return self.hours / self.work - 1


class Planner:
    """Plans for work of up to `work` hours on VMs with the lifetimes of `model`.

    `cost` is the duration of a checkpoint. `restart` is the time until lost work continues from its
    last checkpoint, on a fresh VM. `piece` is the work between two possible checkpoints (default: a
    200th of the work, but at least a minute). Raises PlanError for invalid work, and if no VM lives
    long enough for a piece of it.
    """

    def __init__(
        self,
        model: LifetimeModel,
        work: float,
        cost: float,
        restart: float,
        *,
        piece: float | None = None,
        as_published: bool = False,
    ) -> None:
        if not (0 < work < math.inf and 0 <= cost < math.inf and 0 <= restart < math.inf):
            raise PlanError("The work must be greater than 0, and no cost may be negative")
        count = max(1, round(work / (piece or max(1 / 60, work / _PIECES))))
        self._piece = work / count
        self._cost = cost
        self._restart = restart
        self._published = as_published
        self._ages = np.arange(0.0, _FURTHEST + self._piece, self._piece)
        self._alive = model.survival(self._ages) > 0
        lengths: _Array = np.arange(1.0, count + 1) * self._piece + cost
        if as_published:
            last: _Array = lengths
        else:
            last = lengths - cost
        # Durations, probabilities and losses of intervals of 1, 2, 3 ... pieces: with a checkpoint
        # at their end, and of the last interval, which needs none.
        self._usual = (lengths, *self._chances(model, lengths))
        self._last = (last, *self._chances(model, last))
        self._hours, self._choice = self._solved()

    def plan(self, age: float = 0.0, work: float | None = None) -> Plan:
        """Return the plan for a job on a VM of `age`, for all the work or a part of it."""
        return self._followed(self._hours, self._choice, age, work)

    def expected(self, age: float | _Array, work: float | _Array) -> _Array:
        """Return only the hours of `plan`, for many jobs at once.

        The shapes of ages and works must be compatible.
        """
        left = np.clip(
            np.round(np.asarray(work) / self._piece).astype(int), 1, len(self._hours) - 1
        )
        place = np.minimum(np.asarray(age) / self._piece, len(self._ages) - 1)
        below = np.minimum(place.astype(int), len(self._ages) - 2)
        part = place - below
        return (1 - part) * self._hours[left, below] + part * self._hours[left, below + 1]

    def every(self, interval: float, age: float = 0.0) -> Plan:
        """Return the plan with a checkpoint after each `interval` hours of work."""
        return self._followed(*self._solved(max(1, round(interval / self._piece))), age)

    def _followed(
        self, hours: _Array, choice: NDArray[np.int16], age: float, work: float | None = None
    ) -> Plan:
        """Return the plan that follows these tables from a VM of `age` on, if it is not revoked."""
        if work is None:
            total_pieces = len(hours) - 1
        else:
            total_pieces = round(work / self._piece)
        left = total_pieces
        place = age / self._piece
        checkpoints = []
        expected = float(np.interp(place, np.arange(len(self._ages)), hours[left]))
        while left and self._alive[at := min(round(place), len(self._ages) - 1)]:
            pieces = int(choice[left, at])
            left -= pieces
            place += pieces + self._cost / self._piece
            if left:
                checkpoints.append((total_pieces - left) * self._piece)
        return Plan(expected, total_pieces * self._piece, tuple(checkpoints))

    def _solved(self, fixed: int | None = None) -> tuple[_Array, NDArray[np.int16]]:
        """Return hours until the end, and pieces until the next checkpoint, by pieces left and age.

        With `fixed`, the number of pieces is always that one.
        """
        count = len(self._usual[0])
        ages = np.arange(len(self._ages))
        hours = np.zeros((count + 1, len(ages)))
        choice = np.zeros((count + 1, len(ages)), np.int16)
        # Row i, column a: the index of the age that a VM of age a has after i + 1 pieces of work
        # and a checkpoint. It is a fraction, so hours are interpolated between two ages.
        places = ages + (self._usual[0] / self._piece)[:, None]
        below = np.minimum(places.astype(int), len(ages) - 1)
        above = np.minimum(below + 1, len(ages) - 1)
        part = places - places.astype(int)
        for left in range(1, count + 1):
            if fixed is None:
                rows = np.arange(left)
            else:
                rows = np.array([min(fixed, left) - 1])
            after = left - 1 - rows[:, None]
            below_hours = hours[after, below[rows]]
            above_hours = hours[after, above[rows]]
            hours_after = (1 - part[rows]) * below_hours + part[rows] * above_hours
            # Fancy indexing copies, so the assignments below leave the tables unchanged.
            length, lives, lost = (table[rows] for table in self._usual)
            if rows[-1] == left - 1:
                length[-1], lives[-1], lost[-1] = (table[left - 1] for table in self._last)
            if_alive = length[:, None] + hours_after
            if self._published:
                hours_on_fresh_vm = left * self._piece
            else:
                hours_on_fresh_vm = self._fresh(if_alive, lives, lost)
            if_lost = lost + self._restart + hours_on_fresh_vm
            total = lives * if_alive + (1 - lives) * if_lost
            best = total.argmin(axis=0)
            hours[left], choice[left] = total[best, ages], rows[best] + 1
        return hours, choice

    def _fresh(self, if_alive: _Array, lives: _Array, lost: _Array) -> float:
        """Return the hours for the remaining work on a fresh VM."""
        odds = np.divide(
            1 - lives[:, 0], lives[:, 0], out=np.full(len(lives), np.inf), where=lives[:, 0] > 0
        )
        failing = np.where(odds > 0, odds * (lost[:, 0] + self._restart), 0.0)
        best = float((if_alive[:, 0] + failing).min())
        if not math.isfinite(best):
            what = "VMs do not live long enough for an interval of work and its checkpoint"
            raise PlanError(what, fix="Save faster, or use on-demand VMs.")
        return best

    def _chances(self, model: LifetimeModel, lengths: _Array) -> tuple[_Array, _Array]:
        """Return the probabilities that a VM survives intervals, and the hours lost if it does not.

        Rows are the intervals, and columns the ages at which they begin.
        """
        now = model.survival(self._ages)
        until = model.survival(self._ages + lengths[:, None])
        if self._published:
            return 1 - (now - until), np.broadcast_to(lengths[:, None] / 2, until.shape)
        lives = np.divide(until, now, out=np.zeros_like(until), where=now > 0)
        fine = np.linspace(0, self._ages[-1] + lengths[-1], 20 * len(self._ages))
        share = model.survival(fine)
        area = np.append(0.0, np.cumsum((share[1:] + share[:-1]) / 2 * np.diff(fine)))
        lived = np.interp(self._ages + lengths[:, None], fine, area) - np.interp(
            self._ages, fine, area
        )
        fell = now - until
        lost = np.divide(
            lived - lengths[:, None] * until, fell, out=np.zeros_like(until), where=fell > 1e-12
        )
        return lives, np.clip(lost, 0.0, lengths[:, None])


def young_daly(cost: float, mean_between_failures: float) -> float:
    """Return the optimal hours of work between checkpoints for a constant rate of failures.

    The sources are Young (1974, doi 10.1145/361147.361115) and Daly (2006, doi
    10.1016/j.future.2004.11.016).
    """
    return math.sqrt(2 * cost * mean_between_failures)


def risk(model: LifetimeModel, age: float, hours: float) -> float:
    """Return the probability that a VM of `age` is gone `hours` later."""
    now, later = model.survival(np.array([age, age + hours]))
    if now <= 0:
        return 1.0
    return 1 - float(later / now)


def trusted_hours(
    model: LifetimeModel, age: float, most: float = 0.1, horizon: float = 24.0
) -> float:
    """Return the hours until the risk of a VM of `age` exceeds `most`.

    Return infinity if that takes more than `horizon`.
    """
    ahead = np.linspace(0, horizon, 2401)
    now = float(model.survival(np.array(age)))
    later = model.survival(age + ahead)
    gone = np.flatnonzero(later < (1 - most) * now)
    if len(gone) or now <= 0:
        if now > 0:
            return float(ahead[gone[0]])
        return 0.0
    return math.inf


def keep(model: LifetimeModel, age: float, work: float) -> bool:
    """Return whether a VM of `age` is likelier to survive `work` hours than a fresh one."""
    return risk(model, age, work) <= risk(model, 0.0, work)
