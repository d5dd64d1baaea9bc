"""The time until a running bag has all of its results: its jobs and VMs simulated from now on. All
times in hours.

Each course draws what running jobs still take, what each further job takes and how long each VM
lives, and gives every job to the VM that is free first, as the policies nearly do. All courses
advance together, an attempt at a time, so that a panel can afford it: `simulate` plans a bag event
by event.

Running jobs are not like finished ones: at first only the short ones have finished. So what they
take in all is drawn from a normal distribution of the logarithm, fitted to finished and running
jobs (Tobin 1958), above what they have taken. Further jobs are drawn from all of these together
with random weights (D. B. Rubin, "The Bayesian bootstrap", Annals of Statistics 9, 1981), so that
the error of their mean counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

LEAST_FINISHED = 3
MOST_HOURS = 24.0 * 365
_ROUNDS = 30
_LEAST_SPREAD = 1e-3
_MOST_OFF = 1.0
"""Of the logarithm of the deviation: three jobs show little of it, and simulated jobs would never
end.
"""
_USUAL_LIFE = 25.0
"""Mean hours that a Spot VM lives: with this prior, worth one revocation, those of the bag's own
VMs count. Of the VMs that were published in 2019 a third to a half lived for 24 hours.
"""
_Array = NDArray[np.float64]


@dataclass(frozen=True)
class Progress:
    """A bag under way.

    Attributes
    ----------
    left : int
        Results that it still needs.
    waiting : int
        Jobs that may still begin, those that are not waited for among them.
    finished : tuple of float
        What each finished job took, in hours.
    running : tuple of float
        What each running job has taken so far, in hours.
    vms : int
        VMs that work on it, those that are being replaced among them.
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
    """Hours from now until all results are there, for each course; of LEAST_FINISHED jobs at least."""
    random = np.random.default_rng(seed)
    running = _running(bag, random, courses)
    further = _further(bag, running, random, courses)
    if bag.revocable:
        rate = random.gamma(1 + bag.lost, 1 / (_USUAL_LIFE + bag.watched), courses)
    else:
        rate = np.zeros(courses)
    return scheduled(bag, running, further, rate, random)


def middle(hours: _Array, level: float = 0.9) -> tuple[float, float, float]:
    """The middle `level` of courses, and their median: low end, median, high end.

    One more course lies between the ends with that probability, also of few (Weibull's plotting
    positions).
    """
    low, median, high = np.quantile(
        hours, [(1 - level) / 2, 0.5, (1 + level) / 2], method="weibull"
    )
    return float(low), float(median), float(high)


def _running(bag: Progress, random: np.random.Generator, courses: int) -> _Array:
    """The whole time of each running job. Shape (courses, running)."""
    finished = np.log(bag.finished)
    elapsed = np.log(np.maximum(bag.running, 1e-6))
    mean, deviation = _fitted(finished, elapsed)
    # Both parameters vary as a normal distribution by the information that the jobs give, and as t
    # of so few.
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
    """The observed information on the mean and the logarithm of the deviation of normal values, of
    which those of running jobs lie above `elapsed`. Shape (2, 2).
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
    """Density over upper tail of the standard normal distribution."""
    return np.exp(-(beyond**2) / 2 - special.log_ndtr(-beyond)) / (2 * np.pi) ** 0.5


def _fitted(finished: _Array, elapsed: _Array) -> tuple[float, float]:
    """Mean and deviation of the logarithms, of which those of running jobs lie above `elapsed`."""
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
    """The time of each further job. Shape (courses, waiting)."""
    finished = np.broadcast_to(np.array(bag.finished), (courses, len(bag.finished)))
    sample = np.hstack([finished, running])
    many = sample.shape[1]
    freedom = len(bag.finished) - 1
    weights = np.cumsum(random.gamma(1.0, size=sample.shape), axis=1)
    weights /= weights[:, -1:]
    shares = random.random((courses, bag.waiting))
    places = np.stack([np.searchsorted(*pair) for pair in zip(weights, shares, strict=True)])
    drawn = np.take_along_axis(sample, np.minimum(places, many - 1), axis=1)
    # The weighted mean varies less than Student's t does of so few.
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
    """Hours until `bag.left` results are there, in each course; MOST_HOURS where they never are.

    Parameters
    ----------
    running : (courses, running) array
        What each running job takes in all, in hours.
    further : (courses, waiting) array
        What each further job takes, in hours.
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
        """A job on one VM of each course; where `begins` is infinite there is none."""
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
