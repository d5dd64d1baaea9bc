"""Rows about speeds: plans, forecasts of runs, and dry runs of studies.

Plans are of the networks that CM-DARE and ICAC'19 measured. Where the parameter servers' part was never seen, it
differs by 22 %, as far as estimates of it are off. Lifetimes are the law's own: rows about what is learned of them are
in `_calibration_learning`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from _calibration import (
    ABSENT_HOURS,
    Array,
    Course,
    Part,
    Row,
    Trial,
    World,
    best_speed,
    mean_correlation,
    revoked_after,
    revoked_times,
    speed_of,
    worlds,
)

from transient_magics.catalog import ACCELERATORS, ZONES, PriceList
from transient_magics.catalog.published import WAVES
from transient_magics.journal import Event, RunState, costs, events, replay
from transient_magics.planner import simulate as simulation
from transient_magics.planner.choices import Choice
from transient_magics.planner.forecast import CLOSING_SECONDS, expected, forecast
from transient_magics.planner.lifetimes.parametric import LifetimeModel, Weibull
from transient_magics.planner.model_store import ModelStore
from transient_magics.planner.plan import Plan, make_plan
from transient_magics.planner.ranges import middle
from transient_magics.planner.run_records import Record
from transient_magics.planner.speeds.workloads import PUBLISHED, Workload
from transient_magics.protocol.vm_events import TrainStarted, WorkerJoined, WorkerLeft
from transient_magics.spec import ClusterSpec, PriceLine, WorkerGroup, parse_groups
from transient_magics.works.studies.plans import hours_until_trained

NETWORKS = ("cmdare/resnet-15", "cmdare/resnet-32", "cmdare/shake-shake-small", "cmdare/shake-shake-big")
CLUSTER = "k80x4"
RUNS, BEST_RUNS = 2000, 4000
"""Simulated courses of a plan, and of its best interval."""
HOURS = 5.0
"""Length of a run in hours."""
LIVES_HOURS = 20.0
"""Mean hours of the lives of VMs of planned runs."""


def exact_workload(name: str, away: float = 0.0) -> Workload:
    """A published network as if its figures were exact, but for what its servers take; rented as today."""
    known = PUBLISHED[name]
    exact = {gpu: replace(each, error=0.0) for gpu, each in known.compute.items()}
    return replace(
        known, compute=exact, speed_error=0.0, limit_error=0.0, scaling_error=0.0, prices=PriceList(),
        from_first_step=False, service_seconds=known.service_seconds * math.exp(away),
    )  # fmt: skip


def choice_of(line: str, servers: int = 1) -> Choice:
    return Choice(parse_groups(line, ACCELERATORS, ZONES), servers)


def gpus_of(line: str) -> list[str]:
    return [group.accelerator for group in choice_of(line).groups for _ in range(group.count)]


def learnt(records: Mapping[str, Record]) -> Workload:
    """The workload that the store fits to these runs."""
    with TemporaryDirectory() as folder:
        store = ModelStore("model", "problem", directory=Path(folder))
        for moment, (name, record) in enumerate(records.items()):
            store.learn(f"cluster/{name}@{moment}", record)
        return store.workload("run", "own")


def law(gpu: str, place: str) -> LifetimeModel:
    return Weibull(LIVES_HOURS)


def usual_speeds(parts: Sequence[Part], workload: Workload) -> list[float]:
    """Return the speeds of the parts' clusters without effects."""
    found = list[float]()
    for part in parts:
        gpus = [gpu for gpu, count in part.observation.workers.items() for _ in range(count)]
        found.append(speed_of(workload, gpus, np.zeros(len(gpus)), part.observation.servers))
    return found


# Plans of the cluster that trained.


def shown_by(plan: Plan, what: str) -> tuple[float, float]:
    """The interval of hours, dollars or workers lost."""
    return middle(plan.outcome.revocations) if what == "revocations" else plan.interval(what)


