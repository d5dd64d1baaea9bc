"""Clusters on traces of sixteen VMs: a measured speed that is concave in the workers, and the controller's decisions.

The speed is ResNet-32's on P100s with one parameter server (CM-DARE, ICDCS 2020). A Spot VM costs 1, one on demand 3,
the parameter server 0.3 an hour. The work takes four workers 48 hours. Greedy and Uniform Progress know the true speed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from transient_magics.catalog.traces import Trace
from transient_magics.deadlines.decisions import Verdict, decide
from transient_magics.deadlines.simulation import Simulation
from transient_magics.deadlines.situation import ON_DEMAND, SPOT, Kind, Situation
from transient_magics.planner.deadlines.cost import Open

SPEEDS = (0.0, 11.36, 22.54, 34.58, 40.80, 44.63, 44.63, 47.43, 47.43)
"""Steps per second of so many workers, no fewer than fewer make: derived/cmdare_cluster_speed_steps_per_s.csv."""
HOUR, PERIOD, START = 3600.0, 720.0, 720.0
MOST, USUAL = len(SPEEDS) - 1, 4
GPU, PRICE, SERVER = "p100", 3.0, 0.3
WORK = 48 * HOUR * SPEEDS[USUAL]
Decide = Callable[[Situation], Verdict]


def speed(workers: Mapping[str, int]) -> float:
    return SPEEDS[min(sum(workers.values()), MOST)]


class Uniform:
    """Uniform Progress for a cluster: as many Spot workers as there are, up to the usual number, filled up on demand
    behind the straight line until it is two starts ahead, or where on demand alone would be late. With `line` off:
    greedy, Spot alone until on demand alone would be late, and as many as help at all."""

    def __init__(self, deadline: float, *, line: bool) -> None:
        self._deadline, self._line = deadline, line

    def __call__(self, seen: Situation) -> Verdict:
        count = USUAL if self._line else MOST
        held = any(terms == ON_DEMAND for _, terms in seen.workers)
        done, slope = WORK - seen.steps + seen.unsaved, WORK / self._deadline
        needed = seen.steps / SPEEDS[USUAL] + (seen.begun if held else seen.begin) + seen.end
        net = seen.deadline - seen.now - 2 * seen.period < needed + (2 * START if held else 0.0)
        behind = done < slope * (seen.now + (2 * START if held else 0.0))
        here = 0 if net else min(seen.working.get((GPU, SPOT), 0), USUAL)
        more = USUAL - here if net or (self._line and behind) else 0
        wanted = {(GPU, SPOT): 0 if net else count, (GPU, ON_DEMAND): more}
        return Verdict({key: number for key, number in wanted.items() if number})


def alone(open_: Open) -> tuple[NDArray[np.float64], int]:
    """What one worker costs that the controller's decisions govern, for 48 hours of work and no parameter server, as a
    share of on demand alone; and how many were late. They see whether there is capacity while a Spot VM is asked for,
    and one starts beside a VM on demand that it takes over from, which the baselines neither need nor do."""
    costs, late = list[float](), 0
    for row in open_:
        world = Simulation(
            lambda now, row=row: int(row[min(int(now / PERIOD), len(row) - 1)]), len(row) * PERIOD, 48 * HOUR,
            lambda workers: float(min(sum(workers.values()), 1)), (Kind(GPU, 1 / HOUR, PRICE / HOUR),),
            {(GPU, SPOT): 1}, 1, begin=START, period=PERIOD, save_every=PERIOD, save=0.0, varies=0.0,
        ).run()  # fmt: skip
        costs.append(world.cost)
        late += world.now > len(row) * PERIOD
    return np.array(costs) / (PRICE * (48 + START / HOUR)), late


@dataclass(frozen=True)
class Judged:
    """What each window costs by policy, as a share of the usual number on demand alone; the fluid bound; which were
    late; and the window's trace and disjoint block."""

    costs: dict[str, NDArray[np.float64]]
    bound: NDArray[np.float64]
    late: dict[str, int]
    block: NDArray[np.int64]


def judge(traces: Sequence[Trace], hours: float, every: float) -> Judged:
    """All policies through windows of so many hours that begin every `every` hours; blocks are disjoint windows."""
    deadline = hours * HOUR
    policies: dict[str, Decide] = {
        "greedy": Uniform(deadline, line=False), "Uniform": Uniform(deadline, line=True), "ours": decide,
    }  # fmt: skip
    costs: dict[str, list[float]] = {name: [] for name in policies}
    late, bound, block = dict.fromkeys(policies, 0), list[float](), list[int]()
    for index, trace in enumerate(traces):
        for begin in np.arange(0.0, trace.end - deadline, every * HOUR):
            block.append(1000 * index + int(begin // deadline))
            bound.append(_fluid(trace, begin, deadline))
            for name, policy in policies.items():
                world = Simulation(
                    lambda now, trace=trace, begin=begin: trace.at(now + begin), deadline, WORK, speed,
                    (Kind(GPU, 1 / HOUR, PRICE / HOUR),), {(GPU, SPOT): USUAL}, MOST, SERVER / HOUR, begin=START,
                    period=PERIOD, save_every=600.0, decide=policy,
                ).run()  # fmt: skip
                costs[name].append(world.cost)
                late[name] += world.now > deadline
    whole = (USUAL * PRICE + SERVER) * 48.2
    return Judged({name: np.array(each) / whole for name, each in costs.items()}, np.array(bound) / whole, late,
                  np.array(block))  # fmt: skip


def _fluid(trace: Trace, begin: float, deadline: float) -> float:
    """No less than what a course costs that knows the window, by weak duality: a step is priced at x, each period takes
    the workers for which it pays best, starts are free; the best x bounds most."""
    there = np.array([trace.at(begin + at) for at in np.arange(0.0, deadline, PERIOD)])
    speeds, many = np.array(SPEEDS), np.arange(MOST + 1)
    spot = np.where(many > there[:, np.newaxis], np.maximum(there, 0)[:, np.newaxis] + 0.0, many)
    hourly = spot + PRICE * (many - spot) + SERVER * (many > 0)
    dollars, steps = hourly * PERIOD / HOUR, speeds * PERIOD
    prices = np.linspace(0.0, 2 * PRICE * USUAL / HOUR / SPEEDS[USUAL], 200)
    return max(float(price * WORK + (dollars - price * steps).min(axis=1).sum()) for price in prices)
