"""Who gets which mini-batch: unequal workers take unequal numbers of examples, so that their steps
take equally long.

Pure arithmetic: no clock, socket or TensorFlow. Of problems whose batches count tokens (text), an
example here is a token. The global batch B is the declared mini-batch times the most workers that
trained at once (never more than were declared), and the mini-batches of those who train now add up
to it: a leaving worker's share goes to the others, a joining one takes its share from them. Only
bounds stand above that: nobody takes less than the least, more than the most (`Rule`), or more than
it was seen to bear.

`static` divides B in proportion to speeds known beforehand. `dynamic` starts there and measures. A
worker that was seen at one size is assumed to take time in proportion to it, which makes equal
times the published proportional rule (S. Tyagi, P. Sharma, "Taming resource heterogeneity in
distributed ML training with dynamic batching", ACSOS 2020, section 3: size times mean time over own
time) with its sum put right. The rule `proportional` stays with that; with `affine` the fixed part
of a step is known too after two sizes, and one adjustment suffices. A worker's gradient is to be
weighted with `share`, its mini-batch over the mean one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...protocol.run import RunSpec

SMALLEST = 2
"""T2T's resnet squeezes its targets: with one example the batch dimension would vanish."""
LARGEST = 8
"""Times the declared mini-batch; a worker's queue of examples holds as many."""
ENOUGH_STEPS = 10
ENOUGH_LOOKS = 3
"""Steps and observations at its present size after which a worker's time counts as known."""
SIGMAS = 5.0
"""How many standard errors a change must exceed; the worst of many workers is looked at, many
times.
"""
ENOUGH_NOISE = 30
"""Observations after which a worker's own noise counts as known."""
APART = 0.1
"""Two sizes nearer to each other than this (relatively) tell nothing about the fixed part of a
step.
"""
FELL = 0.05
"""The smallest relative loss of throughput that shows that more examples were too many."""
MOST_CORRELATED = 0.98
"""From one observation to the next; what lasts longer is a change of speed."""
MOST_FIXED = 4.0
"""The fixed part of a step is never taken for more than so many times the rest: two noisy times
would say anything.
"""
_NOISE = 0.03
"""The relative noise of an observation, before a worker's own is known."""
_WINDOW = 200
"""Observations over which a worker's noise is averaged."""
_STEPS_PER_SECOND = {"K80": 4.56, "P100": 12.19, "V100": 15.61}
"""As published for ResNet-32."""
_PEAKS = {
    "K80": (4.113, 240),
    "P4": (5.5, 192),
    "T4": (8.1, 320),
    "L4": (30.3, 300),
    "A100": (19.5, 1555),
    "H100": (66.9, 3350),
}
"""Of what nobody published steps: peak in single precision (TFLOPS, as in the catalog, which is not
on VMs) and speed of the memory (GB/s), by NVIDIA's data sheets; of the K80 one of its two chips.

A step of training is bound by the one in part and by the other in part, so speeds are taken to go
with the geometric mean of both. That meets the two that were measured: 2.66 and 3.59 times a K80,
where a P100 (9.5 TFLOPS, 732 GB/s) made
2.67 and a V100 (14.1, 900) 3.42. By the peak alone an L4 came before an A100, whose memory is five times as fast.
"""


def accelerator_speed(accelerator: str) -> float:
    """How many times as fast as a K80 a GPU with this name is: measured, else by its peaks; 1 for
    what is not known.
    """
    return known_speed(accelerator) or 1.0


def known_speed(accelerator: str) -> float:
    """Return how many times as fast as a K80 a GPU with this name is; 0 for a GPU that is not
    known, or none.
    """
    words = re.split(r"[^A-Z0-9]+", accelerator.upper())
    peaks = {name: math.sqrt(teraflops * memory) for name, (teraflops, memory) in _PEAKS.items()}
    for known in (_STEPS_PER_SECOND, peaks):
        for name, speed in known.items():
            if name in words:
                return speed / known["K80"]
    return 0.0


