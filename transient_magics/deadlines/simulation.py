"""Simulations of runs with a deadline, governed by the controller's own decisions.

A simulation carries out what `decide` decides, and its conditions hold: on-demand VMs are ready
within the assumed start, and the work of Spot workers counts if it is saved or if they still exist.
The module imports no NumPy, because the controller simulates the rest of its run with it.

`course` and `band` predict the end of a run. Each course continues from the present situation.
Spot capacity comes and goes as observed. The speed varies by its error, new VMs differ from
measured ones, and so do other numbers of workers. Spells with capacity are exponential; those
without follow Lomax's distribution (see `situation.Market`). Their mean lengths are uncertain, with
a gamma prior on their rate.
"""

from __future__ import annotations

import math
import random
import statistics
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ..journal.deadlines import DeadlineState
from ..protocol.machines import render_machines
from .decisions import Verdict, decide
from .situation import (
    LACKS,
    LASTS,
    ON_DEMAND,
    PERIOD,
    PRIOR_SPELLS,
    SPOT,
    Kind,
    Market,
    Situation,
    Workers,
    counts,
    seconds_of,
)
from .speeds import Speeds

Capacity = Callable[[float], int]
"""The number of Spot VMs available at a second, including those in use."""
_LEAST_START = 0.7  # the shortest start, as a share of the longest, which decisions assume
_READ = 30.0  # seconds between two measurements of the speeds
_LATEST = 3.0  # a run ends unfinished after this multiple of the time until its deadline

COURSES = 200
"""The number of courses in a band."""
_DECISIONS = 120  # in the remaining time: a controller decides far more often
_SURE = 0.99  # the highest probability ever shown
_TAIL = 0.05  # the share of courses that end on either side of a band
_LATEST_END = 4.0  # an unfinished course ends at `FAR` after this multiple of its expected length
# The share by which a worker prolongs the steps of others: four in the mean of CM-DARE's rows
# (ICDCS 2020).
_SLOWDOWN = 0.03
FAR = 1e11
"""The end of a course that is not simulated to its end, in seconds since 1970."""


def _undisturbed(_: float) -> float:
    return 1.0


@dataclass(slots=True)
class Vm:
    """A VM of a simulation.

    Attributes
    ----------
    kind
        GPU and terms.
    ready, born
        When it begins to work, and when it was requested.
    factor
        Its speed relative to others.
    """

    kind: tuple[str, str]
    ready: float
    born: float
    factor: float = 1.0
    name: str = ""


class _ObservedCapacity:
    """Spot capacity as a simulated run has observed it; indexes are `open` as 0 or 1."""

    def __init__(self, market: Market, now: float) -> None:
        self.open = market.open
        self.seconds = [market.lacks * market.spells[1], market.lasts * market.spells[0]]
        self.ends = [market.spells[1], market.spells[0]]
        self.since = now - market.age

    def observe(self, available: bool, now: float, period: float) -> None:
        """Add an observation that holds for a period."""
        if available != self.open:
            self.ends[self.open] += 1
            self.open = available
            self.since = now
        self.seconds[self.open] += period

    def market(self, now: float) -> Market:
        """Return the belief about the market."""
        return Market(
            self.open,
            self.seconds[1] / self.ends[1],
            self.seconds[0] / self.ends[0],
            (self.ends[1], self.ends[0]),
            now - self.since,
        )