def came_of(
    random: np.random.Generator, world: World, workload: Workload, choice: Choice, steps: int
) -> dict[str, float]:
    """Hours, dollars and workers lost of the run that was planned, by its own simulation of VMs and their noise."""
    course = choice.course(workload, steps, law)
    group, places, limit = course.groups[0], course.groups[0].count, 5 * HOURS
    shared = LIVES_HOURS * random.exponential()
    timeline = list[tuple[float, float, float, int]]()
    for place in range(places):
        asked, first = 0.0, True
        while asked < limit:
            start = group.startup
            mean = start.running + start.usable
            stretched = max(1 + random.normal() * start.deviation / mean, 0.5)
            running = asked + start.running * stretched / 3600
            ready = running + (start.usable * stretched + group.join_seconds) / 3600
            together = first and random.random() < WAVES
            ended = running + (shared if together else LIVES_HOURS * random.exponential())
            timeline.append((running, min(ready, ended), ended, place))
            asked, first = ended, False
    effects = world.vm_effects(random, len(timeline))
    moments = sorted({0.0, *(min(at, limit) for vm in timeline for at in vm[1:3]), limit})
    made, at, noise = 0.0, limit, world.run_effect(random)
    drift = _drift(random, world, limit)
    for begin, end in pairwise(moments):
        there = [number for number, vm in enumerate(timeline) if vm[1] <= begin < vm[2]]
        speed = speed_of(workload, [group.accelerator] * len(there), effects[there], course.servers) if there else 0.0
        edges = np.unique([begin, *(_EDGES[(begin < _EDGES) & (end > _EDGES)]), end])
        rates = 3600 * speed * np.exp(noise + drift[np.minimum((edges[:-1] / _GRID).astype(int), len(drift) - 1)])
        done = made + np.cumsum(rates * np.diff(edges))
        if done[-1] >= steps:
            last = int(np.argmax(done >= steps))
            at = float(edges[last + 1] - (done[last] - steps) / rates[last])
            break
        made = float(done[-1])
    dollars = course.server_hourly * course.servers * max(at - course.server_startup.running / 3600, 0.0)
    for running, _, ended, _ in timeline:
        if running < at and not (ended <= at and ended - running < 1 / 60):
            dollars += group.hourly * max(min(ended, at) - running, 1 / 60)
    lost = sum(ended < at for *_, ended, _ in timeline)
    return {"hours": at, "dollars": dollars, "revocations": float(lost)}


_GRID = 2 / 60
_EDGES = _GRID * np.arange(int(5 * HOURS / _GRID) + 1)


def _drift(random: np.random.Generator, world: World, limit: float) -> Array:
    """The process as means over the grid: a short correlation averages away within one."""
    share = math.sqrt(mean_correlation([0.0], [_GRID], world.hours)[0, 0])
    return share * world.noise_at(random, _EDGES[limit > _EDGES])


def best_of_plan(
    random: np.random.Generator, runs: Sequence[Sequence[Part]], workload: Workload, choice: Choice, steps: int
) -> dict[str, tuple[float, float]]:
    """The best intervals: courses with the law's revocations, each in a world and at a speed that may be."""
    posterior = best_speed(runs, [usual_speeds(run, workload) for run in runs])
    course = choice.course(workload, steps, law)
    usual = simulation.simulate(course, BEST_RUNS, int(random.integers(2**31)))
    which = random.choice(len(posterior.weights), BEST_RUNS, p=posterior.weights)
    mean, deviation = posterior.means[which], posterior.deviations[which]
    vms = choice.workers + usual.revocations
    run, vm, noise = np.array([_spreads(world, HOURS) for world in worlds()]).T[:, which]
    spread = np.sqrt(run**2 + vm**2 / vms + noise**2)
    away = mean + np.hypot(deviation, spread) * random.normal(size=BEST_RUNS)
    found = {what: middle(getattr(usual, what) * np.exp(-away)) for what in ("hours", "dollars")}
    return {**found, "revocations": middle(usual.revocations)}


def _spreads(world: World, hours: float) -> tuple[float, float, float]:
    """The standard deviations between runs, between VMs, and of the mean noise over these hours."""
    return world.run, world.vm, world.noise * math.sqrt(mean_correlation([0.0], [hours], world.hours)[0, 0])


def plan_of_same(
    what: str, runs: int, revocations: int, world_of: Callable[[np.random.Generator], World],
    random: np.random.Generator,
) -> Trial:  # fmt: skip
    """A plan of the measured cluster, by the number of runs and of revocations in each."""
    world, workload = world_of(random), exact_workload(str(random.choice(NETWORKS)))
    gpus, choice = gpus_of(CLUSTER), choice_of(CLUSTER)
    courses = [
        Course.draw(random, world, workload, gpus, revoked_times(random, len(gpus), revocations, HOURS))
        for _ in range(runs)
    ]
    known = learnt({f"run-{place}": each.record(workload.parameters) for place, each in enumerate(courses)})
    known = replace(known, join_seconds=workload.join_seconds)
    steps = round(3600 * HOURS * choice.steps_per_second(workload))
    plan = make_plan(choice, known, steps, law, runs=RUNS, seed=int(random.integers(2**31)))
    best = best_of_plan(random, [course.parts() for course in courses], workload, choice, steps)
    return Trial(*shown_by(plan, what), came_of(random, world, workload, choice, steps)[what], best[what])


