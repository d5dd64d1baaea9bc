"""Mini-batch sizes: unequal workers process unequal numbers of examples, in steps of equal length.

Pure arithmetic, without clocks, sockets and TensorFlow. For problems whose batches count tokens
(text), an example here is a token. The global batch B is the declared mini-batch times the largest
number of workers that trained at once, at most the declared number. The mini-batches of the current
workers add up to B: the share of a leaving worker goes to the others, and a joining one gets its
share from them. Only bounds limit that: no worker gets fewer examples than the least, more than the
most (`Rule`), or more than its memory holds.

`static` divides B in proportion to speeds known beforehand. `dynamic` starts there and measures. A
worker that was seen at one size is assumed to need time in proportion to it. Equal times are then
the published proportional rule (S. Tyagi, P. Sharma, "Taming resource heterogeneity in distributed
ML training with dynamic batching", ACSOS 2020, section 3: size times mean time over own time) with
a corrected sum. The rule `proportional` stays with that. With `affine` the fixed part of a step is
known after two sizes, and one adjustment suffices. A worker's gradient must be weighted with
`share`, its mini-batch over the mean one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...protocol.run import RunSpec

SMALLEST = 2
"""Fewest examples: T2T's resnet squeezes its targets, and one example would lose a dimension."""
LARGEST = 8
"""Bound of a mini-batch in declared mini-batches, and capacity of a worker's queue."""
ENOUGH_STEPS = 10
ENOUGH_LOOKS = 3
"""Observations (and steps, above) at one size after which a worker's time is reliable."""
SIGMAS = 5.0
"""Standard errors that a change must exceed.

Many workers are compared many times, so the bound is large.
"""
ENOUGH_NOISE = 30
"""Observations after which a worker's own noise is reliable."""
APART = 0.1
"""Least relative difference of two sizes that reveals the fixed part of a step."""
FELL = 0.05
"""Least relative loss of throughput that shows that a larger size was too large."""
MOST_CORRELATED = 0.98
"""Bound of the correlation of noise; a longer effect is a change of speed."""
MOST_FIXED = 4.0
"""Bound of the fixed part of a step over the rest.

Two noisy times could suggest any value.
"""
_NOISE = 0.03
"""Relative noise of an observation, before a worker's own is reliable."""
_WINDOW = 200
"""Observations over which a worker's noise is averaged."""
_STEPS_PER_SECOND = {"K80": 4.56, "P100": 12.19, "V100": 15.61}
"""Published steps per second of ResNet-32."""
_PEAKS = {
    "K80": (4.113, 240),
    "P4": (5.5, 192),
    "T4": (8.1, 320),
    "L4": (30.3, 300),
    "A100": (19.5, 1555),
    "H100": (66.9, 3350),
}
"""Peak in single precision (TFLOPS) and memory bandwidth (GB/s), from NVIDIA's data sheets.

For GPUs without published steps; the peaks are those of the catalog, which is not on VMs. The K80
counts as one of its two chips.

Both limit a step of training, so speeds are taken to follow their geometric mean. That agrees with
the two measured speeds: it gives 2.66 and 3.59 times a K80, and a P100 (9.5 TFLOPS, 732 GB/s)
reached 2.67, a V100 (14.1, 900) 3.42. By the peak alone an L4 would be faster than an A100, whose
memory is five times as fast.
"""


def accelerator_speed(accelerator: str) -> float:
    """Return the speed of a GPU relative to a K80; 1 for an unknown GPU."""
    return known_speed(accelerator) or 1.0


def known_speed(accelerator: str) -> float:
    """Return the speed of a GPU relative to a K80; 0 for an unknown GPU, or none.

    Measured speeds come before those that follow from peaks.
    """
    words = re.split(r"[^A-Z0-9]+", accelerator.upper())
    peaks = {name: math.sqrt(teraflops * memory) for name, (teraflops, memory) in _PEAKS.items()}
    for speeds in (_STEPS_PER_SECOND, peaks):
        for name, speed in speeds.items():
            if name in words:
                return speed / speeds["K80"]
    return 0.0


