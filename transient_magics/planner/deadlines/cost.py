"""What a deadline costs: dollars over deadlines, by the controller's own decisions in simulation on a market.

Each course is a cluster governed by `decide`, whose Spot VMs come and go as the market says. Its speed is as far off as
measurements leave open; a start takes its 99th percentile at most. Parameter servers are paid until the work is done.
Where no trace is given, a market has room for all workers or for none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ...catalog import never_on_demand
from ...catalog.traces import Trace
from ...deadlines.seen import SPOT, Kind
from ...deadlines.speeds import Speeds
from ...deadlines.world import Capacity, World
from ...errors import PlanError
from ...journal.deadlines import Block
from ...protocol.machines import render_machines
from ...spec import render_duration
from ..choices import Choice
from ..simulate import Course
from ..speeds.workloads import Workload
from .chains import published
from .market import GRID, Open

_LOWER, _LATE = 1.645, 2.326  # deviations: of a speed that 5 % are below, of a start that 1 % take longer than
_DECISIONS = 100  # until a deadline: what a controller does each second is done so often
_RUNS, _COMPARED = 200, 50  # courses: of the deadline that is asked for, and of others, on the same markets
_SHARES = (1.0, 1.15, 1.35, 1.6, 2.0)  # deadlines of the curve, in the nearest that can be met
_UNKNOWN = 3  # decisions until its speed is known, and what follows is asked for
_MEASURED = 3600.0  # seconds for which a course's speeds count as measured: they are known once it trains


@dataclass(frozen=True)
class Point:
    """What a deadline of `hours` costs in the mean, nine of ten runs between `low` and `high`; when they were done,
    likewise; and the `chance` that one is in time."""

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
        return replace(self, dollars=mean, low=min(self.low + dollars, mean), high=max(self.high + dollars, mean))


@dataclass(frozen=True)
class DeadlineCost:
    """`wanted`: the deadline that was asked for; `curve`: it and others, the nearest that can be met first.

    `on_demand`: what on demand alone costs; `market`: what capacity is like in the simulation; `runs`: how many.
    """

    wanted: Point
    curve: tuple[Point, ...]
    on_demand: float
    market: str
    runs: int
    start: float
    """Seconds within which VMs on demand must take steps, for the promise to hold."""


def deadline_cost(
    choice: Choice, workload: Workload, train_steps: int, hours: float, traces: Sequence[Trace] = (), name: str = "",
    seed: int = 0,
) -> DeadlineCost:  # fmt: skip
    """What `hours` and other deadlines cost for so many steps. `traces` of the file `name`: the market; without any,
    one drawn from what the published ones of 2022 tell.

    Raises PlanError for a deadline that cannot be promised, with the nearest that can be.
    """
    if not choice.transient:
        raise PlanError("A deadline chooses between Spot and on demand, and these are on demand only",
                        where="--provisioning-model", fix="Leave it out.")  # fmt: skip
    if workload.synchronous:
        raise PlanError("--finish-by needs --mode async", fix="More workers make no more synchronous steps.")
    if unsold := never_on_demand(group.accelerator for group in choice.placed):
        raise PlanError("A deadline needs VMs on demand", fix=unsold)
    course = choice.course(workload, train_steps)
    work, start = _work(choice, workload, course), _start(course)
    # Workers that tell the speed start first, then those on demand.
    least = (work + 2 * start) / (1 - _UNKNOWN / _DECISIONS)
    wanted = 3600 * hours
    if wanted < least:
        raise PlanError(
            f"{choice.line.partition(' ')[2]} is not done in {render_duration(wanted)}: on demand takes "
            f"{render_duration(least)}, at the lower end of its speed, which is measured first", where="--finish-by",
            fix=f"The nearest deadline is {math.ceil(least / 60)}m; more workers may be faster.",
        )  # fmt: skip
    deadlines = sorted({*(share * least for share in _SHARES), wanted})
    markets, said = _markets(traces, name, choice.workers, deadlines[-1], seed)
    transfer = train_steps * sum(group.count * group.transfer_dollars for group in course.groups) / choice.workers
    courses = partial(_courses, choice, workload, course, start, markets, seed)
    asked = courses(wanted, len(markets))
    exact = _point(asked, wanted, transfer)
    usual = _point(asked[:_COMPARED], wanted, transfer).dollars
    curve = {wanted: exact}
    for deadline in deadlines:
        if deadline != wanted:  # the same markets and luck: their difference is more certain than either
            point = _point(courses(deadline, _COMPARED), deadline, transfer)
            curve[deadline] = point.moved(exact.dollars - usual)
    curve = {deadline: curve[deadline] for deadline in deadlines}
    on_demand = sum(group.count * group.on_demand_hourly for group in course.groups)
    return DeadlineCost(
        wanted=curve[wanted], curve=tuple(curve.values()),
        on_demand=(on_demand + course.servers * course.server_hourly) * (work + start) / 3600 + transfer, market=said,
        runs=len(markets), start=start,
    )  # fmt: skip


def _courses(
    choice: Choice, workload: Workload, course: Course, start: float, markets: Sequence[Capacity], seed: int,
    deadline: float, count: int,
) -> list[World]:  # fmt: skip
    """Simulate courses until a deadline, each with a market and luck of its own."""
    declared = {(gpu, SPOT): workers for gpu, workers in _counts(choice).items()}
    kinds = tuple(
        Kind(gpu, *(float(np.mean([getattr(each, rate) for each in course.groups if each.accelerator == gpu])) / 3600
                    for rate in ("hourly", "on_demand_hourly")))
        for gpu in _counts(choice)
    )  # fmt: skip
    curve = choice.speed_of(workload)
    sizes = [{gpu: workers} for gpu in _counts(choice) for workers in range(1, choice.workers + 1)]
    sizes += [_counts(choice)] if len(kinds) > 1 else []
    paces = [(render_machines(size), curve(size)) for size in sizes]
    speeds = Speeds([Block(_MEASURED, _MEASURED, _MEASURED * pace, name) for name, pace in paces], 0.95)
    found: list[World] = []
    for number, market in enumerate(markets[:count]):
        luck = math.exp(_error(course) * float(np.random.default_rng(seed + number).standard_normal()))
        known = speeds.scaled(luck)
        world = World(
            market, deadline, course.steps, known.mean, kinds, declared, choice.workers,
            course.servers * course.server_hourly / 3600, begin=start, period=deadline / _DECISIONS, speeds=known,
            seed=seed + number,
        )  # fmt: skip
        found.append(world.run())
    return found


def _point(worlds: Sequence[World], deadline: float, transfer: float) -> Point:
    dollars, done = np.array([each.cost + transfer for each in worlds]), np.array([each.now / 3600 for each in worlds])
    (low, high), (soon, long_) = (np.quantile(values, [0.05, 0.95]) for values in (dollars, done))
    return Point(
        deadline / 3600, float(dollars.mean()), float(low), float(high), float(done.mean()), float(soon), float(long_),
        float(np.mean(done <= deadline / 3600)),
    )  # fmt: skip


def _counts(choice: Choice) -> dict[str, int]:
    found: dict[str, int] = {}
    for group in choice.placed:
        found[group.accelerator] = found.get(group.accelerator, 0) + group.count
    return found


def work_seconds(choice: Choice, workload: Workload, train_steps: int) -> float:
    """How long so many steps take, on a cluster of which nothing is taken, at the lower bound of its speed."""
    return _work(choice, workload, choice.course(workload, train_steps))


def start_seconds(choice: Choice, workload: Workload, train_steps: int) -> float:
    """How long its VMs take until they make steps; 1 % take longer."""
    return _start(choice.course(workload, train_steps))


def _work(choice: Choice, workload: Workload, course: Course) -> float:
    """Seconds of the undisturbed cluster, at a speed that 5 % are below, as far as measurements tell."""
    return course.steps / choice.steps_per_second(workload) * math.exp(_LOWER * _error(course))


def _error(course: Course) -> float:
    """The deviation of the speed's logarithm."""
    return max(math.hypot(group.step_error, course.work_error) for group in course.groups)


