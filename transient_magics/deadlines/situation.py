"""What a decision about a run with a deadline follows from: speeds, capacity, prices, the machines
that it has. Pure.

The belief about Spot capacity follows from the run's own past and little else. The market has some
for a while, then none, as a chain of two states. How long a while is was measured elsewhere, which
counts as much as `PRIOR_SPELLS` spells of each kind; the run's own count beside it. What a stretch
of time will have of capacity has a mean and a variance in closed form.

Spells without capacity are of very different lengths: many are over soon, some last for days.
Lomax's distribution with the shape 3/2 has them as the published traces of 2022 do (1,169 spells:
the mean of the lesser of a spell and t is within 0.07 of its share of the mean spell, for t from
1/8 to 8 mean spells).
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
"""Seconds between two decisions at most."""
Workers = Mapping[tuple[str, str], int]
"""How many, by GPU and terms."""


@dataclass(frozen=True, slots=True, order=True)
class Net:
    """Workers on demand that bring a run home by themselves: GPU, how many, US dollars of a step
    (`price`), and the `speed` that is counted with, in steps per second; `measured`: whether it
    follows from what was measured.
    """

    gpu: str
    count: int
    price: float
    speed: float
    measured: bool = True


@dataclass(frozen=True, slots=True)
class Kind:
    """Workers that may be rented: US dollars per second as Spot and, where they are sold so, on
    demand.
    """

    gpu: str
    spot: float
    on_demand: float | None


@dataclass(frozen=True, slots=True)
class Situation:
    """What a decision follows from. Seconds and US dollars; `now` and `deadline` since 1970.

    `steps` are left behind the last durable save, `unsaved` of them are made; `end`: from the last
    step until it is saved, at most. `began`: when it began to train, `train_steps` in all.
    `workers` are asked for, `working` train. `begin`: until VMs on demand that are asked for now
    take steps, at most; `begun`: until those that are asked for do; `start`: what it takes a Spot
    worker; `life`: how long one is there. `kept`: what all but workers cost in a second. `most`:
    workers at once; `overlaps`: whether others may start beside so many, to take over from them;
    `money`: left to spend; `since`: seconds that they are asked for; `acts`: whether what is
    decided is done; `period`: seconds until the next decision, at most.
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
    """How long so many steps take."""
    if not steps:
        return 0.0
    if speed:
        return steps / speed
    return math.inf


def counts(workers: Workers) -> dict[str, int]:
    """By GPU alone."""
    found: dict[str, int] = {}
    for (gpu, _), count in workers.items():
        found[gpu] = found.get(gpu, 0) + count
    return found


def zones_for(spec: ClusterSpec, run: RunSpec, gpu: str) -> tuple[str, ...]:
    """Where workers of the run with this GPU may be, best first."""
    named = dict.fromkeys(
        group.zone for group in spec.groups if group.zone and group.accelerator == gpu
    )
    wanted = tuple(zone for zone in run.zones if has_gpu(zone, gpu))
    return wanted or tuple(named) or spec.zones_for(gpu)


LASTS = 3 * 3600.0
LACKS = 1.5 * 3600.0
"""Mean seconds of a spell with capacity and of one without: what planner/deadlines/prior.csv tells
of AWS in 2022.
"""
PRIOR_SPELLS = 2.0


@dataclass(frozen=True, slots=True)
class Market:
    """`open`: whether there is capacity now; seconds that spells with capacity (`lasts`) and
    without (`lacks`) take; `spells`: how many of either kind say so, those of the prior among them;
    `age`: seconds since this one began, as seen.
    """

    open: bool
    lasts: float = LASTS
    lacks: float = LACKS
    spells: tuple[float, float] = (PRIOR_SPELLS, PRIOR_SPELLS)
    age: float = 0.0

    def share(self, seconds: float) -> tuple[float, float]:
        """Which part of the next `seconds` has capacity: the mean, and its deviation."""
        mean = self.lasts / (self.lasts + self.lacks)
        rate = 1 / self.lasts + 1 / self.lacks
        x = max(rate * seconds, 1e-6)
        fades = -math.expm1(-x) / x
        varies = mean * (1 - mean)
        # 2 (x - 1 + exp(-x)) / x^2 is the variance of a chain's time average, in that of a moment.
        deviation = math.sqrt(varies * (2 * (1 - fades) / x) + varies / (sum(self.spells) + 1))
        return mean + ((1.0 if self.open else 0.0) - mean) * fades, deviation

    def lacking(self, share: float, seconds: float) -> float:
        """How likely less than such a share of the next `seconds` has capacity, 0 to 1."""
        if share <= 0 or share >= 1:
            return float(share > 0)
        mean, deviation = self.share(seconds)
        return NormalDist(mean, max(deviation, 1e-9)).cdf(share)

    def patience(self, mean: float) -> float:
        """For how long each spell without capacity is waited for, at most, if that is to take
        `mean` seconds of one.
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
    """The market of which so many seconds with capacity and without were seen, in which so many
    spells of either kind came to their `ends`. `rate`: of the clock on which capacity comes and
    goes, in seconds per second.
    """
    spells = PRIOR_SPELLS + ends[0], PRIOR_SPELLS + ends[1]
    lasts = (LASTS / rate * PRIOR_SPELLS + opened) / spells[0]
    lacks = (LACKS / rate * PRIOR_SPELLS + closed) / spells[1]
    return Market(open_, lasts, lacks, spells, age)
