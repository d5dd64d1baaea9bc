"""What a deadline costs on markets that were measured: greedy, Uniform Progress, ours, and an optimum that knows them.

One VM, one zone at a time, 48 hours of work, on demand at three times the price of Spot, 12 minutes to start, which are
paid and make nothing; deadlines of 52, 60, 72 and 96 hours. `--data FOLDER` (or the folder `shared/data/availability`
beside the project) has traces, of which the `*-1-node-*` files are used. The prior in the package was learnt from the
first year's (`--learn FOLDER` learns it anew); all later years are judged, of which nothing is learnt but each run's
own past. By zone, each zone is judged with what all others tell. Costs are shares of what the work costs on demand
alone. They are of AWS in 2022 and 2023, and forecast nothing of another cloud or year.

Then three zones of one region, a VM in one of them at a time, moves paid; and clusters whose speed is concave, on the
`*-16-node-*` files, governed by the controller's own decisions.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import _deadline_clusters as clusters
import _deadline_zones as zones_of
import numpy as np
from numpy.typing import NDArray

from transient_magics.catalog.traces import read_traces
from transient_magics.errors import PlanError
from transient_magics.planner import deadlines
from transient_magics.planner.deadlines.baselines import Greedy, UniformProgress
from transient_magics.planner.deadlines.chains import Chains, as_table, learnt, published
from transient_magics.planner.deadlines.market import GRID, Open, Windows, sampled, windows
from transient_magics.planner.deadlines.optimum import optimum
from transient_magics.planner.deadlines.problem import ACTS, ON_DEMAND, SPOT, WAIT, Acts, Problem
from transient_magics.planner.deadlines.program import Values, Weighted, values
from transient_magics.planner.deadlines.running import Course, run

HERE = Path(__file__).parents[1].parent / "shared" / "data" / "availability"
HOUR = round(3600 / GRID)
WORK = 48 * HOUR
DEADLINES = (52, 60, 72, 96)
EVERY = 12 * HOUR
BETTER = {52: 0.4, 60: 0.4, 72: 0.4, 96: 0.3}
BETTER_BY_ZONE = {52: 0.3, 60: 0.3, 72: 0.3, 96: 0.25}
OF_OPTIMUM = 1.10
ANCHORS = {52: (0.838, 0.774, 0.65), 60: (0.734, 0.684, 0.61), 72: (0.673, 0.678, 0.56), 96: (0.554, 0.631, 0.50)}


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=HERE, help="the folder with the traces")
    parser.add_argument("--learn", type=Path, help="learn the prior anew from the first year's traces in this folder")
    parser.add_argument("--write", action="store_true", help="keep what --learn learnt as the package's table")
    parser.add_argument("--quick", action="store_true", help="two deadlines, fewer windows, states and draws")
    options = parser.parse_args()
    began = time.perf_counter()
    hours, every = ((52, 96), 4 * EVERY) if options.quick else (DEADLINES, EVERY)
    times, states, runs = (50, 20_000, 20) if options.quick else (1000, 1_000_000, 200)
    if options.learn:
        old = series(options.learn)
        first = min(each.year for each in old)
        chains = learnt([each.open for each in old if each.year == first])
        if options.write:
            where = Path(deadlines.__file__).parent / "prior.csv"
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


if __name__ == "__main__":
    main()
