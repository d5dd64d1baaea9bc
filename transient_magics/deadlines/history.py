"""Read the blocks of a run's progress: the speed of each set of workers, and how far it may be off. Pure.

How much faster some workers are than others does not change. The level of all speeds does: what is measured of it
counts half as much an hour later, and where the last 15 minutes or more differ from what was before by more than chance
explains, they alone say what it is.

A mean speed may be off, because speeds drift with time and VMs differ from each other. The logarithm of the speed is a
stationary AR(1) process about its mean. Its standard deviation is unknown, and its correlation time is one of `TIMES`:
the marginal likelihood of each, given block means of `BLOCK` seconds and more, weighs them (conjugate
scaled-inverse-chi-squared prior on the variance, flat prior on the mean; Gelman et al., Bayesian Data Analysis, 3rd
ed., 3.3). Each VM has an effect of its own, which a change of VMs shows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import NamedTuple

from ..journal.deadlines import Block
from ..protocol.machines import parse_machines

_HALF_LIFE = 3600.0  # seconds until what is measured counts half
_RECENT, _LONGEST = 900.0, 5400.0  # seconds since a change for which the speed is tested
_CHANGED = 3.0  # standard deviations by which the recent speed differs where it has changed
_LEAST_CREW = 300.0  # seconds that workers must have been together to be compared with others


class Point(NamedTuple):
    """The measurements of one set of workers: steps per second, for how many seconds, how many VMs took part, and how
    many of these were new to the run."""

    workers: Mapping[str, int]
    speed: float
    seconds: float
    vms: int
    fresh: int = 0


def history(blocks: Sequence[Block], rate: float = 1.0) -> tuple[list[Point], Noise]:
    """The measured sets of workers, and the noise of their speed; blocks are those of the run, oldest first.

    The cloud's clock outpaces that of the blocks `rate` times: hours and minutes are those of the cloud.
    """
    blocks = [block for block in blocks if block.steps > 0]  # else these workers have made no step yet
    if not blocks:
        return [], measured((), ())
    last = blocks[-1].at
    since = [(last - block.at + block.seconds) * rate for block in blocks]
    latest = max(sum(each > _RECENT for each in since), 1 if len(blocks) > 1 else 0)
    earliest = min(max(sum(each > _LONGEST for each in since), 1), latest)
    splits = [_split(tuple(blocks[:place]), blocks[place:], last, rate) for place in range(latest, earliest - 1, -1)]
    split = max(splits, key=lambda each: each.chance)
    if split.chance > _CHANGED**2:
        level, seconds = split.after, split.after_seconds
    else:
        split = splits[0]
        seconds = split.before_seconds + split.after_seconds
        total = split.before * split.before_seconds + split.after * split.after_seconds
        level = total / seconds if seconds else 0.0
    noise, sizes = split.noise, split.sizes
    new = blocks[split.place :]
    found = {
        name: point._replace(speed=point.speed * math.exp(level), seconds=min(point.seconds, seconds))
        for name, point in sizes.items()
    }
    for name, point in _sizes(new).items():
        found[name] = found[name]._replace(vms=found[name].vms + point.fresh) if name in found else point
    return list(found.values()), noise


class _Split(NamedTuple):
    """Blocks before and after a moment, at the place of the first one after it: mean deviations from the sizes measured
    before, of how many seconds they are, and the square of the difference in standard deviations."""

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
            found[block.machines] = Point(workers, speed, block.seconds, sum(workers.values()), block.fresh)
        else:
            total = point.seconds + block.seconds
            speed = (point.speed * point.seconds + block.steps) / total
            found[block.machines] = Point(
                point.workers, speed, total, point.vms + block.fresh, point.fresh + block.fresh
            )
    return found


def _weight(at: float, last: float, rate: float) -> float:
    """How much a second of a block that ended at this moment counts, beside one of the last block."""
    return 2 ** min((at - last) * rate / _HALF_LIFE, 0.0)


def _level(blocks: Sequence[Block], sizes: Mapping[str, Point], last: float, rate: float) -> tuple[float, float]:
    """The mean deviation of these blocks, and of how many seconds it is; what is older counts less."""
    seconds = deviations = 0.0
    for block in blocks:
        if block.machines in sizes:
            counts = block.seconds * _weight(block.at, last, rate)
            seconds += counts
            deviations += counts * _deviation(block, sizes)
    return (deviations / seconds if seconds else 0.0), seconds


@lru_cache(maxsize=256)
def _before(blocks: tuple[Block, ...], rate: float) -> tuple[Noise, Mapping[str, Point], float, float]:
    """Return noise, sizes, level and seconds of blocks that do not change any more."""
    if not blocks:
        return measured((), ()), {}, 0.0, 0.0
    sizes = _sizes(blocks)
    return _noise(blocks, sizes, rate), sizes, *_level(blocks, sizes, blocks[-1].at, rate)


def _noise(blocks: Sequence[Block], sizes: Mapping[str, Point], rate: float) -> Noise:
    """The noise of the speed about the mean of each set of workers."""
    deviations: list[Deviation] = []
    crews: list[_Crew] = []
    for block in blocks:
        value = _deviation(block, sizes)
        deviations.append(Deviation(block.at * rate, block.seconds * rate, value))
        vms = sum(sizes[block.machines].workers.values())
        if not crews or block.fresh or vms != crews[-1].vms:
            crews.append(_Crew(vms, block.fresh, 0.0, 0.0))
        crew = crews[-1]
        crews[-1] = crew._replace(seconds=crew.seconds + block.seconds, sum=crew.sum + block.seconds * value)
    changes: list[tuple[float, float]] = []
    before, fresh = crews[0], 0
    for crew in crews[1:]:
        fresh += crew.fresh
        if min(crew.seconds, before.seconds) * rate >= _LEAST_CREW and fresh:
            difference = crew.sum / crew.seconds - before.sum / before.seconds
            changes.append((difference, _change(before.vms, crew.vms, min(fresh, crew.vms))))
        if crew.seconds * rate >= _LEAST_CREW:
            before, fresh = crew, 0
    return measured(deviations, changes)


class _Crew(NamedTuple):
    """A row of blocks with the same VMs: how many, how many of them new, and the sum of seconds times deviations."""

    vms: int
    fresh: int
    seconds: float
    sum: float


def _change(before: int, vms: int, fresh: int) -> float:
    """Variance of the difference that a change makes to a mean over VMs, where that of a VM's effect is 1."""
    kept = min(vms - fresh, before)
    gone = before - kept
    return fresh / vms**2 + gone / before**2 + kept * (1 / vms - 1 / before) ** 2


