"""Simulated courses of training runs in a world of `_calibration`: their VMs, their speed, and what was recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise

import numpy as np
from _calibration import CORRELATED_HOURS, Array, Gaussian, World, mean_correlation, predictive

from transient_magics.planner.measured import Observation, Record
from transient_magics.planner.speeds.speed import capacity, cluster_speed, worker_speed
from transient_magics.planner.speeds.workloads import Workload

ABSENT_HOURS = 4 / 60
"""From a revocation until the replacement trains."""
_GRID_HOURS = 2 / 60
_WARM_UP_HOURS, _PART_HOURS, _MOST_PARTS, _SHORTEST_HOURS = 5 / 3600, 30 / 3600, 4, 10 / 3600
"""As `measured` cuts stretches into observations."""


@dataclass(frozen=True)
class Stretch:
    """A time of a run, in hours, with the same workers: `vms` by place, None for one that is absent."""

    begin: float
    end: float
    vms: tuple[int | None, ...]


def revoked_times(random: np.random.Generator, places: int, revocations: int, hours: float) -> list[Stretch]:
    """A run with so many revocations at random moments, each replaced after some minutes."""
    moments = np.sort(random.uniform(0.02 * hours, 0.98 * hours, revocations))
    changes = [(float(at), int(random.integers(places))) for at in moments]
    return _stretches(places, changes, [(at + ABSENT_HOURS, place) for at, place in changes], hours)


def revoked_after(random: np.random.Generator, places: int, mean_hours: float, hours: float) -> list[Stretch]:
    """A run whose VMs live exponentially long, each replaced after some minutes."""
    left = list[tuple[float, int]]()
    for place in range(places):
        at = float(random.exponential(mean_hours))
        while at < hours:
            left.append((at, place))
            at += ABSENT_HOURS + float(random.exponential(mean_hours))
    return _stretches(places, left, [(at + ABSENT_HOURS, place) for at, place in left], hours)


def _stretches(
    places: int, left: Sequence[tuple[float, int]], joined: Sequence[tuple[float, int]], hours: float
) -> list[Stretch]:
    vms: list[int | None] = list(range(places))
    newest, since, found = places, 0.0, list[Stretch]()
    events = sorted([*((at, place, False) for at, place in left), *((at, place, True) for at, place in joined)])
    for at, place, joins in [*events, (hours, 0, False)]:
        until = min(at, hours)
        if until > since:
            found.append(Stretch(since, until, tuple(vms)))
            since = until
        vms[place] = newest if joins else None
        newest += joins
    return found


def speed_of(workload: Workload, gpus: Sequence[str], effects: Array, servers: int) -> float:
    """Steps per second of workers with these GPUs, each as much faster than usual as its effect (log) says."""
    offered = sum(
        float(worker_speed(workload.compute[gpu].seconds, workload.service_seconds, servers)) * float(np.exp(effect))
        for gpu, effect in zip(gpus, effects, strict=True)
    )
    limit = capacity(workload.service_seconds, servers, workload.scaling)
    return float(cluster_speed(offered, limit)) if offered else 0.0


@cache
def _factor(count: int, hours: float) -> Array:
    edges = _GRID_HOURS * np.arange(count + 1)
    return np.linalg.cholesky(mean_correlation(edges[:-1], edges[1:], hours) + 1e-10 * np.eye(count))


@dataclass(frozen=True)
class Part:
    """One observation, when it was (hours), and of which VMs."""

    observation: Observation
    begin: float
    end: float
    vms: tuple[int, ...]


@dataclass(frozen=True)
class Course:
    """One run that was trained: its `stretches`, and its speed (steps per second) between `edges` (hours)."""

    gpus: tuple[str, ...]
    servers: int
    stretches: tuple[Stretch, ...]
    edges: Array
    speeds: Array

    @classmethod
    def draw(
        cls, random: np.random.Generator, world: World, workload: Workload, gpus: Sequence[str],
        stretches: Sequence[Stretch], servers: int = 1, effects: Array | None = None,
    ) -> Course:  # fmt: skip
        """One course of the world; `effects` of its VMs are drawn where they are not given."""
        end = stretches[-1].end
        count = int(np.ceil(end / _GRID_HOURS))
        noise = world.noise * (_factor(count, world.hours) @ random.normal(size=count)) + world.run_effect(random)
        vms = 1 + max(vm for stretch in stretches for vm in stretch.vms if vm is not None)
        effects = world.vm_effects(random, vms) if effects is None else effects
        begins = np.array([stretch.begin for stretch in stretches])
        undisturbed = []
        for stretch in stretches:
            there = [place for place, vm in enumerate(stretch.vms) if vm is not None]
            own = effects[[vm for vm in stretch.vms if vm is not None]]
            undisturbed.append(speed_of(workload, [gpus[place] for place in there], own, servers))
        edges = np.unique(np.concatenate([_GRID_HOURS * np.arange(count), begins, [end]]))
        middles = (edges[:-1] + edges[1:]) / 2
        which = np.searchsorted(begins, middles, side="right") - 1
        at = np.minimum((middles / _GRID_HOURS).astype(int), count - 1)
        return cls(tuple(gpus), servers, tuple(stretches), edges, np.array(undisturbed)[which] * np.exp(noise[at]))

    @cached_property
    def _made(self) -> Array:
        return np.concatenate([[0.0], np.cumsum(3600 * self.speeds * np.diff(self.edges))])

    def steps_by(self, hours: float) -> float:
        return float(np.interp(hours, self.edges, self._made))

    def finish(self, steps: float) -> float:
        """The hours after which so many steps are made. Raises ValueError where they never are."""
        if steps > self._made[-1]:
            raise ValueError("the simulated course is too short")
        return float(np.interp(steps, self._made, self.edges))

    def parts(self, until: float = np.inf) -> list[Part]:
        """What `measured` would observe of it by then."""
        found = list[Part]()
        for stretch in self.stretches:
            begin, end = stretch.begin + _WARM_UP_HOURS, min(stretch.end, until)
            there = [place for place, vm in enumerate(stretch.vms) if vm is not None]
            if end - begin < _SHORTEST_HOURS or not there:
                continue
            count = min(max(int((end - begin) / _PART_HOURS), 1), _MOST_PARTS)
            kinds = [self.gpus[place] for place in there]
            workers = {gpu: kinds.count(gpu) for gpu in dict.fromkeys(kinds)}
            vms = tuple(vm for vm in stretch.vms if vm is not None)
            edges = np.linspace(begin, end, count + 1).tolist()
            for since, to in pairwise(edges):
                speed = (self.steps_by(to) - self.steps_by(since)) / (3600 * (to - since))
                found.append(Part(Observation(workers, self.servers, speed, 3600 * (to - since)), since, to, vms))
        return found

    def record(self, parameters: int = 0) -> Record:
        """What the store keeps of it."""
        seen = tuple(part.observation for part in self.parts())
        return Record(seen, "own", batch_size=128, parameters=parameters, over=True, workers=float(len(self.gpus)))


def best_speed(runs: Sequence[Sequence[Part]], usual: Sequence[Sequence[float]], current: tuple[int, ...] = (),
               rest: tuple[float, float] = (0.0, 0.0), kept: float = 0.0) -> Gaussian:  # fmt: skip
    """The log of how much faster than usual all runs of the world are, by the parts of some that were measured.

    `usual`: what the parts' clusters make, without effects. With `current` (VMs of the only run) it is how much faster
    that run is in the time `rest` (begin and end in hours), in which these VMs have the share `kept` of the work.
    """
    measured = [
        np.log([part.observation.steps_per_second for part in run]) - np.log(speeds)
        for run, speeds in zip(runs, usual, strict=True)
    ]
    times = [[(part.begin, part.end) for part in run] for run in runs]
    membership = [_membership([part.vms for part in run]) for run in runs]
    shared = [each @ each.T for each in membership]
    begins, ends = ([[at[place] for at in run] for run in times] for place in (0, 1))
    noise = {
        hours: [mean_correlation(begin, end, hours) for begin, end in zip(begins, ends, strict=True)]
        for hours in CORRELATED_HOURS
    }

    def covariances(world: World) -> list[Array]:
        return [
            world.run**2 + world.vm**2 * same + world.noise**2 * drift + 1e-9 * np.eye(len(same))
            for same, drift in zip(shared, noise[world.hours], strict=True)
        ]

    mine = _membership([*(part.vms for part in runs[0]), current])[-1] if current else np.zeros(0)

    def target(world: World) -> tuple[Array, float, list[Array]]:
        if not current:
            return np.ones(1), 0.0, [np.zeros(len(each)) for each in measured]
        together = mean_correlation([*begins[0], rest[0]], [*ends[0], rest[1]], world.hours)[-1]
        variance = world.run**2 + world.vm**2 * (kept**2 * mine @ mine + (1 - kept) ** 2 / len(current) / 2)
        known = _membership([*(part.vms for part in runs[0]), current])[:-1] @ mine
        cross = world.run**2 + world.vm**2 * kept * known + world.noise**2 * together[:-1]
        return np.ones(1), variance + world.noise**2 * together[-1], [cross]

    return predictive(measured, [np.ones((len(each), 1)) for each in measured], covariances, target)


def _membership(vms: Sequence[tuple[int, ...]]) -> Array:
    """Each VM's share of each cluster, shape (clusters, VMs)."""
    shares = np.zeros((len(vms), 1 + max(vm for some in vms for vm in some)))
    for place, some in enumerate(vms):
        shares[place, list(some)] = 1 / len(some)
    return shares
