"""What a deadline costs: policies on measured availability, and runs on the emulator.

`policies`: greedy, Uniform Progress, ours, and an optimum that knows the future, on markets that were measured. One VM,
one zone at a time, 48 hours of work, on demand at three times the price of Spot, 12 minutes to start, which are paid
and make nothing; deadlines of 52, 60, 72 and 96 hours. `--data FOLDER` (default: the folder `shared/data/availability`
beside the project) has traces, of which the `*-1-node-*` files are used. The prior in the package was learnt from the
first year's (`--learn FOLDER` learns it again); all later years are judged, of which nothing is learnt but each run's
own past. By zone, each zone is judged with what is learnt of all others. Costs are shares of what the work costs on
demand alone. They are of AWS in 2022 and 2023, and forecast nothing of another cloud or year.

Then three zones of one region, a VM in one of them at a time, moves paid; and clusters whose speed is concave, on the
`*-16-node-*` files, governed by the controller's decisions.

`live`: the decision core goes through adversarial capacity first, in a small world in which its conditions hold (starts
as long as assumed, speeds as measured), so that none may be late. Then runs on the emulator with replayed availability:
two workers, paced; six hours of the cloud pass in a minute, so that 12 hours of work take two of them. Each replays a
stretch of a trace of `--data` that begins anywhere in it, without one a market drawn from the spells that the
controller assumes. A run is late if its last step is not saved by the deadline; its start-ups are this machine's, and
take so much of a minute of which each is six hours. The simulated cost is that of the same world with the same stretch
and a start as long as the longest that was seen. Thirty runs take hours: `--first 10 --runs 5 --keep FILE` makes those
from seed 10 on, and summarises all that FILE has.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean as mean

import _deadline_clusters as clusters
import _deadline_zones as zones_of
import numpy as np
from _common import ROOT, own_home, parser_of, run_measures, say
from _deadline_policies import (
    ACTS,
    ON_DEMAND,
    SPOT,
    WAIT,
    Acts,
    Course,
    Greedy,
    Problem,
    UniformProgress,
    Values,
    Weighted,
    Windows,
    as_table,
    learnt,
    optimum,
    run,
    sampled,
    values,
    windows,
)
from numpy.typing import NDArray

from transient_magics.journal import RunState

sys.path.insert(0, str(ROOT))

from tests.deadlines.deadline_world import spells, world
from transient_magics import client
from transient_magics.catalog.traces import Trace, read_traces
from transient_magics.client import Declaration
from transient_magics.deadlines.situation import LACKS, LASTS
from transient_magics.errors import PlanError
from transient_magics.journal import Event, bill, events, replay
from transient_magics.planner.deadlines.cost import GRID, Chains, Open, published
from transient_magics.protocol.vm_events import TrainMade, WorkerJoined
from transient_magics.works.runs.deadline_situation import seen

HERE = ROOT.parent / "shared" / "data" / "availability"
HOUR = round(3600 / GRID)
"""Steps of the grid."""
WORK = 48 * HOUR
DEADLINES = (52, 60, 72, 96)
EVERY = 12 * HOUR
BETTER = {52: 0.4, 60: 0.4, 72: 0.4, 96: 0.3}
BETTER_BY_ZONE = {52: 0.3, 60: 0.3, 72: 0.3, 96: 0.25}
OF_OPTIMUM = 1.10
ANCHORS = {52: (0.838, 0.774, 0.65), 60: (0.734, 0.684, 0.61), 72: (0.673, 0.678, 0.56), 96: (0.554, 0.631, 0.50)}
CELL = (
    (ROOT / "tests" / "faults" / "test_two_runs.py").read_text(encoding="utf-8").split('CELL = """')[1].split('"""')[0]
)
WORKERS, PACE, HOURS_PER_MINUTE = 2, 0.5, 6.0
RATE = 60 * HOURS_PER_MINUTE
WORK_HOURS, DEADLINE_HOURS = 12.0, 24.0
ZONE = "us-central1-a"
MOST = 9
SECONDS = 3600.0
"""Of an hour."""


@dataclass(frozen=True)
class Series:
    """A trace on the grid: its name, zone and year."""

    name: str
    zone: str
    year: str
    open: Open


@dataclass(frozen=True)
class Judged:
    """What each window costs under each policy, as a share of on demand alone."""

    at: Windows
    greedy: NDArray[np.float64]
    progress: NDArray[np.float64]
    ours: NDArray[np.float64]
    best: NDArray[np.float64]
    late: tuple[int, int, int]
    starts: tuple[float, float, float]

    def way(self, chosen: NDArray[np.int64] | slice = slice(None)) -> float:
        """How far ours comes from the better baseline to the optimum, 1 being all of the way."""
        better = min(self.greedy[chosen].mean(), self.progress[chosen].mean())
        gap = better - self.best[chosen].mean()
        return float((better - self.ours[chosen].mean()) / gap) if gap > 0 else 1.0


def series(folder: Path) -> list[Series]:
    """All series of one VM."""
    paths = sorted(folder.glob("*-1-node-*.csv"))
    if not paths:
        sys.exit(f"There are no *-1-node-*.csv in {folder}.")
    return [
        Series(trace.name, trace.zone, path.stem[-4:], sampled(trace))
        for path in paths for trace in read_traces(path.read_text(encoding="utf-8"), path.name)
    ]  # fmt: skip


def judge(told: Sequence[Open], hours: int, every: int, tables: Sequence[tuple[Chains, Values]]) -> Judged:
    """All policies through all windows; `tables[i]`: what ours knows in series i (one for all if only one)."""
    problem = Problem(WORK, hours * HOUR)
    at = windows(told, problem.deadline, every)
    greedy, progress = run(problem, at.open, Greedy(problem)), run(problem, at.open, UniformProgress(problem))
    ours = Course(np.zeros(len(at)), np.zeros(len(at), bool), np.zeros(len(at), int))
    for index, (chains, table) in enumerate(tables):
        mine = at.trace == index if len(tables) > 1 else np.ones(len(at), bool)
        if mine.any():
            found = run(problem, at.open[mine], Weighted(problem, chains, int(mine.sum()), table))
            ours.cost[mine], ours.late[mine], ours.starts[mine] = found.cost, found.late, found.starts
    whole = problem.all_on_demand
    return Judged(
        at, greedy.cost / whole, progress.cost / whole, ours.cost / whole, optimum(problem, at.open) / whole,
        (int(greedy.late.sum()), int(progress.late.sum()), int(ours.late.sum())),
        (float(greedy.starts.mean()), float(progress.starts.mean()), float(ours.starts.mean())),
    )  # fmt: skip


def drawn(at: Windows, times: int) -> list[NDArray[np.int64]]:
    """Windows drawn anew, with replacement: of the traces, and of each the days."""
    random, found = np.random.default_rng(21), []
    days = {int(trace): [np.flatnonzero((at.trace == trace) & (at.day == day))
                         for day in np.unique(at.day[at.trace == trace])] for trace in np.unique(at.trace)}  # fmt: skip
    names = list(days)
    for _ in range(times):
        found.append(np.concatenate([
            days[trace][day] for trace in random.choice(names, len(names))
            for day in random.integers(len(days[trace]), size=len(days[trace]))
        ]))  # fmt: skip
    return found


def report(judged: dict[int, Judged], goals: dict[int, float], times: int, title: str) -> None:
    print(f"\n{title}")
    print("  hours    n   greedy  Uniform   ours  optimum   late (of three)    starts a run (of three)")
    for hours, each in judged.items():
        means = (float(values.mean()) for values in (each.greedy, each.progress, each.ours, each.best))
        row = "{:8.3f} {:8.3f} {:6.3f} {:8.3f}".format(*means)
        print(f"  {hours:5} {len(each.at):4} {row}   {each.late!s:17} {', '.join(f'{one:.1f}' for one in each.starts)}")
    for hours, each in judged.items():
        chosen = drawn(each.at, times)
        low, high = np.quantile([each.way(part) for part in chosen], [0.05, 0.95])
        better = min(each.greedy.mean(), each.progress.mean())
        regret = float(np.quantile(each.ours - each.progress, 0.95))
        dearer = float(np.mean(each.ours > each.progress + 0.01))
        goal(f"{hours} h: of the way from the better baseline to the optimum", each.way(), goals[hours],
             f"90 % of {times} draws of zones and days {low:.2f} to {high:.2f}")  # fmt: skip
        goal(f"{hours} h: dearer than the better baseline by", -(better - each.ours.mean()), 0.005, most=True)
        goal(f"{hours} h: 95th percentile of regret against Uniform Progress", regret, 0.02,
             f"{dearer:.1%} of runs are more than a point dearer", most=True)  # fmt: skip
        goal(f"{hours} h: late", each.late[2], 0, f"of {len(each.at)}", most=True)


def goal(what: str, value: float, wanted: float, more: str = "", *, most: bool = False) -> None:
    met = value <= wanted if most else value >= wanted
    sign = "<=" if most else ">="
    print(f"  {what:62} {value:7.3f}  goal {sign} {wanted:g}{'' if met else '  MISSED'}{f'; {more}' if more else ''}")


def as_shipped(judged: dict[int, Judged], every: int) -> None:
    """One worker that the controller's decisions govern: these ship, and know of a market its own past and a mean."""
    print("\nOne worker that the controller's decisions govern, on the same windows of later years")
    for hours, each in judged.items():
        cost, late = clusters.alone(each.at.open[::every])
        means = [float(values[::every].mean()) for values in (each.greedy, each.progress, each.ours, each.best)]
        row = "greedy {:.3f}, Uniform {:.3f}, the program {:.3f}, optimum {:.3f}".format(*means)
        print(f"  {hours} h, n {len(cost)}: {cost.mean():.3f} ({row}), {late} late")
        goal(f"{hours} h: dearer than the better baseline by", cost.mean() - min(means[:2]), 0.005, most=True)
        goal(f"{hours} h: late", late, 0, f"of {len(cost)}", most=True)


