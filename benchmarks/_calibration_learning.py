"""Rows about what is learned from VMs, runs and jobs: lifetimes, accuracy, noise, steps to a target, bags.

Lifetimes are learned from 30 and 150 VMs of a law, some of them deleted before they are revoked, launched in cohorts of
8 of which waves take several; then comes what the law brings. Runs differ in accuracy by half to twice as much as
ICAC'19's did of as many workers, and in steps to a target by 2 to 35 %, as ICAC'19's did before and after a step of the
learning rate; in examples to a target with other batches by 10 to 35 %, as before that step. The noise scale is that of
a quadratic on which workers train. Jobs of a bag take what they are drawn to take, on VMs that differ and whose speed
varies, and which are revoked; best is who knows these laws but not how long a job takes in the mean.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from _calibration import Array, Row, Trial, World
from scipy import special, stats

from transient_magics.catalog.published import LAUNCHED_TOGETHER, WAVES
from transient_magics.errors import PlanError
from transient_magics.planner.efficiency import Accuracies, NoiseScale, Target, TargetSteps
from transient_magics.planner.lifetimes.kaplan_meier import Capped, KaplanMeier, continued
from transient_magics.planner.lifetimes.observations import LEAST_EVENTS, Observations
from transient_magics.planner.lifetimes.parametric import EarlyThenSteady, LifetimeModel, Weibull
from transient_magics.planner.ranges import middle as middle_of
from transient_magics.planner.run_records import Record
from transient_magics.planner.simulate import Course, Outcome, Startup, Workers, simulate
from transient_magics.planner.speeds.throughput import families, leave_one_out, line
from transient_magics.runtime.worker.meter import NoiseProbe
from transient_magics.works.bags.policy.placement import SPARE_HOURS
from transient_magics.works.bags.policy.simulate import Bag, Progress, hours_left, middle, scheduled
from transient_magics.works.bags.policy.simulate import simulate as simulate_bag

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
VMS = (30, 150)
AGES = (1.0, 12.0)
LEAST_TABLE = 30
"""The number of VMs in the smallest published table."""
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
    for count, hours, replaced in ((4, 12.0, True), (8, 6.0, False))
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
    """The outcome under a law, by its name."""
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
    found = middle_of(getattr(outcome.until_done(), what))
    return Trial(*found, float(random.choice(getattr(true.until_done(), what))), _best_takes(kind, name, what))


@cache
def _best_takes(kind: str, name: str, what: str) -> tuple[float, float]:
    """Return the range for a known law of lifetimes, about which observed VMs show nothing more."""
    return middle_of(getattr(came(kind, name).until_done(), what))


def alive_share_watched_shortly(vms: int, age: float, random: np.random.Generator) -> Trial | None:
    """Observe VMs that their user deletes after two hours in the mean."""
    law = Weibull(10.0, 0.6)
    lived, watched = law.quantile(1 - random.random(vms)), random.exponential(2.0, vms)
    observed = Observations.of(np.minimum(lived, watched), lived <= watched)
    if age > observed.end:
        return None
    low, high = KaplanMeier(observed).band(np.array([age]))
    return Trial(float(low[0]), float(high[0]), float(law.survival(np.array([age]))[0]))


def _lifetimes() -> Iterator[Row]:
    for kind in LAWS:
        for vms in (30,) if kind in CORNERS else VMS:
            measured = f"{kind}, {vms} VMs"
            for age in AGES:
                yield Row(f"share alive at {age:g} h", measured, partial(alive_share, kind, vms, age))
            for age in (1.0, 12.0):
                yield Row(f"of {OTHERS} others alive at {age:g} h", measured, partial(alive_of_others, kind, vms, age))
            for name, (*_, replaced) in COURSES.items():
                for what in ("hours", "dollars") if replaced else ("hours", "finished"):
                    trial = partial(course_takes, kind, vms, name, what)
                    yield Row(f"lifetimes' {what} of {name}", measured, trial)
    for vms in (60, 150):
        for age in AGES:
            trial = partial(alive_share_watched_shortly, vms, age)
            yield Row(f"share alive at {age:g} h", f"{vms} VMs watched for 2 h in the mean", trial)


SCALE = 400.0
LAWS_OF_BATCHES: dict[str, tuple[Callable[[float], float], float, float]] = {
    "over the share of noise": (lambda batch: SCALE / (SCALE + batch), 90_000, -60_000),
    "over the batch": (lambda batch: batch, 30_000, 30_000 / SCALE),
}
"""The variable of the line of examples, its value at 0, and its slope."""
SIZES = {(1, 4, 16): 8, (1, 2, 4, 8, 16): 6, (1, 2, 4, 8, 16) * 2: 12, (4, 4, 4): 8}
"""Numbers of workers of the runs that reached the target, each with a mini-batch of 32, and of the planned run."""
EXAMPLES_DIFFER = np.exp(np.linspace(math.log(0.1), math.log(0.35), 41))
"""Differences between such runs in drawn worlds: those of ICAC'19's runs before a step of the learning rate."""
TARGET = Target("accuracy", ">=", 0.9)


def _got_there(step: int, **more: object) -> Record:
    there = ((step - 1, {"accuracy": 0.8}), (step + 1, {"accuracy": 1.0}))
    return Record((), "own", evaluations=there, batch_size=32, **more)  # type: ignore[arg-type]


def got_there(workers: int, examples: float, random: np.random.Generator) -> Record:
    """A run that reached 90 % after this number of examples, and measured the noise of its gradients."""
    step = round(examples / 32)
    noise = tuple(
        (step // 20 * part, float(random.lognormal(0, 0.2)), float(SCALE * random.lognormal(0, 0.2)))
        for part in range(1, 13)
    )
    return _got_there(step, workers=float(workers), gradients=noise)


def examples_to_target(law: str, spread: float, seen: tuple[int, ...], random: np.random.Generator) -> Trial | None:
    """Log examples to a target with a batch that was not run, by a line through those that were; where one is drawn.

    `spread`: by how much runs differ, 0: as in a drawn world.
    """
    over, at_zero, slope = LAWS_OF_BATCHES[law]
    deviations = EXAMPLES_DIFFER if not spread else np.array([spread])
    deviation = float(random.choice(deviations))
    x = np.array([over(32 * each) for each in (*seen, SIZES[seen])])
    usual = at_zero + slope * x
    *away, came = random.normal(0, deviation, len(x))
    examples = (usual[:-1] * np.exp(away)).tolist()
    runs = [got_there(each, needed, random) for each, needed in zip(seen, examples, strict=True)]
    workers = SIZES[seen]
    try:
        need = TargetSteps(runs, TARGET, 32).need(workers)
    except PlanError:  # the line is not good enough
        return None
    middle, off = float(np.log(need.examples)), float(stats.norm.ppf(0.95)) * need.error
    middle_log = math.log(usual[-1])
    best = _line_through(np.array(away), np.column_stack([1 / usual, x / usual]), deviations)
    return Trial(middle - off, middle + off, middle_log + float(came), (middle_log + best[0], middle_log + best[1]))


def _line_through(away: Array, terms: Array, deviations: Array) -> tuple[float, float]:
    """The middle 90 % of one more run, whose terms come last, relative to the usual one: for one who knows what
    examples are a line over, of which each of the `deviations` is as likely before; flat in the line."""
    inverse = np.linalg.pinv(terms[:-1])
    found = inverse @ away
    squares = float(((away - terms[:-1] @ found) ** 2).sum())
    wider = math.sqrt(1 + float(((terms[-1] @ inverse) ** 2).sum()))
    freedom = len(away) - int(np.linalg.matrix_rank(terms[:-1]))
    return _mixed(float(terms[-1] @ found), wider, squares, freedom, deviations)


def hours_to_target(spread: float, bound: bool, groups: int, known: int, random: np.random.Generator) -> Trial:
    """Plan hours to a target from runs that reached it: one to sixteen groups, bound by the servers or not."""
    needed = [1000 * float(np.exp(random.normal(0, spread))) for _ in range(known)]
    steps = TargetSteps([_got_there(round(each)) for each in needed], TARGET, 32)
    course = Course(
        (Workers(1, 1.0, 1.0, 1.0),) * groups, steps.steps(1), service_seconds=10.0 if bound else 0.0,
        from_first_step=True, work_error=steps.error,
    )  # fmt: skip
    low, high = np.quantile(simulate(course, RUNS, int(random.integers(2**31))).hours, [0.05, 0.95])
    exact = float(simulate(replace(course, work_error=0.0, steps=1000.0), 1).hours[0])
    return Trial(float(low), float(high), exact * float(np.exp(random.normal(0, spread))))


def _another(values: Array, deviations: Array) -> tuple[float, float]:
    """The middle 90 % of one more normal value, of which each of the `deviations` is as likely before; flat mean."""
    many, mean = len(values), float(values.mean())
    return _mixed(mean, math.sqrt(1 + 1 / many), float(((values - mean) ** 2).sum()), many - 1, deviations)


def _mixed(mean: float, wider: float, squares: float, freedom: int, deviations: Array) -> tuple[float, float]:
    """The middle 90 % about a fitted `mean`, from the residual `squares` and their degrees of freedom.

    `wider`: how many times the deviation of one more run from the mean is that of runs.
    """
    logs = -freedom * np.log(deviations) - squares / (2 * deviations**2)
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    grid = mean + np.linspace(-12, 12, 4001) * float(np.average(deviations, weights=weights))
    below = special.ndtr((grid[:, np.newaxis] - mean) / (deviations * wider)) @ weights
    return float(np.interp(0.05, below, grid)), float(np.interp(0.95, below, grid))


ACCURACY_DIFFERS = {1: 0.0025, 4: 0.0025 * 4**0.83, 8: 0.0025 * 8**0.83}
"""The difference between ICAC'19's runs, by workers; here half to twice as much."""
TIMES = np.exp(np.linspace(-math.log(2), math.log(2), 41))


def accuracy(workers: int, known: int, differ: float, random: np.random.Generator) -> Trial:
    """Predict the accuracy of one more run from some that differ by chance: by `differ`, or as in a drawn world (0)."""
    deviations = ACCURACY_DIFFERS[workers] * TIMES if not differ else np.array([differ])
    *before, one = random.normal(0.8, float(random.choice(deviations)), known + 1)
    runs = [
        Record((), "own", evaluations=((1000, {"accuracy": float(each)}),), batch_size=32, workers=float(workers))
        for each in before
    ]
    found = Accuracies(runs, 32).at(workers, 1000)
    assert found is not None
    return Trial(found.low, found.high, float(one), _another(np.array(before), deviations))


STEPS_DIFFER = np.exp(np.linspace(math.log(0.02), math.log(0.35), 41))


def steps_to_target(known: int, differ: float, random: np.random.Generator) -> Trial:
    """Log steps of one more run, from some that got there."""
    deviations = STEPS_DIFFER if not differ else np.array([differ])
    *logs, came = random.normal(math.log(20_000), float(random.choice(deviations)), known + 1)
    need = TargetSteps([_got_there(round(math.exp(each))) for each in logs], TARGET, 32).need(1)
    middle, off = math.log(need.examples / 32), float(stats.norm.ppf(0.95)) * need.error
    return Trial(middle - off, middle + off, came, _another(np.array(logs), deviations))


@dataclass
class Quadratic:
    """Workers that train on x' diag(H) x / 2 with noisy gradients; a session in which a worker probes them.

    `rate`: the learning rate. The noise of one example has the variance `variance` in each of the directions.
    """

    curvatures: Array
    variance: float
    workers: int
    rate: float
    random: np.random.Generator
    batch: int = 32
    x: Array = field(default_factory=lambda: np.zeros(0))
    summed: Array = field(default_factory=lambda: np.zeros(0))

    def __post_init__(self) -> None:
        self.x = 3 * self.random.normal(size=len(self.curvatures)) / np.sqrt(self.curvatures)

    def gradient(self, at: Array) -> Array:
        noise = self.random.normal(size=len(at)) * math.sqrt(self.variance / self.batch)
        return self.curvatures * at + noise

    @property
    def signal(self) -> float:
        """|G|^2 now."""
        return float(((self.curvatures * self.x) ** 2).sum())

    def step(self, times: int) -> None:
        """Make `times` steps of one worker each."""
        for _ in range(times):
            self.x = self.x - self.rate * self.gradient(self.x)

    def run(self, fetches: Any, feeds: Any = None) -> Any:
        """Return what a worker's session gets from its probe's graph; others step while it computes."""
        if feeds is None:
            self.summed = np.zeros(len(self.x))
            return None, [self.x]
        found = self.gradient(feeds.get("variable", self.x))
        self.summed = self.summed + found
        self.step(self.workers - 1)
        return float(found @ found), float(self.summed @ self.summed), self.batch


PROBE: Any = SimpleNamespace(cleared="", variables=["variable"], squared="", summed="", examples="")
SIZE = 100


def _estimates(quadratic: Quadratic, count: int, between: int) -> tuple[list[tuple[float, float, float]], Array]:
    """Estimates at intervals of this number of steps, and |G|^2 at each."""
    probe, found, signals = NoiseProbe(PROBE, 1.0), list[tuple[float, float, float]](), list[float]()
    for number in range(1, count + 1):
        signals.append(quadratic.signal)
        made = None
        while made is None:
            made = probe.measure(quadratic, {})
            quadratic.step(1)  # its own step
        found.append((number / count, made.signal, made.noise))
        quadratic.step(between * quadratic.workers)
    return found, np.array(signals)


def noise_scale(workers: int, rate: float, count: int, random: np.random.Generator) -> Trial | None:
    """At the target: log of the noise scale of the last window of a run's way."""
    quadratic = Quadratic(np.logspace(-2, 0, SIZE), 4.0, workers, rate, random)
    quadratic.step(30 * workers)
    found, signals = _estimates(quadratic, count, 5)
    scale = NoiseScale.of(found)
    if scale is None or not (last := scale.windows[-1]).clear or last.low <= 0:
        return None
    part = signals[count - max(round(last.share * count), 1) :]
    true = SIZE * quadratic.variance / float(part.mean())
    return Trial(math.log(last.low), math.log(last.high), math.log(true))


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


