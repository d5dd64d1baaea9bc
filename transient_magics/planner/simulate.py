"""Monte Carlo simulation of the duration and cost of a run, over many courses.

In each course every worker's place is a chain of VMs: requested, billed from the moment it runs,
training once its worker has joined, revoked when its lifetime ends, and (if it is replaced)
requested again at that moment. The speed of the cluster is constant between two such events, so a
course needs no time steps. The events of all workers are sorted, the offered speed is their running
sum (for synchronous steps, the slowest worker's), and the limit of the parameter servers bends it
(`speeds.throughput`). The run is over when the steps add up. All courses are arrays of one
computation.

Parameter servers and the chief are on demand: a revocation loses at most the step in flight.
Revocations come in waves. Each VM at the start shares its luck with those that have its GPU in its
zone, with probability `waves`: the same quantile of the remaining life. Otherwise its luck is its
own. So the lifetime of each VM stays the same. Those of one age are revoked simultaneously, two of
them with the square of `waves`, which was measured. Later VMs are revoked independently.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import special

from .lifetimes.kaplan_meier import BLOCKS, resampled
from .lifetimes.parametric import LifetimeModel
from .speeds.fitting import Draws
from .speeds.throughput import (
    SCALING,
    SHARPNESS,
    capacities,
    capacity,
    cluster_speed,
    synchronous_speed,
    worker_speed,
)

Array = NDArray[np.float64]

# Seconds: later than any event.
_FAR = 1e12
_MOST_GENERATIONS = 4096
_HOUR = 3600.0
_MINUTE = 60.0


@dataclass(frozen=True, slots=True)
class Startup:
    """Mean seconds from a VM's request until it runs (and is billed), and then until it is usable.

    `deviation` is the standard deviation of the sum.
    """

    running: float = 0.0
    usable: float = 0.0
    deviation: float = 0.0


@dataclass(frozen=True, slots=True)
class Workers:
    """A group of equal workers; speeds are seconds of a step (`compute_seconds`), prices $/h.

    `error` is the relative standard deviation of these seconds; groups of one `accelerator` share
    the same luck. `kind` is the kind of worker whose seconds `Course.draws` has, if they are taken
    from it. `lifetimes` is None for VMs that are never revoked. `join_seconds` is from a usable VM
    to its first step. `transfer_dollars` is for one step, if the parameter servers are in another
    zone. In the middle of a run `ages` has the hours for which each VM has run (0: only requested),
    and `ready_in` the seconds until each takes steps.
    """

    count: int
    compute_seconds: float
    hourly: float
    on_demand_hourly: float
    accelerator: str = ""
    kind: str = ""
    error: float = 0.0
    added_seconds: float = 0.0
    """Additional seconds of a step with parameter servers in another region."""
    added_error: float = 0.0
    """The standard deviation of their logarithm; all distant workers of a course share one luck."""
    price_error: float = 0.0
    """Standard deviation of the logarithm of `hourly`, the same luck for all groups of a course."""
    lifetimes: LifetimeModel | None = None
    startup: Startup = Startup()
    join_seconds: float = 0.0
    transfer_dollars: float = 0.0
    ages: tuple[float, ...] = ()
    ready_in: tuple[float, ...] = ()

    @property
    def step_error(self) -> float:
        """The relative standard deviation of the seconds of a whole step."""
        computing = self.error * self.compute_seconds
        added = self.added_error * self.added_seconds
        return math.hypot(computing, added) / (self.compute_seconds + self.added_seconds)


@dataclass(frozen=True, slots=True)
class Course:
    """A run to simulate: the remaining `steps`, on `groups` of workers and `servers`.

    `server_hourly` is the dollars per hour of one server. `limit_error` is relative, of their
    limit. `work_error` is relative, of the steps, or of a speed common to workers and servers. With
    `from_first_step`, time counts from the first step, as in papers, instead of from the request.
    `spent` is the dollars spent already. `rate` is the emulated seconds per second of work;
    lifetimes, boots and bills are in emulated seconds. `waves` is the share of a group that is
    revoked together. With `from_ready`, VMs cost from when they answer, as in a run's own cost
    (`journal.cost`), without a minimum of one minute. With `synchronous`, steps are taken together,
    without waiting for the slowest `backup_workers`. `draws` has joint draws of the seconds, the
    servers' part and scaling.
    """

    groups: tuple[Workers, ...]
    steps: float
    servers: int = 1
    server_hourly: float = 0.0
    server_startup: Startup = Startup()
    service_seconds: float = 0.0
    scaling: float = SCALING
    limit_error: float = 0.0
    work_error: float = 0.0
    sharpness: float = SHARPNESS
    replace: bool = True
    from_first_step: bool = False
    spent: float = 0.0
    rate: float = 1.0
    waves: float = 0.0
    from_ready: bool = False
    synchronous: bool = False
    backup_workers: int = 0
    draws: Draws | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The results of each course.

    `hours` is the time until the last step (infinite if it is never made), then `dollars` and
    `revocations`. `lasted` is the hours until the last step, or until the last VM was revoked.
    """

    hours: Array
    dollars: Array
    revocations: Array
    lasted: Array

    @property
    def finished(self) -> float:
        """The share of courses that finish."""
        return float(np.isfinite(self.hours).mean())

    def until_done(self) -> Outcome:
        """Return courses with each unfinished one extended by the next ones until one finishes.

        Courses are independent, so their order is arbitrary. At least one must finish.
        """
        done = np.isfinite(self.hours)
        if done.all():
            return self
        places = np.arange(2 * len(done))
        end = np.minimum.accumulate(np.where(np.tile(done, 2), places, len(places))[::-1])[::-1][
            : len(done)
        ]

        def added(values: Array) -> Array:
            sums = np.append(0.0, np.cumsum(np.tile(values, 2)))
            return sums[end + 1] - sums[: len(done)]

        hours = added(self.lasted)
        return Outcome(hours, added(self.dollars), added(self.revocations), hours)

    def finished_between(self, level: float = 0.9) -> tuple[float, float]:
        """Return the interval of the finished share, with the uncertainty of lifetimes."""
        shares = np.array(
            [np.isfinite(block).mean() for block in np.array_split(self.hours, BLOCKS)]
        )
        mean = self.finished
        runs = len(self.hours)
        among = mean * (1 - mean)
        # Jeffreys' interval: no loss among the courses does not mean that none is possible.
        if not among:
            done = runs * mean + 0.5
            lost = runs * (1 - mean) + 0.5
            return _beta(done, lost, level)
        size = max(runs / BLOCKS, 2.0)
        # The shares of blocks also differ by the chance of their courses, which is unrelated to the
        # uncertainty of lifetimes. With few lost courses, chance is most of the difference, and the
        # rest is uncertain, so its upper standard error counts.
        differ = float(shares.var()) * (1 + (2 / (BLOCKS - 1)) ** 0.5)
        variance = max((differ - among / size) / (1 - 1 / size), 0.0) + among / runs
        certainty = among / min(variance, 0.99 * among) - 1
        return _beta(mean * certainty, (1 - mean) * certainty, level)


