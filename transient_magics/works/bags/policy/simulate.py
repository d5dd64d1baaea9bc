"""Simulate bags: one that is planned, and the time that a running one still takes."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count

import numpy as np
from numpy.typing import NDArray
from scipy import special

from ....catalog.published import WAVES
from ....errors import PlanError
from ....planner.lifetimes.kaplan_meier import BLOCKS, resampled
from ....planner.lifetimes.parametric import LifetimeModel
from ....protocol.outputs import jobs_of
from .placement import Expectations, Free, Policy, Waiting, place

_LIVES_PER_JOB = 3
_MOST_HOURS = 24.0 * 365
_Array = NDArray[np.float64]

LEAST_FINISHED = 3
MOST_HOURS = 24.0 * 365
_ROUNDS = 30
_LEAST_SPREAD = 1e-3
_MOST_OFF = 1.0
"""Limit on the error of the logarithm of the deviation.

Three jobs determine it poorly, and without the limit simulated jobs would never end.
"""
_USUAL_LIFE = 25.0
"""Prior mean lifetime of a Spot VM in hours, with the weight of one revocation.

It is combined with the lifetimes of the bag's own VMs. Of the VMs published in 2019, a third to a
half lived for 24 hours.
"""


@dataclass(frozen=True)
class Bag:
    """A bag to simulate: `jobs` results of jobs on `vms` VMs.

    Durations of jobs are uniform from `shortest` to `longest` hours. `hourly` is the price of a VM
    in US dollars, `price_error` the standard deviation of its logarithm, and `server_hourly` the
    price of everything else during the bag. `model` is None for on-demand VMs. `save` is the
    duration of a checkpoint in hours (None: jobs cannot be saved). With `notice`, a job is also
    saved in the half minute before its VM is preempted.
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
    """Results of simulated courses, one entry per course.

    `failed` are attempts lost with their VM, `computed` hours of the jobs that count, `lost` hours
    of lost work, `saving` hours of checkpoints, and `rented` hours of all VMs.
    """

    hours: _Array
    dollars: _Array
    failed: _Array
    computed: _Array
    lost: _Array
    saving: _Array
    rented: _Array
    started: _Array = field(default_factory=lambda: np.zeros(0))
    """Number of rented VMs."""


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
    """Time of each checkpoint, and the saved work at that time."""


def simulate(
    bag: Bag, policy: Policy, *, courses: int = 300, seed: int = 0, uncertain: bool = True
) -> Courses:
    """Return the results of `courses` simulated courses.

    With `uncertain`, lifetimes vary as much as the number of VMs behind their model implies. Raises
    PlanError if the bag does not end within a year.
    """
    if not (bag.jobs > 0 and 0 < bag.shortest <= bag.longest < np.inf and bag.vms > 0):
        raise PlanError("A bag needs at least one job, a job time and a VM")
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
        _Course(bag, policy, expected, work[course], lives[course]).run()
        for course in range(courses)
    ]
    found = Courses(*np.array(rows).T)
    if not bag.price_error:
        return found
    price = np.exp(bag.price_error * random.normal(size=courses) - bag.price_error**2 / 2)
    return replace(found, dollars=found.dollars + found.rented * bag.hourly * (price - 1))


def on_demand(bag: Bag, hourly: float) -> Bag:
    """Return the bag on VMs that are not revoked, without spare jobs."""
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
    """One course of a bag. Events: a VM is available, a job ends, a VM is revoked."""

    def __init__(
        self, bag: Bag, policy: Policy, expected: Expectations | None, work: _Array, lives: _Array
    ) -> None:
        self._policy: Policy = policy
        self._bag = bag
        self._expected = expected
        self._lives = lives
        self._left: list[float] = work.tolist()
        self._waiting = [Waiting(job, hours) for job, hours in enumerate(work.tolist())]
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
                    "The bag does not finish in any simulation: its VMs are revoked too early for "
                    "these jobs",
                    fix="Use shorter jobs, save them with --save, or use on-demand VMs.",
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
        self._waiting.pop(
            next(turn for turn, waiting in enumerate(self._waiting) if waiting.job == job)
        )
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