@dataclass(frozen=True, slots=True)
class Rule:
    """How mini-batches follow what is measured.

    `deadband` is the smallest relative change of a mini-batch that is worth making, `smoothing` the
    weight of the newest time in the moving average (EWMA) of a worker's step. Nobody takes less
    than `least` examples, nor more than `most` (0: `SMALLEST`, and `LARGEST` times the declared
    mini-batch). `step_time` is what is assumed of a step: `affine` (a fixed part, and one in
    proportion to its examples) or, as published, `proportional`.
    """

    deadband: float = 0.05
    smoothing: float = 0.3
    least: int = 0
    most: int = 0
    step_time: str = "affine"

    @classmethod
    def of(cls, spec: RunSpec) -> Rule:
        """As the run declares it."""
        return cls(
            spec.deadband, spec.batch_smoothing, spec.batch_least, spec.batch_most, spec.step_time
        )

    def bounds(self, batch: int) -> tuple[int, int]:
        """The least and the most examples of a mini-batch where `batch` was declared."""
        ceiling = LARGEST * batch
        least = min(max(self.least, SMALLEST), ceiling)
        return least, max(least, min(self.most or ceiling, ceiling))


class Cost(NamedTuple):
    """A step of n examples takes `fixed + n * each` seconds; n is at most `largest`."""

    fixed: float
    each: float
    largest: int


def divide(total: int, costs: Mapping[int, Cost], least: int = SMALLEST) -> dict[int, float]:
    """Sizes with which all steps take equally long, as far as the bounds allow; they add up to
    `total`.
    """
    shortest = 0.0
    longest = max(cost.fixed + cost.each * cost.largest for cost in costs.values())

    def sizes(seconds: float) -> dict[int, float]:
        wanted = {key: (seconds - cost.fixed) / cost.each for key, cost in costs.items()}
        return {key: min(max(wanted[key], least), cost.largest) for key, cost in costs.items()}

    for _ in range(60):  # the sum grows with the time
        middle = (shortest + longest) / 2
        if sum(sizes(middle).values()) < total:
            shortest = middle
        else:
            longest = middle
    return sizes(longest)


def whole(
    sizes: Mapping[int, float], total: int, largest: Mapping[int, int], least: int = SMALLEST
) -> dict[int, int]:
    """Whole sizes by largest remainders: they add up to `total` exactly, or come as near as the
    bounds allow.
    """
    total = min(max(total, least * len(sizes)), sum(largest.values()))
    rounded = {key: math.floor(size + 1e-9) for key, size in sizes.items()}
    while rest := total - sum(rounded.values()):
        step = 1 if rest > 0 else -1
        free = [
            key
            for key in rounded
            if (rounded[key] < largest[key] if step > 0 else rounded[key] > least)
        ]
        rounded[max(free, key=lambda key: step * (sizes[key] - rounded[key]))] += step
    return rounded


