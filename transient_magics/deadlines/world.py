"""A cluster that the controller's own decisions govern, in simulation: in what time a run is done,
and for how much.

What `decide` says is done, and what has to be true of its conditions is: VMs on demand are there
within the start that is counted with, and what Spot workers made counts when it is saved, or when
they are still there. It imports no NumPy: the controller simulates the rest of its run with it.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from ..journal.deadlines import DeadlineState
from ..protocol.machines import render_machines
from .decisions import Verdict, decide
from .seen import (
    LACKS,
    LASTS,
    ON_DEMAND,
    PERIOD,
    PRIOR_SPELLS,
    SPOT,
    Kind,
    Market,
    Seen,
    Workers,
    counts,
)
from .speeds import Speeds

Capacity = Callable[[float], int]
"""How many Spot VMs there are at a second, those that are held included."""
_LEAST_START = 0.7  # of the longest, which is the one that is counted with
_READ = 30.0  # seconds between two looks at the speeds
_LATEST = 3.0  # deadlines: a run that is not done by then never is


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
class World:
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
    decide: Callable[[Seen], Verdict] = field(default_factory=lambda: decide)
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

    def run(self) -> World:
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
                Seen(
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