@dataclass(frozen=True)
class Jobs:
    """A bag whose jobs take `shortest` to `longest` hours, on VMs that live `life` hours in the mean."""

    count: int
    shortest: float
    longest: float
    vms: int
    life: float = 20.0
    spare: float = 0.1
    boot: float = 0.03

    def __str__(self) -> str:
        return f"{self.count} jobs of {self.shortest:g} to {self.longest:g} h on {self.vms} VMs"


LIVES = np.exp(np.linspace(math.log(10), math.log(50), 21))
"""Hours that VMs live in the mean, in worlds in which a bag goes on."""
BAGS = (Jobs(200, 1.0, 3.0, 8), Jobs(300, 0.95, 1.05, 16), Jobs(320, 0.05, 0.06, 16), Jobs(100, 0.5, 1.5, 32))


@dataclass(frozen=True)
class Attempt:
    """One attempt of a job: when it began and ended, what the job takes in all; `lost` with its VM."""

    job: int
    begin: float
    end: float
    takes: float
    lost: bool


@dataclass(frozen=True)
class BagCourse:
    """One bag until all results are there: its attempts in order of their end, and from when to when it had each VM."""

    attempts: list[Attempt]
    rented: list[tuple[float, float]]

    def ended(self, results: int) -> float:
        """The moment at which this number of results had arrived."""
        return [attempt.end for attempt in self.attempts if not attempt.lost][results - 1]

    def hours_of_vms(self, until: float) -> float:
        """The hours of all VMs together by then."""
        return sum(max(min(end, until) - born, 0.0) for born, end in self.rented)