@dataclass
class Simulation:
    """A simulated run of `work` steps.

    Attributes
    ----------
    capacity
        The number of available Spot VMs at a second.
    deadline, now
        Seconds.
    speed
        Steps per second of workers by GPU.
    kinds, kept
        US dollars per second of workers, and of all else.
    declared
        The workers requested at the beginning.
    most
        Most workers at the same time.
    begin
        Longest start of a VM, in seconds.
    save_every, save
        Seconds between saves, and the length of the save after the last step.
    period
        Seconds between decisions.
    rate
        Seconds of the cloud's clock per second of this one.
    varies, differ
        Relative error of the speed of 5 seconds, and standard deviation of VMs' logarithmic speeds.
    disturbed
        The factor of all speeds at a second.
    speeds
        The speeds that decisions use once the run trains; None: the measured ones.
    """

    capacity: Capacity
    deadline: float
    work: float
    speed: Callable[[Mapping[str, int]], float]
    kinds: tuple[Kind, ...]
    declared: Workers
    most: int
    kept: float = 0.0
    begin: float = 200.0
    save_every: float = 300.0
    save: float = 3.0
    period: float = PERIOD
    money: float = math.inf
    rate: float = 1.0
    varies: float = 0.05
    differ: float = 0.0
    disturbed: Callable[[float], float] = field(default_factory=lambda: _undisturbed)
    speeds: Speeds | None = None
    confidence: float = 0.95
    alike: bool = False
    """Whether GPUs make no difference to speeds, as on the emulator."""
    overlaps: bool = True
    seed: int = 0
    decide: Callable[[Situation], Verdict] = field(default_factory=lambda: decide)
    now: float = 0.0
    step: float = 0.0
    saved: float = 0.0
    cost: float = 0.0
    latest: float = 0.0
    """When an unfinished run is given up; 0: after three times the time until the deadline."""
    since: float = math.inf
    """Seconds since the workers were requested."""
    vms: list[Vm] = field(default_factory=list[Vm])
    market: Market | None = None
    progress: DeadlineState = field(default_factory=DeadlineState)
    acts: list[tuple[float, Verdict]] = field(default_factory=list[tuple[float, Verdict]])
    reported_late: float = 0.0
    most_on_demand: int = 0
    requested: int = 0

    def run(self) -> Simulation:
        """Simulate until the work is saved, and return the simulation."""
        for _ in self.periods():
            pass
        return self

    def periods(self) -> Iterator[None]:
        """Simulate period by period, so that the caller can do other work in between."""
        chance = random.Random(self.seed)
        market = self.market or Market(
            True, LASTS / self.rate, LACKS / self.rate, (PRIOR_SPELLS, PRIOR_SPELLS)
        )
        observed = _ObservedCapacity(market, self.now)
        workers = {key: count for key, count in self.declared.items() if count}
        acted = self.now - self.since
        crew = list[str]()
        speeds = self.speeds
        blocks = self.progress.blocks
        read = self.now
        measured = Speeds(self.progress.blocks, self.confidence, alike=self.alike)
        prices = {(kind.gpu, SPOT): kind.spot for kind in self.kinds}
        prices |= {(kind.gpu, ON_DEMAND): kind.on_demand or 0.0 for kind in self.kinds}
        # Each stretch is drawn separately.
        varies = self.varies / math.sqrt(max(self.period / PERIOD, 1.0))
        latest = self.latest or self.now + _LATEST * (self.deadline - self.now)
        while self.step < self.work and self.now < latest:
            there = self.capacity(self.now)
            self.vms = self._left(workers, there)
            # Capacity is observed only while Spot VMs are requested.
            if any(terms == SPOT for _, terms in workers):
                observed.observe(there > 0, self.now, self.period)
            if speeds is not None and self.progress.began:
                measured = speeds
            elif len(self.progress.blocks) != len(blocks) or self.now - read >= _READ:
                blocks = self.progress.blocks
                read = self.now
                measured = Speeds(blocks, self.confidence, alike=self.alike, rate=self.rate)
            market = observed.market(self.now)
            verdict = self.decide(self._situation(workers, measured, market, self.now - acted))
            if verdict.late and not self.reported_late:
                self.reported_late = self.now
            if verdict.save:
                self.saved = self.step
            requested = {key: count for key, count in verdict.workers.items() if count}
            if requested != workers:
                workers = requested
                acted = self.now
                self.acts.append((self.now, verdict))
            self.vms = self._with_new(workers, there, chance)
            self.most_on_demand = max(
                self.most_on_demand, sum(vm.kind[1] == ON_DEMAND for vm in self.vms)
            )
            here = [vm for vm in self.vms if vm.ready <= self.now]
            machines = counts(Counter(vm.kind for vm in here))
            speed = 0.0
            lasts: float = self.period
            if here:
                factor = sum(vm.factor for vm in here) / len(here) * self.disturbed(self.now)
                speed = self.speed(machines) * factor * chance.uniform(1 - varies, 1 + varies)
                lasts = min(self.period, (self.work - self.step) / speed)
            if speeds is None:
                names = [vm.name for vm in here]
                if names != crew:
                    self._change_crew(names)
                    crew = names
            elif here and not self.progress.began:
                self.progress = self.progress.started(self.now, int(self.step))
            self.step = min(self.step + speed * self.period, self.work)
            if speeds is None and here:
                self.progress = self.progress.progressed(
                    self.now + self.period, int(self.step), render_machines(machines), self.rate
                )
            done = self.step >= self.work
            if done:
                lasts += self.save
            self.cost += lasts * (self.kept + sum(prices[vm.kind] for vm in self.vms))
            self.now += lasts
            if done:
                break
            if int(self.now / self.save_every) > int((self.now - self.period) / self.save_every):
                self.saved = self.step
            yield

    def _situation(
        self, workers: Workers, speeds: Speeds, market: Market, since: float
    ) -> Situation:
        """Return the present situation; `since` is the age of the request for these workers."""
        working = Counter(vm.kind for vm in self.vms if vm.ready <= self.now)
        coming = [vm.born for vm in self.vms if vm.kind[1] == ON_DEMAND and vm.ready > self.now]
        # A VM works from the beginning of a period.
        begin = math.ceil(self.begin / self.period) * self.period
        began, first = self.progress.began or (self.now, 0)
        return Situation(
            self.now,
            self.deadline,
            -int(self.saved - self.work),
            int(self.step - self.saved),
            speeds,
            market,
            self.kinds,
            workers,
            working,
            begin,
            max((max(begin - (self.now - born), 1.0) for born in coming), default=0.0),
            0.8 * self.begin,
            LASTS / self.rate,
            self.kept,
            self.most,
            self.money - self.cost,
            since,
            overlaps=self.overlaps,
            end=2 * self.save,
            period=self.period,
            began=began,
            train_steps=int(self.work - first),
        )

    def _change_crew(self, names: list[str]) -> None:
        """Record that other VMs work from now on."""
        for name in names:
            self.progress = self.progress.joined(name, 0.8 * self.begin)
        self.progress = self.progress.changed()
        if names:
            if not self.progress.began:
                self.progress = self.progress.started(self.now, int(self.step))
            self.progress = self.progress.progressed(self.now, int(self.step), "")

    def _left(self, requested: Workers, there: int) -> list[Vm]:
        """Return the requested VMs that still exist."""
        found: list[Vm] = []
        for kind, count in requested.items():
            own = [vm for vm in self.vms if vm.kind == kind]
            if kind[1] == SPOT:
                own = own[: min(count, there)]
                there -= len(own)
            else:
                own = own[:count]
            found += own
        return found

    def _with_new(self, requested: Workers, there: int, chance: random.Random) -> list[Vm]:
        """Return the remaining VMs, and new ones for the missing, as capacity permits."""
        found = self._left(requested, there)
        there -= sum(vm.kind[1] == SPOT for vm in found)
        for kind, count in requested.items():
            missing = count - sum(vm.kind == kind for vm in found)
            if kind[1] == SPOT:
                missing = min(missing, there)
                there -= missing
            for _ in range(missing):
                self.requested += 1
                ready = self.now + self.begin * chance.uniform(_LEAST_START, 1)
                factor = 1.0
                if self.differ:
                    factor = math.exp(self.differ * chance.gauss(0, 1))
                found.append(Vm(kind, ready, self.now, factor, f"vm-{self.requested}"))
        return found


