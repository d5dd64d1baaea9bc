"""Rows of runs with a deadline: the bounds of their speed, the band of their ends, the cost that a plan shows, and how
often they are in time after a lasting drop of the speed. With noise, a VM may be too slow for any decision to help: on
demand from the beginning more runs are late. So there are rows with the time that the lower end of the speed needs.

Courses go through `deadlines.simulation`, as plans do, on markets drawn from the chains of 2022, with
VMs that differ and speeds that drift. In the rows of drops, "above" is the share of runs that are late, 5 % at most.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial

import numpy as np
from _calibration import (
    Course,
    Gaussian,
    Row,
    Trial,
    World,
    best_speed,
    mean_correlation,
    predictive,
    revoked_times,
    speed_of,
    worlds,
)
from _calibration_speeds import CLUSTER, HOURS, NETWORKS, choice_of, exact_workload, gpus_of, learnt, usual_speeds

from transient_magics.deadlines import simulation
from transient_magics.deadlines.decisions import Verdict, decide
from transient_magics.deadlines.simulation import band, end
from transient_magics.deadlines.situation import SPOT, Kind, Situation
from transient_magics.deadlines.speeds import Speeds
from transient_magics.errors import PlanError
from transient_magics.journal.deadlines import BLOCK_SECONDS, Block, DeadlineState
from transient_magics.planner.choices import Choice
from transient_magics.planner.deadlines.cost import GRID, deadline_cost, drawn, published, start_seconds
from transient_magics.planner.speeds.workloads import Workload

HOUR = 3600.0
WORK = 12.0
"""Hours of the usual workers on demand."""
START, PERIOD = 250.0, 120.0
Z = 1.645
REPORT = 20.0
COURSES = 20
"""Courses of a band: the fewest with which a controller shows one. It has 200 later, which would take ten times as
long here; the ends of a band are chosen by the number of courses."""


def speed(workers: Mapping[str, int]) -> float:
    """Steps per second: each worker holds the others up by a twentieth."""
    count = sum(workers.values())
    return 10 * count / (1 + 0.05 * (count - 1)) if count else 0.0


def bounds(vms: int, measured: float, rng: np.random.Generator) -> Trial:
    """The speed of other VMs in the rest of 12 hours, after some hours measured on one set of `vms`."""
    world = World.draw(rng)
    minutes = np.arange(0.0, measured, REPORT / HOUR)
    begin, end = np.append(minutes, measured), np.append(minutes + REPORT / HOUR, WORK)
    # The stretch that is to come is drawn along with a coarser past: its mean depends on little of it.
    coarse = np.linspace(0.0, measured, max(round(measured * 12), 1) + 1)
    later = np.append(coarse[:-1], measured), np.append(coarse[1:], WORK)
    drawn = world.mean_noise(rng, *later)
    past = np.repeat(drawn[:-1], math.ceil(len(minutes) / (len(coarse) - 1)))[: len(minutes)]
    del begin, end
    here, there = world.vm_effects(rng, vms).mean(), world.vm_effects(rng, vms).mean()
    known, step = DeadlineState(), 0.0
    for number in range(vms):
        known = known.joined(f"vm-{number}", 100.0)
    machines = f"v100x{vms}"
    known = known.progressed(0.0, 0, machines)
    for place, value in enumerate(past):
        step += 1000 * math.exp(value + here) * REPORT
        known = known.progressed((place + 1) * REPORT, round(step), machines)
    speeds = Speeds(known.blocks, 0.95)
    least, mean = speeds.least({"v100": vms}), speeds.mean({"v100": vms})
    came = math.exp(drawn[-1] + there)
    return Trial(least / 1000, mean * mean / least / 1000, came, _best(drawn[:-1] + here, later, vms))


def _best(measured: np.ndarray, stretches: tuple[np.ndarray, np.ndarray], vms: int) -> tuple[float, float]:
    count = len(measured)

    def covariances(world: World) -> list[np.ndarray]:
        noise = world.noise**2 * mean_correlation(*stretches, world.hours)[:count, :count]
        return [noise + world.vm**2 / vms + 1e-9 * np.eye(count)]

    def target(world: World) -> tuple[np.ndarray, float, list[np.ndarray]]:
        noise = world.noise**2 * mean_correlation(*stretches, world.hours)
        return np.ones(1), float(noise[-1, -1] + world.vm**2 / vms), [noise[-1, :count]]

    found: Gaussian = predictive([measured], [np.ones((count, 1))], covariances, target)
    return math.exp(found.quantile(0.05)), math.exp(found.quantile(0.95))


@cache
def markets(count: int = 400, steps: int = 400) -> np.ndarray:
    return published().drawn(count, steps, 11)


def run(
    rng: np.random.Generator, vms: int, deadline: float, world: World | None, drop: float = 0.0, policy=decide,
    period: float = PERIOD,
) -> simulation.Simulation:  # fmt: skip
    """A course with `vms` VMs and a deadline after some hours; `drop`: lasting loss of speed at a random moment."""
    row = markets()[rng.integers(len(markets()))]
    moments = np.arange(0.0, 3 * deadline, 1 / 12)
    factors = np.exp(world.noise_at(rng, moments)) if world else np.ones(len(moments))
    factors = np.where(moments > rng.uniform(0.0, deadline), 1 - drop, 1.0) * factors
    return simulation.Simulation(
        capacity=lambda now: vms * int(row[min(int(now / GRID), len(row) - 1)]),
        deadline=deadline * HOUR, work=WORK * HOUR * speed({"v100": vms}), speed=speed,
        kinds=(Kind("v100", 1 / HOUR, 3 / HOUR),), declared={("v100", SPOT): vms}, most=vms, kept=0.1 / HOUR,
        begin=START, period=period, seed=int(rng.integers(2**31)), differ=world.vm if world else 0.0,
        disturbed=lambda now: float(factors[min(int(now / 300), len(factors) - 1)]), decide=policy,
    )  # fmt: skip


def ends(vms: int, deadline: float, share: float, rng: np.random.Generator) -> Trial | None:
    """The band that is shown after that share of the work."""
    seen: list[Situation] = []

    def watched(now: Situation) -> Verdict:
        if not seen and now.steps - now.unsaved <= (1 - share) * made.work and now.speeds.is_measured:
            seen.append(now)
        return decide(now)

    made = run(rng, vms, deadline, World.draw(rng), policy=watched, period=START)
    made.run()
    if not seen:
        return None
    chance = random.Random(int(rng.integers(2**31)))
    _, (low, high) = band([end(seen[0], chance) for _ in range(COURSES)], seen[0].deadline)
    return Trial((low - seen[0].now) / HOUR, (high - seen[0].now) / HOUR, (made.now - seen[0].now) / HOUR)


def late(vms: int, deadline: float, drop: float, noisy: bool, rng: np.random.Generator) -> Trial:
    """When a run ends whose speed drops."""
    world = World.draw(rng) if noisy else None
    return Trial(0.0, deadline, run(rng, vms, deadline, world, drop).run().now / HOUR)


PLANNED, BEST = 60, 40
"""Courses of a plan, which has 200, and of its best interval."""


def dollars(deadline: float, rng: np.random.Generator) -> Trial | None:
    """The planned cost of a deadline after one run of its cluster, and the cost of the next run."""
    world, workload = World.draw(rng), exact_workload(str(rng.choice(NETWORKS)))
    gpus, choice = gpus_of(CLUSTER), choice_of(CLUSTER)
    earlier = Course.draw(rng, world, workload, gpus, revoked_times(rng, len(gpus), 4, HOURS))
    known = replace(learnt({"run": earlier.record(workload.parameters)}), join_seconds=workload.join_seconds)
    steps = round(HOUR * WORK * choice.steps_per_second(workload))
    try:
        plan = deadline_cost(
            choice, known, steps, deadline, seed=int(rng.integers(2**31)), runs=PLANNED, others=()
        ).requested
    except PlanError:
        return None
    came = paid(choice, workload, steps, deadline, world, world.run_effect(rng), rng)
    posterior = best_speed([earlier.parts()], [usual_speeds(earlier.parts(), workload)])
    costs = list[float]()
    for which in rng.choice(len(posterior.weights), BEST, p=posterior.weights):
        usual = posterior.means[which] + posterior.deviations[which] * rng.normal()
        other = worlds()[which]
        costs.append(paid(choice, workload, steps, deadline, other, usual + other.run_effect(rng), rng, known=True))
    low, high = np.quantile(costs, [0.05, 0.95], method="weibull")
    return Trial(plan.low, plan.high, came, (float(low), float(high)))


def paid(
    choice: Choice, workload: Workload, steps: int, deadline: float, world: World, faster: float,
    rng: np.random.Generator, *, known: bool = False,
) -> float:  # fmt: skip
    """The dollars of one run with a deadline, as much `faster` than usual as the logarithm says.

    `known`: decisions know the speed from the first step on, which takes a tenth of the time to simulate.
    """
    course = choice.course(workload, steps)
    [group] = course.groups
    moments = np.arange(0.0, 3 * deadline, 1 / 12)
    factors = np.exp(world.noise_at(rng, moments) + faster)
    [market] = drawn(group.count, 3 * HOUR * deadline, 1, int(rng.integers(2**31)))

    def speed(workers: Mapping[str, int]) -> float:
        count = sum(workers.values())
        return speed_of(workload, [group.accelerator] * count, np.zeros(count), course.servers)

    speeds = None
    if known:
        sizes = range(1, group.count + 1)
        steps_per_second = [speed({group.accelerator: count}) * math.exp(faster) for count in sizes]
        names = [f"{group.accelerator}x{count}" for count in sizes]
        blocks = [Block(HOUR, HOUR, HOUR * each, name) for each, name in zip(steps_per_second, names, strict=True)]
        speeds = Speeds(blocks, 0.95)
    return simulation.Simulation(
        capacity=market, deadline=deadline * HOUR, work=steps, speed=speed,
        kinds=(Kind(group.accelerator, group.hourly / HOUR, group.on_demand_hourly / HOUR),),
        declared={(group.accelerator, SPOT): group.count}, most=group.count,
        kept=course.servers * course.server_hourly / HOUR, begin=start_seconds(choice, workload, steps),
        period=START, seed=int(rng.integers(2**31)), differ=world.vm, speeds=speeds,
        disturbed=lambda now: float(factors[min(int(now / 300), len(factors) - 1)]),
    ).run().cost  # fmt: skip


@cache
def lower_end(vms: int) -> float:
    """The lower bound of the speed, as a share of it, after an hour of steady training."""
    blocks = [
        Block((place + 1) * BLOCK_SECONDS, BLOCK_SECONDS, 1000 * BLOCK_SECONDS, f"v100x{vms}", vms if not place else 0)
        for place in range(round(HOUR / BLOCK_SECONDS))
    ]
    return Speeds(blocks, 0.95).least({"v100": vms}) / 1000


def enough(drop: float, share: float = 1.0) -> float:
    """The least time for which the promise is made: hours, where the work is planned at this share of the speed."""
    return WORK / share * (1 / (1 - drop) + 0.02) + START / HOUR


ROWS = [
    *(
        Row("deadline speed", f"{hours:g} h on {count} VM{'s' if count > 1 else ''}", partial(bounds, count, hours))
        for count in (1, 4)
        for hours in (0.25, 1.0, 4.0)
    ),
    *(
        Row(
            f"deadline end, {WORK:g} h in {hours:g} h", f"{share:.0%} of the run, {count} VMs",
            partial(ends, count, hours, share),
        )
        for count, hours in ((1, 14.0), (1, 18.0), (4, 14.0), (4, 18.0))
        for share in (0.1, 0.25, 0.5, 0.75)
    ),
    *(
        Row("deadline dollars", f"{WORK:g} h in {hours:g} h, 1 run of {CLUSTER} before", partial(dollars, hours))
        for hours in (15.0, 18.0, 24.0)
    ),
    *(
        Row(
            f"deadline kept, drop of {drop:.0%}{said}",
            f"{count} VMs, {hours:.2f} h for {WORK:g} h",
            partial(late, count, hours, drop, bool(said)),
            target=False,
        )
        for drop in (0.05, 0.1)
        for count in (1, 4)
        for said, hours in (
            ("", enough(drop)),
            (", noise", enough(drop)),
            (", noise, planned at the lower end", enough(drop, lower_end(count))),
        )
    ),
]  # fmt: skip