def by_zone(every_series: Sequence[Series], hours: Sequence[int], every: int, times: int) -> None:
    zones, kept = sorted({each.zone for each in every_series}), {}
    longest = Problem(WORK, max(hours) * HOUR)
    for zone in zones:
        chains = learnt([each.open for each in every_series if each.zone != zone])
        kept[zone] = chains, values(longest, chains)
    tables = [kept[each.zone] for each in every_series]
    told = [each.open for each in every_series]
    judged = {each: judge(told, each, every, tables) for each in hours}
    title = (
        f"By zone: {len(told)} series of {len(zones)} zones, each judged with what the other zones tell, of all years"
    )
    report(judged, BETTER_BY_ZONE, times, title)


def induction(states: int) -> None:
    """The safety set: every allowed act, every successor of it, over states and problems drawn at random."""
    random, seen, left_it, stuck = np.random.default_rng(4), 0, 0, 0
    while seen < states:
        start = float(random.choice([1.0, random.uniform(0.01, 1)]))
        problem = Problem(random.uniform(1, 300), 10**6, start=start, fragile=bool(random.integers(2)))
        count = min(2000, states - seen)
        held = random.integers(0, 3, count)
        work = np.where(random.random(count) < 0.5, random.integers(0, 300, count), random.uniform(0, 300, count))
        slack = np.where(random.random(count) < 0.6, random.integers(0, 3, count), random.integers(0, 300, count))
        left = np.ceil(work).astype(int) + slack
        safe = problem.safe(left, work, held) & (left > 0)
        held, work, left = held[safe], work[safe], left[safe]
        for act in (np.full(len(left), kind) for kind in ACTS):
            may = problem.allowed(left, work, held, act)
            stuck += int((~may & (act == ON_DEMAND)).sum())
            made = problem.made(held, act)
            outcomes = [(made, act), (made, np.where(act == SPOT, WAIT, act))]
            if problem.fragile:
                outcomes += [(np.where(act == SPOT, 0.0, made), np.where(act == SPOT, WAIT, act))]
            for does, then in outcomes:
                next_safe = problem.safe(left - 1, np.maximum(work - does, 0.0), then)
                left_it += int((may & ~next_safe).sum())
        seen += len(left)
    print(f"\nNever late as an induction: {seen:,} states of the safety set, every act and every successor")
    goal("successors of allowed acts outside of the set", left_it, 0, most=True)
    goal("states in which on demand is not allowed", stuck, 0, most=True)


