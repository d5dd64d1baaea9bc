"""The best clusters for a run: those in the catalog that no other beats in both time and cost.

First all clusters of one GPU or of two are computed without chance (`Sketches`); those near their
front are simulated. The knee is where the front, drawn between its fastest and its cheapest
cluster, bulges most towards the corner (the idea of Kneedle: Satopää et al., ICDCSW 2011; for few
points the largest distance).

Sketches are hundreds of thousands of clusters, computed in a tenth of a second. They have 1 to 16
workers of one GPU or of two in one zone, any number of parameter servers, and any provisioning
model. An asynchronous cluster is as fast as the sum of its workers until its servers are busy
(`speeds.throughput`). All zones of a region cost the same, so one represents each region.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, combinations, groupby, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..catalog import (
    ACCELERATORS,
    PriceList,
    VmPrice,
    has_gpu,
    larger_shapes,
    never_on_demand,
    region,
    zones_with,
)
from ..errors import DeclarationError, PlanError, unknown
from ..spec import WorkerGroup, render_money, render_table
from .choices import Choice, Lifetimes, immortal
from .efficiency import Accuracies
from .plan import AGAINST, Plan, guessed, hours, lasts, left_out, make_plan, row
from .speeds.throughput import capacity, cluster_speed, gpu_of, worker_speed
from .speeds.workloads import Workload

SERVERS = (1, 2, 4)
OBJECTIVES = ("knee", "time", "cost")
MODELS = ("spot", "standard")
_SIMULATED = 40  # clusters of one GPU, by provisioning model
_MIXED = 24  # the same for clusters of two GPUs
_ALIKE = 1.01
_RUNS = 1000
MOST_ROWS = 8


@dataclass(frozen=True, repr=False)
class Search:
    """The result of a search.

    Attributes
    ----------
    front
        The plans that no other beats, fastest first.
    best
        The plan by the `objective`.
    plans
        All simulated plans.
    considered
        The number of computed clusters.
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
    """The arguments of `client.plan`, so that it can be repeated with changes."""
    judged: bool = False
    """Whether earlier runs show the accuracy of some of the plans."""

    def __str__(self) -> str:
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
    """Find the clusters that no other beats, within limits on their means.

    Parameters
    ----------
    workload, train_steps
        What is trained, and for how many steps. The steps may depend on the number of workers;
        numbers for which the function raises PlanError have no clusters.
    lifetimes
        Lifetimes of VMs, by GPU and region.
    objective
        `knee`, `time` or `cost`.
    max_hours, max_dollars
        Limits.
    gpus
        Clusters have one or two of these GPUs; default: all with a known speed that Google sells,
        at list prices.
    zones, servers, server_cores, models
        Zones, numbers of parameter servers, their vCPUs, and provisioning models.
    replaced, risk, seed, notes, accuracies
        As of `make_plan`.
    like
        Further declarations of all clusters, such as machines and disks. Without machines, larger
        ones that would shorten steps are considered.

    Raises
    ------
    PlanError
        If no cluster stays within the limits.
    """
    if objective not in OBJECTIVES:
        raise unknown("objective", objective, OBJECTIVES, error=PlanError)
    steps, left_out = _by_workers(train_steps)
    if not gpus:
        # A published workload has prices of its year, and only for GPUs of its year.
        workload = replace(workload, prices=PriceList())
        gpus = _sold(workload)
    sketches = Sketches(workload, steps, gpus, zones, servers, server_cores, models, like)
    numbers = sketches.near_front(_SIMULATED, _MIXED)
    if not numbers:
        where = f" in {', '.join(zones)}" if zones else ""
        raise PlanError(
            f"The speed of {workload.name} is unknown for all GPUs{where}",
            fix="Train it on one for a minute first.",
        )
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
    most_hours = max_hours or 1e9
    most_dollars = max_dollars or 1e9
    allowed = [plan for plan in plans if plan.hours <= most_hours and plan.dollars <= most_dollars]
    if not allowed:
        quickest = min(plans, key=lambda plan: plan.hours)
        cheapest = min(plans, key=lambda plan: plan.dollars)
        raise PlanError(
            f"No cluster stays within these limits: the fastest needs {hours(quickest.hours)} for "
            f"{render_money(quickest.dollars)}, the cheapest {render_money(cheapest.dollars)} in "
            f"{hours(cheapest.hours)}",
            fix="Raise --max-hours or --max-cost.",
        )
    front = pareto(allowed)
    bulge = knee(front)
    best = {"time": front[0], "cost": front[-1], "knee": bulge}[objective]
    notes = (*notes, *left_out)
    return Search(
        front,
        best,
        bulge,
        tuple(plans),
        objective,
        len(sketches),
        max_hours,
        max_dollars,
        notes,
        judged=bool(accuracies),
    )