def _beta(a: float, b: float, level: float) -> tuple[float, float]:
    """Return the middle interval of a beta distribution, with probability `level`."""
    return float(special.betaincinv(a, b, (1 - level) / 2)), float(
        special.betaincinv(a, b, (1 + level) / 2)
    )


def simulate(
    course: Course, runs: int = 10_000, seed: int = 0, revocations: int | None = None
) -> Outcome:
    """Simulate `runs` courses.

    With `revocations`, each course loses exactly that many workers (as ICAC'19, table 4, counts
    runs), at random times of the undisturbed run; lifetimes are then ignored.
    """
    random = np.random.default_rng(seed)
    course = _unsure(course, seed)
    fleet = _Fleet.of(course, random, runs)
    if revocations is not None:
        course = replace(
            course, groups=tuple(replace(group, lifetimes=None) for group in course.groups)
        )
        undisturbed = _simulate(course, fleet, random, None)
        # Uniform: the limit of a small constant risk, given this number of revocations.
        moments = random.random((runs, revocations)) * undisturbed.hours[:, np.newaxis] * _HOUR
        victims = np.argsort(random.random((runs, fleet.size)), axis=1)[:, :revocations]
        lost = np.full((runs, fleet.size), _FAR)
        np.put_along_axis(lost, victims, moments[:, : victims.shape[1]], axis=1)
        return _simulate(course, fleet, random, lost)
    return _simulate(course, fleet, random, None)


def _unsure(course: Course, seed: int) -> Course:
    """Return the course with lifetimes resampled for their uncertainty."""
    groups = (
        replace(group, lifetimes=resampled(group.lifetimes, seed)) if group.lifetimes else group
        for group in course.groups
    )
    return replace(course, groups=tuple(groups))