def adversaries(runs: int) -> None:
    """The whole policy against markets that mean harm: late, of so many runs against each of them."""
    random = np.random.default_rng(5)
    chains = published()
    print(f"\nMarkets that mean harm, {runs} runs against each of seven, nine problems: late")
    for fragile, start in ((False, 1.0), (True, 1.0), (False, 0.4)):
        for slack in (1, 4, 20):
            problem = Problem(60, 60 + slack + 1, start=start, fragile=fragile)
            table = values(problem, chains)
            shape = (runs, problem.deadline)
            period = random.integers(2, 12, (runs, 1))
            until = random.integers(0, problem.deadline, (runs, 1))
            steps = np.arange(problem.deadline)
            chance = random.random((runs, 1))
            fates = random.random(shape)
            mean: dict[str, Open | Callable[[int, Acts], Open]] = {
                "none ever": np.zeros(shape, bool),
                "to and fro": (steps // period) % 2 == 0,
                "good until it is not": steps < until,
                "by chance": fates < chance,
                "taken as soon as it works": lambda step, held: held != SPOT,
                "back as soon as one pays": lambda step, held: held == ON_DEMAND,
                "taken by chance when held": lambda step, held, f=fates: (held != SPOT) | (f[:, step] < 0.7),
            }
            late = {name: int(run(problem, market, Weighted(problem, chains, runs, table), runs).late.sum())
                    for name, market in mean.items()}  # fmt: skip
            title = f"slack {slack}, start {start:g}{', the step lost with the VM' if fragile else ''}"
            where = ", ".join(name for name, count in late.items() if count) or f"{len(late)} markets"
            goal(title, sum(late.values()), 0, where, most=True)


def regions(folder: Path, first: str, hours: Sequence[int], every: int, times: int) -> None:
    """Three zones of one region; what is known of zones together is learnt from the first year's pairs."""
    together: dict[tuple[str, str], list[Open]] = {}
    for path in sorted(folder.glob("*-1-node-*.csv")):
        for trace in read_traces(path.read_text(encoding="utf-8"), path.name):
            place = path.stem, f"{trace.zone[:-1]}:{trace.gpu}x{trace.gpus_per_vm}"
            together.setdefault(place, []).append(sampled(trace))
    groups = {place: np.stack([each[: min(map(len, some))] for each in some], axis=1)
              for place, some in together.items()}  # fmt: skip
    old = [each for (name, _), each in groups.items() if name.endswith(first) and each.shape[1] > 1]
    try:
        chains = learnt([each.any(axis=1) for each in old], 4)
    except PlanError as error:
        print(f"\nThree zones of one region are left out: {first} has too few pairs of zones to learn from. {error}")
        return
    table = values(Problem(WORK, max(hours) * HOUR), chains, zones_of.lost(old))
    for (name, region), market in groups.items():
        if name.endswith(first) or market.shape[1] < 3:
            continue
        print(f"\nThree zones of {region} ({name}), a VM in one of them; learnt on {len(old)} pairs of {first}")
        print(f"  A move costs {zones_of.MOVE:g} steps of Spot beside the start of the VM")
        for each in hours:
            problem = Problem(WORK, each * HOUR)
            begins = np.arange(0, len(market) - problem.deadline + 1, every)
            judged = zones_of.judge(
                problem, np.stack([market[at : at + problem.deadline] for at in begins]), chains, table
            )
            days = (begins // (24 * HOUR)).astype(int)
            best = judged.best.mean()
            print(f"  {each} h, n {len(begins)}: optimum {best:.3f}")
            for policy, costs in judged.costs.items():
                low, high = interval(days, times, lambda part, costs=costs, best=judged.best: costs[part].mean()
                                     / best[part].mean())  # fmt: skip
                print(f"    {policy:16} {costs.mean():.3f}, {costs.mean() / best:.3f} of the optimum "
                      f"(90 % {low:.3f} to {high:.3f}), {judged.late[policy]} late")  # fmt: skip
            ours, fool = judged.costs["ours"], judged.costs["Uniform Progress"]
            low, high = interval(days, times, lambda part, ours=ours, fool=fool: ours[part].mean() - fool[part].mean())
            goal(f"{each} h: of the optimum", ours.mean() / best, OF_OPTIMUM, most=True)
            goal(f"{each} h: dearer than Uniform Progress on the best zone so far by", ours.mean() - fool.mean(), 0.0,
                 f"90 % {low:.3f} to {high:.3f}", most=True)  # fmt: skip


def interval(blocks: NDArray[np.int64], times: int, of: Callable[[NDArray[np.int64]], float]) -> tuple[float, float]:
    """Between which values nine of ten draws of whole blocks of windows lie."""
    random, members = np.random.default_rng(22), [np.flatnonzero(blocks == each) for each in np.unique(blocks)]
    drawn_ = [of(np.concatenate([members[each] for each in random.integers(len(members), size=len(members))]))
              for _ in range(times)]  # fmt: skip
    low, high = np.quantile(drawn_, [0.05, 0.95])
    return float(low), float(high)


def with_clusters(folder: Path, hours: Sequence[int], every: float, times: int) -> None:
    """The controller's decisions on clusters."""
    paths = sorted(folder.glob("*-16-node-*.csv"))
    traces = [trace for path in paths for trace in read_traces(path.read_text(encoding="utf-8"), path.name)]
    if not traces:
        return
    print(f"\nClusters of up to {clusters.MOST} workers with a concave speed, {len(traces)} traces of sixteen VMs; "
          "shares of four on demand. Too few disjoint windows for a claim unless the interval says so")  # fmt: skip
    for each in hours:
        judged = clusters.judge(traces, each, every)
        disjoint = len(np.unique(judged.block))
        print(f"  {each} h, n {len(judged.block)}, {disjoint} disjoint: no less than {judged.bound.mean():.3f}")
        for name, costs in judged.costs.items():
            low, high = interval(judged.block, times, lambda part, costs=costs: costs[part].mean())
            print(f"    {name:10} {costs.mean():.3f} (90 % {low:.3f} to {high:.3f}), {judged.late[name]} late")
        better = min(("greedy", "Uniform"), key=lambda name: judged.costs[name].mean())
        less = judged.costs["ours"] - judged.costs[better]
        low, high = interval(judged.block, times, lambda part, less=less: less[part].mean())
        said = "cheaper" if high < 0 else "dearer" if low > 0 else "no difference can be claimed"
        print(f"    ours less {better}: {less.mean():+.3f} (90 % {low:+.3f} to {high:+.3f}): {said}")
        goal(f"{each} h: late", judged.late["ours"], 0, f"of {len(judged.block)}", most=True)


@dataclass(frozen=True)
class Lived:
    """One run: seconds by which it was late (below 0: early), dollars, what the simulation said, acts, revocations.

    `told` and `took`: how many seconds VMs on demand were counted with to take steps when they were taken, and took.
    """

    late: float
    dollars: float
    simulated: float
    acts: int
    revocations: int
    told: float
    took: float


def adversarial(runs: int) -> int:
    """How many of so many worlds, in which capacity goes at the worst moments that are tried, are late. Every other one
    has no room for Spot workers beside those on demand."""
    late = 0
    for seed in range(runs):
        chance = random.Random(seed)
        lengths = [chance.choice((1.0, 1.0, 0.1)) * chance.uniform(60, 5000) for _ in range(chance.randint(1, 16))]
        declared = chance.choice((1, 2, 4))
        made = world(
            spells(1200.0, *lengths), 0.0, 1, chance.uniform(0.5, 4.0), chance.choice((0.0, 0.1, 0.5)), declared,
            begin=chance.uniform(60, 400), save_every=chance.choice((60.0, 300.0, 900.0)), seed=seed,
            most=chance.choice((1, 2)) * declared,
        )  # fmt: skip
        speed = made.speed({"cpu": declared})
        made.work = int(chance.uniform(1500, 6000) * speed)
        made.deadline = 1200 + made.begin + chance.uniform(1.0, 2.0) * made.work / (0.8 * speed)
        late += made.run().now > made.deadline
    return late


def stretch(traces: list[Trace], chance: random.Random) -> Trace:
    """48 hours of a trace from a moment on, or of a drawn market: so many VMs or none."""
    if traces:
        chosen = chance.choice(traces)
        begin = chance.uniform(0, max(chosen.end - 48 * SECONDS, 1.0))
        moments = [0.0, *(each - begin for each in chosen.seconds if begin < each < begin + 48 * SECONDS)]
        return Trace(ZONE, "cpu", 1, tuple(moments), tuple(min(chosen.at(begin + each), 1) * MOST for each in moments),
                     48 * SECONDS)  # fmt: skip
    moments, numbers, open_ = [0.0], [MOST], True
    while moments[-1] < 48 * SECONDS:
        moments.append(moments[-1] + chance.expovariate(1 / (LASTS if open_ else LACKS)))
        open_ = not open_
        numbers.append(MOST if open_ else 0)
    return Trace(ZONE, "cpu", 1, tuple(moments), tuple(numbers), moments[-1] + SECONDS)


def live(trace: Trace, seed: int) -> Lived:
    """One run on a cluster of its own."""
    with own_home() as home:
        spec = Declaration(f"cpux{WORKERS}", name="due", zone=(ZONE,), max_hours=2000, idle=1e7)
        cluster = client.declare(spec)
        file = Path(home) / "market.csv"
        file.write_text(trace.to_csv(), encoding="utf-8")
        cluster.weather(hours_per_minute=HOURS_PER_MINUTE, notice="scaled", boot="0.5s")
        cluster.wait(300)
        cluster.weather(availability=f"{ZONE}:cpu={file}:{trace.name}")
        began, steps = time.time(), round(60 * WORK_HOURS / HOURS_PER_MINUTE * WORKERS / PACE)
        before = bill(cluster.state, began).total
        run = client.train(source=CELL, cluster=cluster, train_steps=steps, pace_seconds=PACE, check=False,
                           finish_by=DEADLINE_HOURS, eval_batches=1)  # fmt: skip
        run.wait(1800)
        state, history = cluster.state, cluster.events()
        [made] = [each for each in history if isinstance(each, TrainMade)]
        acts = [each for each in history if isinstance(each, events.DeadlineActed)]
        known = state.of(RunState)[run.name].deadline
        line = state.spec.price("cpu", ZONE)
        start = max(known.joins, default=15.0) + 5
        simulated = world(
            lambda now: trace.at(now * RATE), run.declared.finish_by - began, steps, 1 / PACE, declared=WORKERS,
            begin=start, save_every=30.0, seed=seed, hourly=line.hourly * RATE,
            on_demand_hourly=line.on_demand_hourly * RATE,
            kept=sum(vm.hourly for vm in state.vms.values() if vm.role == "ps") * RATE, rate=RATE,
        ).run()  # fmt: skip
        return Lived(
            made.at - run.declared.finish_by, bill(state, made.at).total - before, simulated.cost, len(acts),
            state.revocations, *_starts(history, run.name),
        )  # fmt: skip


def _starts(history: list[Event], run: str) -> tuple[float, float]:
    """The start of the first VMs on demand, as it was counted with, and as it was; 0 where there were none."""
    acts = (each for each in history if isinstance(each, events.DeadlineActed))
    act = next((each for each in acts if any(terms == "standard" for _, terms, _ in each.machines)), None)
    if act is None:
        return 0.0, 0.0
    then = next((each.seq for each in acts), len(history) + 1)  # the next act may ask for more
    state = replay(each for each in history if each.seq < act.seq)
    names = {each.vm for each in history if isinstance(each, events.VmRequested) and each.role == "worker"
             and each.provisioning_model == "standard" and each.seq < then}  # fmt: skip
    joined = [each.at for each in history if isinstance(each, WorkerJoined) and each.worker in names]
    return seen(state, state.of(RunState)[run], act.at).begin, max(joined, default=act.at) - act.at


def kept(file: Path | None) -> dict[int, Lived]:
    """The runs of earlier calls, by seed."""
    lines = file.read_text(encoding="utf-8").splitlines() if file and file.exists() else []
    return {each.pop("seed"): Lived(**each) for each in map(json.loads, lines)}


def policies(options: argparse.Namespace) -> None:
    """Print the costs of all policies on measured availability, and whether the safety set holds."""
    began = time.perf_counter()
    hours, every = ((52, 96), 4 * EVERY) if options.quick else (DEADLINES, EVERY)
    times, states, runs = (50, 20_000, 20) if options.quick else (1000, 1_000_000, 200)
    if options.learn:
        old = series(options.learn)
        first = min(each.year for each in old)
        chains = learnt([each.open for each in old if each.year == first])
        if options.write:
            where = ROOT / "transient_magics" / "planner" / "deadlines" / "prior.csv"
            source = f"{first}, github.com/skypilot-org/spot-traces (V100 and K80 on AWS; Wu et al., NSDI 2024)"
            where.write_text(as_table(chains, f"Learnt from the *-1-node-* traces of {source}."), encoding="utf-8")
            print(f"{where.name} is written anew")
    else:
        chains = published()
    induction(states)
    adversaries(runs)
    if not options.data.is_dir():
        print(f"There is no {options.data}: what needs measured availability is left out.")
        return
    every_series = series(options.data)
    first = min(each.year for each in every_series)
    later = [each.open for each in every_series if each.year != first] or [each.open for each in every_series]
    table = values(Problem(WORK, max(hours) * HOUR), chains)
    everything = {each: judge([one.open for one in every_series], each, every, [(chains, table)]) for each in hours}
    print("\nThe anchors anew, all years: greedy, Uniform Progress, optimum (in brackets: with other starts)")
    for each, judged in everything.items():
        now = judged.greedy.mean(), judged.progress.mean(), judged.best.mean()
        print(f"  {each} h: " + ", ".join(f"{a:.3f} ({b:g})" for a, b in zip(now, ANCHORS[each], strict=True)))
    judged = {each: judge(later, each, every, [(chains, table)]) for each in hours}
    report(judged, BETTER, times, f"Learnt on {first}, judged on later years: {len(later)} series")
    as_shipped(judged, 8 if options.quick else 4)
    by_zone(every_series, hours, every, times)
    regions(options.data, first, hours, every, times)
    with_clusters(options.data, hours[1:3] if len(hours) > 2 else hours[:1], 12 * (4 if options.quick else 1), times)
    print(f"\n{time.perf_counter() - began:.0f} s")


def runs_live(asked: argparse.Namespace) -> None:
    """Print a line for each live run, and what all came to."""
    worlds = asked.worlds if asked.worlds is not None else 100 if asked.quick else 10_000
    runs = asked.runs if asked.runs is not None else 1 if asked.quick else 30
    began = time.monotonic()
    if worlds:
        say(f"late of {worlds:,} adversarial worlds", adversarial(worlds), "runs", "0")
    traces: list[Trace] = []
    for path in sorted(asked.data.glob("availability-1-node-*.csv")) if asked.data.is_dir() else ():
        traces += [each for each in read_traces(path.read_text(encoding="utf-8"), path.name) if each.end > 48 * SECONDS]
    lived = kept(asked.keep)
    for seed in range(asked.first, asked.first + runs):
        if seed in lived:
            continue
        lived[seed] = one = live(stretch(traces, random.Random(seed)), seed)
        if asked.keep:
            with asked.keep.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"seed": seed, **asdict(one)}) + "\n")
        said = f"run {seed}: {-one.late:.0f} s before its deadline, ${one.dollars:.2f}, simulated ${one.simulated:.2f}"
        on_demand = f", on demand after {one.took:.0f} s ({one.told:.0f} counted with)" if one.told else ""
        print(f"{said}, {one.acts} acts, {one.revocations} revocations{on_demand}", flush=True)
    if lived:
        all_ = lived.values()
        say(f"late of {len(lived)} live runs", sum(each.late > 0 for each in all_), "runs", "0")
        broken = sum(each.late > 0 and each.took > each.told for each in all_)
        say("    of them with a start longer than was counted with", broken, "runs")
        say("cost over the simulation's", mean(each.dollars / each.simulated for each in all_), "x", "< 1.2")
        say("acts per run", mean(each.acts for each in all_), "acts")
    say("this took", time.monotonic() - began, "s")


def main() -> None:
    """Run the chosen measures."""
    measures = {"policies": policies, "live": runs_live}
    parser = parser_of(__doc__, "two deadlines, fewer windows, states and draws; 100 worlds and one live run", measures)
    parser.add_argument("--data", type=Path, default=HERE, help="the folder with the traces")
    parser.add_argument("--learn", type=Path, help="learn the prior again from the first year's traces in this folder")
    parser.add_argument("--write", action="store_true", help="store what --learn learnt as the package's table")
    parser.add_argument("--worlds", type=int, help="adversarial worlds of `live` (default: 10,000)")
    parser.add_argument("--runs", type=int, help="live runs (default: 30)")
    parser.add_argument("--first", type=int, default=0, help="the seed of the first live run (default: 0)")
    parser.add_argument("--keep", type=Path, help="a file to which live runs are appended, and that is summarised")
    options = parser.parse_args()
    run_measures(measures, options)


if __name__ == "__main__":
    main()