def _by_workers(train_steps: int | Callable[[int], int]) -> tuple[dict[int, int], list[str]]:
    """Return the steps by number of workers, and a note on numbers without known steps."""
    workers = range(1, MOST_WORKERS + 1)
    if not callable(train_steps):
        return dict.fromkeys(workers, train_steps), []
    steps: dict[int, int] = {}
    refused: dict[int, PlanError] = {}
    for count in workers:
        try:
            steps[count] = train_steps(count)
        except PlanError as error:
            refused[count] = error
    if not steps:
        raise next(iter(refused.values()))
    if not refused:
        return steps, []
    counts = ", ".join(_ranges(refused))
    reason = next((str(error) for error in refused.values()), "")
    return steps, [f"Clusters of {counts} workers are left out. {reason}"]


def _ranges(numbers: Iterable[int]) -> Iterator[str]:
    """Yield rising numbers in words: 1, 5 to 16."""
    for _, run in groupby(enumerate(numbers), lambda place: place[1] - place[0]):
        first, *more = [number for _, number in run]
        yield f"{first} to {more[-1]}" if more else str(first)


def pareto(plans: Iterable[Plan]) -> tuple[Plan, ...]:
    """Return the plans that no other beats in mean hours and dollars, fastest first.

    Differences of one per cent do not count.
    """
    front: list[Plan] = []
    fastest = 0.0  # hours of the fastest plan among those that the last kept plan represents
    for plan in sorted(plans, key=lambda plan: (plan.hours, plan.dollars)):
        if front and plan.hours <= fastest * _ALIKE:
            front[-1] = min(front[-1], plan, key=lambda plan: plan.dollars)
        elif not front or plan.dollars * _ALIKE < front[-1].dollars:
            front.append(plan)
            fastest = plan.hours
    return tuple(front)


def knee(front: Sequence[Plan]) -> Plan:
    """Return the plan of a front farthest below the line from its fastest to its cheapest."""
    fastest = front[0]
    cheapest = front[-1]
    hours = cheapest.hours - fastest.hours
    dollars = fastest.dollars - cheapest.dollars
    if hours <= 0 or dollars <= 0:
        return fastest

    def saved(plan: Plan) -> float:
        return (cheapest.hours - plan.hours) / hours + (fastest.dollars - plan.dollars) / dollars

    return max(front, key=saved)


def _sold(workload: Workload) -> list[str]:
    """Return the GPUs with a known speed that can be rented today, measured ones first.

    If there is none, return the measured ones, which only the emulator has.
    """
    measured = [gpu_of(kind) for kind, estimate in workload.compute.items() if estimate.measured]
    gpus = [name for name in ACCELERATORS if name != "cpu"]
    usable = [name for name in dict.fromkeys([*measured, *gpus]) if workload.knows(name)]
    return [name for name in usable if not ACCELERATORS[name].withdrawn] or usable


COUNTS = (1, 2, 3, 4, 6, 8, 12, 16)
"""The considered numbers of workers of a GPU; two GPUs together have at most the largest number."""
MOST_WORKERS = max(COUNTS)
_NEAR = 1.15
"""How much slower and dearer than another a cluster may be, before chance, to be simulated."""
_Array = NDArray[np.float64]
_ALONE = np.array(COUNTS)[:, np.newaxis]
_TOGETHER = np.array([both for both in product(COUNTS, repeat=2) if sum(both) <= MOST_WORKERS])


@dataclass(frozen=True, slots=True)
class _Block:
    """Workers with these `gpus` in one zone, in `machines` if these are not the catalog's.

    `counts` has shape (rows, gpus); `hours` and `dollars` (rows, servers, models), infinite for
    clusters that make no sense.
    """

    gpus: tuple[str, ...]
    machines: Mapping[str, str]
    zone: str
    counts: NDArray[np.int_]
    hours: _Array
    dollars: _Array