def rent(
    lifetimes: LifetimeModel, startup: Startup, vms: int, days: float, seed: int = 0
) -> tuple[int, float]:
    """Return the revocations of permanently refilled places, and the share of time they are up."""
    group = Workers(vms, 1.0, 0.0, 0.0, lifetimes=lifetimes, startup=startup)
    random = np.random.default_rng(seed)
    fleet = _Fleet.of(Course((group,), 1.0), random, 1)
    horizon = days * 24 * _HOUR
    revoked = 0
    up = 0.0
    for generation in fleet.generations(Course((group,), 1.0), random, 1, None):
        revoked += int((generation.end < horizon).sum())
        up += float(
            (np.minimum(generation.end, horizon) - np.minimum(generation.ready, horizon)).sum()
        )
        if (generation.end >= horizon).all():
            break
    return revoked, up / (vms * horizon)


@dataclass(frozen=True, slots=True)
class _Generation:
    """One VM of each place, shape (runs, places): seconds at which it runs, takes steps, and ends.

    It ends at the notice: the half minute of training after that is free and is left out.
    """

    running: Array
    ready: Array
    end: Array


@dataclass(frozen=True, slots=True)
class _Fleet:
    """All workers of a course.

    `speed` and `hourly` have shape (runs, places), `limit` and `steps` (runs,), all others
    (places,).
    """

    speed: Array
    running: Array
    usable: Array
    deviation: Array
    join: Array
    hourly: Array
    transfer: Array
    limit: Array
    steps: Array

    @classmethod
    def of(cls, course: Course, random: np.random.Generator, runs: int) -> _Fleet:
        """Return the fleet of a course, with random errors for each run."""
        counts = [group.count for group in course.groups]

        def places(values: Sequence[float]) -> Array:
            return np.repeat(np.array(values, dtype=float), counts)

        service: float | Array = course.service_seconds
        limit: float | Array = capacity(course.service_seconds, course.servers, course.scaling)
        factors = dict[str, Array]()
        if course.draws:
            drawn = random.integers(len(course.draws.service), size=runs)
            service = course.draws.service[drawn]
            limit = capacities(service, course.servers, course.draws.scaling[drawn])
            factors = {kind: values[drawn] for kind, values in course.draws.factors.items()}
        # The step time of a GPU has the same error for all of its workers, in any zone.
        luck = {
            name: random.normal(size=runs)
            for name in dict.fromkeys(group.accelerator for group in course.groups)
        }
        if any(group.added_error for group in course.groups):
            way = random.normal(size=runs)
        else:
            way = np.zeros(runs)
        speeds = list[Array]()
        for group in course.groups:
            off = np.exp(group.error * luck[group.accelerator])
            seconds = group.compute_seconds * factors.get(group.kind, 1.0) * off
            seconds += group.added_seconds * np.exp(group.added_error * way)
            speeds.append(worker_speed(seconds, service, course.servers))
        startups = [group.startup for group in course.groups]
        limit_luck = random.normal(size=runs)
        work_luck = random.normal(size=runs)
        return cls(
            np.repeat(np.stack(speeds, axis=1), counts, axis=1),
            places([startup.running for startup in startups]),
            places([startup.usable for startup in startups]),
            places([startup.deviation for startup in startups]),
            places([group.join_seconds for group in course.groups]),
            _hourly(course, random, runs),
            places([group.transfer_dollars for group in course.groups]),
            limit * np.exp(course.limit_error * limit_luck),
            course.steps * np.exp(course.work_error * work_luck),
        )

    @property
    def size(self) -> int:
        return self.speed.shape[1]

    def generations(
        self, course: Course, random: np.random.Generator, runs: int, lost: Array | None
    ) -> Iterator[_Generation]:
        """Yield the VMs of every place, one generation after the other, while they are replaced."""
        running, ready = self._first(course, random, runs)
        ages = np.maximum(-running, 0.0) * course.rate / _HOUR
        waves = course.waves
        while True:
            end = running + self._lifetimes(course, random, ages, waves) * _HOUR / course.rate
            end = np.minimum(end if lost is None else np.minimum(end, lost), _FAR)
            yield _Generation(np.minimum(running, end), np.minimum(ready, end), end)
            if not course.replace or (end >= _FAR).all():
                return
            # Replacements are requested at the notice.
            running, ready = self._start(course, random, end)
            ages = np.zeros_like(end)
            lost = None
            waves = 0.0

    def _first(self, course: Course, random: np.random.Generator, runs: int) -> tuple[Array, Array]:
        if course.from_first_step:
            return np.zeros((runs, self.size)), np.zeros((runs, self.size))
        running, ready = self._start(course, random, np.zeros((runs, self.size)))
        ages = np.concatenate(
            [np.array(group.ages or (0.0,) * group.count) for group in course.groups]
        )
        recorded = np.concatenate(
            [np.array(group.ready_in or (-1.0,) * group.count) for group in course.groups]
        )
        on_its_way = np.maximum(recorded - self.join - self.usable / course.rate, 0.0)
        running = np.where(
            ages > 0, -ages * _HOUR / course.rate, np.where(recorded >= 0, on_its_way, running)
        )
        return running, np.where(recorded >= 0, recorded, ready)

    def _start(
        self, course: Course, random: np.random.Generator, requested: Array
    ) -> tuple[Array, Array]:
        mean = np.maximum(self.running + self.usable, 1e-9)
        stretch = np.maximum(1 + random.normal(size=requested.shape) * self.deviation / mean, 0.5)
        running = requested + self.running * stretch / course.rate
        return running, running + self.usable * stretch / course.rate + self.join

    def _lifetimes(
        self, course: Course, random: np.random.Generator, ages: Array, waves: float
    ) -> Array:
        found = np.full(ages.shape, np.inf)
        start = 0
        for group in course.groups:
            part = slice(start, start + group.count)
            if group.lifetimes is not None:
                chosen = ages[:, part]
                shares = 1 - random.random(chosen.shape)
                if waves and group.count > 1:
                    common = 1 - random.random((len(chosen), 1))
                    shares = np.where(random.random(chosen.shape) < waves, common, shares)
                found[:, part] = group.lifetimes.quantile(shares, chosen)
            start += group.count
        return found


