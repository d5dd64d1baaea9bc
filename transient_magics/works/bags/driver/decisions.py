"""Decisions of a driver: job placement, further points, and the end of the bag. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Self

from ....errors import PlanError
from ....protocol import checks
from ....protocol.checks import Amount
from ..events import BagStopped
from ..policy.placement import Expectations, Free, Survival, Waiting, place
from ..state import BagJobState, BagState
from ..surrogate.active_learning import LEAST_JUDGED, good_enough

LEAST_TIMED = 3
"""Least number of results from which the duration of a job is estimated, if not declared."""
_MOST_FAILED = 3
"""Limit on permanently failed jobs beyond the number of results.

Above it, the function is the cause, not the points.
"""
_LONGER = 2.0


@dataclass(frozen=True)
class Lifetimes:
    """Lifetimes of VMs, as the controller sends them to a driver.

    `survival` is None for VMs that are not revoked. `hours_per_second` is how fast time passes for
    VMs (1/3600, more in the emulator). `boot_hours` is the time until a new VM accepts a job.
    """

    survival: Survival | None = None
    hours_per_second: Amount = 1 / 3600
    boot_hours: Amount = 0.0

    def to_dict(self) -> dict[str, object]:
        """Return plain JSON values, from which `from_dict` creates an equal object."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Self:
        """Create an object from the values of `to_dict`. Raises ValueError."""
        return checks.built(cls, values)


@dataclass(frozen=True)
class Start:
    """The start of a job on a VM.

    `saves` are the planned checkpoints, in seconds of computing (empty: none are planned).
    """

    job: int
    vm: str
    saves: tuple[float, ...] = ()


@dataclass(frozen=True)
class Moves:
    """Jobs to start, and free VMs to give up.

    VMs that were given up are replaced as far as jobs wait.
    """

    starts: tuple[Start, ...] = ()
    given_up: tuple[str, ...] = ()


class Core:
    """The decisions for a bag from its state and the `lifetimes` of its VMs."""

    def __init__(self, lifetimes: Lifetimes) -> None:
        self._lifetimes = lifetimes
        self._expected: Expectations | None = None
        self._arrived: dict[str, float] = {}
        """Ages at which new VMs were first seen; those of other VMs are in `_there`."""
        self._there: dict[str, float] = {}

    def moves(self, state: BagState, free: Sequence[Free]) -> Moves:
        """Return which waiting jobs start on which free VMs, and which VMs are given up.

        Ages are in hours. A VM that was given up but could not be replaced receives jobs at any
        age.
        """
        for vm in free:
            (self._arrived if vm.fresh else self._there).setdefault(vm.vm, vm.age)
        waiting = state.waiting
        if not free or (not waiting and state.to_propose):
            return Moves()
        seconds = job_seconds(state)
        if seconds:
            expected = self._expectations(state, seconds)
        else:
            expected = None
        if expected is None or seconds is None:
            return Moves(
                tuple(Start(job.number, vm.vm) for job, vm in zip(waiting, free, strict=False))
            )
        scale = self._lifetimes.hours_per_second
        queue = [Waiting(job.number, self._left(job, seconds)) for job in waiting]
        found = place(queue, free, expected, state.spec.policy, self._boot)
        begun = {job for job, _ in found.pairs}
        busy = {vm for _, vm in found.pairs}
        rest = [job.job for job in queue if job.job not in begun]
        left = [vm.vm for vm in free if vm.vm not in busy]
        if state.may_give_up:
            given_up = [vm for vm in (*found.renew, *found.drop) if vm not in state.given_up]
        else:
            given_up = []
        if state.spec.policy == "memoryless" or not state.may_give_up:
            spare = left
        else:
            spare = [vm for vm in left if vm in state.given_up]
        pairs = [*found.pairs, *zip(rest, spare, strict=False)]
        works = {job.job: job.work for job in queue}
        ages = {vm.vm: vm.age for vm in free}
        starts = [
            Start(
                job,
                vm,
                tuple(save / scale for save in expected.saves(works[job], ages[vm]))
                if expected.save
                else (),
            )
            for job, vm in pairs
        ]
        return Moves(tuple(starts), tuple(given_up))

    @property
    def _boot(self) -> float:
        """Hours until a new VM accepts a job: measured, else as received, else the least age seen.

        With a shorter time, VMs would be replaced by VMs of the same age, and none would be kept.
        """
        if self._arrived:
            return statistics.median(self._arrived.values())
        return self._lifetimes.boot_hours or min(self._there.values(), default=0.0)

    def _left(self, job: BagJobState, seconds: float) -> float:
        return max(seconds - job.done, 0.1 * seconds) * self._lifetimes.hours_per_second

    def _expectations(self, state: BagState, seconds: float) -> Expectations | None:
        survival = self._lifetimes.survival
        hours = seconds * self._lifetimes.hours_per_second
        if survival is None or hours <= 0:
            return None
        if self._expected is None or not hours <= self._expected.longest <= 4 * hours:
            save = state.spec.save_seconds * self._lifetimes.hours_per_second or None
            try:
                self._expected = Expectations(
                    survival, _LONGER * hours, restart=self._lifetimes.boot_hours, save=save
                )
            except PlanError:  # no VM lives long enough, so all are equal
                return None
        return self._expected


def job_seconds(state: BagState) -> float | None:
    """Return the declared duration of a job, else the typical one; None if it is unknown."""
    if state.spec.job_seconds:
        return state.spec.job_seconds
    durations = [found.seconds for number in state.results if (found := state.jobs[number].result)]
    if len(durations) >= LEAST_TIMED:
        return statistics.median(durations)
    return None


def batch(state: BagState, workers: int) -> int:
    """Return how many further jobs to choose now.

    Without a surrogate, all jobs are chosen together. With one, a batch is chosen as soon as a VM
    would be idle; it is large enough to be judged and to occupy every VM.
    """
    if not state.to_propose or state.waiting:
        return 0
    if state.spec.surrogate == "none":
        return state.to_propose
    if len(state.running) >= max(workers, 1):
        return 0
    return min(state.to_propose, LEAST_JUDGED + workers)


def end(state: BagState) -> BagStopped | None:
    """Return the event that ends the bag, or None."""
    name = state.spec.name
    if state.enough:
        return BagStopped(bag=name, why="counted")
    failed = [job for job in state.jobs.values() if job.phase == "failed"]
    if len(failed) > _MOST_FAILED + len(state.results):
        return BagStopped(
            bag=name,
            why="failed",
            reason=f"{len(failed)} jobs failed, the last one: {failed[-1].reason}",
        )
    if not state.outputs:
        return None
    try:
        tolerances = state.spec.tolerances(state.outputs)
    except ValueError as error:
        return BagStopped(bag=name, why="failed", reason=str(error))
    if good_enough(state.learnt, tolerances):
        return BagStopped(bag=name, why="converged")
    return None


def age_hours(born: float, now: float, lifetimes: Lifetimes) -> float:
    """Return the age of a VM that started at `born` (seconds since 1970); 0 if unknown."""
    if born and math.isfinite(born):
        return max(now - born, 0.0) * lifetimes.hours_per_second
    return 0.0