@dataclass(frozen=True)
class Fixed:
    """Always the same world."""

    world: World

    def __call__(self, random: np.random.Generator) -> World:
        return self.world


SINGLE = {
    "runs differ by 2 %": World(0.02, 0.0, 0.01, 30 / 3600),
    "runs differ by 4 %": World(0.04, 0.0, 0.01, 30 / 3600),
    "runs differ by 6 %": World(0.06, 0.0, 0.01, 30 / 3600),
    "VMs differ by 5 %": World(0.0, 0.05, 0.01, 30 / 3600),
    "noise of 5 % over 2 h": World(0.0, 0.0, 0.05, 2.0),
}


def _plans() -> Iterator[Row]:
    for runs in (1, 3):
        for revocations in (0, 4, 12):
            measured = f"{runs} run{'s' if runs > 1 else ''}, {revocations} revocations"
            for what, name in (("hours", "plan hours"), ("dollars", "plan dollars")):
                yield Row(name, measured, partial(plan_of_same, what, runs, revocations, World.draw))
    yield Row("plan lost workers", "1 run, 4 revocations", partial(plan_of_same, "revocations", 1, 4, World.draw))
    for name, world in SINGLE.items():
        for runs in (1, 3):
            measured = f"{runs} run{'s' if runs > 1 else ''}, 4 revocations, {name}"
            yield Row("plan hours", measured, partial(plan_of_same, "hours", runs, 4, Fixed(world)), target=False)


# What earlier runs lead to expect of one that trains.

SEEN_HOURS = 10 / 60


def expected_of_same(runs: int, random: np.random.Generator) -> Trial | None:
    """Steps per second of one more run on the measured cluster, over ten minutes."""
    world, workload = World.draw(random), exact_workload(str(random.choice(NETWORKS)))
    gpus, choice = gpus_of(CLUSTER), choice_of(CLUSTER)
    courses = [
        Course.draw(random, world, workload, gpus, revoked_times(random, len(gpus), 4, HOURS)) for _ in range(runs)
    ]
    found = expected(
        learnt({f"run-{place}": each.record(workload.parameters) for place, each in enumerate(courses)}), choice
    )
    if found is None:
        return None
    measured = [course.parts() for course in courses]
    posterior = best_speed(measured, [usual_speeds(run, workload) for run in measured])
    which = random.choice(len(posterior.weights), BEST_RUNS, p=posterior.weights)
    run, vm, noise = np.array([_spreads(each, SEEN_HOURS) for each in worlds()]).T[:, which]
    spread = np.sqrt(posterior.deviations[which] ** 2 + run**2 + vm**2 / len(gpus) + noise**2)
    usual = speed_of(workload, gpus, np.zeros(len(gpus)), 1)
    best = middle(usual * np.exp(posterior.means[which] + spread * random.normal(size=BEST_RUNS)))
    effect = world.run_effect(random) + float(world.mean_noise(random, [0.0], [SEEN_HOURS])[0])
    came = speed_of(workload, gpus, world.vm_effects(random, len(gpus)), 1) * math.exp(effect)
    return Trial(found.low, found.high, came, best)


def _expected() -> Iterator[Row]:
    for runs in (1, 3):
        measured = f"{runs} run{'s' if runs > 1 else ''}, 4 revocations"
        yield Row("expected speed", measured, partial(expected_of_same, runs))


# Plans of other clusters.


@dataclass(frozen=True)
class Other:
    """A plan with `servers` parameter servers, from `seen` clusters with one. `varies`: the error of the estimated time
    of servers, where nothing measured it."""

    seen: tuple[str, ...]
    planned: str
    servers: int = 1
    varies: float = 0.0
    networks: tuple[str, ...] = NETWORKS


