"""The cost of deadlines in dollars, from simulations of the controller's decisions on a market.

Each course is a cluster controlled by `decide`, whose Spot VMs follow a market. The error of its
speed is that of the measurements, and Spot prices vary similarly; a start takes its 99th percentile
at most. Parameter servers are billed until the work is done. Without a trace, markets are drawn:
the availability of any VM is like AWS's of 2022, and their number like Google's of 2025, so
capacity may suffice for some of the workers only.
"""

from __future__ import annotations

import csv
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import resources

import numpy as np
from numpy.typing import NDArray

from ...catalog import never_on_demand
from ...catalog.traces import REQUESTED, Trace, numbers_while_any
from ...deadlines.simulation import Capacity, Simulation
from ...deadlines.situation import SPOT, Kind
from ...deadlines.speeds import Speeds
from ...errors import PlanError
from ...journal.deadlines import Block
from ...protocol.machines import render_machines
from ...spec import render_duration
from ..choices import Choice
from ..simulate import Course
from ..speeds.workloads import Workload

# Deviations: the speed that is exceeded in 95 % of cases, and the start time that is exceeded in 1
# %.
_LOWER = 1.645
_LATE = 2.326
# Simulated decisions until a deadline; a real controller decides each second.
_DECISIONS = 100
RUNS = 200
COMPARED = 50
"""Number of courses for comparing the requested deadline with others on the same markets."""
OTHERS = (1.0, 1.15, 1.35, 1.6, 2.0)
"""Deadlines of the curve, in units of the nearest feasible one."""
# Decisions until the speed is known and the resulting VMs are requested.
_UNKNOWN = 3
# Seconds for which a course's speeds count as measured: they are known once it trains.
_MEASURED = 3600.0

GRID = 720.0
"""Seconds of a step of a market: 12 minutes, the slowest sampling of the published traces."""
AGES = (1, 2, 4, 8)
"""The youngest age of each class of spells, in steps; a spell's first step has the age 1."""
_PRIOR = "prior.csv"
# Steps of a drawn market before a window of it begins.
_SETTLING = 30
_MOST_SETTLING = 2000
Open = NDArray[np.bool_]
"""Whether a zone has a Spot VM at the beginning of each step; one row per window."""


@dataclass(frozen=True)
class Point:
    """The mean cost of a deadline of `hours`, with the range of 90 % of the runs.

    `low` and `high` are its ends. The times at which they finish have the same form. `chance` is
    the probability that a run is in time.
    """

    hours: float
    dollars: float
    low: float
    high: float
    done: float
    done_low: float
    done_high: float
    chance: float

    def moved(self, dollars: float) -> Point:
        """Return this point with `dollars` added to its cost."""
        mean = self.dollars + dollars
        return replace(
            self,
            dollars=mean,
            low=min(self.low + dollars, mean),
            high=max(self.high + dollars, mean),
        )


@dataclass(frozen=True)
class DeadlineCost:
    """The costs of deadlines: `requested`, the requested one, and the `curve` with others.

    The nearest feasible deadline of the curve is first. `on_demand` is the cost with on-demand VMs
    only. `market` describes the capacity in the simulation, and `runs` is the number of courses.
    """

    requested: Point
    curve: tuple[Point, ...]
    on_demand: float
    market: str
    runs: int
    start: float
    """Seconds within which on-demand VMs must take steps to meet the deadline."""