def bag_course(bag: Jobs, world: World, random: np.random.Generator) -> BagCourse:
    """A VM that has no job is given back after an hour, as the product does."""
    total = math.ceil(round(bag.count * (1 + bag.spare), 9))
    work, queue = random.uniform(bag.shortest, bag.longest, total), list(range(total))
    vms: list[tuple[float, int, float, float, float]] = []  # free at, number, dies at, its log speed, noise now
    born, rented = dict[int, float](), list[tuple[float, float]]()

    def rent(at: float, number: int) -> None:
        speed = world.vm * float(random.normal())
        life = float(random.exponential(bag.life))
        born[number] = at
        heapq.heappush(vms, (at + bag.boot, number, at + life, speed, world.noise * float(random.normal())))

    for number in range(bag.vms):
        rent(0.0, number)
    made, results = list[Attempt](), 0
    waiting: list[tuple[float, int]] = []  # lost jobs, from when on
    numbers = bag.vms
    while vms:
        free, number, dies, speed, noise = heapq.heappop(vms)
        if not queue and not waiting:
            rented.append((born[number], min(dies, free + SPARE_HOURS)))
            continue
        if dies <= free:
            rented.append((born[number], dies))
            rent(free, numbers)
            numbers += 1
            continue
        job = heapq.heappop(waiting)[1] if waiting and waiting[0][0] <= free else queue.pop(0) if queue else -1
        if job < 0:
            heapq.heappush(vms, (waiting[0][0], number, dies, speed, noise))
            continue
        takes = float(work[job] * math.exp(-speed - noise))
        end = free + takes
        if end > dies:
            made.append(Attempt(job, free, dies, takes, True))
            rented.append((born[number], dies))
            heapq.heappush(waiting, (dies, job))
            rent(dies, numbers)
            numbers += 1
            continue
        made.append(Attempt(job, free, end, takes, False))
        kept = math.exp(-takes / world.hours)
        noise = kept * noise + math.sqrt(1 - kept**2) * world.noise * float(random.normal())
        heapq.heappush(vms, (end, number, dies, speed, noise))
        results += 1
    return BagCourse(sorted(made, key=lambda attempt: attempt.end), rented)