def _hourly(course: Course, random: np.random.Generator, runs: int) -> Array:
    """Return dollars per hour of each worker in each course, of shape (runs, places).

    Prices vary by their possible change since they were listed; the mean is the list price.
    """
    listed = np.repeat(
        [group.hourly for group in course.groups], [group.count for group in course.groups]
    )
    errors = np.repeat(
        [group.price_error for group in course.groups], [group.count for group in course.groups]
    )
    if not errors.any():
        return np.broadcast_to(listed, (runs, len(listed)))
    luck = random.normal(size=(runs, 1))
    return listed * np.exp(errors * luck - errors**2 / 2)


def _simulate(
    course: Course, fleet: _Fleet, random: np.random.Generator, lost: Array | None
) -> Outcome:
    runs = len(fleet.speed)
    finish = np.full(runs, np.inf)
    dollars = np.zeros(runs)
    revoked = np.zeros(runs)
    lasted = np.zeros(runs)
    generations = fleet.generations(course, random, runs, lost)
    chain: list[_Generation] = []
    # Courses that end after the last known generation of their VMs.
    open_runs = np.arange(runs)
    length = 2
    over = False
    while len(open_runs) and not over:
        while len(chain) < length:
            if (following := next(generations, None)) is None:
                over = True
                break
            chain.append(following)
        running, ready, end = (
            np.stack([getattr(generation, name)[open_runs] for generation in chain], axis=2)
            for name in ("running", "ready", "end")
        )
        found = _finish(
            course,
            fleet.speed[open_runs],
            fleet.limit[open_runs],
            fleet.steps[open_runs],
            ready,
            end,
        )
        if course.replace and not over:
            known_until = end[:, :, -1].min(axis=1)
        else:
            known_until = np.full(len(open_runs), np.inf)
        if length < _MOST_GENERATIONS:
            settled = found <= known_until
        else:
            settled = np.ones(len(open_runs), dtype=bool)
        at = open_runs[settled]
        finish[at] = found[settled]
        used = np.maximum(
            np.minimum(end, found[:, np.newaxis, np.newaxis]) - np.maximum(ready, 0.0), 0.0
        )[settled]
        lasted[at] = np.where(np.isfinite(found), found, end.max(axis=(1, 2)))[settled]
        dollars[at] = _bill(
            course, fleet, at, lasted[at], running[settled], ready[settled], end[settled], used
        )
        revoked[at] = (end[settled] < found[settled, np.newaxis, np.newaxis]).sum(axis=(1, 2))
        open_runs = open_runs[~settled]
        length *= 2
    return Outcome(finish / _HOUR, course.spent + dollars, revoked, lasted / _HOUR)


