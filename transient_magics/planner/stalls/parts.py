"""The parts of a step from repeated measures, each with its interval and its significance.

A stall is the difference between two measures, one of which has one more part of a run's work
(Stash, ICDCS 2023; DS-Analyzer, VLDB 2021). Both are of the same repeat, minutes apart, so slow
changes cancel. The interval is Student's, of 90 %, over the repeats. The parts sum to the whole
step by construction, including those within the noise.

VMs of one type may differ: Stash found one whose placement made it several times slower. Each
worker is compared with its equals in the measures that no other worker affects: S0, its own
computing, and S2 less S1, its own path to the parameter servers. Among many comparisons some differ
by chance, so each interval is widened accordingly (Bonferroni).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from scipy import special

from ...protocol.step_parts import MEASURES, Measure
from ...protocol.vm_events import TrainMeasured

COMPUTE = "compute"
STALLS: Mapping[str, tuple[Measure, Measure]] = {
    "serialisation": ("S0", "S1"),
    "network": ("S1", "S2"),
    "contention": ("S2", "S3"),
    "preparation": ("S3", "S4"),
    "fetch": ("S4", "S5"),
}
"""Each stall, and the measures whose difference it is."""
_STEPS: tuple[Measure, ...] = ("S0", "S1", "S2", "S3", "S4", "S5")
LEAST_REPEATS = 3
LEAST_SHARE = 0.02
"""Smallest share of a step that counts as a stall: a smaller one is not worth paying for."""
_LEVEL = 0.9
_CLAIMED = 0.95
"""Probability that no stall is claimed where there is none."""
_DEVIATIONS = float(special.ndtri(0.5 + _LEVEL / 2))
"""Standard deviations from the mean to either end of the interval."""
LEAST_SECONDS = 1e-9
"""Smallest valid seconds of a step or a mini-batch; smaller values are not measurements."""
_FITS = 4e9
"""Bytes that fit into the page cache of every VM type."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean and its interval; infinite with too few values."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float], probability: float = _LEVEL) -> Estimate:
        """Return the mean of at least one value with Student's interval."""
        mean = statistics.fmean(values)
        if len(values) < LEAST_REPEATS:
            return cls(mean, -math.inf, math.inf)
        error = statistics.stdev(values) / math.sqrt(len(values))
        half = float(special.stdtrit(len(values) - 1, 0.5 + probability / 2)) * error
        return cls(mean, mean - half, mean + half)

    @classmethod
    def about(cls, mean: float, error: float) -> Estimate:
        """Return the middle 90 % about `mean`; `error` is the logarithm's standard deviation."""
        if not mean:
            return cls(mean, mean, mean)
        if not math.isfinite(error):
            return cls(mean, 0.0, math.inf)
        factor = math.exp(_DEVIATIONS * error)
        return cls(mean, mean / factor, mean * factor)

    @property
    def half(self) -> float:
        """Half of the interval's width."""
        return (self.high - self.low) / 2

    @property
    def error(self) -> float:
        """The standard deviation of the normal distribution with the same middle 90 %."""
        return self.half / _DEVIATIONS


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a step, in seconds, and its `share` of the step.

    `surely` is the lower bound of the seconds, corrected for as many comparisons as there are
    stalls (Bonferroni).
    """

    name: str
    seconds: Estimate
    share: float
    surely: float

    @property
    def measured(self) -> bool:
        """Whether the part is significant, and not within the noise."""
        return self.surely > 0 and self.share >= LEAST_SHARE


@dataclass(frozen=True, slots=True)
class Repeat:
    """Seconds of a step by measure, averaged over workers of one kind.

    For R4 and R5 they are the seconds of a mini-batch.
    """

    seconds: Mapping[Measure, float]

    @classmethod
    def of(cls, seconds: Mapping[Measure, float], *, files: bool = True) -> Repeat:
        """Return the repeat; without `files` S4 and S5 measure the same, so their mean is used."""
        if files:
            return cls(dict(seconds))
        stepping = (seconds["S4"] + seconds["S5"]) / 2
        reading = (seconds["R4"] + seconds["R5"]) / 2
        return cls({**seconds, "S4": stepping, "S5": stepping, "R4": reading, "R5": reading})


@dataclass(frozen=True, slots=True)
class Stalls:
    """The measures of workers of one `kind`, on VMs that are all alike.

    `examples` is of a mini-batch. `bytes` is the size of the files that a worker reads (0: none).
    `lasted` is the seconds from the first measure to the last.
    """

    kind: str
    workers: tuple[str, ...]
    repeats: tuple[Repeat, ...]
    examples: int = 0
    bytes: int = 0
    lasted: float = 0.0

    @property
    def fits(self) -> bool:
        """Whether the files fit into any VM's page cache: only the first pass fetches them."""
        return self.bytes < _FITS

    @property
    def step(self) -> Estimate:
        """The seconds of a whole step, with everything."""
        return self.measure("S5")

    @property
    def compute(self) -> Part:
        """The part of a step that is not a stall."""
        found = [repeat.seconds["S0"] for repeat in self.repeats]
        return self._part(COMPUTE, found, found)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The stalls, in the order in which they come in."""
        answer = list[Part]()
        for name, (without, whole) in STALLS.items():
            found = [repeat.seconds[whole] - repeat.seconds[without] for repeat in self.repeats]
            answer.append(
                self._part(
                    name,
                    found,
                    [more / level for more, level in zip(found, self._levels, strict=True)],
                )
            )
        return tuple(answer)

    @property
    def stalled(self) -> tuple[Part, ...]:
        """The significant stalls, the longest first."""
        return tuple(
            sorted((part for part in self.parts if part.measured), key=lambda part: -part.share)
        )

    def measure(self, measure: Measure) -> Estimate:
        """Return one of the measures."""
        return Estimate.of([repeat.seconds[measure] for repeat in self.repeats])

    def _part(self, name: str, found: Sequence[float], compared: Sequence[float]) -> Part:
        """Return a part: the mean of `found`, with an error from the `compared` values."""
        mean = statistics.fmean(found)
        half = Estimate.of(compared).half
        surely = mean - Estimate.of(compared, 1 - (1 - _CLAIMED) / len(STALLS)).half
        if self.step.mean:
            share = mean / self.step.mean
        else:
            share = 0.0
        return Part(name, Estimate(mean, mean - half, mean + half), share, surely)

    @property
    def _levels(self) -> list[float]:
        """The duration of each repeat's steps, relative to all repeats.

        A machine that is slower in one repeat is slower in all its measures, which does not
        indicate a stall. It is a median, because a single measure may be uneven.
        """
        usual = {
            name: statistics.fmean(repeat.seconds[name] for repeat in self.repeats)
            for name in _STEPS
        }
        return [
            statistics.median(repeat.seconds[name] / usual[name] for name in _STEPS)
            for repeat in self.repeats
        ]


def straggler(measured: Sequence[TrainMeasured]) -> Estimate | None:
    """Return the seconds that a step of all workers would wait for the slowest (`--mode sync`).

    Return None with a single worker.
    """
    found = [
        measurement.straggler
        for measurement in measured
        if measurement.measure == "S3" and len(measurement.seconds) > 1
    ]
    if found:
        return Estimate.of(found, _CLAIMED)
    return None


def by_kind(measured: Sequence[TrainMeasured], kinds: Mapping[str, str]) -> list[Stalls]:
    """Return the stalls of each kind of worker; `kinds` maps workers to their kinds.

    Repeats without all measures are skipped. In a repeat only workers with all measures count:
    others would differ from measure to measure.
    """
    repeats: dict[int, dict[Measure, TrainMeasured]] = {}
    for measurement in measured:
        repeats.setdefault(measurement.repeat, {})[measurement.measure] = measurement
    whole = [measures for _, measures in sorted(repeats.items()) if len(measures) == len(MEASURES)]
    size = max((measurement.bytes for measurement in measured), default=0)
    examples = max((measurement.examples for measurement in measured), default=0)
    lasted = max((measurement.at for measurement in measured), default=0.0) - min(
        (measurement.at for measurement in measured), default=0.0
    )
    answer = list[Stalls]()
    for kind in sorted(set(kinds.values())):
        mine = {name for name, its in kinds.items() if its == kind}
        took = set[str]()
        found = list[Repeat]()
        for measures in whole:
            there = mine.intersection(*map(_workers_with, measures.values()))
            if there:
                took |= there
                found.append(Repeat.of(_means(measures, there), files=size > 0))
        if found:
            answer.append(Stalls(kind, tuple(sorted(took)), tuple(found), examples, size, lasted))
    return answer


def _workers_with(measures: TrainMeasured) -> set[str]:
    return {name for name, seconds in measures.seconds.items() if seconds >= LEAST_SECONDS}


def _means(
    measures: Mapping[Measure, TrainMeasured], workers: Collection[str]
) -> dict[Measure, float]:
    return {
        name: statistics.fmean(measures[name].seconds[who] for who in workers) for name in MEASURES
    }


LEAST_APART = 0.05
"""Smallest difference, as a share of a step, at which VMs are not alike."""
_Taken = Mapping[Measure, TrainMeasured]


@dataclass(frozen=True, slots=True)
class Apart:
    """A worker that is slower than its equals at `what` (computing or network).

    `more` is the additional seconds of a step, and `share` their share of the step of its equals.
    """

    worker: str
    what: str
    more: Estimate
    share: float


def apart(measured: Sequence[TrainMeasured], kinds: Mapping[str, str]) -> list[Apart]:
    """Return workers that are slower than their equals, the slowest first."""
    repeats: dict[int, dict[Measure, TrainMeasured]] = {}
    for measurement in measured:
        repeats.setdefault(measurement.repeat, {})[measurement.measure] = measurement
    found = list[Apart]()
    for worker, kind in kinds.items():
        equals = [name for name, its in kinds.items() if its == kind and name != worker]
        for what, of in _WHAT.items():
            excess = list[float]()
            steps = list[float]()
            for measures in repeats.values():
                own = of(measures, worker)
                others = [value for name in equals if (value := of(measures, name)) is not None]
                step = [
                    measures["S2"].seconds[name]
                    for name in equals
                    if "S2" in measures and name in measures["S2"].seconds
                ]
                if own is not None and others and step:
                    excess.append(own - statistics.median(others))
                    steps.append(statistics.fmean(step))
            if len(excess) < LEAST_REPEATS or statistics.fmean(steps) < LEAST_SECONDS:
                continue
            more = Estimate.of(excess, 1 - 0.05 / (len(kinds) * len(_WHAT)))
            share = more.mean / statistics.fmean(steps)
            if more.low > 0 and share >= LEAST_APART:
                found.append(Apart(worker, what, more, share))
    return sorted(found, key=lambda outlier: -outlier.share)


def _computing(measures: _Taken, worker: str) -> float | None:
    if "S0" in measures:
        return measures["S0"].seconds.get(worker)
    return None


def _network(measures: _Taken, worker: str) -> float | None:
    if not {"S1", "S2"} <= measures.keys():
        return None
    near = measures["S1"].seconds.get(worker)
    far = measures["S2"].seconds.get(worker)
    if near is None or far is None:
        return None
    return far - near


_WHAT: Mapping[str, Callable[[_Taken, str], float | None]] = {
    "computing": _computing,
    "network": _network,
}
