"""Measured speeds of a run's workers, and lower bounds of speeds. Pure.

Many workers wait for a parameter server, so a speed grows less than the number of workers: it is
concave. This gives a lower bound without a model: for fewer workers than measured their share of
the measured speed, for more workers the measured speed itself. The mean lies on straight lines
between no worker and the measured sizes, because only many workers wait for servers. Beyond the
largest size a step takes a/m + c seconds; m is the sum of the workers' speeds, c the parameter
servers' part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise
from operator import itemgetter
from statistics import NormalDist
from typing import NamedTuple

from ..catalog import accelerator
from ..journal.deadlines import Block
from ..protocol.machines import parse_machines

Counts = Mapping[str, int]
"""Workers by GPU."""
LEAST_ERROR = 0.02
"""The smallest error of a speed, however long it was measured: no run is steadier for hours."""
_FEW = 25.0  # seconds of one size that count as much as all other sizes
# The error in the first seconds: first quarters of CM-DARE's runs are 8 % off.
_YOUNG_ERROR = 0.1
_YOUNG = 5.0

_HALF_LIFE = 3600.0  # seconds after which a measurement counts half
# Seconds after a possible change for which the speed is tested.
_RECENT = 900.0
_LONGEST = 5400.0
_CHANGED = 3.0  # standard deviations between recent and earlier speed that show a change
_LEAST_CREW = 300.0  # seconds that workers must train together to be compared with others


class Speeds:
    """The speed of a run's workers, from the blocks of its progress.

    Parameters
    ----------
    blocks : sequence of Block
        Oldest first.
    confidence : float
        Confidence of the lower bounds, between 0.5 and 1.
    alike : bool
        Whether GPUs make no difference, as on the emulator.
    rate : float
        Seconds of the cloud's clock per second of the blocks' clock.
    """

    def __init__(
        self, blocks: Sequence[Block], confidence: float, *, alike: bool = False, rate: float = 1.0
    ) -> None:
        self._alike = alike
        self._deviations = NormalDist().inv_cdf(confidence)
        self._points, self._noise = history(tuple(blocks), rate)
        self._sums = [self._added(point.workers) for point in self._points]
        self._fixed, self._shared = self._fitted([point.seconds for point in self._points])
        self._line = [(0.0, 0.0)]
        for sum_, point in sorted(zip(self._sums, self._points, strict=True), key=itemgetter(0)):
            if sum_ > self._line[-1][0]:
                few = _FEW / rate
                speed = (point.seconds * point.speed + few * self._fit(sum_)) / (
                    point.seconds + few
                )
                self._line.append((sum_, speed))
        self._means: dict[float, float] = {}
        self._leasts: dict[tuple[tuple[str, int], ...], float] = {}
        self._rate = rate
        self._factor = 1.0
        self._servers = 0.0  # their share of a step of the smallest measured size
        self._own = [
            self._noise.variance(point.seconds * rate) + self._young(point)
            for point in self._points
        ]

    @property
    def is_measured(self) -> bool:
        """Whether anything was measured."""
        return bool(self._points)

    def error(self, workers: Counts) -> float:
        """Return the standard deviation of the logarithmic speed of such workers on other VMs.

        It holds for the rest of the run.
        """
        if not self._points:
            return 1.0
        vms = max(sum(workers.values()), 1)
        own = min(
            own + self._noise.between**2 * (1 / point.vms + 1 / vms)
            for own, point in zip(self._own, self._points, strict=True)
        )
        return max(math.sqrt(own), LEAST_ERROR)

    def drift(self, rest: float = math.inf) -> float:
        """Return the standard deviation of the measured VMs' logarithmic speed in `rest` seconds."""
        if not self._points:
            return 1.0
        point = self._surest
        ahead = self._noise.ahead(point.seconds * self._rate, rest * self._rate)
        return max(math.sqrt(ahead + self._young(point)), LEAST_ERROR)

    @property
    def vms(self) -> int:
        """The number of VMs behind the surest measurement."""
        return self._surest.vms if self._points else 0

    @property
    def _surest(self) -> Point:
        return self._points[min(range(len(self._points)), key=self._own.__getitem__)]

    @property
    def differ(self) -> float:
        """The standard deviation of VMs' logarithmic speeds."""
        return self._noise.between

    def scaled(self, factor: float, slowdown: float = 0.0) -> Speeds:
        """Return these speeds times `factor`.

        Parameters
        ----------
        factor
            Factor of all speeds.
        slowdown
            The share by which each worker beyond the smallest measured size prolongs the steps of
            the others. It determines the speed of fewer workers and, if no other size was measured,
            of more.
        """
        found = copy(self)
        found._factor = self._factor * factor
        if slowdown:
            _, smallest = min(zip(self._sums, self._points, strict=True), key=itemgetter(0))
            fewest = sum(smallest.workers.values())
            found._servers = slowdown * fewest / (1 - slowdown + slowdown * fewest)
        found._means = {}
        found._leasts = {}
        return found

    def has(self, workers: Counts) -> bool:
        """Return whether exactly these workers were measured."""
        return any(point.workers == workers for point in self._points)

    def mean(self, workers: Counts) -> float:
        """Return the steps per second of these workers together; 0 without measurements."""
        added = self._added(workers)
        if not added or not self._points:
            return 0.0
        if added not in self._means:  # a decision asks for the same sizes many times
            self._means[added] = self._factor * self._on_line(added)
        return self._means[added]

    def _on_line(self, added: float) -> float:
        least, slowest = self._line[1]
        if added <= least or len(self._line) == 2:
            return slowest / ((1 - self._servers) * least / added + self._servers)
        for (before, slower), (after, faster) in pairwise(self._line):
            if added <= after:
                return slower + (faster - slower) * (added - before) / (after - before)
        most, speed = self._line[-1]
        return speed * self._fit(added) / self._fit(most)

    def least(self, workers: Counts) -> float:
        """Return the lower bound of their steps per second. GPUs that never trained count nothing."""
        key = tuple(workers.items())
        if key not in self._leasts:
            self._leasts[key] = self._factor * self._least(workers)
        return self._leasts[key]

    def _least(self, workers: Counts) -> float:
        added = self._added(workers)
        vms = max(sum(workers.values()), 1)
        bounds = (
            point.speed
            * min(1.0, added / sum_)
            * self._lower(own + self._noise.between**2 * (1 / point.vms + 1 / vms))
            for point, own, sum_ in zip(self._points, self._own, self._sums, strict=True)
            if self._alike or all(point.workers.get(gpu) for gpu in workers)
        )
        return max(bounds, default=0.0)

    def likely(self, workers: Counts) -> float:
        """Return the lower bound if the expected step time is right, measured or not."""
        return self.mean(workers) * math.exp(-self._deviations * self.error(workers))

    def _lower(self, variance: float) -> float:
        return math.exp(-self._deviations * max(math.sqrt(variance), LEAST_ERROR))

    def _young(self, point: Point) -> float:
        return _YOUNG_ERROR**2 / (1 + point.seconds * self._rate / _YOUNG)

    def _added(self, workers: Counts) -> float:
        """Return the sum of their speeds, in units of a CPU worker or of a teraflop per second."""
        added = 0.0
        # Not a generator: simulated courses spend most of their time here.
        for gpu, count in workers.items():
            added += count if self._alike else count * _power(gpu)
        return added

    def _fit(self, added: float) -> float:
        return 1 / (self._shared / added + self._fixed)

    def _fitted(self, lasted: list[float]) -> tuple[float, float]:
        """Return the constant and the shared part of a step, in seconds.

        Least squares; each point counts by its seconds. One size of cluster does not separate the
        two: then all is shared.
        """
        xs = [1 / total for total in self._sums]
        ys = [1 / point.speed for point in self._points]
        if not xs:
            return 0.0, 0.0
        x = _mean(xs, lasted)
        y = _mean(ys, lasted)
        spread = _mean([(value - x) ** 2 for value in xs], lasted)
        both = _mean([(a - x) * (b - y) for a, b in zip(xs, ys, strict=True)], lasted)
        slope = y / x
        if spread > 1e-12 * x * x:
            slope = both / spread
        slope = min(max(slope, 0.0), y / x)
        return y - slope * x, slope


