"""Small worlds in which `decide` governs a cluster of VMs without a GPU: for tests of it, and for a benchmark."""

from __future__ import annotations

import itertools
from bisect import bisect
from collections.abc import Mapping
from typing import Any

from transient_magics.deadlines.simulation import Capacity, Simulation
from transient_magics.deadlines.situation import SPOT, Kind

HOURLY, ON_DEMAND_HOURLY, KEPT = 1.0, 3.0, 0.7
"""US dollars per hour: of a Spot worker, of one on demand, of all else."""


def world(
    capacity: Capacity, deadline: float, work: int, alone: float = 2.0, shared: float = 0.0, declared: int = 2,
    hourly: float = HOURLY, on_demand_hourly: float = ON_DEMAND_HOURLY, kept: float = KEPT, most: int = 0, **more: Any,
) -> Simulation:  # fmt: skip
    """A cluster of so many workers, each `alone` steps per second; each holds the others up by the share `shared`.
    It may have `most` (twice those that were declared)."""

    def speed(workers: Mapping[str, int]) -> float:
        count = sum(workers.values())
        return count * alone / (1 + shared * (count - 1)) if count else 0.0

    return Simulation(
        capacity, deadline, work, speed, (Kind("cpu", hourly / 3600, on_demand_hourly / 3600),),
        {("cpu", SPOT): declared}, most or 2 * declared, kept / 3600, **more,
    )  # fmt: skip


def spells(*lengths: float) -> Capacity:
    """Capacity for the first so many seconds, then none, and so on; none after the last."""
    changes = list(itertools.accumulate(lengths))
    return lambda now: 99 if now < changes[-1] and bisect(changes, now) % 2 == 0 else 0
