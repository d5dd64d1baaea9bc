"""The parts of a step, from measures of it that were repeated: each with its interval, and whether
it is one at all.

A stall is the difference between two measures of which one has one more part of what a run does
(Stash, ICDCS 2023; DS-Analyzer, VLDB 2021). Both are of the same repeat, minutes apart, so what
changes slowly cancels. The interval is Student's, of 90 %, over the repeats. The parts sum to the
whole step by construction, those within the noise too.

VMs of one type may differ: Stash found one placed so that it was several times slower. Compared is
each worker with its equals in the measures that no other worker has a part in: S0, its own
computing, and S2 less S1, its own way to the parameter servers. Of so many comparisons some would
be apart by chance, so each interval is wider by as much (Bonferroni).
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
"""Of the step: a stall that is smaller is none that anybody would pay to be rid of."""
_LEVEL = 0.9
_CLAIMED = 0.95
"""The probability that a measure without a stall claims none."""
_DEVIATIONS = float(special.ndtri(0.5 + _LEVEL / 2))
"""Standard deviations from the mean to either end of the interval."""
LEAST_SECONDS = 1e-9
"""Of a step or a mini-batch: who tells less has measured nothing."""
_FITS = 4e9
"""Bytes that a VM's page cache has room for, whatever VM it is."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean and its interval; infinite where there are too few values."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float], probability: float = _LEVEL) -> Estimate:
        """Student's interval of the mean of at least one value."""
        mean = statistics.fmean(values)
        if len(values) < LEAST_REPEATS:
            return cls(mean, -math.inf, math.inf)
        error = statistics.stdev(values) / math.sqrt(len(values))
        half = float(special.stdtrit(len(values) - 1, 0.5 + probability / 2)) * error
        return cls(mean, mean - half, mean + half)

    @classmethod
    def about(cls, mean: float, error: float) -> Estimate:
        """Return the middle 90 % about `mean` where the logarithm has the standard deviation
        `error`.
        """
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
    """A part of a step, in seconds, and its `share` of the step; `surely` it takes so many seconds
    at least, where as many parts are asked as there are stalls (Bonferroni).
    """

    name: str
    seconds: Estimate
    share: float
    surely: float

    @property
    def measured(self) -> bool:
        """Whether it is there, and not within the noise."""
        return self.surely > 0 and self.share >= LEAST_SHARE


@dataclass(frozen=True, slots=True)
class Repeat:
    """The seconds of a step by each measure, in the mean over workers of one kind; of R4 and R5, of
    a mini-batch.
    """

    seconds: Mapping[Measure, float]

    @classmethod
    def of(cls, seconds: Mapping[Measure, float], *, files: bool = True) -> Repeat:
        """Without `files` S5 has nothing that S4 lacks: both are measures of the same."""
        if files:
            return cls(dict(seconds))
        stepping = (seconds["S4"] + seconds["S5"]) / 2
        reading = (seconds["R4"] + seconds["R5"]) / 2
        return cls({**seconds, "S4": stepping, "S5": stepping, "R4": reading, "R5": reading})


@dataclass(frozen=True, slots=True)
class Stalls:
    """What was measured of workers of one `kind`, on VMs that are all alike.

    `examples` of a mini-batch; `bytes` of the files that a worker reads (0: it reads none).
    `lasted`: seconds from the first measure to the last.
    """

    kind: str
    workers: tuple[str, ...]
    repeats: tuple[Repeat, ...]
    examples: int = 0
    bytes: int = 0
    lasted: float = 0.0

    @property
    def fits(self) -> bool:
        """Whether what it reads fits into the page cache of any VM, so that it is fetched in the
        first pass alone.
        """
        return self.bytes < _FITS

    @property
    def step(self) -> Estimate:
        """The seconds of a whole step, with everything."""
        return self.measure("S5")

    @property
    def compute(self) -> Part:
        """What is no stall."""
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
        """Those that are there, the longest first."""
        return tuple(
            sorted((part for part in self.parts if part.measured), key=lambda each: -each.share)
        )

    def measure(self, measure: Measure) -> Estimate:
        """One of the measures."""
        return Estimate.of([repeat.seconds[measure] for repeat in self.repeats])

    def _part(self, name: str, found: Sequence[float], compared: Sequence[float]) -> Part:
        """Take the mean of what was `found`, and the error of the mean from values that can be
        `compared`.
        """
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
        """How long the steps of each repeat took, relative to all repeats.

        A machine that is slower in one repeat is slower in all its measures, which tells nothing of
        a stall. It is a median, because a single measure may be uneven.
        """
        usual = {
            name: statistics.fmean(repeat.seconds[name] for repeat in self.repeats)
            for name in _STEPS
        }
        return [
            statistics.median(each.seconds[name] / usual[name] for name in _STEPS)
            for each in self.repeats
        ]