class StepTime:
    """What is known about the time of one worker's steps. `largest` is the most examples that it
    bears.
    """

    def __init__(self, speed: float, largest: int, rule: Rule) -> None:
        self.speed = speed
        self.largest = largest
        self._rule = rule
        self._before: tuple[int, float] | None = None
        self.worth = 0.0
        """How many examples the fixed part of a step is worth. A change of speed does not change
        that.
        """
        self._jumps = [_NOISE**2, _NOISE**2]
        """Half the mean square, relative, of how far an observation is from the last, and from the
        one before that: a lasting change of speed is no noise.
        """
        self._counts = [5, 5]
        self._size = 0
        self._seconds = 0.0
        self._last = [0.0, 0.0]
        self._steps = 0
        self._looks = -1
        self._judged = False

    def resized(self) -> None:
        """From now on observations are of another size. The first of a size is passed over: it is
        slow.
        """
        if self.known:
            self._before = (self._size, self._seconds)
        self._steps = 0
        self._looks = -1
        self._judged = False

    def add(self, size: int, seconds: float, steps: int) -> None:
        """`steps` steps of `size` examples took `seconds` each."""
        self._looks += 1
        if not self._looks:
            return
        self._steps += steps
        if self._looks == 1:
            self._seconds = seconds
        for lag, before in enumerate(self._last[: self._looks - 1]):
            self._counts[lag] += 1
            jump = ((seconds - before) / self._seconds) ** 2 / 2
            self._jumps[lag] += (jump - self._jumps[lag]) / min(self._counts[lag], _WINDOW)
        self._seconds += (seconds - self._seconds) * max(self._rule.smoothing, 1 / self._looks)
        self._size = size
        self._last = [seconds, self._last[0]]

    @property
    def known(self) -> bool:
        """Whether the time at the present size is known."""
        return self._looks >= ENOUGH_LOOKS and self._steps >= ENOUGH_STEPS

    @property
    def observed(self) -> bool:
        """Whether its noise was seen, and is no guess."""
        return self._counts[1] > ENOUGH_NOISE

    @property
    def error(self) -> float:
        """The relative standard error of the smoothed time.

        Noise that lasts is no difference of speed. From one observation to the next it varies by 1
        - r of its variance, to the one after that by 1 - r^2, where it is correlated as in an
        autoregression of first order; r is taken as large as so few observations may hide. The mean
        of such noise varies (1 + r q) / (1 - r q) times as much as if it was not correlated, where
        q is the weight that stays with the past.
        """
        kept = 1 - self._rule.smoothing
        near, far = self._jumps
        seen = (far / near - 1 if near > 0 else 0.0) + 4 / math.sqrt(min(self._counts[1], _WINDOW))
        correlation = min(max(seen, 0.0), MOST_CORRELATED)
        lasting = (1 + correlation * kept) / (1 - correlation * kept) / (1 - correlation)
        return math.sqrt(near * lasting * max((1 - kept) / (1 + kept), 1 / max(self._looks, 1)))

    @property
    def seconds_per_example(self) -> float:
        """At the size that was seen last; 0 if none was."""
        size, seconds = self._point()
        if size:
            return seconds / size
        return 0.0

    def cost(self, of_speed_one: float) -> Cost:
        """The model of its steps; of a worker never seen, from its speed."""
        size, seconds = self._point()
        if not size:
            return Cost(0.0, of_speed_one / self.speed, self.largest)
        each = seconds / (self.worth + size)
        return Cost(self.worth * each, each, self.largest)

    def judge(self) -> None:
        """Once at every size, against the one before: what is the fixed part, and were more
        examples too many?
        """
        if self._judged or not self.known:
            return
        self._judged = True
        if self._before is None:
            return
        size, seconds = self._before
        noise = SIGMAS * self.error
        apart = abs(self._size - size) >= max(APART, noise) * max(self._size, size)
        if apart and self._rule.step_time == "affine":
            each = (self._seconds - seconds) / (self._size - size)
            most = MOST_FIXED * self._size
            if each > 0:
                self.worth = min(max(self._seconds / each - self._size, 0.0), most)
            else:
                self.worth = most
        if (
            self._size > size
            and self._size / self._seconds < (1 - max(FELL, noise)) * size / seconds
        ):
            self.largest = size

    def _point(self) -> tuple[int, float]:
        if self.known:
            return (self._size, self._seconds)
        return self._before or (0, 0.0)


