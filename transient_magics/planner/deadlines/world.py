"""A cluster that the controller's own decisions govern, in simulation: in what time a run is done, and for how much.

What `decide` says is done, and what has to be true of its conditions is: VMs on demand are there within the start that
is counted with, speeds vary little, and what Spot workers made counts when it is saved, or when they are still there.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ...deadlines.decisions import Verdict, decide
from ...deadlines.market import LASTS, believed
from ...deadlines.seen import ON_DEMAND, PERIOD, SPOT, Kind, Seen, Workers, counts
from ...deadlines.speeds import Speeds
from ...journal.deadlines import Pace
from ...protocol.machines import render_machines

Capacity = Callable[[float], int]
"""How many Spot VMs there are at a second, those that are held included."""
_LEAST_START = 0.7  # of the longest, which is the one that is counted with
_LATEST = 3.0  # deadlines: a run that is not done by then never is


@dataclass
class World:
    """A run of `work` steps within `deadline` seconds. `speed`: steps per second of workers by GPU.

    It begins with the `declared` workers asked for. `kinds` and `kept` have US dollars per second: of workers, and of
    all else. `most` workers at once; a start takes `begin` seconds at most; saves come every `save_every` seconds, and
    from the last step it takes `save` more. Every `period` seconds it is decided. The cloud's clock outpaces this one
    `rate` times. `varies`: how far the speed of 5 seconds is off.
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
    money: float = float("inf")
    rate: float = 1.0
    varies: float = 0.05
    alike: bool = False
    """Whether GPUs make no difference to speeds, as on the emulator."""
    seed: int = 0
    decide: Callable[[Seen], Verdict] = field(default_factory=lambda: decide)
    now: float = 0.0
    step: float = 0.0
    saved: float = 0.0
    cost: float = 0.0
    acts: list[tuple[float, Verdict]] = field(default_factory=list[tuple[float, Verdict]])
    told_late: float = 0.0
    most_on_demand: int = 0

    def run(self) -> World:
        """To the end of its work, saved."""
        chance, vms = random.Random(self.seed), list[_Vm]()
        workers, paces = {key: count for key, count in self.declared.items() if count}, dict[str, Pace]()
        told, ends, opened, since, acted = [0.0, 0.0], [0, 0], True, 0.0, -1e9
        prices = {(kind.gpu, SPOT): kind.spot for kind in self.kinds}
        prices |= {(kind.gpu, ON_DEMAND): kind.on_demand or 0.0 for kind in self.kinds}
        while self.step < self.work and self.now < _LATEST * self.deadline:
            there = self.capacity(self.now)
            vms = self._left(vms, workers, there)
            if any(terms == SPOT for _, terms in workers):  # nothing else tells of capacity
                if (there > 0) != opened:
                    ends[opened] += 1
                    opened, since = there > 0, self.now
                told[not opened] += self.period
            working = Counter(vm.kind for vm in vms if vm.ready <= self.now)
            coming = [vm for vm in vms if vm.kind[1] == ON_DEMAND and vm.ready > self.now]
            begin = math.ceil(self.begin / self.period) * self.period  # a VM works from a period's beginning on
            verdict = self.decide(
                Seen(
                    self.now, self.deadline, -int(self.saved - self.work), int(self.step - self.saved),
                    Speeds(paces, 0.95, alike=self.alike),
                    believed(told[0], told[1], (ends[1], ends[0]), open_=opened, rate=self.rate, age=self.now - since),
                    self.kinds, workers, working, begin,
                    max((max(begin - (self.now - vm.born), 1.0) for vm in coming), default=0.0),
                    0.8 * self.begin, LASTS / self.rate, self.kept, self.most, self.money - self.cost, self.now - acted,
                    end=2 * self.save, period=self.period,
                )
            )  # fmt: skip
            self.told_late = self.told_late or (self.now if verdict.late else 0.0)
            if verdict.save:
                self.saved = self.step
            wanted = {key: count for key, count in verdict.workers.items() if count}
            if wanted != workers:
                workers, acted = wanted, self.now
                self.acts.append((self.now, verdict))
            vms = self._with_new(vms, workers, there, chance)
            self.most_on_demand = max(self.most_on_demand, sum(vm.kind[1] == ON_DEMAND for vm in vms))
            working = Counter(vm.kind for vm in vms if vm.ready <= self.now)
            varies = self.varies / math.sqrt(max(self.period / PERIOD, 1.0))  # each stretch by itself
            speed = self.speed(counts(working)) * chance.uniform(1 - varies, 1 + varies) if working else 0.0
            if working:
                name = render_machines(dict(sorted(counts(working).items())))
                paces[name] = _longer(paces.get(name, Pace()), self.period, speed)
            lasts = min(self.period, (self.work - self.step) / speed) if speed else self.period
            self.step = min(self.step + speed * self.period, self.work)
            done = self.step >= self.work
            lasts += self.save if done else 0.0
            self.cost += lasts * (self.kept + sum(prices[vm.kind] for vm in vms))
            self.now += lasts
            if done:
                break
            if int(self.now / self.save_every) > int((self.now - self.period) / self.save_every):
                self.saved = self.step
        return self

    def _left(self, vms: list[_Vm], wanted: Workers, there: int) -> list[_Vm]:
        """The VMs that are wanted and still there."""
        found = list[_Vm]()
        for kind, count in wanted.items():
            own = [vm for vm in vms if vm.kind == kind][: min(count, there) if kind[1] == SPOT else count]
            there -= len(own) if kind[1] == SPOT else 0
            found += own
        return found

    def _with_new(self, vms: list[_Vm], wanted: Workers, there: int, chance: random.Random) -> list[_Vm]:
        """The same, and new ones for those that are missing, as far as there is capacity."""
        found = self._left(vms, wanted, there)
        there -= sum(vm.kind[1] == SPOT for vm in found)
        for kind, count in wanted.items():
            missing = count - sum(vm.kind == kind for vm in found)
            if kind[1] == SPOT:
                missing = min(missing, there)
                there -= missing
            found += [
                _Vm(kind, self.now + self.begin * chance.uniform(_LEAST_START, 1), self.now) for _ in range(missing)
            ]
        return found


def _longer(pace: Pace, seconds: float, speed: float) -> Pace:
    """With as many stretches as a controller sees within these seconds."""
    more = pace.longer(seconds, speed * seconds)
    return more._replace(stretches=pace.stretches + max(round(seconds / PERIOD), 1))


@dataclass(frozen=True, slots=True)
class _Vm:
    kind: tuple[str, str]
    ready: float
    born: float