def straggler(measured: Sequence[TrainMeasured]) -> Estimate | None:
    """The seconds that a step of all workers would wait for the slowest (`--mode sync`); None of a
    single worker.
    """
    found = [each.straggler for each in measured if each.measure == "S3" and len(each.seconds) > 1]
    if found:
        return Estimate.of(found, _CLAIMED)
    return None


def by_kind(measured: Sequence[TrainMeasured], kinds: Mapping[str, str]) -> list[Stalls]:
    """What the workers of each kind came to; `kinds` are those of the workers. Repeats that lack a
    measure count not.

    In a repeat only workers count that took all measures: others would differ from measure to
    measure.
    """
    repeats: dict[int, dict[Measure, TrainMeasured]] = {}
    for each in measured:
        repeats.setdefault(each.repeat, {})[each.measure] = each
    whole = [taken for _, taken in sorted(repeats.items()) if len(taken) == len(MEASURES)]
    size = max((each.bytes for each in measured), default=0)
    examples = max((each.examples for each in measured), default=0)
    lasted = max((each.at for each in measured), default=0.0) - min(
        (each.at for each in measured), default=0.0
    )
    answer = list[Stalls]()
    for kind in sorted(set(kinds.values())):
        mine = {name for name, its in kinds.items() if its == kind}
        took = set[str]()
        found = list[Repeat]()
        for taken in whole:
            there = mine.intersection(*map(_told, taken.values()))
            if there:
                took |= there
                found.append(Repeat.of(_means(taken, there), files=size > 0))
        if found:
            answer.append(Stalls(kind, tuple(sorted(took)), tuple(found), examples, size, lasted))
    return answer


def _told(taken: TrainMeasured) -> set[str]:
    return {name for name, seconds in taken.seconds.items() if seconds >= LEAST_SECONDS}


def _means(
    taken: Mapping[Measure, TrainMeasured], workers: Collection[str]
) -> dict[Measure, float]:
    return {
        name: statistics.fmean(taken[name].seconds[who] for who in workers) for name in MEASURES
    }


LEAST_APART = 0.05
"""Of a step: VMs that differ by less are alike."""
_Taken = Mapping[Measure, TrainMeasured]


@dataclass(frozen=True, slots=True)
class Apart:
    """A worker whose `what` (computing or network) takes so many seconds `more` a step than that of
    its equals; `share` of their step.
    """

    worker: str
    what: str
    more: Estimate
    share: float


def apart(measured: Sequence[TrainMeasured], kinds: Mapping[str, str]) -> list[Apart]:
    """Workers that are slower than their equals, the slowest first."""
    repeats: dict[int, dict[Measure, TrainMeasured]] = {}
    for each in measured:
        repeats.setdefault(each.repeat, {})[each.measure] = each
    found = list[Apart]()
    for worker, kind in kinds.items():
        equals = [name for name, its in kinds.items() if its == kind and name != worker]
        for what, of in _WHAT.items():
            told = list[float]()
            steps = list[float]()
            for taken in repeats.values():
                own = of(taken, worker)
                others = [value for name in equals if (value := of(taken, name)) is not None]
                step = [
                    taken["S2"].seconds[name]
                    for name in equals
                    if "S2" in taken and name in taken["S2"].seconds
                ]
                if own is not None and others and step:
                    told.append(own - statistics.median(others))
                    steps.append(statistics.fmean(step))
            if len(told) < LEAST_REPEATS or statistics.fmean(steps) < LEAST_SECONDS:
                continue
            more = Estimate.of(told, 1 - 0.05 / (len(kinds) * len(_WHAT)))
            share = more.mean / statistics.fmean(steps)
            if more.low > 0 and share >= LEAST_APART:
                found.append(Apart(worker, what, more, share))
    return sorted(found, key=lambda each: -each.share)


def _computing(taken: _Taken, worker: str) -> float | None:
    if "S0" in taken:
        return taken["S0"].seconds.get(worker)
    return None


def _network(taken: _Taken, worker: str) -> float | None:
    if not {"S1", "S2"} <= taken.keys():
        return None
    near = taken["S1"].seconds.get(worker)
    far = taken["S2"].seconds.get(worker)
    if near is None or far is None:
        return None
    return far - near


_WHAT: Mapping[str, Callable[[_Taken, str], float | None]] = {
    "computing": _computing,
    "network": _network,
}
