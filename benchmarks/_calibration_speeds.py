"""Rows about speeds: plans of clusters that trained, and of others, with what runs were measured at.

Plans are of the networks that CM-DARE and ICAC'19 measured. Where the parameter servers' part was never seen, it
differs by 22 %, as far as estimates of it are off.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from _calibration import Array, Row, Trial, World

from transient_magics.catalog import ACCELERATORS, ZONES, PriceList
from transient_magics.planner.choices import Choice
from transient_magics.planner.measured import Observation, Record
from transient_magics.planner.plan import make_plan
from transient_magics.planner.simulate import simulate
from transient_magics.planner.speeds.speed import capacity, cluster_speed, worker_speed
from transient_magics.planner.speeds.workloads import PUBLISHED, Workload
from transient_magics.planner.store import ModelStore
from transient_magics.spec import parse_groups

NETWORKS = ("cmdare/resnet-15", "cmdare/resnet-32", "cmdare/shake-shake-small", "cmdare/shake-shake-big")
RUNS = 2000
"""Simulated courses of a plan."""
HOURS = 5.0
"""Of a run."""
ABSENT_HOURS = 4 / 60
"""From a revocation until the replacement trains."""
WARM_UP_HOURS, PART_HOURS, MOST_PARTS = 5 / 3600, 30 / 3600, 4
"""As `measured` cuts stretches into observations."""


def exact_workload(name: str, away: float = 0.0) -> Workload:
    """A published network as if its figures were exact, but for what its servers take; rented as today."""
    known = PUBLISHED[name]
    exact = {gpu: replace(each, error=0.0) for gpu, each in known.compute.items()}
    return replace(
        known, compute=exact, speed_error=0.0, limit_error=0.0, scaling_error=0.0, prices=PriceList(),
        from_first_step=False, service_seconds=known.service_seconds * float(np.exp(away)),
    )  # fmt: skip


def choice_of(line: str, servers: int = 1) -> Choice:
    return Choice(parse_groups(line, ACCELERATORS, ZONES), servers)


def speed_of(workload: Workload, gpus: Sequence[str], effects: Array, servers: int) -> float:
    """Steps per second of workers with these GPUs, each as much faster than usual as its effect (log) says."""
    offered = sum(
        float(worker_speed(workload.compute[gpu].seconds, workload.service_seconds, servers)) * float(np.exp(effect))
        for gpu, effect in zip(gpus, effects, strict=True)
    )
    return float(cluster_speed(offered, capacity(workload.service_seconds, servers, workload.scaling)))


@dataclass(frozen=True)
class Stretch:
    """A time of a run, in hours, with the same workers: `vms` by place, None for one that is absent."""

    begin: float
    end: float
    vms: tuple[int | None, ...]


def stretches(random: np.random.Generator, places: int, revocations: int, hours: float = HOURS) -> list[Stretch]:
    """Of a run with so many revocations at random moments, each replaced after some minutes."""
    moments = np.sort(random.uniform(0.02 * hours, 0.98 * hours, revocations))
    changes = [(float(at), int(random.integers(places))) for at in moments]
    left = [(at, place, False) for at, place in changes]
    joined = [(at + ABSENT_HOURS, place, True) for at, place in changes]
    events = sorted([*left, *joined])
    vms: list[int | None] = list(range(places))
    newest, since, found = places, 0.0, list[Stretch]()
    for at, place, joins in [*events, (hours, 0, True)]:
        until = min(at, hours)
        if until > since:
            found.append(Stretch(since, until, tuple(vms)))
            since = until
        vms[place] = newest if joins else None
        newest += joins
    return found


@dataclass(frozen=True)
class Measured:
    """The observations of one run, with which VMs each was."""

    observations: list[Observation] = field(default_factory=list)
    begin: list[float] = field(default_factory=list)
    end: list[float] = field(default_factory=list)
    vms: list[tuple[int, ...]] = field(default_factory=list)

    @property
    def record(self) -> Record:
        return Record(tuple(self.observations), "own", batch_size=128, over=True)


def measure(
    random: np.random.Generator, world: World, workload: Workload, gpus: Sequence[str], course: Sequence[Stretch],
    servers: int = 1,
) -> Measured:  # fmt: skip
    """What `measured` would record of one run of the world."""
    found, counts = Measured(), list[list[int]]()
    for stretch in course:
        length = stretch.end - stretch.begin - WARM_UP_HOURS
        there = [place for place, vm in enumerate(stretch.vms) if vm is not None]
        if length < 10 / 3600 or not there:
            continue
        parts = min(max(int(length / PART_HOURS), 1), MOST_PARTS)
        edges = np.linspace(stretch.begin + WARM_UP_HOURS, stretch.end, parts + 1)
        for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            found.begin.append(begin)
            found.end.append(end)
            found.vms.append(tuple(vm for vm in stretch.vms if vm is not None))
            counts.append(there)
    effects = world.vm_effects(random, 1 + max(vm for vms in found.vms for vm in vms))
    noise = world.mean_noise(random, found.begin, found.end)
    run = world.run_effect(random)
    for vms, there, begin, end, drift in zip(found.vms, counts, found.begin, found.end, noise, strict=True):
        kinds = [gpus[place] for place in there]
        speed = speed_of(workload, kinds, effects[list(vms)], servers) * float(np.exp(run + drift))
        workers = {gpu: kinds.count(gpu) for gpu in dict.fromkeys(kinds)}
        found.observations.append(Observation(workers, servers, speed, 3600 * (end - begin)))
    return found


def learnt(records: Mapping[str, Record]) -> Workload:
    """What the store makes of these runs."""
    with TemporaryDirectory() as folder:
        store = ModelStore("model", "problem", directory=Path(folder))
        for moment, (name, record) in enumerate(records.items()):
            store.learn(f"{name}@{moment}", record)
        return store.workload("run", "own")


def gpus_of(line: str) -> list[str]:
    return [group.accelerator for group in choice_of(line).groups for _ in range(group.count)]


@dataclass(frozen=True)
class Other:
    """A cluster that is planned with so many `servers`, from `seen` ones with one. `varies`: by how much what servers
    take differs from the estimate, where nothing measured it."""

    seen: tuple[str, ...]
    planned: str
    servers: int = 1
    varies: float = 0.0
    networks: tuple[str, ...] = NETWORKS


OTHERS = {
    "the same twice": Other(("k80x4",) * 2, "k80x4"),
    "half as large, twice": Other(("k80x2",) * 2, "k80x4"),
    "two GPUs, each alone and together": Other(("k80x2", "p100x2", "k80x2+p100") * 2, "k80x4+p100x2"),
    "bound by servers": Other(("p100", "p100x2", "p100x4", "p100x8"), "p100x6"),
    "smaller, not bound by servers": Other(("p100x2",) * 2, "p100x8", varies=0.22),
    "bound by one server, two planned": Other(
        ("p100", "p100x2", "p100x4", "p100x8"), "p100x8", 2, networks=NETWORKS[:2]
    ),
    "a slower GPU": Other(("k80x4",) * 2, "p100x4"),
}
"""Two servers: of networks whose variables spread over them."""


def plan_of_other(other: Other, random: np.random.Generator) -> Trial:
    """Hours of a plan of a cluster from what others were measured at, one run of each."""
    world, name = World.draw(random), str(random.choice(other.networks))
    workload = exact_workload(name, float(random.normal(0, other.varies)))
    records = {
        f"run-{place}": replace(
            measure(random, world, workload, gpus, [Stretch(0.0, 1.0, tuple(range(len(gpus))))]).record,
            parameters=workload.parameters,
        )
        for place, gpus in enumerate(map(gpus_of, other.seen))
    }
    choice = choice_of(other.planned, other.servers)
    steps = round(choice.steps_per_second(workload) * HOURS * 3600)
    seed = int(random.integers(2**31))
    low, high = make_plan(choice, learnt(records), steps, runs=RUNS, seed=seed).interval("hours")
    gpus = gpus_of(other.planned)
    speed = speed_of(workload, gpus, world.vm_effects(random, len(gpus)), other.servers)
    speed *= float(np.exp(world.run_effect(random) + world.mean_noise(random, [0.0], [HOURS])[0]))
    usual = choice.steps_per_second(workload)
    course = replace(choice.course(workload, steps * usual / speed))
    return Trial(low, high, float(simulate(course, 1, seed + 1).hours[0]))


def _others() -> Iterator[Row]:
    for measured, other in OTHERS.items():
        yield Row(f"plan hours of {other.planned}", measured, partial(plan_of_other, other))


ROWS: list[Row] = [*_others()]