@dataclass(frozen=True, slots=True)
class Rule:
    """The rule by which mini-batches follow measurements.

    Attributes
    ----------
    deadband
        Smallest relative change of a mini-batch that is made.
    smoothing
        Weight of the newest time in the moving average (EWMA) of a worker's step.
    least, most
        Bounds of a mini-batch; 0 for `SMALLEST`, and for `LARGEST` times the declared mini-batch.
    step_time
        The model of a step's time: `affine` (a fixed part, and one in proportion to its examples)
        or, as published, `proportional`.
    """

    deadband: float = 0.05
    smoothing: float = 0.3
    least: int = 0
    most: int = 0
    step_time: str = "affine"

    @classmethod
    def of(cls, spec: RunSpec) -> Rule:
        """Return the rule that a run declares."""
        return cls(
            spec.deadband, spec.batch_smoothing, spec.batch_least, spec.batch_most, spec.step_time
        )

    def bounds(self, batch: int) -> tuple[int, int]:
        """Return the fewest and most examples of a mini-batch, if `batch` was declared."""
        ceiling = LARGEST * batch
        least = min(max(self.least, SMALLEST), ceiling)
        return least, max(least, min(self.most or ceiling, ceiling))


class Cost(NamedTuple):
    """The time of a step of n examples, at most `largest`: `fixed + n * per_example` seconds."""

    fixed: float
    per_example: float
    largest: int


def divide(total: int, costs: Mapping[int, Cost], least: int = SMALLEST) -> dict[int, float]:
    """Return sizes with which all steps take equally long, within the bounds.

    They add up to `total`.
    """
    shortest = 0.0
    longest = max(cost.fixed + cost.per_example * cost.largest for cost in costs.values())

    def sizes(seconds: float) -> dict[int, float]:
        free = {key: (seconds - cost.fixed) / cost.per_example for key, cost in costs.items()}
        return {key: min(max(free[key], least), cost.largest) for key, cost in costs.items()}

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
    """Return whole sizes by largest remainders.

    They add up to `total`, or come as near to it as the bounds allow.
    """
    total = min(max(total, least * len(sizes)), sum(largest.values()))
    rounded = {key: math.floor(size + 1e-9) for key, size in sizes.items()}
    while rest := total - sum(rounded.values()):
        if rest > 0:
            step = 1
            free = [key for key in rounded if rounded[key] < largest[key]]
        else:
            step = -1
            free = [key for key in rounded if rounded[key] > least]
        rounded[max(free, key=lambda key: step * (sizes[key] - rounded[key]))] += step
    return rounded