# Courses of the rest of a run. Pure.


def end(situation: Situation, chance: random.Random) -> float:
    """Return when the run ends in one possible course, in seconds since 1970."""
    return next(moment for moment in course(situation, chance) if moment is not None)


def course(situation: Situation, chance: random.Random) -> Iterator[float | None]:
    """Simulate a course period by period: yield None after each, and finally the end.

    A course of many workers takes too long for a controller to simulate without interruption.
    """
    span = _span(situation)
    # The measured speed is that of the measured VMs' mean. Other VMs differ from each other and
    # from that mean.
    measured = [_effect(situation, chance) for _ in range(max(situation.speeds.vms, 1))]
    rest = max(
        seconds_of(
            situation.steps - situation.unsaved,
            situation.speeds.mean(counts(situation.working or situation.workers)),
        ),
        1.0,
    )
    faster = math.exp(situation.speeds.drift(rest) * chance.gauss(0, 1))
    speeds = situation.speeds.scaled(faster, min(chance.expovariate(1 / _SLOWDOWN), 0.5))
    usual = math.exp(-statistics.fmean(measured))

    def speed(workers: Mapping[str, int]) -> float:
        return usual * speeds.mean(workers)

    def unchanged(later: Situation) -> Verdict:
        return Verdict(later.workers)

    simulation = Simulation(
        capacity=_capacity(situation, span, chance),
        deadline=situation.deadline,
        work=situation.steps,
        speed=speed,
        kinds=situation.kinds,
        declared=situation.workers,
        most=situation.most,
        kept=situation.kept,
        begin=situation.begin,
        save=situation.end / 2,
        period=max(span / _DECISIONS, situation.period),
        money=situation.money,
        rate=LASTS / situation.life,
        varies=0.0,
        differ=situation.speeds.differ,
        speeds=speeds,
        overlaps=situation.overlaps,
        seed=chance.getrandbits(32),
        decide=decide if situation.acts else unchanged,
        now=situation.now,
        latest=situation.now + _LATEST_END * span,
        step=situation.unsaved,
        since=situation.since,
        vms=_vms(situation, measured, chance),
        market=situation.market,
        progress=DeadlineState(began=(situation.began, situation.steps - situation.train_steps)),
    )
    yield from simulation.periods()
    yield simulation.now if simulation.step >= simulation.work else FAR


