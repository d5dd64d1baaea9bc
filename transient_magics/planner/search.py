"""The best clusters for a run: everything the catalog has, reduced to those that no other beats in time and in cost.

First all clusters of one GPU or of two are computed without chance (`sketches`); those near the front of these are
simulated. The knee is where the front, drawn between its fastest and its cheapest cluster, bulges most towards the
corner (the idea of Kneedle: Satopää et al., ICDCSW 2011; for so few points the largest distance).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from ..catalog import ACCELERATORS, PriceList
from ..errors import PlanError
from ..spec import render_money
from .accuracy import Accuracies
from .choices import Choice, Lifetimes, immortal
from .plan import Plan, make_plan
from .sketches import MOST_WORKERS, Sketches
from .speeds.preparation import gpu_of
from .speeds.workloads import Workload

SERVERS = (1, 2, 4)
OBJECTIVES = ("knee", "time", "cost")
MODELS = ("spot", "standard")
_SIMULATED, _MIXED = 40, 24
"""Of each way of renting: so many clusters of one GPU, and so many of two."""
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
    judged: bool = False
    """Whether runs of the model tell how accurate some of the plans will be."""

    def __str__(self) -> str:
        from .words import search_text

        return search_text(self)

    __repr__ = __str__


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
    accuracies: Accuracies | None = None,
    like: Choice | None = None,
) -> Search:
    """The front within the limits, which hold for means, of clusters of one of the `gpus` or of two of them (by
    default all with a known speed that Google sells, at list prices). Raises PlanError where nothing keeps within them.

    `like`: what else all of them are declared with: machines, disks. Machines that are not named are looked at by
    themselves where larger ones would make steps shorter.
    `train_steps` may be how many it takes so many workers; with those for whom it raises PlanError there is no cluster.
    """
    if objective not in OBJECTIVES:
        raise PlanError(f"Unknown objective '{objective}'", fix=f"Choose from {', '.join(OBJECTIVES)}.")
    steps, left_out = _by_workers(train_steps)
    if not gpus:
        # A published workload has prices of its year, and for the GPUs of its year alone.
        workload = replace(workload, prices=PriceList())
        gpus = _sold(workload)
    sketches = Sketches(workload, steps, gpus, zones, servers, server_cores, models, like)
    numbers = sketches.near_front(_SIMULATED, _MIXED)
    if not numbers:
        where = f" in {', '.join(zones)}" if zones else ""
        raise PlanError(f"No GPU{where} has a known speed for {workload.name}",
                        fix="Train it on one for a minute first.")  # fmt: skip
    plans = [
        make_plan(
            choice,
            workload,
            steps[choice.workers],
            lifetimes,
            replaced=replaced,
            risk=risk,
            runs=_RUNS,
            seed=seed,
            accuracies=accuracies,
        )
        for choice in map(sketches.choice, numbers)
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
    return Search(
        front, best, bulge, tuple(plans), objective, len(sketches), max_hours, max_dollars, notes,
        judged=bool(accuracies),
    )  # fmt: skip


def _by_workers(train_steps: int | Callable[[int], int]) -> tuple[dict[int, int], list[str]]:
    """The steps by the number of workers, and the numbers for which they are not known, in words."""
    workers = range(1, MOST_WORKERS + 1)
    if not callable(train_steps):
        return dict.fromkeys(workers, train_steps), []
    known: dict[int, int] = {}
    refused: dict[int, PlanError] = {}
    for count in workers:
        try:
            known[count] = train_steps(count)
        except PlanError as error:
            refused[count] = error
    if not known:
        raise next(iter(refused.values()))
    said = ", ".join(_ranges(refused))
    reason = next((str(error) for error in refused.values()), "")
    return known, [f"Clusters of {said} workers are left out. {reason}"] if refused else []


def _ranges(numbers: Iterable[int]) -> Iterator[str]:
    """Rising numbers in words: 1, 5 to 16."""
    for _, run in groupby(enumerate(numbers), lambda place: place[1] - place[0]):
        first, *more = [number for _, number in run]
        yield f"{first} to {more[-1]}" if more else str(first)


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


def _sold(workload: Workload) -> list[str]:
    """Return the GPUs with a known speed that can be rented today, those that it was measured on first.

    If there is none, those that it was measured on, which only the emulator has.
    """
    measured = [gpu_of(kind) for kind, known in workload.compute.items() if known.measured]
    gpus = [name for name in ACCELERATORS if name != "cpu"]
    known = [name for name in dict.fromkeys([*measured, *gpus]) if workload.knows(name)]
    return [name for name in known if not ACCELERATORS[name].withdrawn] or known
