"""A small world in which `decide` governs a cluster: for tests of it, and for a benchmark."""

from __future__ import annotations

import itertools
import random
from bisect import bisect
from collections.abc import Callable
from dataclasses import dataclass, field

from transient_magics.controller.deadlines.decisions import PERIOD, Verdict, decide
from transient_magics.controller.deadlines.market import believed
from transient_magics.controller.deadlines.situation import ON_DEMAND, SPOT, Kind, Seen
from transient_magics.controller.deadlines.speeds import Speeds
from transient_magics.journal.deadlines import Pace

HOURLY, ON_DEMAND_HOURLY, KEPT = 1.0, 3.0, 0.7
Capacity = Callable[[float], int]


@dataclass
class World:
    """A cluster of VMs without a GPU: what `decide` says is done, and what has to be true of its conditions is.

    A start takes at most `begin` seconds, speeds vary by a twentieth, Spot VMs come and go as `capacity` says, and
    what they made since the last save counts only when it is saved. It is over when the last step is saved.
    """

    capacity: Capacity
    deadline: float
    work: int
    alone: float = 2.0
    shared: float = 0.0
    declared: int = 2
    begin: float = 200.0
    save_every: float = 300.0
    save: float = 3.0
    """Seconds from the last step until it is saved."""
    money: float = float("inf")
    hourly: float = HOURLY
    on_demand_hourly: float = ON_DEMAND_HOURLY
    kept: float = KEPT
    """US dollars per hour of the world's clock: of a Spot worker, of one on demand, of all else."""
    rate: float = 1.0
    """Seconds of the cloud's clock in one of the world's."""
    seed: int = 0
    now: float = 0.0
    step: float = 0.0
    saved: float = 0.0
    cost: float = 0.0
    acts: list[tuple[float, Verdict]] = field(default_factory=list)
    told_late: float = 0.0
    most_on_demand: int = 0

    def speed(self, workers: int) -> float:
        return workers * self.alone / (1 + self.shared * (workers - 1)) if workers else 0.0

    def run(self) -> World:
        chance, vms = random.Random(self.seed), list[tuple[str, float, float]]()
        workers = {("cpu", SPOT): self.declared}
        paces, told, opened, ends, was = dict[str, Pace](), [0.0, 0.0], True, [0, 0], True
        acted = -1e9
        while self.step < self.work and self.now < 3 * self.deadline:
            there = self.capacity(self.now)
            vms = self._kept(vms, {**workers, ("cpu", SPOT): min(workers.get(("cpu", SPOT), 0), there)}, chance)
            opened = there > 0
            told[not opened] += PERIOD
            ends[was] += was != opened
            was = opened
            ready = [terms for terms, at, _ in vms if at <= self.now]
            speed = self.speed(len(ready)) * chance.uniform(0.95, 1.05)
            if ready:
                name = f"cpux{len(ready)}"
                paces[name] = paces.get(name, Pace()).longer(PERIOD, speed * PERIOD)
            lasts = min(PERIOD, (self.work - self.step) / speed) if speed else PERIOD
            self.step = min(self.step + speed * PERIOD, self.work)
            prices = {SPOT: self.hourly, ON_DEMAND: self.on_demand_hourly}
            if self.step >= self.work:
                lasts += self.save
            self.cost += lasts / 3600 * (self.kept + sum(prices[terms] for terms, *_ in vms))
            self.now += lasts
            if self.step >= self.work:
                break
            if int(self.now / self.save_every) > int((self.now - PERIOD) / self.save_every):
                self.saved = self.step
            on_demand = [(at, born) for terms, at, born in vms if terms == ON_DEMAND]
            self.most_on_demand = max(self.most_on_demand, len(on_demand))
            begun = max((max(self.begin - (self.now - born), 1) for at, born in on_demand if at > self.now), default=0)
            verdict = decide(
                Seen(
                    self.now, self.deadline, -int(self.saved - self.work), int(self.step - self.saved),
                    Speeds(paces, 0.95), believed(*told, (ends[1], ends[0]), open_=opened, rate=self.rate),
                    (Kind("cpu", self.hourly / 3600, self.on_demand_hourly / 3600),), workers,
                    {("cpu", terms): ready.count(terms) for terms in set(ready)}, self.begin, begun, 0.8 * self.begin,
                    3 * 3600.0 / self.rate, self.kept / 3600, 2 * self.declared, self.money - self.cost,
                    self.now - acted, end=2 * self.save,
                )
            )  # fmt: skip
            self.told_late = self.told_late or (self.now if verdict.late else 0.0)
            if verdict.save:
                self.saved = self.step
            wanted = {key: count for key, count in verdict.workers.items() if count}
            if wanted != workers:
                workers, acted = wanted, self.now
                self.acts.append((self.now, verdict))
        return self

    def _kept(
        self, vms: list[tuple[str, float, float]], wanted: dict[tuple[str, str], int], chance: random.Random
    ) -> list[tuple[str, float, float]]:
        found: list[tuple[str, float, float]] = []
        for (_, terms), count in wanted.items():
            own = [vm for vm in vms if vm[0] == terms][:count]
            new = count - len(own)
            found += own + [(terms, self.now + self.begin * chance.uniform(0.7, 1), self.now) for _ in range(new)]
        return found


def spells(*lengths: float) -> Capacity:
    """Capacity for the first so many seconds, then none, and so on; none after the last."""
    changes = list(itertools.accumulate(lengths))
    return lambda now: 99 if now < changes[-1] and bisect(changes, now) % 2 == 0 else 0
