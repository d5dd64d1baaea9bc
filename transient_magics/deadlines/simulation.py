"""A cluster that the controller's own decisions govern, in simulation: in what time a run is done,
and for how much.

What `decide` says is done, and what has to be true of its conditions is: VMs on demand are there
within the start that is counted with, and what Spot workers made counts when it is saved, or when
they are still there. It imports no NumPy: the controller simulates the rest of its run with it.
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
"""How many Spot VMs there are at a second, those that are held included."""
_LEAST_START = 0.7  # of the longest, which is the one that is counted with
_READ = 30.0  # seconds between two looks at the speeds
_LATEST = 3.0  # deadlines: a run that is not done by then never is

COURSES = 200
"""How many make a band."""
_DECISIONS = 120  # in what is left: a controller decides far more often
# a chance is never shown as surer; the share of courses that end on either side of a band
_SURE = 0.99
_TAIL = 0.05
_LATEST_END = 4.0  # times as long as it may take: a course that is not done by then ends at `FAR`
_HELD = 0.03  # a worker makes others' steps longer by this share: four in the mean of CM-DARE's rows (ICDCS 2020)
FAR = 1e11
"""When a course ends whose end is not simulated: seconds since 1970."""


def _undisturbed(_: float) -> float:
    return 1.0


@dataclass(slots=True)
class Vm:
    """A VM: its GPU and terms, when it was asked for, from when on it works, and how fast it is
    beside others.
    """

    kind: tuple[str, str]
    ready: float
    born: float
    factor: float = 1.0
    name: str = ""


@dataclass
class Simulation:
    """A run of `work` steps until the second `deadline`. `speed`: steps per second of workers by
    GPU.

    It begins with the `declared` workers asked for. `kinds` and `kept` have US dollars per second:
    of workers, and of all else. `most` workers at once; a start takes `begin` seconds at most;
    saves come every `save_every` seconds, and from the last step it takes `save` more. Every
    `period` seconds it is decided. The cloud's clock outpaces this one `rate` times. `varies`: how
    far the speed of 5 seconds is off; `differ`: standard deviation of VMs' logarithmic speeds;
    `disturbed`: the factor of all speeds at a second. `speeds`: what decisions go by once it
    trains; None: what is measured.
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
    """When a run that is not done is given up; 0: after three times the time until the deadline."""
    since: float = math.inf
    """For how long the workers are asked for already."""
    vms: list[Vm] = field(default_factory=list[Vm])
    market: Market | None = None
    known: DeadlineState = field(default_factory=DeadlineState)
    acts: list[tuple[float, Verdict]] = field(default_factory=list[tuple[float, Verdict]])
    told_late: float = 0.0
    most_on_demand: int = 0
    requested: int = 0

    def run(self) -> Simulation:
        """To the end of its work, saved."""
        for _ in self.periods():
            pass
        return self

    def periods(self) -> Iterator[None]:
        """Simulate period by period, so that the caller can do other work between two."""
        chance = random.Random(self.seed)
        began = self.now
        market = self.market or Market(
            True, LASTS / self.rate, LACKS / self.rate, (PRIOR_SPELLS, PRIOR_SPELLS)
        )
        workers = {key: count for key, count in self.declared.items() if count}
        told = [market.lacks * market.spells[1], market.lasts * market.spells[0]]
        ends = [market.spells[1], market.spells[0]]
        opened = market.open
        since = self.now - market.age
        acted = self.now - self.since
        crew = list[str]()
        speeds = self.speeds
        blocks = self.known.blocks
        read = self.now
        measured = Speeds(self.known.blocks, self.confidence, alike=self.alike)
        prices = {(kind.gpu, SPOT): kind.spot for kind in self.kinds}
        prices |= {(kind.gpu, ON_DEMAND): kind.on_demand or 0.0 for kind in self.kinds}
        varies = self.varies / math.sqrt(
            max(self.period / PERIOD, 1.0)
        )  # each stretch is drawn separately
        begin = (
            math.ceil(self.begin / self.period) * self.period
        )  # a VM works from a period's beginning on
        latest = self.latest or began + _LATEST * (self.deadline - began)
        while self.step < self.work and self.now < latest:
            there = self.capacity(self.now)
            self.vms = self._left(workers, there)
            if any(
                terms == SPOT for _, terms in workers
            ):  # capacity is only seen where Spot VMs are requested
                if (there > 0) != opened:
                    ends[opened] += 1
                    opened = there > 0
                    since = self.now
                told[opened] += self.period
            working = Counter(vm.kind for vm in self.vms if vm.ready <= self.now)
            coming = [vm.born for vm in self.vms if vm.kind[1] == ON_DEMAND and vm.ready > self.now]
            trains, first = self.known.began or (self.now, 0)
            if speeds is not None and self.known.began:
                measured = speeds
            elif (
                len(self.known.blocks) != len(blocks) or self.now - read >= _READ
            ):  # else little has changed
                blocks = self.known.blocks
                read = self.now
                measured = Speeds(blocks, self.confidence, alike=self.alike, rate=self.rate)
            verdict = self.decide(
                Situation(
                    self.now,
                    self.deadline,
                    -int(self.saved - self.work),
                    int(self.step - self.saved),
                    measured,
                    Market(
                        opened,
                        told[1] / ends[1],
                        told[0] / ends[0],
                        (ends[1], ends[0]),
                        self.now - since,
                    ),
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
                    self.now - acted,
                    overlaps=self.overlaps,
                    end=2 * self.save,
                    period=self.period,
                    began=trains,
                    train_steps=int(self.work - first),
                )
            )
            self.told_late = self.told_late or (self.now if verdict.late else 0.0)
            if verdict.save:
                self.saved = self.step
            wanted = {key: count for key, count in verdict.workers.items() if count}
            if wanted != workers:
                workers = wanted
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
            if speeds is not None and here and not self.known.began:
                self.known = self.known.started(self.now, int(self.step))
            elif speeds is None and (names := [vm.name for vm in here]) != crew:
                self._changed(names)
                crew = names
            self.step = min(self.step + speed * self.period, self.work)
            if speeds is None and here:
                self.known = self.known.told(
                    self.now + self.period, int(self.step), render_machines(machines), self.rate
                )
            done = self.step >= self.work
            lasts += self.save if done else 0.0
            self.cost += lasts * (self.kept + sum(prices[vm.kind] for vm in self.vms))
            self.now += lasts
            if done:
                break
            if int(self.now / self.save_every) > int((self.now - self.period) / self.save_every):
                self.saved = self.step
            yield

    def _changed(self, names: list[str]) -> None:
        """Other VMs work from now on."""
        for name in names:
            self.known = self.known.joined(name, 0.8 * self.begin)
        self.known = self.known.changed()
        if names:
            if not self.known.began:
                self.known = self.known.started(self.now, int(self.step))
            else:
                self.known = self.known
            self.known = self.known.told(self.now, int(self.step), "")

    def _left(self, wanted: Workers, there: int) -> list[Vm]:
        """The VMs that are wanted and still there."""
        found: list[Vm] = []
        for kind, count in wanted.items():
            own = [vm for vm in self.vms if vm.kind == kind][
                : min(count, there) if kind[1] == SPOT else count
            ]
            there -= len(own) if kind[1] == SPOT else 0
            found += own
        return found

    def _with_new(self, wanted: Workers, there: int, chance: random.Random) -> list[Vm]:
        """Return the VMs that stay, and new ones for those that are missing, as far as there is
        capacity.
        """
        found = self._left(wanted, there)
        there -= sum(vm.kind[1] == SPOT for vm in found)
        for kind, count in wanted.items():
            missing = count - sum(vm.kind == kind for vm in found)
            if kind[1] == SPOT:
                missing = min(missing, there)
                there -= missing
            for _ in range(missing):
                self.requested += 1
                ready = self.now + self.begin * chance.uniform(_LEAST_START, 1)
                if self.differ:
                    factor = math.exp(self.differ * chance.gauss(0, 1))
                else:
                    factor = 1.0
                found.append(Vm(kind, ready, self.now, factor, f"vm-{self.requested}"))
        return found


