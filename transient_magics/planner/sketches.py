"""Every cluster that a search looks at, computed without chance: hundreds of thousands of them in a tenth of a second.

Workers of one GPU or of two, from 1 to 16 of them together in one zone, with any number of parameter servers, rented in
any way. An asynchronous cluster is as fast as the sum of its workers, whatever they are, until its servers are busy
(`speed`). The zones of a region cost the same, so one of each stands for all.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, combinations, product

import numpy as np
from numpy.typing import NDArray

from ..catalog import has_gpu, larger_shapes, never_on_demand, region, zones_with
from ..errors import DeclarationError
from ..spec import WorkerGroup
from .choices import Choice
from .speeds.speed import capacity, cluster_speed, worker_speed
from .speeds.workloads import Workload

COUNTS = (1, 2, 3, 4, 6, 8, 12, 16)
"""How many workers of a GPU are looked at; of two GPUs together no more than the most."""
MOST_WORKERS = max(COUNTS)
_NEAR = 1.15
"""How much slower and dearer than another, without chance, a cluster may be and still be simulated."""
_ALIKE = 1.01
_Array = NDArray[np.float64]
_ALONE = np.array(COUNTS)[:, np.newaxis]
_TOGETHER = np.array([both for both in product(COUNTS, repeat=2) if sum(both) <= MOST_WORKERS])


@dataclass(frozen=True, slots=True)
class _Block:
    """Workers with these `gpus` in one zone, in `machines` where these are not the catalog's. `counts`: (rows, gpus);
    `hours` and `dollars`: (rows, servers, models), infinite where nobody would declare it."""

    gpus: tuple[str, ...]
    machines: Mapping[str, str]
    zone: str
    counts: NDArray[np.int_]
    hours: _Array
    dollars: _Array


class Sketches:
    """All of them for a workload whose `steps` are known by the number of workers; others are left out. Numbered from
    0 on; `choice` makes a number a declaration."""

    def __init__(
        self, workload: Workload, steps: Mapping[int, int], gpus: Sequence[str], zones: Sequence[str],
        servers: Sequence[int], cores: int, models: Sequence[str], like: Choice | None = None,
    ) -> None:  # fmt: skip
        self._workload, self._servers, self._cores = workload, np.array(servers), cores
        self._like = like or Choice(())
        self._steps = np.array([steps.get(workers, np.inf) for workers in range(MOST_WORKERS + 1)])
        self._models = tuple(models)
        self._blocks = [
            block
            for kinds in [*((gpu,) for gpu in gpus), *self._mixes(gpus)]
            for zone in _places(kinds, zones)
            for machines in self._machines(kinds)
            if (block := self._block(kinds, machines, zone))
        ]
        self._ends = list(accumulate(block.hours.size for block in self._blocks))

    def __len__(self) -> int:
        """How many clusters they are."""
        return sum(int(np.isfinite(block.hours).sum()) for block in self._blocks)

    def choice(self, number: int) -> Choice:
        """The cluster of that number."""
        block, (row, servers, model) = self._at(number)
        counts = block.counts[row].tolist()
        groups = tuple(WorkerGroup(gpu, count, block.zone) for gpu, count in zip(block.gpus, counts, strict=True))
        return replace(
            self._like, groups=groups, servers=int(self._servers[servers]), server_cores=self._cores,
            provisioning=self._models[model], machines=block.machines,
        )  # fmt: skip

    def hours_and_dollars(self, number: int) -> tuple[float, float]:
        """Its hours and dollars, without chance."""
        block, place = self._at(number)
        return float(block.hours[place]), float(block.dollars[place])

    def near_front(self, most: int, most_mixed: int) -> list[int]:
        """Numbers of clusters that none beats clearly, for each way of renting (chance falls upon one of them only):
        at most so many of one GPU and of two."""
        if not self._blocks:
            return []
        hours, dollars = (
            np.concatenate([getattr(block, name).reshape(-1, len(self._models)) for block in self._blocks])
            for name in ("hours", "dollars")
        )
        mixed = np.concatenate([np.full(block.hours[..., 0].size, len(block.gpus) > 1) for block in self._blocks])
        chosen = []
        for model in range(len(self._models)):
            slack = _slack(hours[:, model], dollars[:, model])
            for kind, some in ((~mixed, most), (mixed, most_mixed)):
                near = np.flatnonzero(kind & (slack <= _NEAR))
                near = near[np.argsort(slack[near], kind="stable")][:some]
                chosen += (near * len(self._models) + model).tolist()
        return chosen

    def _at(self, number: int) -> tuple[_Block, tuple[int, int, int]]:
        which = bisect_right(self._ends, number)
        block = self._blocks[which]
        row, servers, model = np.unravel_index(number - self._ends[which] + block.hours.size, block.hours.shape)
        return block, (int(row), int(servers), int(model))

    def _mixes(self, gpus: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Pairs that one list of prices knows, so that each costs in the mix what it costs alone."""
        own = self._workload.prices.servers
        return ((one, other) for one, other in combinations(gpus, 2) if (one in own) == (other in own))

    def _machines(self, gpus: tuple[str, ...]) -> Iterable[Mapping[str, str]]:
        """In which machines: as it was said, else the catalog's, and larger ones that make steps shorter."""
        if self._like.machines:
            return [{gpu: self._like.machines[gpu] for gpu in gpus if gpu in self._like.machines}]
        some = [["", *self._larger(gpu)] for gpu in gpus]
        return [{gpu: name for gpu, name in zip(gpus, each, strict=True) if name} for each in product(*some)]

    def _larger(self, gpu: str) -> Iterator[str]:
        least = self._workload.step(gpu).seconds
        for machine in larger_shapes(gpu) if self._workload.preparation or self._workload.stalls else ():
            seconds = self._workload.step(gpu, machine).seconds
            if seconds < least / _ALIKE:
                yield machine
                least = seconds

    def _block(self, kinds: tuple[str, ...], machines: Mapping[str, str], zone: str) -> _Block | None:
        groups = [WorkerGroup(kind, 1, zone) for kind in kinds]
        choice = replace(self._like, groups=tuple(groups), machines=machines)
        try:
            prices = [choice.worker_price(self._workload, group) for group in groups]
            server = choice.prices(self._workload).parameter_server(self._cores, zone)
        except DeclarationError:
            return None  # no price is known there
        service, scaling = self._workload.service_seconds, self._workload.scaling
        steps = [choice.step(self._workload, group).seconds for group in groups]
        speeds = np.stack([worker_speed(steps, service, servers) for servers in self._servers], axis=1)
        limits = [capacity(service, servers, scaling) for servers in self._servers]
        rates = np.array([[each.on_demand if model == "standard" else each.transient for model in self._models]
                          for each in prices])  # fmt: skip
        counts = _ALONE if len(kinds) == 1 else _TOGETHER
        hours = self._steps[counts.sum(axis=1, keepdims=True)] / cluster_speed(counts @ speeds, limits) / 3600
        hourly = (counts @ rates)[:, np.newaxis] + (self._servers * server)[:, np.newaxis]
        # Several workers need a parameter server, and one has no use for a second.
        single = counts.sum(axis=1, keepdims=True) == 1
        hours[np.where(single, self._servers > self._servers.min(), self._servers == 0)] = np.inf
        each = np.repeat(hours[..., np.newaxis], len(self._models), axis=2)
        if never_on_demand(kinds):
            each[..., [model == "standard" for model in self._models]] = np.inf
        return _Block(kinds, machines, zone, counts, each, each * hourly)


