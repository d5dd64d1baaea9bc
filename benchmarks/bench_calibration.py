"""Intervals that are shown, against what comes: how often they hold it, and how wide they are.

Lifetimes are learned from 10, 30 and 150 VMs of a known law, some of them deleted before they are revoked, launched in
cohorts of 8 of which waves take several; then comes what the law brings. Of fewer than 30 revocations nothing is told,
but for published tables, hourly counts of 30 VMs and more: of these two have corners of their own. Speeds are learned
from some stretches of a run that differ by chance, by 3 or 8 %, and so does the one that is foretold. Plans are of
other clusters than those that trained, of the networks that CM-DARE and ICAC'19 measured; where nobody saw what their
servers take, that differs by 22 %, as far as estimates of it are off. Steps to a target are learned from runs that got
there and differ by 5 or 15 %, with the batch that is planned or by a line over others. Every interval is of 90 %: 85 to
95 % is the goal, more is caution. The error is that of so many trials. `guess`: of one stretch or run nobody knows how
far the next is off, nor of one number of workers what others need: what is usual is a guess, and said to be one.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from scipy import stats

from transient_magics.catalog import ACCELERATORS, ZONES, PriceList
from transient_magics.catalog.published import LAUNCHED_TOGETHER, WAVES
from transient_magics.errors import PlanError
from transient_magics.planner.accuracy import Accuracies
from transient_magics.planner.choices import Choice
from transient_magics.planner.efficiency import Target, TargetSteps
from transient_magics.planner.lifetimes.beyond import Capped, continued
from transient_magics.planner.lifetimes.kaplan_meier import KaplanMeier
from transient_magics.planner.lifetimes.model import LifetimeModel
from transient_magics.planner.lifetimes.observations import LEAST_EVENTS, Observations
from transient_magics.planner.lifetimes.parametric import EarlyThenSteady, Weibull
from transient_magics.planner.measured import Observation, Record
from transient_magics.planner.plan import make_plan
from transient_magics.planner.simulate import Course, Outcome, Startup, Workers, simulate
from transient_magics.planner.speeds.families import families, leave_one_out, line
from transient_magics.planner.speeds.fitting import Cell, fit
from transient_magics.planner.speeds.speed import capacity, cluster_speed, worker_speed
from transient_magics.planner.speeds.workloads import PUBLISHED, Workload
from transient_magics.planner.store import ModelStore
from transient_magics.spec import parse_groups

LAWS = {"early, then steady": EarlyThenSteady(0.3, 1.0, 0.02), "memoryless, 20 h": Weibull(20.0)}
CORNERS = {
    "hourly counts, rarely revoked": Weibull(80.0),
    "hourly counts, many at once": EarlyThenSteady(0.45, 0.2, 0.003),
}
"""As the published tables with 8 revocations of 30, and with half of all VMs gone within an hour and few after it."""
KNOWN = (10, 30, 150)
AGES = np.array([0.5, 1.0, 4.0, 12.0, 20.0])
LEAST_TABLE = 30
"""Of how many VMs the smallest published table is."""
OTHERS = 40
TRUTH_RUNS = 20_000
SECONDS, SERVICE = {"k80": 0.2, "p100": 0.07}, 0.05
"""Of a step, and the parameter server's part of it where that is the limit."""
WORLDS = ("cmdare/resnet-15", "cmdare/resnet-32", "cmdare/shake-shake-small", "cmdare/shake-shake-big")


@dataclass
class Row:
    """One interval's record: whether it held, by trial the share of what it was asked, and its widths."""

    held: list[float] = field(default_factory=list)
    widths: list[float] = field(default_factory=list)

    def add(self, held: float | np.bool_, width: float) -> None:
        self.held.append(float(held))
        self.widths.append(width)

    def __str__(self) -> str:
        error = np.std(self.held) / np.sqrt(len(self.held))
        return f"{np.mean(self.held):6.1%} ± {error:4.1%}   width {np.mean(self.widths):7.3g}"


