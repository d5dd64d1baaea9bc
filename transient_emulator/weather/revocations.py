"""Which transient VMs are taken away, and when: one small policy for each value of `revocations`.

A policy is asked again and again what is due. It is given all transient VMs, and says which to take now and when to ask
next. Policies draw with `chance` and keep no more than `progress`, a dict that the weather stores, so a policy made
anew after a kill -9 goes on where the last one was.

`Published`, the process: the emulated time since the weather was set is cut into slices of five minutes. A VM of age a
is revoked in a slice with the probability that its table (`published.Lifetimes`) has for the ages in that slice. For
each zone and GPU (a pool) and slice, one number from 0 to 1 is drawn for the whole pool and one for each VM; a VM heeds
the pool's with probability `waves`, else its own, and is revoked if the number lies below its probability. So each VM
by itself lives exactly as the table says, whatever `waves` is, and VMs that live side by side go together: those that
heed the pool's number go in the same slice, at the same moment.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from transient_magics import catalog
from transient_magics.catalog import published
from transient_magics.clock import Clock

from . import chance, files
from .files import LifetimeRow, ScheduleRow

_SLICE = 300.0
_LOOK_AHEAD = 288  # slices: a day


@dataclass(frozen=True)
class Transient:
    """A transient VM as policies see it. `gpu` is the catalog's name (`cpu`: none), `began` the moment (this machine's
    clock) from which on it has been RUNNING, None before; `identity` is never used twice and grows. `limited`: it is
    preemptible as before Spot, and lives for a day at most."""

    identity: str
    zone: str
    name: str
    gpu: str
    began: float | None
    limited: bool = False


@dataclass(frozen=True)
class Due:
    """The VMs to take now, and when (this machine's clock) to ask again; None: when something has changed."""

    take: tuple[Transient, ...] = ()
    again: float | None = None


class Policy(Protocol):
    """One way to take VMs away."""

    def due(self, vms: Sequence[Transient], now: float) -> Due:
        """What is due at the moment `now`."""
        ...


def _running(vms: Sequence[Transient]) -> list[Transient]:
    """Those that run, in an order in which the same draw finds the same ones."""
    return sorted((vm for vm in vms if vm.began is not None), key=lambda vm: (vm.zone, vm.name))


class Nothing:
    """`none`: nothing is taken away."""

    def due(self, vms: Sequence[Transient], now: float) -> Due:
        """Nothing."""
        return Due()


class Every:
    """`every=60s`: one of the running VMs, each as likely as any other, every so many seconds of this machine's."""

    def __init__(self, period: float, since: float, seed: int, now: float) -> None:
        self._period, self._since, self._seed = period, since, seed
        self._turn = self._turn_at(now)

    def due(self, vms: Sequence[Transient], now: float) -> Due:
        """At most one, however many turns were missed."""
        turn, again = self._turn_at(now), self._since + (self._turn_at(now) + 1) * self._period
        running = _running(vms)
        if turn == self._turn or not running:
            self._turn = turn
            return Due(again=again)
        self._turn = turn
        return Due((chance.pick(running, self._seed, "every", turn),), again)

    def _turn_at(self, now: float) -> int:
        return math.floor((now - self._since) / self._period)


class Published:
    """`published`: see above. `since`, on this machine's clock, is when the weather was set."""

    def __init__(self, clock: Clock, since: float, seed: int, waves: float) -> None:
        self._clock, self._since, self._seed, self._waves = clock, clock.at(since), seed, waves
        self._known: dict[tuple[str, float], tuple[float | None, float]] = {}

    def due(self, vms: Sequence[Transient], now: float) -> Due:
        """The VMs whose moment has come."""
        emulated = self._clock.at(now)
        take: list[Transient] = []
        moments: list[float] = []
        living = [vm for vm in vms if vm.began is not None]
        for vm in living:
            end, looked = self._end(vm, emulated)
            if vm.limited:
                day = self._clock.at(vm.began or 0.0) + published.LAST_HOUR * published.HOUR
                end = day if end is None else min(end, day)
            if end is not None and end <= emulated:
                take.append(vm)
            else:
                moments.append(looked if end is None else end)
        present = {(vm.identity, vm.began or 0.0) for vm in living}
        self._known = {key: value for key, value in self._known.items() if key in present}
        return Due(tuple(take), self._clock.when(min(moments)) if moments else None)

    def _end(self, vm: Transient, emulated: float) -> tuple[float | None, float]:
        """When it is taken, if before the second moment, up to which has been looked."""
        assert vm.began is not None
        key, born = (vm.identity, vm.began), self._clock.at(vm.began)
        end, looked = self._known.get(key, (None, max(born, self._since)))
        while end is None and looked <= emulated:
            # Whole slices only: the same numbers must not be asked twice about one slice.
            until = self._since + (math.floor((looked - self._since) / _SLICE) + _LOOK_AHEAD) * _SLICE
            end, looked = self.end(vm, born, looked, until), until
        self._known[key] = end, looked
        return end, looked

    def end(self, vm: Transient, born: float, begin: float, until: float) -> float | None:
        """When a VM `born` then and alive at `begin` is taken, if before `until` (the end of a slice); all on the
        emulated clock."""
        table = published.lifetimes(vm.gpu, catalog.region(vm.zone))
        number = math.floor((begin - self._since) / _SLICE)
        while (low := max(self._since + number * _SLICE, begin)) < until:
            high = self._since + (number + 1) * _SLICE
            risk = table.risk(low - born, high - born)
            if risk > 0:
                heeds = chance.uniform(self._seed, "heeds", vm.zone, vm.name, number) < self._waves
                who = (vm.zone, vm.gpu) if heeds else (vm.zone, vm.gpu, vm.name)
                if chance.uniform(self._seed, "risk", *who, number) < risk:
                    return low + chance.uniform(self._seed, "moment", *who, number) * (high - low)
            number += 1
        return None


class FromLifetimes:
    """A file with `lifetime_hours`: each VM, in the order of their inserts, takes the first row that fits it and that
    nobody has taken, and lives so long on the emulated clock. VMs for whom no row is left live on."""

    def __init__(self, rows: Sequence[LifetimeRow], clock: Clock, progress: dict[str, Any]) -> None:
        self._rows, self._clock = rows, clock
        self._taken: dict[str, int] = progress.setdefault("rows", {})

    def due(self, vms: Sequence[Transient], now: float) -> Due:
        """The VMs that have lived as long as their row says."""
        for vm in sorted(vms, key=lambda vm: int(vm.identity)):
            if vm.identity not in self._taken and (row := self._first(vm)) is not None:
                self._taken[vm.identity] = row
        ends = [(end, vm) for vm in vms if (end := self._end(vm)) is not None]
        later = [end for end, _ in ends if end > now]
        return Due(tuple(vm for end, vm in ends if end <= now), min(later, default=None))

    def _first(self, vm: Transient) -> int | None:
        used = set(self._taken.values())
        return next(
            (index for index, row in enumerate(self._rows) if index not in used and files.fits(row, vm.zone, vm.gpu)),
            None,
        )

    def _end(self, vm: Transient) -> float | None:
        row = self._rows[self._taken[vm.identity]] if vm.identity in self._taken else None
        if row is None or row.lifetime is None or vm.began is None:
            return None
        return self._clock.when(self._clock.at(vm.began) + row.lifetime)


class FromSchedule:
    """A file with `at_hours`: so long after the weather was set, on the emulated clock, `count` of the running VMs that
    fit a row, each as likely as any other. What was due while the emulator was dead is done when it is back."""

    def __init__(
        self, rows: Sequence[ScheduleRow], clock: Clock, since: float, seed: int, progress: dict[str, Any]
    ) -> None:
        self._rows, self._clock, self._since, self._seed = rows, clock, clock.at(since), seed
        self._done: list[int] = progress.setdefault("done", [])

    def due(self, vms: Sequence[Transient], now: float) -> Due:
        """All rows whose moment has come."""
        left = _running(vms)
        take: list[Transient] = []
        moments: list[float] = []
        for index, row in enumerate(self._rows):
            if index in self._done:
                continue
            if self._since + row.at > self._clock.at(now):
                moments.append(self._clock.when(self._since + row.at))
                continue
            self._done.append(index)
            fitting = [vm for vm in left if files.fits(row, vm.zone, vm.gpu)]
            fitting.sort(key=lambda vm: chance.uniform(self._seed, "schedule", index, vm.zone, vm.name))
            take += fitting[: row.count]
            left = [vm for vm in left if vm not in take]
        return Due(tuple(take), min(moments, default=None))