@dataclass(frozen=True)
class Progress:
    """The progress of a running bag.

    Attributes
    ----------
    left : int
        Number of missing results.
    waiting : int
        Jobs that may still start, spare jobs included.
    finished : tuple of float
        Time of each finished job, in hours.
    running : tuple of float
        Elapsed time of each running job, in hours.
    vms : int
        VMs that work on it, including those being replaced.
    lost : int
        VMs that were revoked.
    watched : float
        Hours that all VMs have lived.
    revocable : bool
        Whether VMs may be revoked.
    boot : float
        Hours from a revocation until the next VM begins a job.
    """

    left: int
    waiting: int
    finished: tuple[float, ...]
    running: tuple[float, ...]
    vms: int
    lost: int = 0
    watched: float = 0.0
    revocable: bool = True
    boot: float = 0.03


def hours_left(bag: Progress, *, courses: int = 100, seed: int = 0) -> _Array:
    """Return the hours until all results are available, for each course.

    It requires at least LEAST_FINISHED finished jobs.
    """
    random = np.random.default_rng(seed)
    running = _running(bag, random, courses)
    further = _further(bag, running, random, courses)
    if bag.revocable:
        rate = random.gamma(1 + bag.lost, 1 / (_USUAL_LIFE + bag.watched), courses)
    else:
        rate = np.zeros(courses)
    return scheduled(bag, running, further, rate, random)


def middle(hours: _Array, level: float = 0.9) -> tuple[float, float, float]:
    """Return the low end, the median and the high end of the middle `level` of courses.

    A further course lies between the ends with this probability, even for few courses (Weibull's
    plotting positions).
    """
    low, median, high = np.quantile(
        hours, [(1 - level) / 2, 0.5, (1 + level) / 2], method="weibull"
    )
    return float(low), float(median), float(high)


def _running(bag: Progress, random: np.random.Generator, courses: int) -> _Array:
    """Return the total time of each running job. Shape (courses, running)."""
    finished = np.log(bag.finished)
    elapsed = np.log(np.maximum(bag.running, 1e-6))
    mean, deviation = _fitted(finished, elapsed)
    # Both parameters vary normally by the information of the jobs, widened to t for few jobs.
    root = np.linalg.cholesky(np.linalg.inv(_information(finished, elapsed, mean, deviation)))
    freedom = len(finished) - 1
    wider = np.sqrt(freedom / random.chisquare(freedom, courses))
    off = (root @ random.normal(size=(2, courses))) * wider
    means = (mean + off[0])[:, np.newaxis]
    deviations = deviation * np.exp(np.clip(off[1], -_MOST_OFF, _MOST_OFF))[:, np.newaxis]
    longer = special.log_ndtr((means - elapsed) / deviations)
    drawn = special.ndtri_exp(longer + np.log(1 - random.random((courses, len(elapsed)))))
    return np.exp(means - deviations * drawn)


def _information(finished: _Array, elapsed: _Array, mean: float, deviation: float) -> _Array:
    """Return the observed information on the mean and the log deviation of normal values.

    Values of running jobs lie above `elapsed`. Shape (2, 2).
    """
    seen = (finished - mean) / deviation
    beyond = (elapsed - mean) / deviation
    hazard = _hazard(beyond)
    slope = hazard * (hazard - beyond)
    location = (len(seen) + slope.sum()) / deviation**2
    both = (2 * seen.sum() + hazard.sum() + (beyond * slope).sum()) / deviation
    scale = 2 * (seen**2).sum() + (beyond * hazard).sum() + (beyond**2 * slope).sum()
    return np.array([[location, both], [both, max(scale, 1.1 * both**2 / location, 1.0)]])


def _hazard(beyond: _Array) -> _Array:
    """Return the density over the upper tail of the standard normal distribution."""
    return np.exp(-(beyond**2) / 2 - special.log_ndtr(-beyond)) / (2 * np.pi) ** 0.5


def _fitted(finished: _Array, elapsed: _Array) -> tuple[float, float]:
    """Return the mean and deviation of the logarithms.

    Values of running jobs lie above `elapsed`.
    """
    mean = float(finished.mean())
    variance = float(finished.var(ddof=1))
    for _ in range(_ROUNDS if len(elapsed) else 0):
        deviation = max(variance, _LEAST_SPREAD**2) ** 0.5
        beyond = (elapsed - mean) / deviation
        hazard = _hazard(beyond)
        expected = mean + deviation * hazard
        squares = deviation**2 * (1 - hazard * (hazard - beyond))
        values = np.append(finished, expected)
        mean = float(values.mean())
        variance = float((((values - mean) ** 2).sum() + squares.sum()) / (len(values) - 1))
    return mean, max(variance, _LEAST_SPREAD**2) ** 0.5