# How likely a run with a deadline is in time, and when it ends: simulated, by the decisions that govern it. Pure.
#
# Each course continues from what is seen: capacity comes and goes as it may by what was met of it, and VMs that start
# take their time. The speed is as far off as its error says, VMs that take over differ from those that were measured,
# and so do other numbers of workers. Spells with capacity are exponential and those without have Lomax's distribution
# (see `market`). How long they are in the mean is uncertain, with a gamma prior on their rate.


def end(seen: Situation, chance: random.Random) -> float:
    """When the run ends, in one course that may come of this."""
    return next(moment for moment in course(seen, chance) if moment is not None)


def course(seen: Situation, chance: random.Random) -> Iterator[float | None]:
    """Simulate a course period by period: None after each, and at last the end.

    A course of many workers takes longer than a controller may be busy with it at once.
    """
    span = _span(seen)
    # The measured speed is that of the mean of the measured VMs: others differ from each other, and
    # from that mean.
    measured = [_effect(seen, chance) for _ in range(max(seen.speeds.vms, 1))]
    rest = max(
        seconds_of(
            seen.steps - seen.unsaved, seen.speeds.mean(counts(seen.working or seen.workers))
        ),
        1.0,
    )
    faster = math.exp(seen.speeds.drift(rest) * chance.gauss(0, 1))
    speeds = seen.speeds.scaled(faster, min(chance.expovariate(1 / _HELD), 0.5))
    usual = math.exp(-statistics.fmean(measured))

    def speed(workers: Mapping[str, int]) -> float:
        return usual * speeds.mean(workers)

    def unchanged(later: Situation) -> Verdict:
        return Verdict(later.workers)

    world = Simulation(
        capacity=_capacity(seen, span, chance),
        deadline=seen.deadline,
        work=seen.steps,
        speed=speed,
        kinds=seen.kinds,
        declared=seen.workers,
        most=seen.most,
        kept=seen.kept,
        begin=seen.begin,
        save=seen.end / 2,
        period=max(span / _DECISIONS, seen.period),
        money=seen.money,
        rate=LASTS / seen.life,
        varies=0.0,
        differ=seen.speeds.differ,
        speeds=speeds,
        overlaps=seen.overlaps,
        seed=chance.getrandbits(32),
        decide=decide if seen.acts else unchanged,
        now=seen.now,
        latest=seen.now + _LATEST_END * span,
        step=seen.unsaved,
        since=seen.since,
        vms=_vms(seen, measured, chance),
        market=seen.market,
        known=DeadlineState(began=(seen.began, seen.steps - seen.train_steps)),
    )
    yield from world.periods()
    yield world.now if world.step >= world.work else FAR