def _mean(values: list[float], weights: list[float]) -> float:
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / sum(weights)


@cache
def _power(gpu: str) -> float:
    return (accelerator(gpu).teraflops if gpu != "cpu" else 0.0) or 1.0


# From the blocks of a run's progress to the speed of each set of workers, and its error. Pure.
#
# The ratio of speeds of different workers is constant. The level of all speeds changes: a
# measurement counts half an hour later. If the last 15 minutes or more differ from the time before
# by more than chance explains, they alone determine the level.
#
# A mean speed has an error, because speeds drift with time and VMs differ from each other. The
# logarithm of the speed is a stationary AR(1) process about its mean. Its standard deviation is
# unknown, and its correlation time is one of `TIMES`. These are weighed by their marginal
# likelihood, given block means of `BLOCK` seconds and more (conjugate scaled-inverse-chi-squared
# prior on the variance, flat prior on the mean; Gelman et al., Bayesian Data Analysis, 3rd ed.,
# 3.3). Each VM has an effect of its own, which a change of VMs shows.


class Point(NamedTuple):
    """The measurements of one set of workers.

    Attributes
    ----------
    workers
        By GPU.
    speed
        Steps per second.
    seconds
        Length of the measurements.
    vms, fresh
        Number of VMs that took part, and how many of them were new to the run.
    """

    workers: Mapping[str, int]
    speed: float
    seconds: float
    vms: int
    fresh: int = 0