def deadline_cost(
    choice: Choice,
    workload: Workload,
    train_steps: int,
    hours: float,
    traces: Sequence[Trace] = (),
    name: str = "",
    seed: int = 0,
    runs: int = RUNS,
    others: Sequence[float] = OTHERS,
) -> DeadlineCost:
    """Return the cost of a deadline of `hours`, and of other deadlines.

    Parameters
    ----------
    choice, workload, train_steps
        The cluster, what it trains, and for how many steps.
    hours
        The deadline.
    traces, name
        The market, from the file `name`; without traces, drawn markets (`drawn`).
    seed
        Seed of the simulation.
    runs
        Number of courses for this deadline.
    others
        Other deadlines of the curve, in units of the nearest feasible one.

    Raises
    ------
    PlanError
        For an infeasible deadline; names the nearest feasible one.
    """
    if not choice.transient:
        raise PlanError(
            "A deadline needs Spot and on-demand VMs, but these are on demand only",
            where="--provisioning-model",
            fix="Leave it out.",
        )
    if workload.synchronous:
        raise PlanError(
            "--finish-by needs --mode async",
            fix="More workers do not make synchronous steps faster.",
        )
    if unsold := never_on_demand(group.accelerator for group in choice.placed):
        raise PlanError("A deadline needs on-demand VMs", fix=unsold)
    course = choice.course(workload, train_steps)
    work = _work(choice, workload, course)
    start = _start(course)
    # Workers that measure the speed start first, then those on demand.
    least = (work + 2 * start) / (1 - _UNKNOWN / _DECISIONS)
    requested = 3600 * hours
    if requested < least:
        raise PlanError(
            f"{choice.line.partition(' ')[2]} cannot end in {render_duration(requested)}: on demand, "
            f"with the measurement of its speed, it needs up to {render_duration(least)}",
            where="--finish-by",
            fix=f"Use --finish-by {math.ceil(least / 60)}m or later, or more workers.",
        )
    deadlines = sorted({*(share * least for share in others), requested})
    markets, market_words = _markets(traces, name, choice.workers, deadlines[-1], seed, runs)
    transfer = (
        train_steps
        * sum(group.count * group.transfer_dollars for group in course.groups)
        / choice.workers
    )
    courses = partial(_courses, choice, workload, course, start, markets, seed)
    asked = courses(requested, len(markets))
    exact = _point(asked, requested, transfer)
    usual = _point(asked[:COMPARED], requested, transfer).dollars
    curve = {requested: exact}
    for deadline in deadlines:
        # Use the same markets and luck: the difference is more certain than either cost.
        if deadline != requested:
            point = _point(courses(deadline, COMPARED), deadline, transfer)
            curve[deadline] = point.moved(exact.dollars - usual)
    curve = {deadline: curve[deadline] for deadline in deadlines}
    on_demand = sum(group.count * group.on_demand_hourly for group in course.groups)
    return DeadlineCost(
        requested=curve[requested],
        curve=tuple(curve.values()),
        on_demand=(on_demand + course.servers * course.server_hourly) * (work + start) / 3600
        + transfer,
        market=market_words,
        runs=len(markets),
        start=start,
    )


def _courses(
    choice: Choice,
    workload: Workload,
    course: Course,
    start: float,
    markets: Sequence[Capacity],
    seed: int,
    deadline: float,
    count: int,
) -> list[Simulation]:
    """Simulate courses until a deadline, each with its own market and luck."""
    declared = {(gpu, SPOT): workers for gpu, workers in _counts(choice).items()}
    curve = choice.speed_of(workload)
    sizes = [{gpu: workers} for gpu in _counts(choice) for workers in range(1, choice.workers + 1)]
    sizes += [_counts(choice)] if len(_counts(choice)) > 1 else []
    paces = [(render_machines(size), curve(size)) for size in sizes]
    speeds = Speeds(
        [Block(_MEASURED, _MEASURED, _MEASURED * pace, name) for name, pace in paces], 0.95
    )
    found: list[Simulation] = []
    error = _error(choice, workload, course)
    for number, market in enumerate(markets[:count]):
        luck, dearer = map(float, np.random.default_rng(seed + number).standard_normal(2))
        drawn = speeds.scaled(math.exp(error * luck))
        world = Simulation(
            market,
            deadline,
            course.steps,
            drawn.mean,
            _kinds(course, dearer),
            declared,
            choice.workers,
            course.servers * course.server_hourly / 3600,
            begin=start,
            period=deadline / _DECISIONS,
            speeds=drawn,
            seed=seed + number,
        )
        found.append(world.run())
    return found


