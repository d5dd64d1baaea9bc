"""What a deadline costs: dollars over deadlines, by the policy in simulation on a market.

All workers of a cluster come and go together, as Spot VMs, as VMs on demand, or not at all; parameter servers are paid
until the work is done. The work is counted at the lower bound of the speed, and a start with its 99th percentile.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...catalog import never_on_demand
from ...catalog.traces import Trace
from ...errors import PlanError
from ...spec import render_duration
from ..choices import Choice
from ..simulate import Course
from ..speeds.workloads import Workload
from .chains import Chains, published
from .market import GRID, Open, sampled, windows
from .problem import Problem
from .program import Weighted, values
from .running import run

_LOWER, _LATE = 1.645, 2.326  # deviations: of a speed that 5 % are below, of a start that 1 % take longer than
_STEPS = 240  # of the longest deadline, where the grid can be so fine
_MOST = 600  # of it: the program's memory grows with its square
_RUNS = 300
_SHARES = (1.0, 1.15, 1.35, 1.6, 2.0)  # deadlines of the curve, in the nearest that can be met


@dataclass(frozen=True)
class Point:
    """What a deadline of `hours` costs in the mean, nine of ten runs between `low` and `high`; how many were late."""

    hours: float
    dollars: float
    low: float
    high: float
    late: int


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

    Raises PlanError for a deadline that on demand alone would miss, with the nearest that can be met.
    """
    if not choice.transient:
        raise PlanError("A deadline chooses between Spot and on demand, and these are on demand only",
                        where="--provisioning-model", fix="Leave it out.")  # fmt: skip
    if unsold := never_on_demand(group.accelerator for group in choice.placed):
        raise PlanError("A deadline needs VMs on demand", fix=unsold)
    course = choice.course(workload, train_steps)
    work, start = _work(choice, workload, course), _start(course)
    longest = max(3600 * hours, _SHARES[-1] * (work + start))
    parts = max(min(int(_STEPS * GRID // longest), int(GRID // start)), 1)
    grid = GRID / parts
    if longest / grid > _MOST or start > grid:
        raise PlanError(f"A plan with a deadline reaches {render_duration(_MOST * GRID)} ahead",
                        where="--finish-by", fix="Take more workers.")  # fmt: skip
    spot, on_demand = (sum(group.count * getattr(group, kind) for group in course.groups)
                       for kind in ("hourly", "on_demand_hourly"))  # fmt: skip
    servers = course.servers * course.server_hourly
    least = math.ceil((work + start) / grid)
    asked = int(3600 * hours / grid + 1e-6)
    if asked < least:
        raise PlanError(
            f"{choice.line.partition(' ')[2]} is not done in {render_duration(3600 * hours)}: on demand alone takes "
            f"{render_duration(work + start)}, at the lower end of its speed", where="--finish-by",
            fix=f"The nearest deadline is {math.ceil(least * grid / 60)}m; more workers may be faster.",
        )  # fmt: skip
    problems = [
        Problem(work / grid, steps, on_demand / spot, start / grid, fragile=True, kept=servers / spot)
        for steps in sorted({*(round(share * least) for share in _SHARES), asked})
    ]
    chains = published().finer(parts)
    open_, market = _market(traces, name, choice.workers, chains, problems[-1].deadline, grid, seed)
    table = values(problems[-1], chains)
    transfer = train_steps * sum(group.count * group.transfer_dollars for group in course.groups) / choice.workers
    curve = []
    for problem in problems:
        found = run(problem, open_[:, : problem.deadline], Weighted(problem, chains, len(open_), table))
        dollars = found.cost * spot * grid / 3600 + transfer
        low, high = np.quantile(dollars, [0.05, 0.95])
        point = problem.deadline * grid / 3600, float(dollars.mean()), float(low), float(high), int(found.late.sum())
        curve.append(Point(*point))
    return DeadlineCost(
        wanted=curve[[problem.deadline for problem in problems].index(asked)], curve=tuple(curve),
        on_demand=(on_demand + servers) * (work + start) / 3600 + transfer, market=market, runs=len(open_),
        start=start,
    )  # fmt: skip


def work_seconds(choice: Choice, workload: Workload, train_steps: int) -> float:
    """How long so many steps take, on a cluster of which nothing is taken, at the lower bound of its speed."""
    return _work(choice, workload, choice.course(workload, train_steps))


def start_seconds(choice: Choice, workload: Workload, train_steps: int) -> float:
    """How long its VMs take until they make steps; 1 % take longer."""
    return _start(choice.course(workload, train_steps))


def _work(choice: Choice, workload: Workload, course: Course) -> float:
    """Seconds of the undisturbed cluster, at a speed that 5 % are below, as far as measurements tell."""
    error = max(math.hypot(group.error, course.work_error) for group in course.groups)
    return course.steps / choice.steps_per_second(workload) * math.exp(_LOWER * error)


def _start(course: Course) -> float:
    """Seconds from the request of VMs until they take steps; 1 % take longer."""
    return max(
        group.startup.running + group.startup.usable + _LATE * group.startup.deviation + group.join_seconds
        for group in course.groups
    )


def _market(
    traces: Sequence[Trace], name: str, workers: int, chains: Chains, steps: int, grid: float, seed: int
) -> tuple[Open, str]:
    if not traces:
        return chains.drawn(_RUNS, steps, seed), "like AWS's of 2022 (V100 and K80, as measured)"
    series = [sampled(trace, min(workers, max(trace.numbers)), grid) for trace in traces if max(trace.numbers)]
    if not series:
        raise PlanError(f"{name} never has a VM", where="--availability", fix="Take other traces.")
    most = max(max(trace.numbers) for trace in traces)
    fewer = f", of which it counts {most} at most" if most < workers else ""
    every = max(sum(max(len(each) - steps, 0) for each in series) // _RUNS, 1)
    return windows(series, steps, every, grid).open, f"as {name} says of {workers} VMs{fewer}"