def _start(course: Course) -> float:
    """Seconds from the request of VMs until they take steps; 1 % take longer."""
    return max(
        group.startup.running + group.startup.usable + _LATE * group.startup.deviation + group.join_seconds
        for group in course.groups
    )


def _markets(
    traces: Sequence[Trace], name: str, workers: int, seconds: float, seed: int
) -> tuple[list[Capacity], str]:  # fmt: skip
    """How many Spot VMs there are at each second, of each course, and in words what that is like."""
    if not traces:
        drawn = published().drawn(_RUNS, math.ceil(3 * seconds / GRID) + 1, seed)
        return [
            _drawn(each, workers) for each in drawn
        ], "like AWS's of 2022 (V100 and K80, as measured; for all workers or none)"
    some = [trace for trace in traces if max(trace.numbers)]
    if not some:
        raise PlanError(f"{name} never has a VM", where="--availability", fix="Take other traces.")
    room = sum(max(trace.end - seconds, 0.0) for trace in some)
    if not room:
        raise PlanError(f"No trace lasts {seconds / 3600:g} hours", fix="Take longer traces.")
    most = max(max(trace.numbers) for trace in some)
    fewer = f", of which it counts {most} at most" if most < workers else ""
    begins = [
        (trace, begin)
        for trace in some if trace.end > seconds
        for begin in np.arange(0.0, trace.end - seconds, room / _RUNS)
    ]  # fmt: skip
    # In any order: the first ones, on which deadlines are compared, are of all traces.
    order = np.random.default_rng(seed).permutation(len(begins))
    markets = [_replayed(begins[place][0], float(begins[place][1]), workers) for place in order]
    return markets, f"as {name} says of {workers} VMs{fewer}"


def _drawn(row: Open, workers: int) -> Capacity:
    return lambda now: workers if row[min(int(now / GRID), len(row) - 1)] else 0


def _replayed(trace: Trace, begin: float, workers: int) -> Capacity:
    """Where a trace counts fewer VMs than there are workers, all come and go with the most that it counts."""
    most = max(trace.numbers)
    if most >= workers:
        return lambda now: trace.at(begin + now)
    return lambda now: workers if trace.at(begin + now) == most else 0
