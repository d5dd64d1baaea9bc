"""The best clusters for a run: everything the catalog has, reduced to those that no other beats in time and in cost.

First every GPU, number of workers, region, way of renting and number of parameter servers is reckoned without chance,
which takes microseconds each; those near the front of these are simulated. The zones of a region cost the same, so one
of each stands for all. The knee is where the front, drawn between its fastest and its cheapest cluster, bulges most
towards the corner (the idea of Kneedle: Satopää et al., ICDCSW 2011; for so few points the largest distance).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from ..catalog import ACCELERATORS, has_gpu, region, zones_with
from ..errors import DeclarationError, PlanError
from ..spec import WorkerGroup, render_money
from .choices import Choice, Lifetimes, immortal
from .plan import Plan, make_plan
from .workloads import Workload

COUNTS = (1, 2, 3, 4, 6, 8, 12, 16)
SERVERS = (1, 2, 4)
OBJECTIVES = ("knee", "time", "cost")
MODELS = ("spot", "standard")
_NEAR = 1.15
"""How much slower and dearer than another, without chance, a cluster may be and still be simulated."""
_SIMULATED = 60
_ALIKE = 1.01
_RUNS = 1000


@dataclass(frozen=True, repr=False)
class Search:
    """The answer: `front` has the plans that no other beats, fastest first; `best` is the one that was asked for.

    `considered` counts the clusters that were looked at, `plans` all that were simulated.
    """

    front: tuple[Plan, ...]
    best: Plan
    knee: Plan
    plans: tuple[Plan, ...]
    objective: str
    considered: int
    max_hours: float | None = None
    max_dollars: float | None = None
    notes: tuple[str, ...] = ()
    asked: Mapping[str, Any] = field(default_factory=dict)
    """What `client.plan` was asked, so that it can be asked again with something else."""

    def __str__(self) -> str:
        from .words import search_text

        return search_text(self)

    __repr__ = __str__


@dataclass(frozen=True, slots=True)
class _Sketch:
    """A choice, with hours and dollars reckoned without chance."""

    choice: Choice
    hours: float
    dollars: float

    @property
    def workers(self) -> int:
        return sum(group.count for group in self.choice.groups)


def search(
    workload: Workload,
    train_steps: int | Callable[[int], int],
    lifetimes: Lifetimes = immortal,
    *,
    objective: str = "knee",
    max_hours: float | None = None,
    max_dollars: float | None = None,
    gpus: Sequence[str] = (),
    zones: Sequence[str] = (),
    servers: Sequence[int] = SERVERS,
    server_cores: int = 4,
    models: Sequence[str] = MODELS,
    replaced: bool = True,
    risk: str = "",
    seed: int = 0,
    notes: Sequence[str] = (),
) -> Search:
    """The front within the limits, which hold for means. Raises PlanError where nothing keeps within them.

    `train_steps` may be how many it takes so many workers; with those for whom it raises PlanError there is no cluster.
    """
    if objective not in OBJECTIVES:
        raise PlanError(f"'{objective}' is no objective", fix=f"Choose from {', '.join(OBJECTIVES)}.")
    steps, left_out = _by_workers(train_steps)
    sketches = list(_sketches(workload, steps, gpus or _known(workload), zones, servers, server_cores, models))
    if not sketches:
        where = f" in {', '.join(zones)}" if zones else ""
        raise PlanError(f"No GPU{where} has a known speed for {workload.name}",
                        fix="Train it on one for a minute first.")  # fmt: skip
    plans = [
        make_plan(
            each.choice, workload, steps[each.workers], lifetimes, replaced=replaced, risk=risk, runs=_RUNS, seed=seed
        )
        for each in _near_front(sketches)
    ]
    allowed = [plan for plan in plans if plan.hours <= (max_hours or 1e9) and plan.dollars <= (max_dollars or 1e9)]
    if not allowed:
        from .words import hours

        quickest, cheapest = min(plans, key=lambda plan: plan.hours), min(plans, key=lambda plan: plan.dollars)
        raise PlanError(
            f"No cluster keeps within these limits: the fastest takes {hours(quickest.hours)} for "
            f"{render_money(quickest.dollars)}, the cheapest {render_money(cheapest.dollars)} in "
            f"{hours(cheapest.hours)}",
            fix="Raise --max-hours or --max-cost.",
        )
    front = pareto(allowed)
    bulge = knee(front)
    best = {"time": front[0], "cost": front[-1], "knee": bulge}[objective]
    notes = (*notes, *left_out)
    return Search(front, best, bulge, tuple(plans), objective, len(sketches), max_hours, max_dollars, notes)


def _by_workers(train_steps: int | Callable[[int], int]) -> tuple[dict[int, int], list[str]]:
    """The steps by the number of workers, and whom they are not known of, in words."""
    if not callable(train_steps):
        return dict.fromkeys(COUNTS, train_steps), []
    known: dict[int, int] = {}
    refused: dict[int, PlanError] = {}
    for count in COUNTS:
        try:
            known[count] = train_steps(count)
        except PlanError as error:
            refused[count] = error
    if not known:
        raise next(iter(refused.values()))
    said = ", ".join(str(count) for count in refused)
    reason = next((str(error) for error in refused.values()), "")
    return known, [f"Clusters of {said} workers are left out. {reason}"] if refused else []


def pareto(plans: Iterable[Plan]) -> tuple[Plan, ...]:
    """The plans that no other beats in mean hours and mean dollars, fastest first; a per cent of either is nothing."""
    front: list[Plan] = []
    fastest = 0.0  # of those of which the last one kept is the cheapest
    for plan in sorted(plans, key=lambda plan: (plan.hours, plan.dollars)):
        if front and plan.hours <= fastest * _ALIKE:
            front[-1] = min(front[-1], plan, key=lambda each: each.dollars)
        elif not front or plan.dollars * _ALIKE < front[-1].dollars:
            front.append(plan)
            fastest = plan.hours
    return tuple(front)


def knee(front: Sequence[Plan]) -> Plan:
    """The plan of a front (fastest first) that lies farthest below the line from its fastest to its cheapest."""
    fastest, cheapest = front[0], front[-1]
    hours, dollars = cheapest.hours - fastest.hours, fastest.dollars - cheapest.dollars
    if hours <= 0 or dollars <= 0:
        return fastest

    def saved(plan: Plan) -> float:
        return (cheapest.hours - plan.hours) / hours + (fastest.dollars - plan.dollars) / dollars

    return max(front, key=saved)


def _known(workload: Workload) -> list[str]:
    """GPUs to look at: those it was measured on and all that can be had; of a published one, those of its prices."""
    if workload.prices.servers:
        return [name for name in workload.prices.servers if workload.knows(name)]
    living = [name for name, entry in ACCELERATORS.items() if not entry.withdrawn and name != "cpu"]
    return [name for name in dict.fromkeys([*workload.compute, *living]) if workload.knows(name)]


def _sketches(
    workload: Workload, steps: Mapping[int, int], gpus: Sequence[str], zones: Sequence[str], servers: Sequence[int],
    cores: int, models: Sequence[str],
) -> Iterator[_Sketch]:  # fmt: skip
    for gpu in gpus:
        for zone in [zone for zone in zones if has_gpu(zone, gpu)] if zones else _zones(gpu):
            for count, ps, model in product(steps, servers, models):
                if (ps == 0 and count > 1) or (count == 1 and ps > min(servers)):
                    continue  # several need a server, and one has no use for a second
                choice = Choice((WorkerGroup(gpu, count, zone),), ps, cores, model)
                try:
                    yield _sketch(choice, workload, steps[count])
                except DeclarationError:
                    break  # no price of this GPU is known there


def _zones(gpu: str) -> list[str]:
    """One zone of each region that has the GPU and the machines of parameter servers, best first."""
    found: dict[str, str] = {}
    for zone in zones_with(gpu):
        if has_gpu(zone, "cpu"):
            found.setdefault(region(zone), zone)
    return list(found.values())


def _sketch(choice: Choice, workload: Workload, steps: int) -> _Sketch:
    (group,) = choice.placed
    price = choice.worker_price(workload, group)
    course_hours = steps / choice.steps_per_second(workload) / 3600
    server = choice.prices(workload).parameter_server(choice.server_cores, choice.home_zone)
    hourly = group.count * (price.transient if choice.transient else price.on_demand) + choice.servers * server
    return _Sketch(choice, course_hours, course_hours * hourly)


def _near_front(sketches: Sequence[_Sketch]) -> list[_Sketch]:
    """Those that none beats clearly, for each way of renting: chance falls upon one of them only."""
    chosen: list[_Sketch] = []
    for model in dict.fromkeys(each.choice.provisioning for each in sketches):
        mine = [each for each in sketches if each.choice.provisioning == model]
        front: list[_Sketch] = []
        for each in sorted(mine, key=lambda each: (each.hours, each.dollars)):
            if not front or each.dollars < front[-1].dollars:
                front.append(each)

        def slack(one: _Sketch, front: list[_Sketch] = front) -> float:
            return max(min(one.hours / other.hours, one.dollars / other.dollars) for other in front)

        near = [(slack(each), index, each) for index, each in enumerate(mine)]
        chosen += [each for _, _, each in sorted(each for each in near if each[0] <= _NEAR)[:_SIMULATED]]
    return chosen