class BatchController:
    """The mini-batches of one run. Workers go by their number; `sizes` is what each has now."""

    def __init__(
        self,
        policy: str,
        batch: int,
        workers: int = 0,
        kept: Mapping[str, Any] | None = None,
        rule: Rule | None = None,
    ) -> None:
        """`batch` is the declared mini-batch, `workers` how many workers were declared (0:
        unknown).
        """
        kept = kept or {}
        self._rule = rule or Rule()
        self.policy = policy
        self.batch = max(batch, SMALLEST)
        self._least, self._largest = self._rule.bounds(self.batch)
        self._declared = workers
        self._most = int(kept.get("most", 0))
        self._times = {
            int(key): StepTime(float(speed), self._largest, self._rule)
            for key, speed in kept.get("speeds", {}).items()
        }
        self.sizes = {int(key): int(size) for key, size in kept.get("sizes", {}).items()}

    def to_dict(self) -> dict[str, Any]:
        """What a restarted chief must know."""
        speeds = {str(key): time.speed for key, time in self._times.items()}
        sizes = {str(key): size for key, size in self.sizes.items()}
        return {"batch": self.batch, "most": self._most, "speeds": speeds, "sizes": sizes}

    @property
    def total(self) -> int:
        """The global batch."""
        return self.batch * self._most

    def share(self, worker: int) -> float:
        """With what its gradient is to be multiplied: the mean of such gradients is that over all
        examples.
        """
        return self.sizes[worker] * len(self.sizes) / sum(self.sizes.values())

    def members(self, speeds: Mapping[int, float]) -> dict[int, int]:
        """These train now, with these relative speeds (0: not known). Returns the sizes that
        changed.
        """
        known = self._times
        self._times = {
            key: known.get(key) or StepTime(speed or 1.0, self._largest, self._rule)
            for key, speed in speeds.items()
        }
        for key, speed in speeds.items():
            self._times[key].speed = speed or self._times[key].speed
        self._most = max(self._most, min(len(speeds), self._declared or len(speeds)))
        before = self.sizes
        self.sizes = {key: self.sizes.get(key, self.batch) for key in speeds}
        return {
            **self._resize(self._wanted()),
            **{key: self.sizes[key] for key in speeds if key not in before},
        }

    def observe(self, worker: int, batch: int, compute_seconds: float, steps: int = 1) -> None:
        """`steps` steps of `batch` examples took `compute_seconds` together. Other sizes than its
        own are old news.
        """
        if worker in self._times and batch == self.sizes[worker] and steps:
            self._times[worker].add(batch, compute_seconds / steps, steps)

    def exhausted(self, worker: int, fits: int) -> dict[int, int]:
        """The worker's memory was exhausted; `fits` examples still fit. Returns the sizes that
        changed.
        """
        if worker not in self._times:
            return {}
        time = self._times[worker]
        time.largest = min(time.largest, max(fits, SMALLEST))
        return self._resize(self._wanted())

    def decide(self) -> dict[int, int]:
        """The sizes that are to change now: none while any worker's time is unknown, or all are as
        good as equal.

        A size is never kept that turned out to be more than the worker bears.
        """
        if (
            self.policy != "dynamic"
            or not self._times
            or not all(time.known for time in self._times.values())
        ):
            return {}
        for time in self._times.values():
            time.judge()
        wanted = self._wanted()
        for key, size in self.sizes.items():
            if size > self._times[key].largest or abs(wanted[key] - size) > self._threshold(
                key, size, wanted[key]
            ):
                return self._resize(wanted)
        return {}

    def _threshold(self, worker: int, before: int, after: float) -> float:
        """Below it a change is noise, or rounding to and fro.

        Dead-band and noise are parts of a step, of which the fixed part is worth some examples.
        They count beside the smaller size: however slow a worker becomes, it can lose no more than
        it had, and noise of a fifth, five times of which are all of that, would keep it there. Not
        while its noise is a guess, which is a large one.
        """
        time = self._times[worker]
        if time.observed:
            size = min(before, after)
        else:
            size = before
        return max((size + time.worth) * max(self._rule.deadband, SIGMAS * time.error), 0.75)

    def _wanted(self) -> dict[int, float]:
        if not self._times:
            return {}
        times = self._times.values()
        seen = [time.seconds_per_example * time.speed for time in times if time.seconds_per_example]
        if seen:
            of_speed_one = sum(seen) / len(seen)
        else:
            of_speed_one = 1.0
        if self.policy == "static":
            costs = {key: Cost(0.0, 1 / time.speed, time.largest) for key, time in self._items()}
        else:
            costs = {key: time.cost(of_speed_one) for key, time in self._items()}
        return divide(self.total, costs, self._least)

    def _items(self) -> list[tuple[int, StepTime]]:
        return list(self._times.items())

    def _resize(self, wanted: Mapping[int, float]) -> dict[int, int]:
        largest = {key: time.largest for key, time in self._items()}
        if wanted:
            sizes = whole(wanted, self.total, largest, self._least)
        else:
            sizes = {}
        changed = {key: size for key, size in sizes.items() if size != self.sizes[key]}
        for key in changed:
            self._times[key].resized()
        self.sizes = sizes
        return changed


class MiniBatch:
    """A worker's own side: how many examples its next step takes. `fits` is the most that its
    memory holds.
    """

    def __init__(self, declared: int) -> None:
        self.declared = declared
        self.fits = LARGEST * declared
        self._held = 0
        self._weight = 0.0
        self._examples = 0

    def next(self, given: tuple[int, float] | None) -> tuple[int, float]:
        """Size and share of the next step, from what the chief gave."""
        size, share = given or (self.declared, 1.0)
        if size <= self.fits:
            return (size, share)
        return (self.fits, share * self.fits / size)

    def expected(self, size: int) -> float:
        """The weight that a step of `size` examples has in the mean (of text, not every token
        counts); 0: not known.
        """
        if self._examples:
            return size * self._weight / self._examples
        return 0.0

    def held(self, size: int, weight: float = 0.0) -> None:
        """A step of `size` examples was made, whose loss is a mean over `weight` of them."""
        self._held = max(self._held, size)
        self._weight = self._weight + weight
        self._examples = self._examples + size

    def shrink(self, size: int) -> bool:
        """A step of `size` examples did not fit: go back to the last that did. False if nothing
        smaller is left.
        """
        if size <= SMALLEST:
            return False
        if SMALLEST <= self._held < size:
            self.fits = self._held
        else:
            self.fits = max(size // 2, SMALLEST)
        return True