def launched(
    law: LifetimeModel, vms: int, random: np.random.Generator, *, hourly: bool = False, capped: bool = False
) -> Observations:
    """VMs of the law as a user learns of them: in cohorts, revoked in waves; a third deleted at a random age. `hourly`:
    counted by the hour up to 24 h, as what was published; `capped`: all ended at 24 h."""
    cohort = np.arange(vms) // LAUNCHED_TOGETHER
    common = 1 - random.random(cohort[-1] + 1)
    shares = np.where(random.random(vms) < WAVES, common[cohort], 1 - random.random(vms))
    lived = law.quantile(shares)
    sizes = np.bincount(cohort).tolist()
    if hourly:
        return Observations.hourly(vms, [int((lived <= hour).sum()) for hour in range(1, 25)]).in_cohorts(sizes)
    watched = np.where(random.random(vms) < 1 / 3, random.uniform(0.5, 30, vms), 48.0)
    watched = np.minimum(watched, 24.0) if capped else watched
    return Observations.of(np.minimum(lived, watched), lived <= watched).in_cohorts(sizes)


def courses(model: LifetimeModel, capped: bool) -> Iterator[tuple[str, Course]]:
    """Runs whose length hangs on lifetimes alone."""
    kept = Capped(model, 24.0) if capped else model
    for count, hours, replaced in ((4, 12.0, True), (2, 96.0, True), (8, 6.0, False), (4, 12.0, False)):
        group = Workers(count, 1.0, 1.0, 3.0, lifetimes=kept, startup=Startup(900.0, 900.0) if replaced else Startup())
        name = f"{count} workers, {hours:g} h, {'replaced' if replaced else 'not replaced'}"
        yield name, Course((group,), count * hours * 3600, replace=replaced, from_first_step=True, waves=WAVES)


def shown(
    observed: Observations, law: LifetimeModel, random: np.random.Generator
) -> Iterator[tuple[str, float, float]]:
    """What is shown of the VMs themselves: a name, whether it held, how wide it was."""
    model, truth = KaplanMeier(observed), law.survival(AGES)
    low, high = model.band(AGES)
    for place, age in enumerate(AGES):
        if age <= observed.end:
            yield f"share alive at {age:g} h", low[place] <= truth[place] <= high[place], high[place] - low[place]
    others = law.quantile(1 - random.random(OTHERS))
    for age in (1.0, 12.0):
        if age <= observed.end:
            least, most = model.alive_of(OTHERS, age)
            yield f"of {OTHERS} others alive at {age:g} h", least <= (others > age).sum() <= most, most - least


def planned(
    observed: Observations, capped: bool, runs: int, seed: int, came: dict[str, Outcome]
) -> Iterator[tuple[str, float, float]]:
    """Hours and dollars of plans with what was learned, and the share of courses that finish, beside the law's own."""
    model = continued(KaplanMeier(observed), observed.end, observed)
    for name, course in courses(model, capped):
        outcome, true = simulate(course, runs if course.replace else 5 * runs, seed), came[name]
        if not outcome.finished:
            continue
        for what in ("hours", "dollars"):
            low, high = np.quantile(getattr(outcome.until_done(), what), [0.05, 0.95])
            real = getattr(true.until_done(), what)
            yield f"{what}: {name}", ((low <= real) & (real <= high)).mean(), float((high - low) / np.median(real))
        if not course.replace:
            least, most = outcome.finished_between(0.9)
            yield f"finished: {name}", least <= true.finished <= most, most - least


def lifetimes(trials: int, runs: int, report: Callable[[str], None] = print) -> dict[tuple[str, int, str], Row]:
    """All rows about lifetimes, by kind of VMs, their number and interval."""
    table: dict[tuple[str, int, str], Row] = {}
    kinds = [(name, law, False, False) for name, law in LAWS.items()]
    first = next(iter(LAWS.values()))
    kinds += [("hourly counts", EarlyThenSteady(0.3, 0.2, 0.02), True, False), ("ended at 24 h", first, False, True)]
    kinds += [(name, law, True, False) for name, law in CORNERS.items()]
    for kind, law, hourly, capped in kinds:
        came = {name: simulate(course, TRUTH_RUNS, 1_000_003) for name, course in courses(law, capped)}
        for vms in (30,) if kind in CORNERS else KNOWN:
            random, told = np.random.default_rng(vms), hourly and vms >= LEAST_TABLE
            for trial in range(trials):
                observed = launched(law, vms, random, hourly=hourly, capped=capped)
                if not observed.events:
                    continue
                told = told or observed.events >= LEAST_EVENTS
                found = [*shown(observed, law, random), *planned(observed, capped, runs, trial, came)]
                for name, held, width in found:
                    table.setdefault((kind, vms, name), Row()).add(held, width)
            report(f"{kind}, learned from {vms} VMs{'' if told else ': too few, nothing is told of them'}")
            for (one, number, name), row in table.items():
                if (one, number) == (kind, vms):
                    report(f"  {name:40} {row}")
    return table