def band(ends: Sequence[float], deadline: float) -> tuple[float, tuple[float, float]]:
    """How many of these courses are in time, as a share, and between which moments nine of ten end."""
    ordered = sorted(ends)
    # One more of n lies between the k-th and the k-th last with the probability (n + 1 - 2 k) / (n
    # + 1).
    outer = max(round(_TAIL * (len(ordered) + 1)), 1)
    in_time = sum(end <= deadline for end in ordered) / len(ordered)
    return min(in_time, _SURE), (ordered[outer - 1], ordered[-outer])


def _span(seen: Situation) -> float:
    """Seconds until the deadline, or for all that is left to make where that is longer."""
    fastest = max(seen.speeds.mean({kind.gpu: seen.most}) for kind in seen.kinds)
    return max(seen.deadline - seen.now, seen.begin + seconds_of(seen.steps, fastest))


def _effect(seen: Situation, chance: random.Random) -> float:
    """How much a VM adds to the logarithmic speed."""
    return seen.speeds.differ * chance.gauss(0, 1)


def _vms(seen: Situation, measured: Sequence[float], chance: random.Random) -> list[Vm]:
    """The VMs that are there, which are of those that were `measured`, and those that come."""
    found: list[Vm] = []
    effects = iter(measured)
    for kind, count in seen.workers.items():
        here = min(seen.working.get(kind, 0), count)
        for _ in range(here):
            effect = next(effects, None)
            if effect is None:
                effect = _effect(seen, chance)
            found.append(Vm(kind, seen.now, seen.now, math.exp(effect)))
        for _ in range(count - here):
            factor = math.exp(_effect(seen, chance))
            if kind[1] == ON_DEMAND and seen.begun < seen.begin:
                found.append(
                    Vm(kind, seen.now + seen.begun, seen.now - seen.begin + seen.begun, factor)
                )
            elif kind[1] == SPOT and seen.market.open:
                found.append(Vm(kind, seen.now + seen.start, seen.now, factor))
    return found


def _capacity(seen: Situation, span: float, chance: random.Random) -> Capacity:
    """Spot capacity from now on."""
    market = seen.market
    at = seen.now
    opened = seen.market.open
    # The prior of a rate has the shape 1, for markets differ: the chains of `prior.csv` have mean
    # spells of 0.5 to 9 h with capacity, and of 0.5 to 15 h without.
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
    until = seen.now + _LATEST_END * span
    age = market.age
    while at < until:
        at += chance.expovariate(1 / lasts) if opened else _lacking(lacks, age, chance)
        changes.append(at)
        opened = not opened
        age = 0.0
    return _alternating(market, changes, seen.most + 1)


def _lacking(mean: float, age: float, chance: random.Random) -> float:
    """Seconds that a spell without capacity takes on from an age: Lomax, with the shape 3/2."""
    return (mean / 2 + age) * ((1 - chance.random()) ** (-2 / 3) - 1)


def _alternating(market: Market, changes: Sequence[float], most: int) -> Callable[[float], int]:
    return lambda now: most if (bisect(changes, now) % 2 == 0) == market.open else 0