def bag_end(bag: Jobs, part: float, random: np.random.Generator) -> Trial | None:
    """Hours until all results are there, after a part of them; shown once more have finished than run."""
    world, bag = World.draw(random), replace(bag, life=float(random.choice(LIVES)))
    attempts = bag_course(bag, world, random).attempts
    came = [attempt.end for attempt in attempts if not attempt.lost]
    many = max(round(part * bag.count), 3)
    now, end = came[many - 1], came[bag.count - 1]
    over = [attempt for attempt in attempts if attempt.end <= now]
    running = tuple(now - attempt.begin for attempt in attempts if attempt.begin <= now < attempt.end)
    finished = tuple(attempt.takes for attempt in over if not attempt.lost)
    lost = len(over) - many
    progress = Progress(
        bag.count - many, math.ceil(round(bag.count * (1 + bag.spare), 9)) - many - len(running), finished, running,
        bag.vms, lost, now * bag.vms, boot=bag.boot,
    )  # fmt: skip
    if len(finished) <= len(running):
        return None
    low, _, high = middle(hours_left(progress, seed=int(random.integers(2**31))))
    return Trial(low, high, end - now, _best_end(bag, progress, world, random))


def _best_end(bag: Jobs, progress: Progress, world: World, random: np.random.Generator) -> tuple[float, float]:
    """The laws are known, but neither how long jobs take in the mean (a flat prior on its logarithm) nor which of the
    lives VMs have here."""
    spread = math.hypot(world.vm, world.noise)
    law = np.log(random.uniform(bag.shortest, bag.longest, 4000)) + spread * random.normal(size=4000)
    law.sort()
    width = 0.3 * max(spread, 0.02)
    grid = np.linspace(law[0] - 0.3, law[-1] + 0.3, 1200)
    density = np.exp(-(((grid[:, np.newaxis] - law[::10]) / width) ** 2) / 2).sum(axis=1)
    density /= density.sum()
    longer = np.maximum(1 - np.cumsum(density), 1e-12)
    shifts = np.linspace(-0.5, 0.5, 401)
    done, going = np.log(progress.finished), np.log(np.maximum(progress.running, 1e-6))
    likely = np.array([
        np.log(np.interp(done - shift, grid, density) + 1e-12).sum()
        + np.log(np.interp(going - shift, grid, longer)).sum() for shift in shifts
    ])  # fmt: skip
    weights = np.exp(likely - likely.max())
    courses = 200
    shift = random.choice(shifts, (courses, 1), p=weights / weights.sum())
    share = np.interp(going - shift, law, np.linspace(0, 1, len(law)))
    total = np.exp(shift + np.quantile(law, share + (1 - share) * random.random(share.shape)))
    further = np.exp(shift + random.choice(law, (courses, progress.waiting)))
    rates = 1 / LIVES
    likely = progress.lost * np.log(rates) - rates * progress.watched
    weights = np.exp(likely - likely.max())
    rate = random.choice(rates, courses, p=weights / weights.sum())
    low, _, high = middle(scheduled(progress, total, further, rate, random))
    return low, high