def cluster_speed_of(workers: Mapping[str, int], servers_limit: bool) -> float:
    """Steps per second that these workers truly make together."""
    service = SERVICE if servers_limit else 0.0
    offered = sum(count * float(worker_speed(SECONDS[gpu], service, 1)) for gpu, count in workers.items())
    return float(cluster_speed(offered, capacity(service, 1)))


def foretold(trials: int, runs: int, report: Callable[[str], None] = print) -> dict[str, Row]:
    """Hours that are left of a run, forecast from stretches whose speeds differ by chance, as the next one's does."""
    table: dict[str, Row] = {}
    clusters = {"alike": ({"k80": 4}, {"k80": 3}), "mixed": ({"k80": 3, "p100": 2}, {"k80": 2, "p100": 2})}
    for noise in (0.03, 0.08):
        for bound in (False, True):
            for kind, (now, before) in clusters.items():
                for stretches in (1, 2, 3, 6):
                    random, row = np.random.default_rng(stretches), Row()
                    for trial in range(trials):
                        went = [now if each % 2 == 0 else before for each in range(stretches)]
                        seen = [
                            Cell(each, 1, cluster_speed_of(each, bound) * np.exp(random.normal(0, noise)), 60.0)
                            for each in went
                        ]
                        found = fit(seen)
                        groups = tuple(
                            Workers(count, found.compute_seconds[gpu], 1.0, 1.0, accelerator=gpu)
                            for gpu, count in now.items()
                        )
                        course = Course(
                            groups, 36_000.0, service_seconds=found.service_seconds, scaling=found.scaling,
                            from_first_step=True, work_error=found.error,
                        )  # fmt: skip
                        low, high = np.quantile(simulate(course, runs, trial).hours, [0.05, 0.95])
                        took = 10 / (cluster_speed_of(now, bound) * np.exp(random.normal(0, noise)))
                        row.add(low <= took <= high, float((high - low) / took))
                    limit = "bound by servers" if bound else "not bound"
                    table[f"hours left: {kind}, {limit}, {noise:.0%} noise, {stretches} stretches"] = row
    for name, row in table.items():
        report(f"  {name:66} {row}")
    return table


@dataclass(frozen=True)
class Other:
    """A cluster that is planned with so many `servers`, from `seen` ones with one. `varies`: by how much what servers
    take differs from the estimate, where nobody saw it."""

    seen: tuple[str, ...]
    planned: str
    servers: int = 1
    varies: float = 0.0
    worlds: tuple[str, ...] = WORLDS


OTHERS_OF = {
    "as it was": Other(("k80x4",) * 2, "k80x4"),
    "twice as large": Other(("k80x2",) * 2, "k80x4"),
    "two GPUs, each seen": Other(("k80x2", "p100x2", "k80x2+p100") * 2, "k80x4+p100x2"),
    "bound by servers, seen": Other(("p100", "p100x2", "p100x4", "p100x8"), "p100x6"),
    "bound by servers, not seen": Other(("p100x2",) * 2, "p100x8", varies=0.22),
    "bound by two servers": Other(("p100", "p100x2", "p100x4", "p100x8"), "p100x8", 2, worlds=WORLDS[:2]),
    "a faster GPU, by its peak": Other(("k80x4",) * 2, "p100x4"),
}
"""Two servers: of networks whose variables spread over them."""