def _finish(
    course: Course, speed: Array, limit: Array, steps: Array, ready: Array, end: Array
) -> Array:
    """Return the seconds until the steps are made, one per run; infinite where they never are."""
    times = np.concatenate([ready, end], axis=2).reshape(len(speed), -1)
    order = np.argsort(times, axis=1)
    times = np.maximum(np.take_along_axis(times, order, axis=1), 0.0)
    pace = (_pace_together if course.synchronous else _pace)(
        course, speed, limit, ready.shape[2], order
    )
    spans = np.diff(times, axis=1, append=_FAR)
    done = np.cumsum(pace * spans, axis=1)
    last = np.argmax(done >= steps[:, np.newaxis], axis=1)[:, np.newaxis]
    at, before, then = (
        np.take_along_axis(values, last, axis=1)[:, 0]
        for values in (times, done - pace * spans, pace)
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        finish = at + (steps - before) / then
    return np.where(done[:, -1] >= steps, finish, np.inf)


def _pace(
    course: Course, speed: Array, limit: Array, generations: int, order: NDArray[np.intp]
) -> Array:
    """Return steps per second from each event on, of workers with independent steps."""
    change = np.repeat(speed[:, :, np.newaxis], generations, axis=2)
    changes = np.concatenate([change, -change], axis=2).reshape(len(speed), -1)
    offered = np.cumsum(np.take_along_axis(changes, order, axis=1), axis=1)
    # The remainder of sums that cancel out.
    offered[offered < 1e-9] = 0.0
    return cluster_speed(offered, limit[:, np.newaxis], course.sharpness)


def _pace_together(
    course: Course, speed: Array, limit: Array, generations: int, order: NDArray[np.intp]
) -> Array:
    """Return steps per second from each event on, of workers that take their steps together."""
    sizes = [group.count for group in course.groups]
    place = order // (2 * generations)
    change = np.where(order % (2 * generations) < generations, 1, -1)
    kind = np.repeat(np.arange(len(sizes)), sizes)[place]
    counts = np.stack(
        [
            np.cumsum(np.where(kind == group_index, change, 0), axis=1)
            for group_index in range(len(sizes))
        ],
        axis=2,
    )
    speeds = speed[:, np.newaxis, np.cumsum([0, *sizes[:-1]])]
    return synchronous_speed(speeds, counts, course.backup_workers, limit[:, np.newaxis])


def _bill(
    course: Course,
    fleet: _Fleet,
    runs: NDArray[np.intp],
    finish: Array,
    running: Array,
    ready: Array,
    end: Array,
    used: Array,
) -> Array:
    """Return the dollars of each run that ends at `finish`.

    `used` is the seconds for which each VM took steps. A VM is billed for at least a minute, and
    not at all if it is preempted in its first minute.
    """
    until = np.minimum(end, finish[:, np.newaxis, np.newaxis])
    if course.from_ready:
        begin = ready - fleet.join[:, np.newaxis]
    else:
        begin = running
    rented = np.maximum(until - np.maximum(begin, 0.0), 0.0)
    if course.from_first_step or course.from_ready:
        minute = 0.0
    else:
        minute = _MINUTE / course.rate
    rented = np.where((rented > 0) & (running >= 0), np.maximum(rented, minute), rented)
    rented[(end <= finish[:, np.newaxis, np.newaxis]) & (end - running < minute)] = 0.0
    vms = (rented.sum(axis=2) * fleet.hourly[runs]).sum(axis=1) / _HOUR * course.rate
    if course.from_first_step or course.spent:
        begun = 0.0
    else:
        begun = course.server_startup.running / course.rate
    servers = (
        course.servers
        * course.server_hourly
        * np.maximum(finish - begun, 0.0)
        / _HOUR
        * course.rate
    )
    if not fleet.transfer.any():
        return vms + servers
    took_steps = used.sum(axis=2)
    made = took_steps * fleet.speed[runs]
    # Asynchronous steps are divided among workers; all present workers take part in synchronous
    # ones.
    if course.synchronous:
        whole = finish[:, np.newaxis]
    else:
        whole = made.sum(axis=1, keepdims=True)
    shares = np.divide(
        took_steps if course.synchronous else made, whole, out=np.zeros_like(made), where=whole > 0
    )
    return vms + servers + fleet.steps[runs] * (shares * fleet.transfer).sum(axis=1)