HOURLY, SERVER_HOURLY, PRICE_ERROR = 0.1, 0.2, 0.1
"""Dollars of a VM and of what is beside them, and how far off the price of VMs may be (of its logarithm)."""
BAG_COURSES = 1000


@cache
def _planned(bag: Jobs, what: str) -> tuple[float, float]:
    plan = Bag(
        bag.count, bag.shortest, bag.longest, bag.vms, HOURLY, Weibull(bag.life), spare=bag.spare,
        server_hourly=SERVER_HOURLY, boot=bag.boot, waves=0.0, price_error=PRICE_ERROR,
    )  # fmt: skip
    return middle_of(getattr(simulate_bag(plan, "memoryless", courses=200, uncertain=False), what))


def _bag_comes(bag: Jobs, random: np.random.Generator) -> dict[str, float]:
    """Hours, dollars and lost attempts of a bag whose jobs take what was declared."""
    course = bag_course(bag, replace(World.draw(random), vm=0.0, noise=0.0), random)
    hours = course.ended(bag.count)
    price = HOURLY * math.exp(PRICE_ERROR * float(random.normal()) - PRICE_ERROR**2 / 2)
    return {
        "hours": hours,
        "dollars": course.hours_of_vms(hours) * price + hours * SERVER_HOURLY,
        "failed": float(sum(attempt.lost and attempt.end <= hours for attempt in course.attempts)),
    }