def true_workload(name: str, away: float = 0.0) -> Workload:
    """A published network as if its figures were exact, but for what its servers take; rented as today."""
    known = PUBLISHED[name]
    exact = {gpu: replace(each, error=0.0) for gpu, each in known.compute.items()}
    return replace(
        known, compute=exact, speed_error=0.0, limit_error=0.0, scaling_error=0.0, prices=PriceList(),
        from_first_step=False, service_seconds=known.service_seconds * float(np.exp(away)),
    )  # fmt: skip


def of_groups(line: str, servers: int = 1) -> Choice:
    return Choice(parse_groups(line, ACCELERATORS, ZONES), servers)


def others(trials: int, runs: int, report: Callable[[str], None] = print) -> dict[str, Row]:
    """Hours of plans of clusters, from what others of the model were measured at, by the store and the planner."""
    table: dict[str, Row] = {}
    for noise in (0.03, 0.08):
        for kind, other in OTHERS_OF.items():
            random, row = np.random.default_rng(1), Row()
            choice = of_groups(other.planned, other.servers)
            for trial in range(trials):
                world = true_workload(other.worlds[trial % len(other.worlds)], random.normal(0, other.varies))
                with TemporaryDirectory() as folder:
                    store = ModelStore("model", "problem", directory=Path(folder))
                    went = [
                        Observation(
                            {group.accelerator: group.count for group in seen.groups}, 1,
                            seen.steps_per_second(world) * float(np.exp(random.normal(0, noise))), 60.0,
                        )
                        for seen in map(of_groups, other.seen)
                    ]  # fmt: skip
                    store.learn("run", Record(tuple(went), "own", batch_size=128, parameters=world.parameters))
                    learnt = store.workload("run", "own")
                steps = round(choice.steps_per_second(world) * 5 * 3600)
                low, high = make_plan(choice, learnt, steps, runs=runs, seed=trial).interval("hours")
                course = replace(choice.course(world, steps), work_error=noise)
                took = float(simulate(course, 1, 1_000_003 + trial).hours[0])
                row.add(low <= took <= high, (high - low) / took)
            table[f"hours of a cluster: {kind}, {noise:.0%} noise"] = row
    for name, row in table.items():
        report(f"  {name:66} {row}")
    return table


SCALE = 400.0
LAWS_OF_BATCHES: dict[str, Callable[[float], float]] = {
    "over the share of noise": lambda batch: 60_000 * (1.5 - SCALE / (SCALE + batch)),
    "over the batch": lambda batch: 30_000 * (1 + batch / SCALE),
}
SIZES = {(1, 4, 16): 8, (1, 2, 4, 8, 16): 6, (1, 2, 4, 8, 16) * 2: 12, (4, 4, 4): 8}
"""Of how many workers the runs were that got there, each with its mini-batch of 32, and of how many one is planned."""