def history(blocks: Sequence[Block], rate: float = 1.0) -> tuple[list[Point], Noise]:
    """Return the measured sets of workers, and the noise of their speed.

    Parameters
    ----------
    blocks
        The blocks of the run, oldest first.
    rate
        Seconds of the cloud's clock per second of the blocks' clock. All hours and minutes are of
        the cloud's clock.
    """
    # Workers of the other blocks have made no step yet.
    blocks = [block for block in blocks if block.steps > 0]
    if not blocks:
        return [], measured((), ())
    last = blocks[-1].at
    since = [(last - block.at + block.seconds) * rate for block in blocks]
    latest = max(sum(seconds > _RECENT for seconds in since), 1 if len(blocks) > 1 else 0)
    earliest = min(max(sum(seconds > _LONGEST for seconds in since), 1), latest)
    splits = [
        _split(tuple(blocks[:place]), blocks[place:], last, rate)
        for place in range(latest, earliest - 1, -1)
    ]
    split = max(splits, key=lambda split: split.chance)
    if split.chance > _CHANGED**2:
        level = split.after
        seconds = split.after_seconds
    else:
        split = splits[0]
        seconds = split.before_seconds + split.after_seconds
        total = split.before * split.before_seconds + split.after * split.after_seconds
        level = 0.0
        if seconds:
            level = total / seconds
    noise = split.noise
    sizes = split.sizes
    new = blocks[split.place :]
    found = {
        name: point._replace(
            speed=point.speed * math.exp(level), seconds=min(point.seconds, seconds)
        )
        for name, point in sizes.items()
    }
    for name, point in _sizes(new).items():
        if name in found:
            found[name] = found[name]._replace(vms=found[name].vms + point.fresh)
        else:
            found[name] = point
    return list(found.values()), noise


@dataclass(frozen=True, slots=True)
class Noise:
    """Noise of speeds.

    Attributes
    ----------
    between
        Standard deviation of VMs' effects.
    disturbances
        Correlation time (seconds), weight and variance of each.
    """

    between: float
    disturbances: tuple[tuple[float, float, float], ...]

    def variance(self, seconds: float) -> float:
        """Return the variance of a mean over `seconds` about the long-term mean."""
        return sum(
            weight * variance * averaged(seconds, time)
            for time, weight, variance in self.disturbances
        )

    def ahead(self, seconds: float, rest: float) -> float:
        """Return the variance of the mean of the next `rest` seconds minus that of the `seconds` before."""
        if math.isinf(rest):
            return self.variance(seconds)
        found = 0.0
        for time, weight, variance in self.disturbances:
            together = adjacent(seconds / time, rest / time)
            found += (
                weight * variance * (averaged(seconds, time) + averaged(rest, time) - 2 * together)
            )
        return found


class _Split(NamedTuple):
    """Blocks before and after the block at `place`.

    `before` and `after` are mean deviations from the sizes measured before, with their seconds;
    `chance` is the square of their difference in standard deviations.
    """

    place: int
    noise: Noise
    sizes: Mapping[str, Point]
    before: float
    before_seconds: float
    after: float
    after_seconds: float
    chance: float