def _further(bag: Progress, running: _Array, random: np.random.Generator, courses: int) -> _Array:
    """Return the time of each further job. Shape (courses, waiting)."""
    finished = np.broadcast_to(np.array(bag.finished), (courses, len(bag.finished)))
    sample = np.hstack([finished, running])
    many = sample.shape[1]
    freedom = len(bag.finished) - 1
    weights = np.cumsum(random.gamma(1.0, size=sample.shape), axis=1)
    weights /= weights[:, -1:]
    shares = random.random((courses, bag.waiting))
    places = np.stack([np.searchsorted(*pair) for pair in zip(weights, shares, strict=True)])
    drawn = np.take_along_axis(sample, np.minimum(places, many - 1), axis=1)
    # The weighted mean of few values varies less than Student's t.
    means = (np.diff(weights, axis=1, prepend=0.0) * sample).sum(axis=1, keepdims=True)
    middle = sample.mean(axis=1, keepdims=True)
    wider = (
        float(special.stdtrit(freedom, 0.95) / special.ndtri(0.95))
        * ((many + 1) / max(many - 1, 1)) ** 0.5
    )
    return drawn * np.maximum(1 + (wider - 1) * (means / middle - 1), 0.1)


def scheduled(
    bag: Progress, running: _Array, further: _Array, rate: _Array, random: np.random.Generator
) -> _Array:
    """Return the hours until `bag.left` results are available, in each course.

    MOST_HOURS is the upper limit.

    Parameters
    ----------
    running : (courses, running) array
        Total time of each running job, in hours.
    further : (courses, waiting) array
        Time of each further job, in hours.
    rate : (courses,) array
        Revocations per VM and hour.
    """
    courses, busy = running.shape
    vms = max(bag.vms, busy, 1)
    places = np.arange(courses)

    def lives(shape: tuple[int, ...]) -> _Array:
        drawn = random.exponential(size=shape)
        mean = np.where(rate > 0, 1 / np.maximum(rate, 1e-12), np.inf)
        return drawn * mean.reshape(-1, *[1] * (len(shape) - 1))

    free = np.full((courses, vms), bag.boot)
    dies = lives((courses, vms))
    came = np.full((courses, busy + 2 * bag.waiting + vms), np.inf)
    queue = np.hstack([further, np.zeros_like(came)])
    since = np.zeros_like(queue)
    head = np.zeros(courses, int)
    tail = np.full(courses, bag.waiting)

    def attempt(
        vm: NDArray[np.intp], begins: _Array, takes: _Array, again: _Array, turn: int
    ) -> None:
        """Run a job on one VM of each course; an infinite `begins` means no job."""
        ends = begins + takes
        dead = dies[places, vm]
        lost = (ends > dead) & np.isfinite(begins)
        came[:, turn] = np.where(lost, np.inf, ends)
        fresh = np.maximum(dead, 0.0) + bag.boot
        free[places, vm] = np.where(
            lost, fresh, np.where(np.isfinite(begins), ends, free[places, vm])
        )
        dies[places, vm] = np.where(lost, fresh + lives((courses,)), dead)
        back = lost & (tail < queue.shape[1])
        queue[places[back], tail[back]] = again[back]
        since[places[back], tail[back]] = dead[back]
        tail[back] += 1

    elapsed = np.array(bag.running)
    for job in range(busy):
        takes = np.maximum(running[:, job] - elapsed[job], 0.0)
        attempt(np.full(courses, job), np.zeros(courses), takes, running[:, job], job)
    for turn in range(busy, came.shape[1]):
        there = head < tail
        if not there.any():
            break
        vm = free.argmin(axis=1)
        place = np.minimum(head, queue.shape[1] - 1)
        takes = queue[places, place]
        begins = np.maximum(free[places, vm], since[places, place])
        stale = dies[places, vm] <= begins  # revoked while it was idle
        fresh = begins + bag.boot
        dies[places, vm] = np.where(stale & there, fresh + lives((courses,)), dies[places, vm])
        begins = np.where(stale, fresh, begins)
        attempt(vm, np.where(there, begins, np.inf), takes, takes, turn)
        head += there
    return np.minimum(np.partition(came, bag.left - 1, axis=1)[:, bag.left - 1], MOST_HOURS)