def _kinds(course: Course, luck: float) -> tuple[Kind, ...]:
    """Return the workers and their costs, with Spot prices `luck` deviations off the list price."""
    kinds: list[Kind] = []
    for gpu in dict.fromkeys(group.accelerator for group in course.groups):
        groups = [group for group in course.groups if group.accelerator == gpu]
        spots = [
            group.hourly * math.exp(group.price_error * luck - group.price_error**2 / 2)
            for group in groups
        ]
        on_demand = [group.on_demand_hourly for group in groups]
        kinds.append(Kind(gpu, float(np.mean(spots)) / 3600, float(np.mean(on_demand)) / 3600))
    return tuple(kinds)


def _point(worlds: Sequence[Simulation], deadline: float, transfer: float) -> Point:
    dollars = np.array([world.cost + transfer for world in worlds])
    done = np.array([world.now / 3600 for world in worlds])
    # Of n courses and one more, 5 % are below this quantile on average, for any n.
    (low, high), (soon, long_) = (
        np.quantile(sample, [0.05, 0.95], method="weibull") for sample in (dollars, done)
    )
    return Point(
        deadline / 3600,
        float(dollars.mean()),
        float(low),
        float(high),
        float(done.mean()),
        float(soon),
        float(long_),
        float(np.mean(done <= deadline / 3600)),
    )


def _counts(choice: Choice) -> dict[str, int]:
    found: dict[str, int] = {}
    for group in choice.placed:
        found[group.accelerator] = found.get(group.accelerator, 0) + group.count
    return found


def work_seconds(choice: Choice, workload: Workload, train_steps: int) -> float:
    """Return the seconds for the steps without preemptions, at the lower bound of the speed."""
    return _work(choice, workload, choice.course(workload, train_steps))


def start_seconds(choice: Choice, workload: Workload, train_steps: int) -> float:
    """Return the seconds until the VMs take steps; 1 % take longer."""
    return _start(choice.course(workload, train_steps))


def _work(choice: Choice, workload: Workload, course: Course) -> float:
    """Return the seconds of the undisturbed cluster, at a speed exceeded with 95 % probability."""
    error = _error(choice, workload, course)
    return course.steps / choice.steps_per_second(workload) * math.exp(_LOWER * error)


def _error(choice: Choice, workload: Workload, course: Course) -> float:
    """Return the standard deviation of the speed's logarithm."""
    steps = max(group.step_error for group in course.groups)
    return math.hypot(steps, course.work_error, choice.speed_error(workload))


def _start(course: Course) -> float:
    """Return the seconds from the request of VMs until they take steps; 1 % take longer."""
    return max(
        group.startup.running
        + group.startup.usable
        + _LATE * group.startup.deviation
        + group.join_seconds
        for group in course.groups
    )


def drawn(workers: int, seconds: float, count: int = RUNS, seed: int = 0) -> list[Capacity]:
    """Draw markets: the number of Spot VMs at each second.

    Whether there are any is as in AWS's traces of 2022. Their number is then as in Google's zones
    of 2025.
    """
    markets: list[Capacity] = []
    for number, row in enumerate(published().drawn(count, math.ceil(seconds / GRID) + 1, seed)):
        numbers = numbers_while_any(row.tolist(), random.Random(f"{seed} {number}"))
        markets.append(
            _stepwise([workers if vms >= REQUESTED else min(vms, workers) for vms in numbers])
        )
    return markets


