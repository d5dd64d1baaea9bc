"""Which workers go where a cluster becomes smaller, by the user's choice. Pure.

- `youngest`: those that have run for the shortest time, whose data and caches are the least
- `dearest`: those that cost the most an hour
- `slowest`: those that have made the fewest examples a second of late, none at all among them

Whoever was told to leave goes first in any case, and among equals who was asked for last. Parameter servers stay.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from ...journal import ClusterState, VmState
from ...protocol.cluster_commands import GiveUp
from ...spec import WORKER, ClusterSpec
from .core import worker_places

_LATELY = 30.0
"""Seconds of a run that tell how fast its workers are."""


def leaving(state: ClusterState, spec: ClusterSpec, policy: GiveUp, rates: Mapping[str, float]) -> tuple[str, ...]:
    """The workers that have no place in `spec`, the first to go first; `rates` in examples a second, by VM."""

    def value(vm: VmState) -> float:
        match policy:
            case "youngest":
                return vm.running_at or math.inf
            case "dearest":
                return vm.hourly
            case "slowest":
                return -rates.get(vm.name, 0.0)

    present = [vm for vm in state.serving if vm.role == WORKER]
    going = sorted(present, key=lambda vm: (vm.state == "leaving", value(vm)))
    # A place that is in one zone has fewer who fit it: it chooses before those that may be anywhere.
    for place in sorted(worker_places(state, spec), key=lambda each: not each.fixed):
        if (best := next((vm for vm in going if place.fits(vm)), None)) is not None:
            going.remove(best)
    return tuple(vm.name for vm in reversed(going))


def lately(rows: Iterable[Mapping[str, Any]], now: float) -> dict[str, float]:
    """Examples a second, by worker, of a run's metrics at `now` (seconds since 1970)."""
    made: defaultdict[str, float] = defaultdict(float)
    for row in rows:
        if now - row["time"] / 1e9 <= _LATELY:
            made[row["worker"]] += (row.get("samples") or 0.0) / _LATELY
    return dict(made)