def band(ends: Sequence[float], deadline: float) -> tuple[float, tuple[float, float]]:
    """Return the share of courses that are in time, and the range in which nine of ten end."""
    ordered = sorted(ends)
    # One more of n lies between the k-th and the k-th last with the probability (n + 1 - 2 k) / (n
    # + 1).
    outer = max(round(_TAIL * (len(ordered) + 1)), 1)
    in_time = sum(end <= deadline for end in ordered) / len(ordered)
    return min(in_time, _SURE), (ordered[outer - 1], ordered[-outer])


def _span(situation: Situation) -> float:
    """Return the seconds until the deadline, or for all remaining work if that is longer."""
    fastest = max(situation.speeds.mean({kind.gpu: situation.most}) for kind in situation.kinds)
    return max(
        situation.deadline - situation.now, situation.begin + seconds_of(situation.steps, fastest)
    )


def _effect(situation: Situation, chance: random.Random) -> float:
    """Draw the amount that a VM adds to the logarithmic speed."""
    return situation.speeds.differ * chance.gauss(0, 1)


def _vms(situation: Situation, measured: Sequence[float], chance: random.Random) -> list[Vm]:
    """Return the present VMs, of which some were `measured`, and those that start."""
    found: list[Vm] = []
    effects = iter(measured)
    for kind, count in situation.workers.items():
        here = min(situation.working.get(kind, 0), count)
        for _ in range(here):
            effect = next(effects, None)
            if effect is None:
                effect = _effect(situation, chance)
            found.append(Vm(kind, situation.now, situation.now, math.exp(effect)))
        for _ in range(count - here):
            factor = math.exp(_effect(situation, chance))
            if kind[1] == ON_DEMAND and situation.begun < situation.begin:
                found.append(
                    Vm(
                        kind,
                        situation.now + situation.begun,
                        situation.now - situation.begin + situation.begun,
                        factor,
                    )
                )
            elif kind[1] == SPOT and situation.market.open:
                found.append(Vm(kind, situation.now + situation.start, situation.now, factor))
    return found


def _capacity(situation: Situation, span: float, chance: random.Random) -> Capacity:
    """Draw the Spot capacity from now on."""
    market = situation.market
    at = situation.now
    opened = situation.market.open
    # The prior of a rate has the shape 1, because markets differ: the chains of `prior.csv` have
    # mean spells of 0.5 to 9 h with capacity, and of 0.5 to 15 h without.
    lasts = (
        market.lasts
        * market.spells[0]
        / chance.gammavariate(market.spells[0] - PRIOR_SPELLS + 1, 1.0)
    )
    lacks = (
        market.lacks
        * market.spells[1]
        / chance.gammavariate(market.spells[1] - PRIOR_SPELLS + 1, 1.0)
    )
    changes: list[float] = []
    until = situation.now + _LATEST_END * span
    age = market.age
    while at < until:
        if opened:
            at += chance.expovariate(1 / lasts)
        else:
            at += _lacking(lacks, age, chance)
        changes.append(at)
        opened = not opened
        age = 0.0
    return _alternating(market, changes, situation.most + 1)


def _lacking(mean: float, age: float, chance: random.Random) -> float:
    """Draw the rest of a spell without capacity at an age, in seconds: Lomax, shape 3/2."""
    return (mean / 2 + age) * ((1 - chance.random()) ** (-2 / 3) - 1)


def _alternating(market: Market, changes: Sequence[float], most: int) -> Callable[[float], int]:
    def available(now: float) -> int:
        opened = (bisect(changes, now) % 2 == 0) == market.open
        return most if opened else 0

    return available