class StepTime:
    """The measured time of one worker's steps.

    `largest` is the most examples that the worker can process.
    """

    def __init__(self, speed: float, largest: int, rule: Rule) -> None:
        self.speed = speed
        self.largest = largest
        self._rule = rule
        self._before: tuple[int, float] | None = None
        self.worth = 0.0
        """The fixed part of a step, in examples. It does not depend on the worker's speed."""
        self._jumps = [_NOISE**2, _NOISE**2]
        """Half the relative mean square of differences to the last and the second last observation.

        Unlike a variance, it does not count a lasting change of speed as noise.
        """
        self._counts = [5, 5]
        self._size = 0
        self._seconds = 0.0
        self._last = [0.0, 0.0]
        self._steps = 0
        self._observations = -1
        self._judged = False

    def resized(self) -> None:
        """Expect observations of another size from now on.

        The first observation of a size is ignored, because it is slow.
        """
        if self.measured:
            self._before = (self._size, self._seconds)
        self._steps = 0
        self._observations = -1
        self._judged = False

    def add(self, size: int, seconds: float, steps: int) -> None:
        """Add an observation: `steps` steps of `size` examples took `seconds` each."""
        self._observations += 1
        if not self._observations:
            return
        self._steps += steps
        if self._observations == 1:
            self._seconds = seconds
        for lag, before in enumerate(self._last[: self._observations - 1]):
            self._counts[lag] += 1
            jump = ((seconds - before) / self._seconds) ** 2 / 2
            self._jumps[lag] += (jump - self._jumps[lag]) / min(self._counts[lag], _WINDOW)
        self._seconds += (seconds - self._seconds) * max(
            self._rule.smoothing, 1 / self._observations
        )
        self._size = size
        self._last = [seconds, self._last[0]]

    @property
    def measured(self) -> bool:
        """Whether the time at the present size was measured often enough."""
        return self._observations >= ENOUGH_LOOKS and self._steps >= ENOUGH_STEPS

    @property
    def observed(self) -> bool:
        """Whether the worker's noise was measured, not guessed."""
        return self._counts[1] > ENOUGH_NOISE

    @property
    def error(self) -> float:
        """The relative standard error of the smoothed time.

        Correlated noise is not a difference of speed. If it is correlated as in an autoregression
        of first order with r, then the differences between neighbours vary by 1 - r of its
        variance, and those between every second observation by 1 - r^2. The value of r is as large
        as the number of observations cannot exclude. The mean of such noise varies (1 + r q) / (1 -
        r q) times as much as that of uncorrelated noise, where q is the weight of the past.
        """
        kept = 1 - self._rule.smoothing
        near, far = self._jumps
        seen = (far / near - 1 if near > 0 else 0.0) + 4 / math.sqrt(min(self._counts[1], _WINDOW))
        correlation = min(max(seen, 0.0), MOST_CORRELATED)
        lasting = (1 + correlation * kept) / (1 - correlation * kept) / (1 - correlation)
        return math.sqrt(
            near * lasting * max((1 - kept) / (1 + kept), 1 / max(self._observations, 1))
        )

    @property
    def seconds_per_example(self) -> float:
        """Seconds per example at the last measured size; 0 if there is none."""
        size, seconds = self._point()
        if size:
            return seconds / size
        return 0.0

    def cost(self, of_speed_one: float) -> Cost:
        """Return the model of the worker's steps.

        For a worker without measurements it follows from its speed; `of_speed_one` is the time per
        example of a worker of speed 1.
        """
        size, seconds = self._point()
        if not size:
            return Cost(0.0, of_speed_one / self.speed, self.largest)
        per_example = seconds / (self.worth + size)
        return Cost(self.worth * per_example, per_example, self.largest)

    def judge(self) -> None:
        """Compare the present size with the one before, once per size.

        Estimates the fixed part of a step, and bounds the size if more examples reduced the
        throughput.
        """
        if self._judged or not self.measured:
            return
        self._judged = True
        if self._before is None:
            return
        size, seconds = self._before
        noise = SIGMAS * self.error
        apart = abs(self._size - size) >= max(APART, noise) * max(self._size, size)
        if apart and self._rule.step_time == "affine":
            per_example = (self._seconds - seconds) / (self._size - size)
            most = MOST_FIXED * self._size
            if per_example > 0:
                self.worth = min(max(self._seconds / per_example - self._size, 0.0), most)
            else:
                self.worth = most
        throughput_before = (1 - max(FELL, noise)) * size / seconds
        if self._size > size and self._size / self._seconds < throughput_before:
            self.largest = size

    def _point(self) -> tuple[int, float]:
        if self.measured:
            return (self._size, self._seconds)
        return self._before or (0, 0.0)