class Sketches:
    """All sketches of a workload, numbered from 0; `choice` makes a number a declaration.

    `steps` are known by the number of workers; other numbers are left out.
    """

    def __init__(
        self,
        workload: Workload,
        steps: Mapping[int, int],
        gpus: Sequence[str],
        zones: Sequence[str],
        servers: Sequence[int],
        cores: int,
        models: Sequence[str],
        like: Choice | None = None,
    ) -> None:
        self._workload = workload
        self._servers = np.array(servers)
        self._cores = cores
        self._like = like or Choice(())
        self._steps = np.array([steps.get(workers, np.inf) for workers in range(MOST_WORKERS + 1)])
        self._models = tuple(models)
        self._blocks = list[_Block]()
        for kinds in [*((gpu,) for gpu in gpus), *self._mixes(gpus)]:
            for zone in _places(kinds, zones):
                for machines in self._machines(kinds):
                    block = self._block(kinds, machines, zone)
                    if block:
                        self._blocks.append(block)
        self._ends = list(accumulate(block.hours.size for block in self._blocks))

    def __len__(self) -> int:
        """Return the number of clusters."""
        return sum(int(np.isfinite(block.hours).sum()) for block in self._blocks)

    def choice(self, number: int) -> Choice:
        """Return the cluster of a number."""
        block, (row, servers, model) = self._at(number)
        counts = block.counts[row].tolist()
        groups = tuple(
            WorkerGroup(gpu, count, block.zone)
            for gpu, count in zip(block.gpus, counts, strict=True)
        )
        return replace(
            self._like,
            groups=groups,
            servers=int(self._servers[servers]),
            server_cores=self._cores,
            provisioning=self._models[model],
            machines=block.machines,
        )

    def hours_and_dollars(self, number: int) -> tuple[float, float]:
        """Return the hours and dollars of a cluster, without chance."""
        block, place = self._at(number)
        return float(block.hours[place]), float(block.dollars[place])

    def near_front(self, most: int, most_mixed: int) -> list[int]:
        """Return numbers of clusters that none beats clearly, for each provisioning model.

        At most `most` of one GPU and `most_mixed` of two. Chance affects only one model, so they
        are not compared.
        """
        if not self._blocks:
            return []
        hours, dollars = (
            np.concatenate(
                [getattr(block, name).reshape(-1, len(self._models)) for block in self._blocks]
            )
            for name in ("hours", "dollars")
        )
        mixed = np.concatenate(
            [np.full(block.hours[..., 0].size, len(block.gpus) > 1) for block in self._blocks]
        )
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
        row, servers, model = np.unravel_index(
            number - self._ends[which] + block.hours.size, block.hours.shape
        )
        return block, (int(row), int(servers), int(model))

    def _mixes(self, gpus: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Return pairs from one list of prices: each GPU costs in a mix what it costs alone."""
        own = self._workload.prices.servers
        return (
            (one, other) for one, other in combinations(gpus, 2) if (one in own) == (other in own)
        )

    def _machines(self, gpus: tuple[str, ...]) -> Iterable[Mapping[str, str]]:
        """Return the declared machines; else the catalog's, and larger ones that shorten steps."""
        if self._like.machines:
            return [{gpu: self._like.machines[gpu] for gpu in gpus if gpu in self._like.machines}]
        some = [["", *self._larger(gpu)] for gpu in gpus]
        return [
            {gpu: name for gpu, name in zip(gpus, names, strict=True) if name}
            for names in product(*some)
        ]

    def _larger(self, gpu: str) -> Iterator[str]:
        if not (self._workload.preparation or self._workload.stalls):
            return
        least = self._workload.step(gpu).seconds
        for machine in larger_shapes(gpu):
            seconds = self._workload.step(gpu, machine).seconds
            if seconds < least / _ALIKE:
                yield machine
                least = seconds

    def _block(
        self, kinds: tuple[str, ...], machines: Mapping[str, str], zone: str
    ) -> _Block | None:
        groups = [WorkerGroup(kind, 1, zone) for kind in kinds]
        choice = replace(self._like, groups=tuple(groups), machines=machines)
        try:
            prices = [choice.worker_price(self._workload, group) for group in groups]
            server = choice.prices(self._workload).parameter_server(self._cores, zone)
        except DeclarationError:
            return None  # without a price there
        service = self._workload.service_seconds
        scaling = self._workload.scaling
        steps = [choice.step(self._workload, group).seconds for group in groups]
        speeds = np.stack(
            [worker_speed(steps, service, servers) for servers in self._servers], axis=1
        )
        limits = [capacity(service, servers, scaling) for servers in self._servers]
        rates = np.array([[_rate(price, model) for model in self._models] for price in prices])
        counts = _ALONE if len(kinds) == 1 else _TOGETHER
        hours = (
            self._steps[counts.sum(axis=1, keepdims=True)]
            / cluster_speed(counts @ speeds, limits)
            / 3600
        )
        hourly = (counts @ rates)[:, np.newaxis] + (self._servers * server)[:, np.newaxis]
        # Several workers need a parameter server; a single one does not use a second.
        single = counts.sum(axis=1, keepdims=True) == 1
        hours[np.where(single, self._servers > self._servers.min(), self._servers == 0)] = np.inf
        all_hours = np.repeat(hours[..., np.newaxis], len(self._models), axis=2)
        if never_on_demand(kinds):
            all_hours[..., [model == "standard" for model in self._models]] = np.inf
        return _Block(kinds, machines, zone, counts, all_hours, all_hours * hourly)


def _places(kinds: tuple[str, ...], zones: Sequence[str]) -> Iterable[str]:
    """Return the `zones` with all these GPUs.

    Without `zones` it is the best zone of each region that also has parameter servers' machines.
    """
    if zones:
        return [zone for zone in zones if all(has_gpu(zone, kind) for kind in kinds)]
    found: dict[str, str] = {}
    for zone in zones_with(kinds[0]):
        if all(has_gpu(zone, kind) for kind in (*kinds[1:], "cpu")):
            found.setdefault(region(zone), zone)
    return found.values()


def _rate(price: VmPrice, model: str) -> float:
    if model == "standard":
        return price.on_demand
    return price.transient


def _slack(hours: _Array, dollars: _Array) -> _Array:
    """Return by what factor the best competitor beats each cluster; infinite far from the front."""
    order = np.lexsort((dollars, hours))
    lowest = np.minimum.accumulate(dollars[order])
    least = np.append(np.inf, lowest[:-1])
    front = order[dollars[order] * _ALIKE < least]
    found = np.full(len(hours), np.inf)
    if not front.size:
        return found
    best_hours = hours[front]
    best_dollars = dollars[front]
    # Of those that are faster by the whole tolerance the slowest is the cheapest: only it can
    # exclude a cluster.
    faster = np.searchsorted(best_hours, hours / _NEAR) - 1
    near = np.isfinite(hours) & ((faster < 0) | (dollars <= _NEAR * best_dollars[faster]))
    beaten = np.minimum(
        hours[near, np.newaxis] / best_hours, dollars[near, np.newaxis] / best_dollars
    )
    found[near] = beaten.max(axis=1)
    return found


def search_text(search: Search) -> str:
    """Return the table of a search's front, and its explanations."""
    lines = [
        f"{steps_of(search)}{lasts(search.front)}: {len(search.front)} of {search.considered:,} "
        f"clusters that no other beats in time and in cost; > marks {marked(search)}.",
        *render_table(("", *(name.upper() for name in header(search))), rows(search)),
    ]
    if hidden := len(search.front) - len(shown(search)):
        lines.append(f"{hidden} more between them.")
    return "\n".join([*lines, *notes(search)])


def header(search: Search) -> tuple[str, ...]:
    """Return the header of a table of `row`s."""
    judged = ["Accuracy"] if search.judged else []
    return (
        "Time",
        "Range",
        "Cost",
        "Range",
        *judged,
        f"Saved{lasts(search.front)}",
        "Workers lost",
        "Line",
    )


def marked(search: Search) -> str:
    """Return what the best plan is: `the knee`, `the fastest`, `the cheapest`."""
    return {"knee": "the knee", "time": "the fastest", "cost": "the cheapest"}[search.objective]


def steps_of(search: Search) -> str:
    """Return the steps in words: `64,000 steps of run-1`, perhaps a range."""
    counts = sorted({plan.train_steps for plan in search.front})
    steps = " to ".join(f"{count:,}" for count in dict.fromkeys([counts[0], counts[-1]]))
    return f"{steps} steps of {search.front[0].workload.called}"


def shown(search: Search) -> Sequence[Plan]:
    """Return the plans that fit in a table: both ends, the best, and others evenly between."""
    front = search.front
    if len(front) <= MOST_ROWS:
        return front
    step = (len(front) - 1) / (MOST_ROWS - 1)
    chosen = {round(index * step) for index in range(MOST_ROWS)} | {front.index(search.best)}
    return [plan for index, plan in enumerate(front) if index in chosen]


def rows(search: Search) -> list[tuple[str, ...]]:
    """Return the front as rows, with `>` before the best plan."""
    return [
        (">" if plan is search.best else "", *row(plan, judged=search.judged))
        for plan in shown(search)
    ]


def notes(search: Search) -> list[str]:
    """Return the explanations of a search."""
    first = search.front[0]
    counted = "from the first step" if first.workload.from_first_step else "from the request"
    sentences = [
        f"Hours and dollars are estimates with their ranges{guessed(first)}, counted {counted}; "
        f"Spot VMs with {first.risk}.",
        f"Savings are {AGAINST}{lasts(search.front)}.",
        *search.notes,
    ]
    return list(dict.fromkeys([*sentences, *left_out(search.best), *_of_plans(shown(search))]))


def _of_plans(plans: Sequence[Plan]) -> Iterator[str]:
    """Yield the plans' notes; a note of one among several plans names its cluster."""
    counts = Counter(note for plan in plans for note in plan.notes)
    for plan in plans:
        spec = plan.line.split()[1]
        for note in plan.notes:
            if counts[note] == 1 < len(plans):
                yield f"{spec}: {note}"
            else:
                yield note