def _markets(
    traces: Sequence[Trace], name: str, workers: int, seconds: float, seed: int, runs: int
) -> tuple[list[Capacity], str]:
    """Return the Spot VMs at each second, of each course, and a description of the market."""
    if not traces:
        if workers > 1:
            numbers = ", with as many VMs at once as Google's zones had H100s in October 2025"
        else:
            numbers = ""
        return drawn(
            workers, 3 * seconds, runs, seed
        ), f"like AWS's of 2022 (V100 and K80){numbers}"
    some = [trace for trace in traces if max(trace.numbers)]
    if not some:
        raise PlanError(
            f"No trace of {name} has an available VM",
            where="--availability",
            fix="Use other traces.",
        )
    room = sum(max(trace.end - seconds, 0.0) for trace in some)
    if not room:
        raise PlanError(
            f"All traces are shorter than {seconds / 3600:g} hours",
            where="--availability",
            fix="Use longer traces.",
        )
    least = min(max(trace.numbers) for trace in some)
    all_or_none = ""
    if least < workers:
        all_or_none = " (all of them or none, where it never counts as many)"
    begins = [
        (trace, begin)
        for trace in some
        if trace.end > seconds
        for begin in np.arange(0.0, trace.end - seconds, room / runs)
    ]
    # Random order: the first ones, on which deadlines are compared, are from all traces.
    order = np.random.default_rng(seed).permutation(len(begins))
    markets = [_replayed(begins[place][0], float(begins[place][1]), workers) for place in order]
    return markets, f"as {name} says of {workers} VMs{all_or_none}"


def _stepwise(numbers: Sequence[int]) -> Capacity:
    return lambda now: numbers[min(int(now / GRID), len(numbers) - 1)]


def _replayed(trace: Trace, begin: float, workers: int) -> Capacity:
    """Return the replayed capacity of a trace for `workers` workers.

    If the trace counts fewer VMs than workers, all of them come and go with its maximum.
    """
    most = max(trace.numbers)
    if most >= workers:
        return lambda now: trace.at(begin + now)
    return lambda now: workers if trace.at(begin + now) == most else 0


# Spot markets of plans with a deadline: a mixture of Markov chains, learned from published
# availability.
#
# In each step a chain has a probability that a spell of open or closed ends. It depends on the
# spell's age, in classes that double (`AGES`). A mixture of a few chains describes how markets
# differ.


@dataclass(frozen=True)
class Chains:
    """A mixture of Markov chains: `weight[k]` is the probability of chain k.

    `ends[k, o, c]` is the probability that a spell of class c ends within a step, where o is 1 for
    open and 0 for closed.
    """

    weight: NDArray[np.float64]
    ends: NDArray[np.float64]

    def class_of(self, age: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the class of a spell's age in steps."""
        return np.searchsorted(AGES, age, side="right") - 1

    def drawn(self, runs: int, steps: int, seed: int = 0) -> Open:
        """Return windows of markets like these, each of one chain, from anywhere in its course."""
        random = np.random.default_rng(seed)
        chain = random.choice(len(self.weight), runs, p=self.weight / self.weight.sum())
        settling = min(_SETTLING * AGES[-1], _MOST_SETTLING)
        found = np.zeros((runs, steps), bool)
        now = random.random(runs) < 0.5
        age = np.ones(runs, int)
        for step in range(-settling, steps):
            if step >= 0:
                found[:, step] = now
            ended = random.random(runs) < self.ends[chain, now.astype(int), self.class_of(age)]
            now = now ^ ended
            age = np.where(ended, 1, age + 1)
        return found


def published() -> Chains:
    """Return the chains of the published traces of 2022 (`prior.csv`, which names its source)."""
    text = (
        resources.files("transient_magics.planner.deadlines")
        .joinpath(_PRIOR)
        .read_text(encoding="utf-8")
    )
    rows = list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))
    weight = {int(row["chain"]): float(row["weight"]) for row in rows}
    ends = np.zeros((len(weight), 2, len(AGES)))
    for row in rows:
        ends[int(row["chain"]), int(row["open"]), AGES.index(int(row["from_age"]))] = float(
            row["ends"]
        )
    return Chains(np.array([weight[k] for k in range(len(weight))]), ends)