def got_there(workers: int, examples: float, random: np.random.Generator) -> Record:
    """A run that got to 90 % with so many examples, and measured the noise of its gradients on the way."""
    step = round(examples / 32)
    noise = tuple(
        (step // 20 * part, float(random.lognormal(0, 0.2)), float(SCALE * random.lognormal(0, 0.2)))
        for part in range(1, 13)
    )
    there = ((step - 1, {"accuracy": 0.8}), (step + 1, {"accuracy": 1.0}))
    return Record((), "own", evaluations=there, batch_size=32, workers=float(workers), gradients=noise)


def lines(trials: int, report: Callable[[str], None] = print) -> dict[str, Row]:
    """Examples to a target with a batch that was not run, by a line through those that were; where one is drawn."""
    table: dict[str, Row] = {}
    wanted = Target("accuracy", ">=", 0.9)
    for law, examples in LAWS_OF_BATCHES.items():
        for spread in (0.05, 0.15):
            for seen, planned_with in SIZES.items():
                random, row, guesses = np.random.default_rng(1), Row(), 0
                for _ in range(trials):
                    runs = [
                        got_there(each, examples(32 * each) * float(np.exp(random.normal(0, spread))), random)
                        for each in seen
                    ]
                    took = examples(32 * planned_with) * float(np.exp(random.normal(0, spread)))
                    try:
                        need = TargetSteps(runs, wanted, 32).need(planned_with)
                    except PlanError:  # the line is not good enough: nothing is told
                        continue
                    off = float(stats.norm.ppf(0.95)) * need.error
                    row.add(abs(float(np.log(took / need.examples))) <= off, 2 * off)
                    guesses += bool(need.guess)
                counts = f"{len(seen)} runs with {len(set(seen))} sizes" + (", a guess" if guesses else "")
                if row.held:
                    table[f"examples to a target: {law}, {spread:.0%}, {counts}"] = row
    for name, row in table.items():
        report(f"  {name:66} {row}   told {len(row.held) / trials:.0%}")
    return table


def targets(trials: int, runs: int, report: Callable[[str], None] = print) -> dict[str, Row]:
    """Hours to a target, from runs that got there: of one to sixteen groups, bound by the servers or not."""
    table: dict[str, Row] = {}
    wanted = Target("accuracy", ">=", 0.9)
    for spread, bound, groups in ((0.05, False, 1), (0.15, False, 1), (0.15, True, 1), (0.15, False, 16)):
        for known in (1, 2, 3, 6):
            random, row = np.random.default_rng(known), Row()
            for trial in range(trials):
                needed = [1000 * float(np.exp(random.normal(0, spread))) for _ in range(known)]
                records = [
                    Record(
                        (),
                        "own",
                        evaluations=((step - 1, {"accuracy": 0.8}), (step + 1, {"accuracy": 1.0})),
                        batch_size=32,
                    )
                    for step in map(round, needed)
                ]
                steps = TargetSteps(records, wanted, 32)
                one = Workers(1, 1.0, 1.0, 1.0)
                course = Course(
                    (one,) * groups, steps.steps(1), service_seconds=10.0 if bound else 0.0, from_first_step=True,
                    work_error=steps.error,
                )  # fmt: skip
                low, high = np.quantile(simulate(course, runs, trial).hours, [0.05, 0.95])
                exact = simulate(replace(course, work_error=0.0, steps=1000.0), 1).hours[0]
                took = exact * np.exp(random.normal(0, spread))
                row.add(low <= took <= high, float((high - low) / took))
            limit = "bound by servers" if bound else f"{groups} groups"
            table[f"hours to a target: {limit}, runs differ by {spread:.0%}, {known} got there"] = row
    for name, row in table.items():
        report(f"  {name:66} {row}")
    return table


def accuracies(trials: int, report: Callable[[str], None] = print) -> dict[str, Row]:
    """How accurate one more run is, from some that differ by chance."""
    table: dict[str, Row] = {}
    for differ in (0.005, 0.01, 0.02):
        for known in (2, 3, 6):
            random, row = np.random.default_rng(known), Row()
            for _ in range(trials):
                *before, one = random.normal(0.8, differ, known + 1)
                runs = [
                    Record((), "own", evaluations=((1000, {"accuracy": float(each)}),), batch_size=32, workers=4.0)
                    for each in before
                ]
                told = Accuracies(runs, 32).at(4, 1000)
                assert told is not None
                row.add(told.low <= one <= told.high, told.high - told.low)
            table[f"accuracy: runs differ by {differ:g}, {known} are known"] = row
    for name, row in table.items():
        report(f"  {name:66} {row}")
    return table


def unseen(report: Callable[[str], None] = print) -> Row:
    """Seconds of a step of published networks, each left out of the line of its family."""
    row = Row()
    for family in families():
        for gpu in ("k80", "p100"):
            known = line(family, gpu)
            assert known is not None
            for _, seconds, predicted in leave_one_out(family, gpu):
                row.add(abs(predicted / seconds - 1) <= 1.645 * known.error, 3.29 * known.error)
    report(f"  {'seconds of a step of an unseen network (40 published cells)':66} {row}")
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer trials: errors of some points in a hundred")
    parser.add_argument(
        "--trials", type=int, default=200, help="of lifetimes (200); of speeds and steps five times that"
    )
    asked = parser.parse_args()
    trials, runs = (40, 500) if asked.quick else (asked.trials, 2000)
    print("Lifetimes", flush=True)
    lifetimes(trials, runs, say)
    print("Speeds and steps", flush=True)
    foretold(5 * trials, runs, say)
    others(trials, runs, say)
    targets(5 * trials, runs, say)
    lines(5 * trials, say)
    accuracies(5 * trials, say)
    unseen(say)


def say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()
