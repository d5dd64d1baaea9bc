"""Courses of a bag by Monte Carlo: when it ends, what it costs, how many jobs it loses. All times
in hours.

Each course is one bag, event by event, with the policy that places its jobs in life (`placing`). A
VM is paid from when it runs; its job begins after `boot`. Two policies with one seed have the same
jobs, and each VM in turn the same life, so that they can be compared course by course. Of the VMs
that are there at the begin some share their luck, as revocations come in waves
(`planner.simulate`).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count

import numpy as np
from numpy.typing import NDArray

from ...catalog.published import WAVES
from ...errors import PlanError
from ...planner.lifetimes.kaplan_meier import BLOCKS, resampled
from ...planner.lifetimes.parametric import LifetimeModel
from ...protocol.bag.spec import jobs_of
from .expectation import Expectations
from .placing import Free, Policy, Waiting, place

_LIVES_PER_JOB = 3
_MOST_HOURS = 24.0 * 365
_Array = NDArray[np.float64]


@dataclass(frozen=True)
class Bag:
    """What is simulated: `jobs` results of jobs that take `shortest` to `longest` hours each,
    evenly, on `vms` VMs.

    `hourly` dollars a VM, as far off as `price_error` (the standard deviation of its logarithm);
    `server_hourly` all that is there beside them as long as the bag takes. `model`: None for VMs on
    demand. `save`: hours that a checkpoint takes (None: jobs cannot be saved); with `notice` a job
    is saved in the half minute before its VM is taken, too.
    """

    jobs: int
    shortest: float
    longest: float
    vms: int
    hourly: float
    model: LifetimeModel | None
    spare: float = 0.1
    server_hourly: float = 0.0
    boot: float = 0.03
    save: float | None = None
    notice: bool = False
    waves: float = WAVES
    price_error: float = 0.0


@dataclass(frozen=True)
class Courses:
    """One entry per course. `failed`: attempts lost with their VM; `computed`: hours of the jobs
    that count; `lost`: hours computed in vain; `saving`: hours of checkpoints; `rented`: hours of
    all VMs.
    """

    hours: _Array
    dollars: _Array
    failed: _Array
    computed: _Array
    lost: _Array
    saving: _Array
    rented: _Array
    started: _Array = field(default_factory=lambda: np.zeros(0))
    """VMs that were rented."""


@dataclass(slots=True)
class _Vm:
    name: int
    born: float
    dies: float
    idle_since: float = 0.0
    job: int = -1
    begun: float = 0.0
    ends: float = 0.0
    schedule: tuple[tuple[float, float], ...] = ()
    """When each checkpoint is made, and the work that is safe then."""


def simulate(
    bag: Bag, policy: Policy, *, courses: int = 300, seed: int = 0, uncertain: bool = True
) -> Courses:
    """So many courses; `uncertain`: with lifetimes as little known as the VMs are few that they
    were learnt from.

    Raises PlanError where the bag does not come to an end within a year.
    """
    if not (bag.jobs > 0 and 0 < bag.shortest <= bag.longest < np.inf and bag.vms > 0):
        raise PlanError("A bag needs some jobs, how long they take, and a VM")
    if uncertain:
        courses = -(-courses // BLOCKS) * BLOCKS
    else:
        courses = courses
    random = np.random.default_rng(seed)
    total = jobs_of(bag.jobs, bag.spare)
    work = random.uniform(bag.shortest, bag.longest, (courses, total))
    lives = _lives(bag, random, courses, total, seed, uncertain)
    expected = None
    if bag.model is not None:
        expected = Expectations(bag.model, bag.longest, restart=bag.boot, save=bag.save)
    rows = [
        _Course(bag, policy, expected, work[each], lives[each]).run() for each in range(courses)
    ]
    found = Courses(*np.array(rows).T)
    if not bag.price_error:
        return found
    price = np.exp(bag.price_error * random.normal(size=courses) - bag.price_error**2 / 2)
    return replace(found, dollars=found.dollars + found.rented * bag.hourly * (price - 1))


def on_demand(bag: Bag, hourly: float) -> Bag:
    """The same bag on VMs that nobody revokes, where no job more than needed is begun."""
    return replace(bag, hourly=hourly, model=None, spare=0.0, save=None, price_error=0.0)


def _lives(
    bag: Bag, random: np.random.Generator, courses: int, total: int, seed: int, uncertain: bool
) -> _Array:
    shape = (courses, bag.vms + _LIVES_PER_JOB * total)
    shares = 1 - random.random(shape)
    common = 1 - random.random((courses, 1))
    heeds = random.random((courses, bag.vms)) < bag.waves
    if bag.model is None:
        return np.full(shape, np.inf)
    shares[:, : bag.vms] = np.where(heeds, common, shares[:, : bag.vms])
    return (resampled(bag.model, seed) if uncertain else bag.model).quantile(shares)


class _Course:
    """One bag. Events: a VM is there, a job ends, a VM is revoked."""

    def __init__(
        self, bag: Bag, policy: Policy, expected: Expectations | None, work: _Array, lives: _Array
    ) -> None:
        self._policy: Policy = policy
        self._bag = bag
        self._expected = expected
        self._lives = lives
        self._left: list[float] = work.tolist()
        self._waiting = [Waiting(job, each) for job, each in enumerate(work.tolist())]
        self._work = work
        self._vms: dict[int, _Vm] = {}
        self._events: list[tuple[float, int, str, int]] = []
        self._names = count()
        self._order = count()
        self._done: list[int] = []
        self._failed = self._lost = self._saving = self._rented = 0.0

    def run(self) -> tuple[float, ...]:
        for _ in range(self._bag.vms):
            self._rent(0.0)
        now = 0.0
        while len(self._done) < self._bag.jobs:
            if not self._events or now > _MOST_HOURS:
                raise PlanError(
                    "A bag of these jobs does not come to an end on VMs that are revoked so early",
                    fix="Make the jobs shorter, let them be saved, or rent on demand.",
                )
            now, _, what, name = heapq.heappop(self._events)
            vm = self._vms.get(name)
            if vm is None or (what == "ends" and (vm.job < 0 or vm.ends != now)):
                continue
            if what == "ends":
                self._done.append(vm.job)
                vm.job = -1
                vm.idle_since = now
            elif what == "dies":
                self._revoked(vm)
            self._place(now)
        for vm in list(self._vms.values()):
            self._give_up(vm, now)
        computed = float(self._work[self._done].sum())
        dollars = self._rented * self._bag.hourly + now * self._bag.server_hourly
        return (
            now,
            dollars,
            self._failed,
            computed,
            self._lost,
            self._saving,
            self._rented,
            float(next(self._names)),
        )

    def _rent(self, now: float) -> None:
        name = next(self._names)
        dies = now + float(self._lives[name % len(self._lives)])
        vm = _Vm(name, now, dies, idle_since=now + self._bag.boot)
        self._vms[name] = vm
        self._push(now + self._bag.boot, "there", name)
        if np.isfinite(dies):
            self._push(dies, "dies", name)

    def _push(self, when: float, what: str, name: int) -> None:
        heapq.heappush(self._events, (when, next(self._order), what, name))

    def _revoked(self, vm: _Vm) -> None:
        now = vm.dies
        if vm.job >= 0:
            self._failed += 1
            safe = max((done for when, done in vm.schedule if when <= now), default=0.0)
            made = sum(when <= now for when, _ in vm.schedule)
            cost = self._bag.save or 0.0
            done = min(max(now - vm.begun - made * cost, 0.0), self._left[vm.job])
            self._saving += made * cost
            if self._bag.notice and self._bag.save is not None:
                safe = done
            else:
                safe = safe
            self._lost += max(done - safe, 0.0)
            self._left[vm.job] -= safe
            self._waiting.insert(0, Waiting(vm.job, self._left[vm.job]))
        self._give_up(vm, now)
        if self._waiting:
            self._rent(now)

    def _give_up(self, vm: _Vm, now: float) -> None:
        self._rented += now - vm.born
        del self._vms[vm.name]

    def _place(self, now: float) -> None:
        free = [
            vm
            for vm in self._vms.values()
            if vm.job < 0 and now >= vm.born + self._bag.boot - 1e-12
        ]
        if not free:
            return
        if self._expected is None:
            for job, vm in zip(tuple(self._waiting), free, strict=False):
                self._begin(job.job, vm, now)
            return
        names = {str(vm.name): vm for vm in free}
        found = place(
            self._waiting,
            [Free(name, now - vm.born, now - vm.idle_since) for name, vm in names.items()],
            self._expected,
            self._policy,
            self._bag.boot,
        )
        for job, name in found.pairs:
            self._begin(job, names[name], now)
        for name in (*found.renew, *found.drop):
            self._give_up(names[name], now)
        for _ in found.renew:
            self._rent(now)

    def _begin(self, job: int, vm: _Vm, now: float) -> None:
        self._waiting.pop(next(turn for turn, each in enumerate(self._waiting) if each.job == job))
        work = self._left[job]
        if self._expected:
            saves: Sequence[float] = self._expected.saves(work, now - vm.born)
        else:
            saves = ()
        cost = self._bag.save or 0.0
        vm.schedule = tuple((now + done + turn * cost, done) for turn, done in enumerate(saves, 1))
        vm.job = job
        vm.begun = now
        vm.ends = now + work + len(saves) * cost
        if vm.ends < vm.dies:
            self._saving += len(saves) * cost
            self._push(vm.ends, "ends", vm.name)