OTHERS = {
    "half as large, twice": Other(("k80x2",) * 2, "k80x4"),
    "the same mixed cluster, once": Other(("k80x2+p100+v100",), "k80x2+p100+v100"),
    "two GPUs, each alone and together": Other(("k80x2", "p100x2", "k80x2+p100") * 2, "k80x4+p100x2"),
    "the same, near the servers' limit, once": Other(("p100x4",), "p100x4", varies=0.22),
    "bound by servers": Other(("p100", "p100x2", "p100x4", "p100x8"), "p100x6"),
    "smaller, not bound by servers": Other(("p100x2",) * 2, "p100x8", varies=0.22),
    "bound by one server, two planned": Other(
        ("p100", "p100x2", "p100x4", "p100x8"), "p100x8", 2, networks=NETWORKS[:2]
    ),
    "a slower GPU": Other(("k80x4",) * 2, "p100x4"),
}
"""Two servers: of networks whose variables spread over them."""


def plan_of_other(other: Other, random: np.random.Generator) -> Trial:
    """Hours of a plan of a cluster from what others were measured at, one run of each, without revocations."""
    world, name = World.draw(random), str(random.choice(other.networks))
    workload = exact_workload(name, float(random.normal(0, other.varies)))
    records = {
        f"run-{place}": Course.draw(
            random, world, workload, gpus, revoked_times(random, len(gpus), 0, 1.0)
        ).record(workload.parameters)
        for place, gpus in enumerate(map(gpus_of, other.seen))
    }  # fmt: skip
    choice, gpus = choice_of(other.planned, other.servers), gpus_of(other.planned)
    steps = round(choice.steps_per_second(workload) * HOURS * 3600)
    seed = int(random.integers(2**31))
    low, high = make_plan(choice, learnt(records), steps, runs=RUNS, seed=seed).interval("hours")
    speed = speed_of(workload, gpus, world.vm_effects(random, len(gpus)), other.servers)
    speed *= math.exp(world.run_effect(random) + float(world.mean_noise(random, [0.0], [HOURS])[0]))
    course = choice.course(workload, steps * choice.steps_per_second(workload) / speed)
    return Trial(low, high, float(simulation.simulate(course, 1, seed + 1).hours[0]))


def _others() -> Iterator[Row]:
    for measured, other in OTHERS.items():
        yield Row(f"plan hours of {other.planned}", measured, partial(plan_of_other, other))


# Forecasts of a run that goes on.

BEGAN = 1_700_000_000.0
HOURLY, SERVER_HOURLY = 0.256, 0.143


def journal_of(course: Course, hours: float, steps: int) -> list[Event]:
    """The events of a cluster whose run trained so far: the VMs of `course` until that moment."""
    spec = ClusterSpec(
        name="demo", groups=(WorkerGroup("k80", len(course.gpus)),), zones=("us-west1-b",), declared_at=BEGAN,
        max_workers=2 * len(course.gpus),
        prices={
            "k80": PriceLine("n1-standard-4", HOURLY, 0.723, "benchmark"),
            "parameter-server": PriceLine("n1-custom-4-16384", SERVER_HOURLY, SERVER_HOURLY, "benchmark"),
        },
    )  # fmt: skip
    model = {"model": "resnet", "problem": "image_digits", "hparams_set": "resnet_digits", "train_steps": steps}
    found: list[tuple[float, Event]] = [(-1, events.ClusterDeclared(spec=spec.to_dict())), (-1, _requested("ps-0", 0))]
    found += [(-1, events.VmRunning(vm="ps-0", address="10.0.0.1")), (-1, events.VmReady(vm="ps-0"))]
    number, there = dict[int, int](), dict[int, int]()

    def come(vm: int, place: int, asked: float, joined: float) -> None:
        replaces = f"worker-{there[place]}" if place in there else None
        found.append((asked, _requested(f"worker-{vm}", place, replaces)))
        found.append((asked, events.VmRunning(vm=f"worker-{vm}", address="10.0.0.2")))
        if joined <= hours:
            found.append((joined, events.VmReady(vm=f"worker-{vm}")))
            active = len(number)
            number[vm] = len(number)
            joins = WorkerJoined(run="run-1", worker=f"worker-{vm}", number=number[vm], active=active + 1)
            found.append((joined, joins))
        there[place] = vm

    for place, vm in enumerate(course.stretches[0].vms):
        assert vm is not None
        come(vm, place, -ABSENT_HOURS, 0.0)
    found.insert(0, (-0.5, events.WorkDeclared(of="run", work="run-1", spec=model)))
    leases = {f"{place}": "run-1" for place in range(len(course.gpus))}
    found.insert(1, (-0.4, events.ClusterLeased(ports={"run-1": 0}, workers=leases)))
    before = course.stretches[0].vms
    for stretch in course.stretches[1:]:
        for place, (old, new) in enumerate(zip(before, stretch.vms, strict=True)):
            if old is not None and new != old and stretch.begin <= hours:
                gone = f"worker-{old}"
                left = WorkerLeft(run="run-1", worker=gone, number=number[old], reason="revoked", active=3)
                found += [(stretch.begin, left), (stretch.begin, events.VmRevoked(vm=gone, signal="notice"))]
                later = (each for each in course.stretches if each.begin >= stretch.begin)
                following = next(each for each in later if each.vms[place] not in (None, old))
                new_vm = following.vms[place]
                assert new_vm is not None
                come(new_vm, place, stretch.begin, following.begin)
        before = stretch.vms
    return found_in_order(found, hours)


