"""Rows about what is learned from VMs and runs: lifetimes, accuracy, steps to a target, networks that never ran.

Lifetimes are learned from 10, 30 and 150 VMs of a law, some of them deleted before they are revoked, launched in
cohorts of 8 of which waves take several; then comes what the law brings. Steps to a target are learned from runs that
got there and differ by 5 or 15 %, with the batch that is planned or by a line over others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial

import numpy as np
from _calibration import Row, Trial
from scipy import stats

from transient_magics.catalog.published import LAUNCHED_TOGETHER, WAVES
from transient_magics.errors import PlanError
from transient_magics.planner.accuracy import Accuracies
from transient_magics.planner.efficiency import Target, TargetSteps
from transient_magics.planner.lifetimes.beyond import Capped, continued
from transient_magics.planner.lifetimes.kaplan_meier import KaplanMeier
from transient_magics.planner.lifetimes.model import LifetimeModel
from transient_magics.planner.lifetimes.observations import LEAST_EVENTS, Observations
from transient_magics.planner.lifetimes.parametric import EarlyThenSteady, Weibull
from transient_magics.planner.measured import Record
from transient_magics.planner.simulate import Course, Outcome, Startup, Workers, simulate
from transient_magics.planner.speeds.families import families, leave_one_out, line

LAWS: dict[str, tuple[LifetimeModel, bool, bool]] = {
    "early, then steady": (EarlyThenSteady(0.3, 1.0, 0.02), False, False),
    "memoryless, 20 h": (Weibull(20.0), False, False),
    "hourly counts": (EarlyThenSteady(0.3, 0.2, 0.02), True, False),
    "ended at 24 h": (EarlyThenSteady(0.3, 1.0, 0.02), False, True),
    "hourly counts, rarely revoked": (Weibull(80.0), True, False),
    "hourly counts, many at once": (EarlyThenSteady(0.45, 0.2, 0.003), True, False),
}
"""The law, whether it is seen as hourly counts, and whether all VMs end at 24 h. The last two are as the published
tables with 8 revocations of 30, and with half of all VMs gone within an hour and few after it."""
CORNERS = tuple(LAWS)[-2:]
VMS = (10, 30, 150)
AGES = (0.5, 1.0, 4.0, 12.0, 20.0)
LEAST_TABLE = 30
"""Of how many VMs the smallest published table is."""
OTHERS = 40
TRUTH_RUNS = 20_000
RUNS = 2000


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


COURSES = {
    f"{count} workers, {hours:g} h, {'replaced' if replaced else 'not replaced'}": (count, hours, replaced)
    for count, hours, replaced in ((4, 12.0, True), (2, 96.0, True), (8, 6.0, False), (4, 12.0, False))
}


def course_of(name: str, model: LifetimeModel, capped: bool) -> Course:
    """A run whose length hangs on lifetimes alone."""
    count, hours, replaced = COURSES[name]
    kept = Capped(model, 24.0) if capped else model
    startup = Startup(900.0, 900.0) if replaced else Startup()
    group = Workers(count, 1.0, 1.0, 3.0, lifetimes=kept, startup=startup)
    return Course((group,), count * hours * 3600, replace=replaced, from_first_step=True, waves=WAVES)


@cache
def came(kind: str, name: str) -> Outcome:
    """What the law brings."""
    law, _, capped = LAWS[kind]
    return simulate(course_of(name, law, capped), TRUTH_RUNS, 1_000_003)


def _observed(kind: str, vms: int, random: np.random.Generator) -> Observations | None:
    """None where nothing is shown of so few revocations."""
    law, hourly, capped = LAWS[kind]
    observed = launched(law, vms, random, hourly=hourly, capped=capped)
    enough = observed.events >= LEAST_EVENTS or (hourly and vms >= LEAST_TABLE and observed.events)
    return observed if enough else None


def alive_share(kind: str, vms: int, age: float, random: np.random.Generator) -> Trial | None:
    observed = _observed(kind, vms, random)
    if observed is None or age > observed.end:
        return None
    low, high = KaplanMeier(observed).band(np.array([age]))
    return Trial(float(low[0]), float(high[0]), float(LAWS[kind][0].survival(np.array([age]))[0]))


def alive_of_others(kind: str, vms: int, age: float, random: np.random.Generator) -> Trial | None:
    observed = _observed(kind, vms, random)
    if observed is None or age > observed.end:
        return None
    least, most = KaplanMeier(observed).alive_of(OTHERS, age)
    lived = LAWS[kind][0].quantile(1 - random.random(OTHERS))
    return Trial(least, most, float((lived > age).sum()))


def course_takes(kind: str, vms: int, name: str, what: str, random: np.random.Generator) -> Trial | None:
    """Hours or dollars of a plan with what was learned, or the share of courses that finish."""
    observed = _observed(kind, vms, random)
    if observed is None:
        return None
    model, true = continued(KaplanMeier(observed), observed.end, observed), came(kind, name)
    course = course_of(name, model, LAWS[kind][2])
    outcome = simulate(course, RUNS if course.replace else 5 * RUNS, int(random.integers(2**31)))
    if what == "finished":
        return Trial(*outcome.finished_between(0.9), true.finished)
    if not outcome.finished:
        return None
    low, high = np.quantile(getattr(outcome.until_done(), what), [0.05, 0.95])
    return Trial(float(low), float(high), float(random.choice(getattr(true.until_done(), what))))


def _lifetimes() -> Iterator[Row]:
    for kind in LAWS:
        for vms in (30,) if kind in CORNERS else VMS:
            measured = f"{kind}, {vms} VMs"
            for age in AGES:
                yield Row(f"share alive at {age:g} h", measured, partial(alive_share, kind, vms, age))
            for age in (1.0, 12.0):
                yield Row(f"of {OTHERS} others alive at {age:g} h", measured, partial(alive_of_others, kind, vms, age))
            for name, (*_, replaced) in COURSES.items():
                for what in ("hours", "dollars") if replaced else ("hours", "dollars", "finished"):
                    trial = partial(course_takes, kind, vms, name, what)
                    yield Row(f"lifetimes' {what} of {name}", measured, trial, 200)


SCALE = 400.0
LAWS_OF_BATCHES: dict[str, Callable[[float], float]] = {
    "over the share of noise": lambda batch: 60_000 * (1.5 - SCALE / (SCALE + batch)),
    "over the batch": lambda batch: 30_000 * (1 + batch / SCALE),
}
SIZES = {(1, 4, 16): 8, (1, 2, 4, 8, 16): 6, (1, 2, 4, 8, 16) * 2: 12, (4, 4, 4): 8}
"""Of how many workers the runs were that got there, each with its mini-batch of 32, and of how many one is planned."""
TARGET = Target("accuracy", ">=", 0.9)


def _got_there(step: int, **more: object) -> Record:
    there = ((step - 1, {"accuracy": 0.8}), (step + 1, {"accuracy": 1.0}))
    return Record((), "own", evaluations=there, batch_size=32, **more)  # type: ignore[arg-type]


def got_there(workers: int, examples: float, random: np.random.Generator) -> Record:
    """A run that got to 90 % with so many examples, and measured the noise of its gradients on the way."""
    step = round(examples / 32)
    noise = tuple(
        (step // 20 * part, float(random.lognormal(0, 0.2)), float(SCALE * random.lognormal(0, 0.2)))
        for part in range(1, 13)
    )
    return _got_there(step, workers=float(workers), gradients=noise)


def examples_to_target(law: str, spread: float, seen: tuple[int, ...], random: np.random.Generator) -> Trial | None:
    """Log examples to a target with a batch that was not run, by a line through those that were; where one is drawn."""
    examples, workers = LAWS_OF_BATCHES[law], SIZES[seen]
    runs = [got_there(each, examples(32 * each) * float(np.exp(random.normal(0, spread))), random) for each in seen]
    took = examples(32 * workers) * float(np.exp(random.normal(0, spread)))
    try:
        need = TargetSteps(runs, TARGET, 32).need(workers)
    except PlanError:  # the line is not good enough
        return None
    middle, off = float(np.log(need.examples)), float(stats.norm.ppf(0.95)) * need.error
    return Trial(middle - off, middle + off, float(np.log(took)))


def hours_to_target(spread: float, bound: bool, groups: int, known: int, random: np.random.Generator) -> Trial:
    """From runs that got there: of one to sixteen groups, bound by the servers or not."""
    needed = [1000 * float(np.exp(random.normal(0, spread))) for _ in range(known)]
    steps = TargetSteps([_got_there(round(each)) for each in needed], TARGET, 32)
    course = Course(
        (Workers(1, 1.0, 1.0, 1.0),) * groups, steps.steps(1), service_seconds=10.0 if bound else 0.0,
        from_first_step=True, work_error=steps.error,
    )  # fmt: skip
    low, high = np.quantile(simulate(course, RUNS, int(random.integers(2**31))).hours, [0.05, 0.95])
    exact = float(simulate(replace(course, work_error=0.0, steps=1000.0), 1).hours[0])
    return Trial(float(low), float(high), exact * float(np.exp(random.normal(0, spread))))


def accuracy(differ: float, known: int, random: np.random.Generator) -> Trial:
    """How accurate one more run is, from some that differ by chance."""
    *before, one = random.normal(0.8, differ, known + 1)
    runs = [
        Record((), "own", evaluations=((1000, {"accuracy": float(each)}),), batch_size=32, workers=4.0)
        for each in before
    ]
    found = Accuracies(runs, 32).at(4, 1000)
    assert found is not None
    return Trial(found.low, found.high, float(one))


@cache
def _left_out() -> tuple[Trial, ...]:
    """Log seconds of a step of published networks, each left out of the line of its family."""
    found = list[Trial]()
    for family in families():
        for gpu in ("k80", "p100"):
            known = line(family, gpu)
            assert known is not None
            off = 1.645 * known.error
            found += [Trial(-off, off, predicted / seconds - 1) for _, seconds, predicted in leave_one_out(family, gpu)]
    return tuple(found)


def unseen_network(random: np.random.Generator) -> Trial:
    """One of the published cells."""
    return _left_out()[int(random.integers(len(_left_out())))]


def _targets() -> Iterator[Row]:
    for spread, bound, groups in ((0.05, False, 1), (0.15, False, 1), (0.15, True, 1), (0.15, False, 16)):
        for known in (1, 2, 3, 6):
            limit = "bound by servers" if bound else f"{groups} groups"
            measured = f"{known} runs that differ by {spread:.0%}, {limit}"
            yield Row("hours to a target", measured, partial(hours_to_target, spread, bound, groups, known))
    for law in LAWS_OF_BATCHES:
        for spread in (0.05, 0.15):
            for seen in SIZES:
                measured = f"{len(seen)} runs with {len(set(seen))} sizes that differ by {spread:.0%}, {law}"
                guess = len(set(seen)) == 1
                trial = partial(examples_to_target, law, spread, seen)
                yield Row("examples to a target", measured, trial, target=not guess)


def _accuracies() -> Iterator[Row]:
    for differ in (0.005, 0.01, 0.02):
        for known in (2, 3, 6):
            yield Row("accuracy", f"{known} runs that differ by {differ:g}", partial(accuracy, differ, known))


ROWS: list[Row] = [
    *_lifetimes(), *_targets(), *_accuracies(),
    Row("seconds of a step of an unseen network", "40 published cells", unseen_network),
]  # fmt: skip
