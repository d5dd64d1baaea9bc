"""Which workers go where there are to be fewer, by the user's choice: as a cluster becomes smaller,
or where a provider wants VMs back and names their number alone. Pure.

- `youngest`: those that have run for the shortest time, whose data and caches are the least
- `dearest`: those that cost the most an hour
- `slowest`: those that have made the fewest examples a second of late beside the mean worker of
  their run, none at all among them
- `riskiest`: those that are the likeliest to be revoked within the next hour, by their age

Whoever was told to leave goes first in any case, and among equals who was asked for last. Parameter
servers stay.
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

MEASURES: Mapping[GiveUp, str] = {
    "slowest": "nothing trains that tells how fast workers are",
    "riskiest": "nothing is known of how long such VMs live",
}
"""Policies that go by what is measured of each worker, and why they may have nothing to go by."""
_LATELY = 30.0
"""Seconds of a run that tell how fast its workers are."""


def leaving(
    state: ClusterState, spec: ClusterSpec, policy: GiveUp, measured: Mapping[str, float]
) -> tuple[str, ...]:
    """The workers that have no place in `spec`, the first to go first. `measured`, by VM: the speed
    for the `slowest`, the probability of a revocation for the `riskiest`.
    """
    going = _staying(state, policy, measured)
    # A place that is in one zone has fewer who fit it: it chooses before those that may be
    # anywhere.
    for place in sorted(worker_places(state, spec), key=lambda each: not each.fixed):
        if (best := next((vm for vm in going if place.fits(vm)), None)) is not None:
            going.remove(best)
    return tuple(vm.name for vm in reversed(going))


def first_to_go(
    state: ClusterState, policy: GiveUp, measured: Mapping[str, float]
) -> tuple[str, ...]:
    """The VMs that are wanted back and are still there, the first to go first. `measured` as above."""
    there = state.wanted_back
    return tuple(vm.name for vm in reversed(_staying(state, policy, measured)) if vm.name in there)


def _staying(state: ClusterState, policy: GiveUp, measured: Mapping[str, float]) -> list[VmState]:
    """The workers, those that are to stay first."""

    def value(vm: VmState) -> float:
        match policy:
            case "youngest":
                return vm.running_at or math.inf
            case "dearest":
                return vm.hourly
            case "slowest":
                return -measured.get(vm.name, 0.0)
            case "riskiest":
                return measured.get(vm.name, 0.0)

    present = [vm for vm in state.serving if vm.role == WORKER]
    return sorted(present, key=lambda vm: (vm.state == "leaving", value(vm)))


def lately(rows: Iterable[Mapping[str, Any]], now: float) -> dict[str, float]:
    """Examples a second, by worker, of a run's metrics at `now` (seconds since 1970)."""
    made: defaultdict[str, float] = defaultdict(float)
    for row in rows:
        if now - row["time"] / 1e9 <= _LATELY:
            made[row["worker"]] += (row.get("samples") or 0.0) / _LATELY
    return dict(made)


def compared(runs: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """How fast each worker is, from the examples a second of each run's: 1 is the mean of a run's
    workers, whose models and mini-batches are its own. Of one that trains in several the mean.
    """
    found: defaultdict[str, list[float]] = defaultdict(list)
    for rates in runs:
        mean = sum(rates.values()) / max(len(rates), 1)
        for worker, rate in rates.items() if mean else ():
            found[worker].append(rate / mean)
    return {worker: sum(speeds) / len(speeds) for worker, speeds in found.items()}