def _deviation(block: Block, sizes: Mapping[str, Point]) -> float:
    return math.log(block.steps / block.seconds / sizes[block.machines].speed)


BLOCK = 600.0
"""Seconds of a block at least: shorter ones say little of what lasts."""
TIMES = (30.0, 600.0, 1800.0, 7200.0)
"""Correlation times in seconds."""
USUAL = 0.034
"""Standard deviation before anything is measured, of either kind; ICAC'19's runs of one cluster differ by 1.3 to
5.8 %."""
_SURE = 5.0
"""Observations that count as much as `USUAL` does."""


class Deviation(NamedTuple):
    """A block: its end and length in seconds, and the deviation of its logarithmic speed."""

    at: float
    seconds: float
    value: float


@dataclass(frozen=True, slots=True)
class Noise:
    """`between`: standard deviation of VMs' effects; `disturbances`: correlation time, weight and variance."""

    between: float
    disturbances: tuple[tuple[float, float, float], ...]

    def variance(self, seconds: float) -> float:
        """Variance of a mean over `seconds` about the long-term mean."""
        return sum(weight * variance * averaged(seconds, time) for time, weight, variance in self.disturbances)

    def ahead(self, seconds: float, rest: float) -> float:
        """Variance of the difference between the mean of the next `rest` seconds and that of the `seconds` before."""
        if math.isinf(rest):
            return self.variance(seconds)
        found = 0.0
        for time, weight, variance in self.disturbances:
            together = adjacent(seconds / time, rest / time)
            found += weight * variance * (averaged(seconds, time) + averaged(rest, time) - 2 * together)
        return found


def averaged(seconds: float, time: float) -> float:
    """Variance of the mean of an AR(1) process over `seconds`, in that of a moment: 2 (x - 1 + exp(-x)) / x^2
    for x in correlation times."""
    x = seconds / time
    return 1 - x / 3 if x < 1e-3 else 2 * (x + math.expm1(-x)) / (x * x)


def adjacent(before: float, after: float) -> float:
    """Covariance of the means of an AR(1) process over two adjacent stretches, in its variance; lengths in correlation
    times."""
    return math.expm1(-before) * math.expm1(-after) / (before * after)


def measured(blocks: Sequence[Deviation], changes: Sequence[tuple[float, float]]) -> Noise:
    """The noise that these blocks show, oldest first.

    `changes` of VMs: the difference of the logarithmic speed, and its variance where that of a VM is 1.
    """
    found: list[tuple[float, float, float]] = []
    for time in TIMES:
        determinant = ones = both = squares = 0.0
        before: Deviation | None = None
        for block in blocks:
            variance, correlation = _averaged(round(block.seconds), time), 0.0
            if before is not None:
                gap = max(block.at - block.seconds - before.at, 0.0)
                correlation = _correlation(round(before.seconds), round(block.seconds), time) * math.exp(-gap / time)
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
        likelihood = -0.5 * (determinant + (math.log(ones) if ones else 0.0) + (_SURE + count) * math.log(total))
        found.append((time, likelihood, total / (_SURE + count)))
    most = max(likelihood for _, likelihood, _ in found)
    weights = [math.exp(likelihood - most) for _, likelihood, _ in found]
    all_ = sum(weights)
    disturbances = tuple(
        (time, weight / all_, variance) for (time, _, variance), weight in zip(found, weights, strict=True)
    )
    # A change of one VM among many shows little of what a VM differs by: it counts as much less than one observation.
    counts = [(min(variance, 1.0), difference**2 / variance) for difference, variance in changes]
    between = _SURE * USUAL**2 + sum(weight * square for weight, square in counts)
    return Noise(math.sqrt(between / (_SURE + sum(weight for weight, _ in counts))), disturbances)


@cache
def _averaged(seconds: int, time: float) -> float:
    return averaged(max(seconds, 1), time)


@cache
def _correlation(before: int, after: int, time: float) -> float:
    """Between the means of two adjacent blocks."""
    covariance = adjacent(max(before, 1) / time, max(after, 1) / time)
    return covariance / math.sqrt(_averaged(before, time) * _averaged(after, time))
