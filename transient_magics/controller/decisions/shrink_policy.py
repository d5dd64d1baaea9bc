"""Choose the workers that go when there should be fewer, by the user's policy. Pure.

A policy applies when a cluster becomes smaller, or when a provider reclaims a number of VMs:

- `youngest`: workers that have run for the shortest time, which have the least data and caches
- `costliest`: workers with the highest price per hour
- `slowest`: workers with the fewest recent examples per second, relative to the mean worker of
  their run, idle ones first
- `riskiest`: workers most likely to be preempted within the next hour, by their age

Workers with a preemption notice go first under any policy, and among equals the one requested last.
Parameter servers stay.
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
"""Policies that need a measurement of each worker, and why there may be none."""
_LATELY = 30.0
"""Seconds of a run's metrics from which the speed of its workers is computed."""


def leaving(
    state: ClusterState, spec: ClusterSpec, policy: GiveUp, measured: Mapping[str, float]
) -> tuple[str, ...]:
    """Return the workers without a place in `spec`, the first to go first.

    `measured` has, by VM, the speed for `slowest` and the probability of a preemption for
    `riskiest`.
    """
    going = _staying(state, policy, measured)
    # A place in one zone fits fewer workers, so it chooses before those that may be anywhere.
    for place in sorted(worker_places(state, spec), key=lambda place: not place.fixed):
        if (best := next((vm for vm in going if place.fits(vm)), None)) is not None:
            going.remove(best)
    return tuple(vm.name for vm in reversed(going))


def first_to_go(
    state: ClusterState, policy: GiveUp, measured: Mapping[str, float]
) -> tuple[str, ...]:
    """Return the remaining reclaimed VMs, the first to go first; `measured` as in `leaving`."""
    there = state.wanted_back
    return tuple(vm.name for vm in reversed(_staying(state, policy, measured)) if vm.name in there)


def _staying(state: ClusterState, policy: GiveUp, measured: Mapping[str, float]) -> list[VmState]:
    """Return the workers, those to keep first."""

    def value(vm: VmState) -> float:
        match policy:
            case "youngest":
                return vm.running_at or math.inf
            case "costliest":
                return vm.hourly
            case "slowest":
                return -measured.get(vm.name, 0.0)
            case "riskiest":
                return measured.get(vm.name, 0.0)

    present = [vm for vm in state.serving if vm.role == WORKER]
    return sorted(present, key=lambda vm: (vm.state == "leaving", value(vm)))


def lately(rows: Iterable[Mapping[str, Any]], now: float) -> dict[str, float]:
    """Return the examples per second, by worker, of a run at `now` (seconds since 1970)."""
    made: defaultdict[str, float] = defaultdict(float)
    for row in rows:
        if now - row["time"] / 1e9 <= _LATELY:
            made[row["worker"]] += (row.get("samples") or 0.0) / _LATELY
    return dict(made)


def compared(runs: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the relative speed of each worker: 1 is the mean of its run's workers.

    Each run has its own model and mini-batches. A worker that trains in several runs has the mean
    of its speeds.
    """
    found: defaultdict[str, list[float]] = defaultdict(list)
    for rates in runs:
        mean = sum(rates.values()) / max(len(rates), 1)
        for worker, rate in rates.items() if mean else ():
            found[worker].append(rate / mean)
    return {worker: sum(speeds) / len(speeds) for worker, speeds in found.items()}