def _places(kinds: tuple[str, ...], zones: Sequence[str]) -> Iterable[str]:
    """Of the `zones`, those with all these GPUs; of all where none is named, one of each region that has the machines
    of parameter servers too, best first."""
    if zones:
        return [zone for zone in zones if all(has_gpu(zone, kind) for kind in kinds)]
    found: dict[str, str] = {}
    for zone in zones_with(kinds[0]):
        if all(has_gpu(zone, kind) for kind in (*kinds[1:], "cpu")):
            found.setdefault(region(zone), zone)
    return found.values()


def _slack(hours: _Array, dollars: _Array) -> _Array:
    """By how much the cluster that beats each most is faster and cheaper, as a factor; infinite where it is far off."""
    order = np.lexsort((dollars, hours))
    lowest = np.minimum.accumulate(dollars[order])
    least = np.append(np.inf, lowest[:-1])
    front = order[dollars[order] * _ALIKE < least]
    found = np.full(len(hours), np.inf)
    if not front.size:
        return found
    best_hours, best_dollars = hours[front], dollars[front]
    # Of those that are faster by the whole tolerance the slowest is the cheapest: it alone can rule a cluster out.
    faster = np.searchsorted(best_hours, hours / _NEAR) - 1
    near = np.isfinite(hours) & ((faster < 0) | (dollars <= _NEAR * best_dollars[faster]))
    beaten = np.minimum(hours[near, np.newaxis] / best_hours, dollars[near, np.newaxis] / best_dollars)
    found[near] = beaten.max(axis=1)
    return found