class BatchController:
    """The mini-batches of one run. `sizes` has each worker's present size by its number."""

    def __init__(
        self,
        policy: str,
        batch: int,
        workers: int = 0,
        kept: Mapping[str, Any] | None = None,
        rule: Rule | None = None,
    ) -> None:
        """Create a controller.

        Parameters
        ----------
        policy
            `static` or `dynamic`.
        batch
            The declared mini-batch.
        workers
            Number of declared workers; 0 if unknown.
        kept
            The `to_dict` of a controller before a restart of the chief.
        rule
            How sizes follow measurements.
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
        """Return the state that a restarted chief needs."""
        speeds = {str(key): time.speed for key, time in self._times.items()}
        sizes = {str(key): size for key, size in self.sizes.items()}
        return {"batch": self.batch, "most": self._most, "speeds": speeds, "sizes": sizes}

    @property
    def total(self) -> int:
        """The global batch."""
        return self.batch * self._most

    def share(self, worker: int) -> float:
        """Return the factor of a worker's gradient.

        The mean of gradients times their factors is the mean over all examples.
        """
        return self.sizes[worker] * len(self.sizes) / sum(self.sizes.values())

    def members(self, speeds: Mapping[int, float]) -> dict[int, int]:
        """Set the workers that train, with their relative speeds (0: unknown).

        Returns the sizes that changed.
        """
        times = self._times
        self._times = {
            key: times.get(key) or StepTime(speed or 1.0, self._largest, self._rule)
            for key, speed in speeds.items()
        }
        for key, speed in speeds.items():
            self._times[key].speed = speed or self._times[key].speed
        self._most = max(self._most, min(len(speeds), self._declared or len(speeds)))
        before = self.sizes
        self.sizes = {key: self.sizes.get(key, self.batch) for key in speeds}
        return {
            **self._resize(self._targets()),
            **{key: self.sizes[key] for key in speeds if key not in before},
        }

    def observe(self, worker: int, batch: int, compute_seconds: float, steps: int = 1) -> None:
        """Add an observation: `steps` steps of `batch` examples took `compute_seconds` together.

        Ignores observations of a worker's earlier sizes.
        """
        if worker in self._times and batch == self.sizes[worker] and steps:
            self._times[worker].add(batch, compute_seconds / steps, steps)

    def exhausted(self, worker: int, fits: int) -> dict[int, int]:
        """Bound a worker whose memory was exhausted to the `fits` examples that still fit.

        Returns the sizes that changed.
        """
        if worker not in self._times:
            return {}
        time = self._times[worker]
        time.largest = min(time.largest, max(fits, SMALLEST))
        return self._resize(self._targets())

    def decide(self) -> dict[int, int]:
        """Return the sizes that change now.

        None change while the time of a worker is unknown, or if all steps are almost equally long.
        A size above the bound of its worker is always changed.
        """
        if (
            self.policy != "dynamic"
            or not self._times
            or not all(time.measured for time in self._times.values())
        ):
            return {}
        for time in self._times.values():
            time.judge()
        targets = self._targets()
        for key, size in self.sizes.items():
            difference = abs(targets[key] - size)
            too_large = size > self._times[key].largest
            if too_large or difference > self._threshold(key, size, targets[key]):
                return self._resize(targets)
        return {}

    def _threshold(self, worker: int, before: int, after: float) -> float:
        """Return the difference of sizes below which a change is noise, or rounding.

        Dead-band and noise are shares of a step, and its fixed part counts as examples. They are
        relative to the smaller size: otherwise a worker whose noise is a fifth, which five standard
        errors turn into its whole size, could never shrink. While the noise is a guess, which is
        large, they are relative to the present size.
        """
        time = self._times[worker]
        size = min(before, after) if time.observed else before
        return max((size + time.worth) * max(self._rule.deadband, SIGMAS * time.error), 0.75)

    def _targets(self) -> dict[int, float]:
        """Return the sizes with which all steps take equally long."""
        if not self._times:
            return {}
        times = self._times.values()
        seen = [time.seconds_per_example * time.speed for time in times if time.seconds_per_example]
        of_speed_one = 1.0
        if seen:
            of_speed_one = sum(seen) / len(seen)
        if self.policy == "static":
            costs = {key: Cost(0.0, 1 / time.speed, time.largest) for key, time in self._items()}
        else:
            costs = {key: time.cost(of_speed_one) for key, time in self._items()}
        return divide(self.total, costs, self._least)

    def _items(self) -> list[tuple[int, StepTime]]:
        return list(self._times.items())

    def _resize(self, targets: Mapping[int, float]) -> dict[int, int]:
        """Set whole sizes, and return those that changed."""
        largest = {key: time.largest for key, time in self._items()}
        sizes: dict[int, int] = {}
        if targets:
            sizes = whole(targets, self.total, largest, self._least)
        changed = {key: size for key, size in sizes.items() if size != self.sizes[key]}
        for key in changed:
            self._times[key].resized()
        self.sizes = sizes
        return changed


class MiniBatch:
    """The number of examples of a worker's next step, as the worker decides it.

    `fits` is the most that its memory holds.
    """

    def __init__(self, declared: int) -> None:
        self.declared = declared
        self.fits = LARGEST * declared
        self._largest_done = 0
        self._weight = 0.0
        self._examples = 0

    def next(self, given: tuple[int, float] | None) -> tuple[int, float]:
        """Return size and share of the next step.

        `given` has those of the chief, or None for the declared mini-batch.
        """
        size, share = given or (self.declared, 1.0)
        if size <= self.fits:
            return (size, share)
        return (self.fits, share * self.fits / size)

    def expected(self, size: int) -> float:
        """Return the mean weight of a step of `size` examples; 0 if unknown.

        In text, not every token counts.
        """
        if self._examples:
            return size * self._weight / self._examples
        return 0.0

    def record(self, size: int, weight: float = 0.0) -> None:
        """Record a finished step of `size` examples, whose loss is a mean over `weight` of them."""
        self._largest_done = max(self._largest_done, size)
        self._weight = self._weight + weight
        self._examples = self._examples + size

    def shrink(self, size: int) -> bool:
        """Return to the largest size that fitted, after a step of `size` examples did not.

        Returns False if no smaller size is left.
        """
        if size <= SMALLEST:
            return False
        if SMALLEST <= self._largest_done < size:
            self.fits = self._largest_done
        else:
            self.fits = max(size // 2, SMALLEST)
        return True