def found_in_order(found: Sequence[tuple[float, Event]], hours: float) -> list[Event]:
    first = [(0.0, TrainStarted(run="run-1", step=0))]
    past = sorted((each for each in [*found, *first] if each[0] <= hours), key=lambda each: each[0])
    return [
        replace(event, time=int((BEGAN + 3600 * at) * 1e9), seq=number) for number, (at, event) in enumerate(past, 1)
    ]


def _requested(vm: str, slot: int, replaces: str | None = None) -> Event:
    server = vm.startswith("ps")
    return events.VmRequested(
        vm=vm, role="ps" if server else "worker", slot=slot, zone="us-west1-b", accelerator="" if server else "k80",
        machine_type="n1-custom-4-16384" if server else "n1-standard-4",
        provisioning_model="standard" if server else "spot", hourly=SERVER_HOURLY if server else HOURLY,
        on_demand_hourly=SERVER_HOURLY if server else 0.723, replaces=replaces,
    )  # fmt: skip


def forecast_of(what: str, share: float, lives_hours: float, random: np.random.Generator) -> Trial | None:
    """When a run of some hours ends and what it will have cost, asked when this share of its steps is made."""
    world, workload = World.draw(random), exact_workload(str(random.choice(NETWORKS)))
    gpus = gpus_of(CLUSTER)
    stretches = revoked_after(random, len(gpus), lives_hours, 3 * HOURS)
    course = Course.draw(random, world, workload, gpus, stretches)
    usual = speed_of(workload, gpus, np.zeros(len(gpus)), 1)
    steps = round(3600 * HOURS * usual)
    end, now = course.finish(steps), course.finish(share * steps)
    moment = BEGAN + 3600 * now
    state = replay(journal_of(course, now, steps))
    parts = course.parts(now)
    record = Record(
        tuple(part.observation for part in parts), "own", joins=(0.0,), latest=(moment, round(share * steps)),
        batch_size=128, workers=4.0,
    )  # fmt: skip
    lives = Weibull(lives_hours)
    spent = costs(state, moment)["run-1"].total
    found = forecast(
        state, moment, state.of(RunState)["run-1"], record, lambda gpu, place: lives, seed=int(random.integers(2**31))
    )
    if found.guess:
        return None
    stretch = next(each for each in stretches if each.begin <= now < each.end)
    present = tuple(vm for vm in stretch.vms if vm is not None)
    left = HOURS * (1 - share)
    kept = (1 - math.exp(-left / lives_hours)) * lives_hours / left
    posterior = best_speed([parts], [usual_speeds(parts, workload)], present, (now, now + left), kept)
    ready = tuple(0.0 if vm is not None else 3600 * ABSENT_HOURS / 2 for vm in stretch.vms)
    group = simulation.Workers(
        len(gpus), workload.compute["k80"].seconds, HOURLY, 0.723, lifetimes=lives,
        startup=simulation.Startup(0.0, 3600 * ABSENT_HOURS, 1.0), ages=(1.0,) * len(gpus), ready_in=ready,
    )  # fmt: skip
    rest = simulation.Course(
        (group,), steps * (1 - share), server_hourly=SERVER_HOURLY, service_seconds=workload.service_seconds,
        spent=spent, from_ready=True,
    )  # fmt: skip
    outcome = simulation.simulate(rest, BEST_RUNS, int(random.integers(2**31)))
    away = np.exp(-posterior.draw(random, BEST_RUNS))
    if what == "seconds":
        best = middle(3600 * outcome.hours * away + CLOSING_SECONDS)
        return Trial(*found.interval("seconds"), 3600 * (end - now) + CLOSING_SECONDS, best)
    best = middle(spent + (outcome.dollars - spent) * away)
    over = BEGAN + 3600 * end + CLOSING_SECONDS
    cost = costs(replay(journal_of(course, end, steps)), over)["run-1"].total
    return Trial(*found.interval("dollars"), cost, best)