@cache
def _best_bag(bag: Jobs) -> dict[str, tuple[float, float]]:
    random = np.random.default_rng(7)
    came = [_bag_comes(bag, random) for _ in range(BAG_COURSES)]
    return {what: middle_of([each[what] for each in came]) for what in came[0]}


def bag_plan(bag: Jobs, what: str, random: np.random.Generator) -> Trial:
    """Hours, dollars or lost attempts of the whole bag, where jobs take what was declared and lifetimes are known."""
    return Trial(*_planned(bag, what), _bag_comes(bag, random)[what], _best_bag(bag)[what])


def _bags() -> Iterator[Row]:
    for bag in BAGS:
        for part in (0.05, 0.2, 0.5):
            yield Row("bag end", f"{bag}, after {part:.0%} of the results", partial(bag_end, bag, part))
    for bag in BAGS[:2]:
        for what in ("hours", "dollars", "failed"):
            yield Row(f"bag plan {what}", str(bag), partial(bag_plan, bag, what))


def _noises() -> Iterator[Row]:
    for workers in (1, 8):
        for rate in (0.02, 0.1, 0.5):
            measured = f"30 estimates, {workers} workers, learning rate {rate:g} of the inverse of the curvature"
            yield Row("noise scale at the target", measured, partial(noise_scale, workers, rate, 30))


def _targets() -> Iterator[Row]:
    for known in (1, 2, 3, 6):
        yield Row("steps to a target", f"{known} runs", partial(steps_to_target, known, 0.0), target=known > 1)
    for differ in (0.03, 0.1, 0.3):
        measured = f"3 runs that differ by {differ:.0%}"
        yield Row("steps to a target", measured, partial(steps_to_target, 3, differ), target=False)
    for spread, bound, groups in ((0.05, False, 1), (0.15, True, 1), (0.15, False, 16)):
        for known in (1, 3):
            limit = "bound by servers" if bound else f"{groups} groups"
            measured = f"{known} runs that differ by {spread:.0%}, {limit}"
            trial = partial(hours_to_target, spread, bound, groups, known)
            yield Row("hours to a target", measured, trial, target=False)
    for law in LAWS_OF_BATCHES:
        for seen in SIZES:
            known = f"{len(seen)} runs with {len(set(seen))} sizes"
            guess = len(set(seen)) == 1
            trial = partial(examples_to_target, law, 0.0, seen)
            yield Row("examples to a target", f"{known}, {law}", trial, target=not guess)
            for spread in (0.05, 0.15, 0.3):
                drawn = EXAMPLES_DIFFER[0] <= spread <= EXAMPLES_DIFFER[-1]  # then it is one level of the mix
                trial = partial(examples_to_target, law, spread, seen)
                measured = f"{known} that differ by {spread:.0%}, {law}"
                yield Row("examples to a target", measured, trial, target=not (guess or drawn))


def _accuracies() -> Iterator[Row]:
    for workers in ACCURACY_DIFFERS:
        for known in (1, 2, 3, 6):
            yield Row("accuracy", f"{known} runs of {workers} workers", partial(accuracy, workers, known, 0.0))
    for differ in (0.005, 0.01, 0.02):
        measured = f"3 runs of 4 workers that differ by {differ:g}"
        yield Row("accuracy", measured, partial(accuracy, 4, 3, differ), target=False)


ROWS: list[Row] = [
    *_lifetimes(), *_targets(), *_accuracies(), *_noises(), *_bags(),
    Row("seconds of a step of an unseen network", "40 published cells", unseen_network),
]  # fmt: skip