def _split(old: tuple[Block, ...], new: Sequence[Block], last: float, rate: float) -> _Split:
    noise, sizes, level, seconds = _before(old, rate)
    seconds *= _weight(old[-1].at, last, rate) if old else 1.0
    recent, recent_seconds = _level(new, sizes, last, rate)
    chance = 0.0
    if recent_seconds * rate >= _RECENT / 2:
        vms = sum(parse_machines(new[-1].machines).values())
        fresh = min(sum(block.fresh for block in new), vms)
        variance = noise.variance(recent_seconds * rate) + noise.variance(seconds * rate)
        chance = (recent - level) ** 2 / (variance + noise.between**2 * _change(vms, vms, fresh))
    return _Split(len(old), noise, sizes, level, seconds, recent, recent_seconds, chance)


def _sizes(blocks: Sequence[Block]) -> dict[str, Point]:
    """Return the measurements in these blocks, by machines."""
    found: dict[str, Point] = {}
    for block in blocks:
        point = found.get(block.machines)
        if point is None:
            workers = parse_machines(block.machines)
            speed = block.steps / block.seconds
            found[block.machines] = Point(
                workers, speed, block.seconds, sum(workers.values()), block.fresh
            )
        else:
            total = point.seconds + block.seconds
            speed = (point.speed * point.seconds + block.steps) / total
            found[block.machines] = Point(
                point.workers, speed, total, point.vms + block.fresh, point.fresh + block.fresh
            )
    return found


def _weight(at: float, last: float, rate: float) -> float:
    """Return the weight of a second of a block that ended at this moment (the last block: 1)."""
    return 2 ** min((at - last) * rate / _HALF_LIFE, 0.0)


def _level(
    blocks: Sequence[Block], sizes: Mapping[str, Point], last: float, rate: float
) -> tuple[float, float]:
    """Return the mean deviation of these blocks and its seconds; older blocks count less."""
    seconds = deviations = 0.0
    for block in blocks:
        if block.machines in sizes:
            weighted = block.seconds * _weight(block.at, last, rate)
            seconds += weighted
            deviations += weighted * _deviation(block, sizes)
    if not seconds:
        return 0.0, seconds
    return deviations / seconds, seconds


@lru_cache(maxsize=256)
def _before(
    blocks: tuple[Block, ...], rate: float
) -> tuple[Noise, Mapping[str, Point], float, float]:
    """Return noise, sizes, level and seconds of complete blocks."""
    if not blocks:
        return measured((), ()), {}, 0.0, 0.0
    sizes = _sizes(blocks)
    return _noise(blocks, sizes, rate), sizes, *_level(blocks, sizes, blocks[-1].at, rate)


def _noise(blocks: Sequence[Block], sizes: Mapping[str, Point], rate: float) -> Noise:
    """Return the noise of the speed about the mean of each set of workers."""
    deviations: list[Deviation] = []
    crews: list[_Crew] = []
    for block in blocks:
        value = _deviation(block, sizes)
        deviations.append(Deviation(block.at * rate, block.seconds * rate, value))
        vms = sum(sizes[block.machines].workers.values())
        if not crews or block.fresh or vms != crews[-1].vms:
            crews.append(_Crew(vms, block.fresh, 0.0, 0.0))
        crew = crews[-1]
        crews[-1] = crew._replace(
            seconds=crew.seconds + block.seconds, sum=crew.sum + block.seconds * value
        )
    changes: list[tuple[float, float]] = []
    before = crews[0]
    fresh = 0
    for crew in crews[1:]:
        fresh += crew.fresh
        if min(crew.seconds, before.seconds) * rate >= _LEAST_CREW and fresh:
            difference = crew.sum / crew.seconds - before.sum / before.seconds
            changes.append((difference, _change(before.vms, crew.vms, min(fresh, crew.vms))))
        if crew.seconds * rate >= _LEAST_CREW:
            before = crew
            fresh = 0
    return measured(deviations, changes)


class _Crew(NamedTuple):
    """Consecutive blocks with the same VMs.

    `fresh` VMs are new; `sum` adds up seconds times deviations.
    """

    vms: int
    fresh: int
    seconds: float
    sum: float