def _forecasts() -> Iterator[Row]:
    for share in (0.1, 0.3, 0.7):
        for lives in (20.0, 4.0):
            measured = f"at {share:.0%}, VMs live {lives:g} h"
            yield Row("forecast seconds", measured, partial(forecast_of, "seconds", share, lives))
    for lives in (20.0, 4.0):
        yield Row("forecast dollars", f"at 30%, VMs live {lives:g} h", partial(forecast_of, "dollars", 0.3, lives))


# The dry run of a study.

STUDY_RUNS, STUDY_AT_ONCE, STUDY_WORKERS, STUDY_RUN_HOURS = 8, 2, 2, 1.0


def study_of(what: str, runs: int, random: np.random.Generator) -> Trial:
    """Eight runs of an hour with two workers, two at once, by what runs of the model were measured at."""
    world, workload = World.draw(random), exact_workload(str(random.choice(NETWORKS)))
    line = f"k80x{STUDY_WORKERS}"
    gpus, choice = gpus_of(line), choice_of(line)
    courses = [
        Course.draw(random, world, workload, gpus, revoked_times(random, len(gpus), 1, STUDY_RUN_HOURS))
        for _ in range(runs)
    ]
    known = learnt({f"run-{place}": each.record(workload.parameters) for place, each in enumerate(courses)})
    known = replace(known, join_seconds=workload.join_seconds)
    steps = round(3600 * STUDY_RUN_HOURS * choice.steps_per_second(workload))
    hourly = 3.0
    course = choice.course(known, steps, law)
    shown = middle(hours_until_trained(course, STUDY_RUNS, STUDY_AT_ONCE, int(random.integers(2**31))))
    took = simulation.simulate(choice.course(workload, steps, law), BEST_RUNS, int(random.integers(2**31))).hours
    runs_at = [list[Array]() for _ in range(STUDY_AT_ONCE)]
    posterior = best_speed(
        [course.parts() for course in courses], [usual_speeds(course.parts(), workload) for course in courses]
    )
    which = random.choice(len(posterior.weights), BEST_RUNS, p=posterior.weights)
    base = posterior.means[which] + posterior.deviations[which] * random.normal(size=BEST_RUNS)
    run, vm, noise = np.array([_spreads(each, STUDY_RUN_HOURS) for each in worlds()]).T[:, which]
    came = list[float]()
    for lane in runs_at:
        # The VMs of a place train all its runs.
        vms, total = float(world.vm_effects(random, STUDY_WORKERS).mean()), 0.0
        likely = base + vm / math.sqrt(STUDY_WORKERS) * random.normal(size=BEST_RUNS)
        for number in range(STUDY_RUNS // STUDY_AT_ONCE):
            begun = 0.0 if number else _startup_hours(choice, workload)
            away = likely + np.hypot(run, noise) * random.normal(size=BEST_RUNS)
            lane.append(random.permutation(took - _startup_hours(choice, workload)) * np.exp(-away) + begun)
            effect = vms + world.run_effect(random) + float(world.mean_noise(random, [0.0], [STUDY_RUN_HOURS])[0])
            total += (float(random.choice(took)) - _startup_hours(choice, workload)) * math.exp(-effect) + begun
        came.append(total)
    best = middle(np.maximum(*(np.sum(lane, axis=0) for lane in runs_at)))
    hours = max(came)
    if what == "hours":
        return Trial(*shown, hours, best)
    return Trial(hourly * shown[0], hourly * shown[1], hourly * hours, (hourly * best[0], hourly * best[1]))


def _startup_hours(choice: Choice, workload: Workload) -> float:
    start = choice.course(workload, 1, law).groups[0].startup
    return (start.running + start.usable + workload.join_seconds) / 3600


def _studies() -> Iterator[Row]:
    for what in ("hours", "dollars"):
        for runs in (1, 3):
            measured = f"{runs} run{'s' if runs > 1 else ''}"
            yield Row(f"study {what}", measured, partial(study_of, what, runs))


ROWS: list[Row] = [*_plans(), *_expected(), *_others(), *_forecasts(), *_studies()]
