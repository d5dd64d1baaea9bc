"""What a decision about a run with a deadline follows from: speeds, capacity, prices, the machines that it has."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ..catalog import has_gpu
from ..spec import ClusterSpec, RunSpec
from .market import Market
from .speeds import Speeds

SPOT, ON_DEMAND = "spot", "standard"
PERIOD = 5.0
"""Seconds between two decisions at most."""
Workers = Mapping[tuple[str, str], int]
"""How many, by GPU and terms."""


@dataclass(frozen=True, slots=True, order=True)
class Net:
    """Workers on demand that bring a run home by themselves: GPU, how many, US dollars of a step (`price`), and the
    `speed` that is counted with, in steps per second; `measured`: whether it follows from what was measured."""

    gpu: str
    count: int
    price: float
    speed: float
    measured: bool = True


@dataclass(frozen=True, slots=True)
class Kind:
    """Workers that may be rented: US dollars per second as Spot and, where they are sold so, on demand."""

    gpu: str
    spot: float
    on_demand: float | None


@dataclass(frozen=True, slots=True)
class Seen:
    """What a decision follows from. Seconds and US dollars; `now` and `deadline` since 1970.

    `steps` are left behind the last durable save, `unsaved` of them are made; `end`: from the last step until it is
    saved, at most. `began`: when it began to train, `train_steps` in all. `workers` are asked for, `working` train.
    `begin`: until VMs on demand that are asked for now take steps, at most; `begun`: until those that are asked for do;
    `start`: what it takes a Spot worker; `life`: how long one is there. `kept`: what all but workers cost in a second.
    `most`: workers at once; `overlaps`: whether others may start beside so many, to take over from them; `money`: left
    to spend; `since`: seconds that they are asked for; `acts`: whether what is decided is done; `period`: seconds until
    the next decision, at most.
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
    return 0.0 if not steps else steps / speed if speed else math.inf


def counts(workers: Workers) -> dict[str, int]:
    """By GPU alone."""
    found: dict[str, int] = {}
    for (gpu, _), count in workers.items():
        found[gpu] = found.get(gpu, 0) + count
    return found


def zones_for(spec: ClusterSpec, run: RunSpec, gpu: str) -> tuple[str, ...]:
    """Where workers of the run with this GPU may be, best first."""
    named = dict.fromkeys(each.zone for each in spec.groups if each.zone and each.accelerator == gpu)
    wanted = tuple(zone for zone in run.zones if has_gpu(zone, gpu))
    return wanted or tuple(named) or spec.zones_for(gpu)