def _change(before: int, vms: int, fresh: int) -> float:
    """Return the variance that a change of VMs adds to a mean over VMs; a VM's effect has 1."""
    kept = min(vms - fresh, before)
    gone = before - kept
    return fresh / vms**2 + gone / before**2 + kept * (1 / vms - 1 / before) ** 2


def _deviation(block: Block, sizes: Mapping[str, Point]) -> float:
    return math.log(block.steps / block.seconds / sizes[block.machines].speed)


BLOCK = 600.0
"""Shortest block in seconds: shorter ones show little of lasting effects."""

TIMES = (30.0, 600.0, 1800.0, 7200.0)
"""Correlation times in seconds."""

USUAL = 0.034
"""Prior standard deviation of either kind; ICAC'19's runs of one cluster differ by 1.3 to 5.8 %."""

_SURE = 5.0
"""The number of observations that `USUAL` is worth."""


class Deviation(NamedTuple):
    """A block: its end and length in seconds, and the deviation of its logarithmic speed."""

    at: float
    seconds: float
    value: float


def averaged(seconds: float, time: float) -> float:
    """Return the variance of the mean of an AR(1) process over `seconds`; a moment's is 1.

    It is 2 (x - 1 + exp(-x)) / x^2, with x in correlation times (`time`, in seconds).
    """
    x = seconds / time
    if x < 1e-3:
        return 1 - x / 3
    return 2 * (x + math.expm1(-x)) / (x * x)


def adjacent(before: float, after: float) -> float:
    """Return the covariance of means of an AR(1) process over adjacent stretches.

    Lengths are in correlation times; the variance of a moment is 1.
    """
    return math.expm1(-before) * math.expm1(-after) / (before * after)


def measured(blocks: Sequence[Deviation], changes: Sequence[tuple[float, float]]) -> Noise:
    """Return the noise that these blocks show.

    Parameters
    ----------
    blocks
        Oldest first.
    changes
        Of each change of VMs: the difference of the logarithmic speed, and its variance if a VM's
        effect has 1.
    """
    found: list[tuple[float, float, float]] = []
    for time in TIMES:
        determinant = ones = both = squares = 0.0
        before: Deviation | None = None
        for block in blocks:
            variance = _averaged(round(block.seconds), time)
            correlation = 0.0
            if before is not None:
                gap = max(block.at - block.seconds - before.at, 0.0)
                correlation = _correlation(
                    round(before.seconds), round(block.seconds), time
                ) * math.exp(-gap / time)
            rest = variance * (1 - correlation * correlation)
            one = 1 - correlation
            value = block.value - correlation * (before.value if before else 0.0)
            determinant += math.log(rest)
            ones += one * one / rest
            both += one * value / rest
            squares += value * value / rest
            before = block
        count = max(len(blocks) - 1, 0)
        total = _SURE * USUAL**2 + (squares - both * both / ones if ones else 0.0)
        likelihood = -0.5 * (
            determinant + (math.log(ones) if ones else 0.0) + (_SURE + count) * math.log(total)
        )
        found.append((time, likelihood, total / (_SURE + count)))
    most = max(likelihood for _, likelihood, _ in found)
    weights = [math.exp(likelihood - most) for _, likelihood, _ in found]
    all_ = sum(weights)
    disturbances = tuple(
        (time, weight / all_, variance)
        for (time, _, variance), weight in zip(found, weights, strict=True)
    )
    # A change of one VM among many shows little of the differences between VMs: it counts less than
    # an observation.
    counts = [(min(variance, 1.0), difference**2 / variance) for difference, variance in changes]
    between = _SURE * USUAL**2 + sum(weight * square for weight, square in counts)
    return Noise(math.sqrt(between / (_SURE + sum(weight for weight, _ in counts))), disturbances)


@cache
def _averaged(seconds: int, time: float) -> float:
    return averaged(max(seconds, 1), time)


@cache
def _correlation(before: int, after: int, time: float) -> float:
    """Return the correlation of the means of two adjacent blocks."""
    covariance = adjacent(max(before, 1) / time, max(after, 1) / time)
    return covariance / math.sqrt(_averaged(before, time) * _averaged(after, time))
