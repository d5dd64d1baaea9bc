"""The situation that a decision about a run with a deadline depends on. Pure.

It contains speeds, capacity, prices and the run's machines. The belief about Spot capacity follows
mostly from the run's own past. The market is a chain of two states: some time with capacity, some
time without. Their lengths were measured elsewhere. That counts as much as `PRIOR_SPELLS` spells of
each kind, beside the run's own spells. The share of a period with capacity has a mean and a
variance in closed form.

Spells without capacity differ widely: many end soon, some last for days. Lomax's distribution with
the shape 3/2 matches the published traces of 2022 (1,169 spells: the mean of the lesser of a spell
and t is within 0.07 of its share of the mean spell, for t from 1/8 to 8 mean spells).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

from ..catalog import has_gpu
from ..spec import ClusterSpec, RunSpec
from .speeds import Speeds

SPOT = "spot"
ON_DEMAND = "standard"
PERIOD = 5.0
"""Longest time between two decisions, in seconds."""
Workers = Mapping[tuple[str, str], int]
"""The number of workers, by GPU and terms."""


@dataclass(frozen=True, slots=True, order=True)
class Net:
    """On-demand workers that can finish a run without Spot workers.

    Attributes
    ----------
    gpu, count
        Their GPU and number.
    price
        US dollars per step.
    speed
        Assumed steps per second.
    measured
        Whether the speed follows from measurements.
    """

    gpu: str
    count: int
    price: float
    speed: float
    measured: bool = True


@dataclass(frozen=True, slots=True)
class Kind:
    """Workers for rent: US dollars per second as Spot and, if offered, on demand."""

    gpu: str
    spot: float
    on_demand: float | None


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything that a decision depends on, in seconds and US dollars.

    Attributes
    ----------
    now, deadline
        Seconds since 1970.
    steps, unsaved
        Steps left after the last durable save, and how many of them are done.
    speeds, market, kinds
        Speeds of workers, Spot capacity, and workers for rent.
    workers, working
        Requested workers, and those that train.
    begin
        Longest time until on-demand VMs requested now make steps.
    begun
        Longest time until the on-demand VMs that are requested already make steps.
    start
        Start-up time of a Spot worker.
    life
        Lifetime of a Spot worker.
    kept
        Price of everything but workers, per second.
    most
        Most workers at the same time.
    money
        What is left to spend.
    since
        Time since the workers were requested.
    acts
        Whether decisions are carried out.
    overlaps
        Whether others may start beside `most` workers, to replace them.
    end
        Longest time from the last step until it is saved.
    period
        Longest time until the next decision.
    began, train_steps
        When training began, and its number of steps.
    """

    now: float
    deadline: float
    steps: int
    unsaved: int
    speeds: Speeds
    market: Market
    kinds: tuple[Kind, ...]
    workers: Workers
    working: Workers
    begin: float
    begun: float
    start: float
    life: float
    kept: float
    most: int
    money: float
    since: float = math.inf
    acts: bool = True
    overlaps: bool = True
    end: float = 0.0
    period: float = PERIOD
    began: float = 0.0
    train_steps: int = 0


def seconds_of(steps: float, speed: float) -> float:
    """Return the seconds that steps take at a speed in steps per second."""
    if not steps:
        return 0.0
    if speed:
        return steps / speed
    return math.inf


def counts(workers: Workers) -> dict[str, int]:
    """Return the number of workers by GPU alone."""
    found: dict[str, int] = {}
    for (gpu, _), count in workers.items():
        found[gpu] = found.get(gpu, 0) + count
    return found


def zones_for(spec: ClusterSpec, run: RunSpec, gpu: str) -> tuple[str, ...]:
    """Return the zones of the run's workers with this GPU, best first."""
    named = dict.fromkeys(
        group.zone for group in spec.groups if group.zone and group.accelerator == gpu
    )
    zones = tuple(zone for zone in run.zones if has_gpu(zone, gpu))
    return zones or tuple(named) or spec.zones_for(gpu)


LASTS = 3 * 3600.0
LACKS = 1.5 * 3600.0
"""Mean seconds of a spell with and without capacity, on AWS in 2022 (planner/deadlines/prior.csv).
"""
PRIOR_SPELLS = 2.0


@dataclass(frozen=True, slots=True)
class Market:
    """The belief about Spot capacity.

    Attributes
    ----------
    open
        Whether there is capacity now.
    lasts, lacks
        Mean seconds of spells with and without capacity.
    spells
        The number of spells of each kind behind these means, including those of the prior.
    age
        Seconds since the present spell began, as observed.
    """

    open: bool
    lasts: float = LASTS
    lacks: float = LACKS
    spells: tuple[float, float] = (PRIOR_SPELLS, PRIOR_SPELLS)
    age: float = 0.0

    def share(self, seconds: float) -> tuple[float, float]:
        """Return mean and deviation of the share of the next `seconds` with capacity."""
        mean = self.lasts / (self.lasts + self.lacks)
        rate = 1 / self.lasts + 1 / self.lacks
        x = max(rate * seconds, 1e-6)
        fades = -math.expm1(-x) / x
        varies = mean * (1 - mean)
        # 2 (x - 1 + exp(-x)) / x^2 is the variance of a chain's time average, in that of a moment.
        deviation = math.sqrt(varies * (2 * (1 - fades) / x) + varies / (sum(self.spells) + 1))
        return mean + ((1.0 if self.open else 0.0) - mean) * fades, deviation

    def lacking(self, share: float, seconds: float) -> float:
        """Return the probability that a smaller share of the next `seconds` has capacity."""
        if share <= 0 or share >= 1:
            return float(share > 0)
        mean, deviation = self.share(seconds)
        return NormalDist(mean, max(deviation, 1e-9)).cdf(share)

    def patience(self, mean: float) -> float:
        """Return the longest wait, in seconds, for a spell without capacity to end.

        With it, each such spell takes `mean` seconds on average.
        """
        rest = 1 - mean / self.lacks
        # The mean of the lesser of a spell and t is lacks (1 - (1 + 2 t / lacks)^-1/2).
        if rest > 0:
            return self.lacks / 2 * (1 / rest**2 - 1)
        return math.inf


def believed(
    opened: float,
    closed: float,
    ends: tuple[int, int],
    *,
    open_: bool,
    rate: float = 1.0,
    age: float = 0.0,
) -> Market:
    """Return the market as observed.

    Parameters
    ----------
    opened, closed
        Observed seconds with and without capacity.
    ends
        Observed ends of spells with and without capacity.
    open_
        Whether there is capacity now.
    rate
        Seconds of the cloud's clock per second of this one.
    age
        Seconds since the present spell began.
    """
    spells = PRIOR_SPELLS + ends[0], PRIOR_SPELLS + ends[1]
    lasts = (LASTS / rate * PRIOR_SPELLS + opened) / spells[0]
    lacks = (LACKS / rate * PRIOR_SPELLS + closed) / spells[1]
    return Market(open_, lasts, lacks, spells, age)
