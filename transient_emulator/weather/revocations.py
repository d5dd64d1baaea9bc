"""Revocations of transient VMs: one small policy for each kind of `revocations`.

A policy is asked repeatedly what is due. It gets all transient VMs, and returns which to take now
and when to ask again. Policies draw with `chance` and store nothing but `progress`, a dict that the
weather keeps. A policy created after a kill -9 therefore continues where the last one was.

`Published` is this process. The emulated time since the weather was set is cut into slices of five
minutes. A VM of age a is revoked in a slice with the probability that its table
(`published.Lifetimes`) has for the ages in that slice. For each zone and GPU (a pool) and slice,
one number from 0 to 1 is drawn for the whole pool and one for each VM. A VM uses the pool's number
with probability `waves`, else its own, and is revoked if the number is below its probability. So
each single VM lives exactly as the table says, whatever `waves` is, and VMs that live side by
side are revoked together: those that use the pool's number go in the same slice, at the same
moment.
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

# Seconds of emulated time.
_SLICE = 300.0
# The slices of a day.
_LOOK_AHEAD = 288


@dataclass(frozen=True)
class Transient:
    """A transient VM as policies see it.

    Attributes
    ----------
    identity
        Its id, which is never reused and grows.
    zone, name
        Its zone and name.
    gpu
        The catalog's name of its GPU (`cpu`: none).
    began
        Since when it is RUNNING, on this machine's clock; None before.
    limited
        Whether it is a preemptible VM of the older model, which lives for a day at most.
    """

    identity: str
    zone: str
    name: str
    gpu: str
    began: float | None
    limited: bool = False


@dataclass(frozen=True)
class Due:
    """The answer of a policy.

    Attributes
    ----------
    take
        The VMs to revoke now.
    again
        When to ask again, on this machine's clock; None: when something has changed.
    """

    take: tuple[Transient, ...] = ()
    again: float | None = None


class Policy(Protocol):
    """One way to revoke VMs."""

    def due(self, vms: Sequence[Transient], now: float) -> Due:
        """Return what is due.

        Parameters
        ----------
        vms
            All transient VMs that are not ending.
        now
            The present, on this machine's clock.
        """
        ...


def _running(vms: Sequence[Transient]) -> list[Transient]:
    """Return the VMs that run, in an order in which the same draw selects the same ones."""
    running = [vm for vm in vms if vm.began is not None]
    return sorted(running, key=lambda vm: (vm.zone, vm.name))


def earlier(first: float | None, second: float | None) -> float | None:
    """Return the earlier of two moments, of which either may be missing."""
    if first is None:
        return second
    if second is None:
        return first
    return min(first, second)


class Nothing:
    """`none`: no VM is revoked."""

    def due(self, vms: Sequence[Transient], now: float) -> Due:
        """Return nothing, see `Policy`."""
        return Due()


class Every:
    """`every=60s`: one running VM per period, each with the same probability.

    Parameters
    ----------
    period
        Seconds of this machine's clock.
    since
        When the weather was set, on this machine's clock.
    seed
        The seed of the draws.
    now
        The present. Turns before it are missed.
    """

    def __init__(self, period: float, since: float, seed: int, now: float) -> None:
        self._period = period
        self._since = since
        self._seed = seed
        self._turn = self._turn_at(now)

    def due(self, vms: Sequence[Transient], now: float) -> Due:
        """Return at most one VM, however many turns were missed, see `Policy`."""
        turn = self._turn_at(now)
        is_new = turn != self._turn
        self._turn = turn
        again = self._since + (turn + 1) * self._period
        running = _running(vms)
        if not is_new or not running:
            return Due(again=again)
        return Due((chance.pick(running, self._seed, "every", turn),), again)

    def _turn_at(self, now: float) -> int:
        return math.floor((now - self._since) / self._period)


class Published:
    """`published`: lifetimes as published, see the module.

    Parameters
    ----------
    clock
        The emulated clock.
    since
        When the weather was set, on this machine's clock.
    seed
        The seed of the draws.
    waves
        The probability with which a VM uses the number of its pool.
    """

    def __init__(self, clock: Clock, since: float, seed: int, waves: float) -> None:
        self._clock = clock
        self._since = clock.at(since)
        self._seed = seed
        self._waves = waves
        # By id and start: the end of a VM (None: none yet), and the moment up to which it was
        # drawn.
        self._ends: dict[tuple[str, float], tuple[float | None, float]] = {}

    def due(self, vms: Sequence[Transient], now: float) -> Due:
        """Return the VMs whose end has come, see `Policy`."""
        emulated = self._clock.at(now)
        take: list[Transient] = []
        moments: list[float] = []
        running = [vm for vm in vms if vm.began is not None]
        for vm in running:
            end, drawn_until = self._end(vm, emulated)
            if vm.limited:
                day = self._clock.at(vm.began or 0.0) + published.LAST_HOUR * published.HOUR
                end = day if end is None else min(end, day)
            if end is None:
                moments.append(drawn_until)
            elif end > emulated:
                moments.append(end)
            else:
                take.append(vm)
        # Forget the VMs that are gone.
        present = {(vm.identity, vm.began or 0.0) for vm in running}
        self._ends = {key: value for key, value in self._ends.items() if key in present}
        if not moments:
            return Due(tuple(take))
        return Due(tuple(take), self._clock.when(min(moments)))

    def _end(self, vm: Transient, emulated: float) -> tuple[float | None, float]:
        """Return when a VM is revoked (None: not decided yet), and up to when that was drawn."""
        assert vm.began is not None
        key = (vm.identity, vm.began)
        born = self._clock.at(vm.began)
        end, drawn_until = self._ends.get(key, (None, max(born, self._since)))
        while end is None and drawn_until <= emulated:
            # Whole slices only: the same numbers must not be drawn twice for one slice.
            number = math.floor((drawn_until - self._since) / _SLICE) + _LOOK_AHEAD
            until = self._since + number * _SLICE
            end = self.end(vm, born, drawn_until, until)
            drawn_until = until
        self._ends[key] = (end, drawn_until)
        return end, drawn_until

    def end(self, vm: Transient, born: float, begin: float, until: float) -> float | None:
        """Return when a VM is revoked.

        Parameters
        ----------
        vm
            The VM.
        born
            When it started. All moments are on the emulated clock.
        begin
            A moment at which it is alive.
        until
            The end of a slice.

        Returns
        -------
        float or None
            The moment; None if it is not before `until`.
        """
        table = published.lifetimes(vm.gpu, catalog.region(vm.zone))
        number = math.floor((begin - self._since) / _SLICE)
        while (low := max(self._since + number * _SLICE, begin)) < until:
            high = self._since + (number + 1) * _SLICE
            risk = table.risk(low - born, high - born)
            if risk > 0:
                key: tuple[str, ...] = (vm.zone, vm.gpu, vm.name)
                if chance.uniform(self._seed, "heeds", vm.zone, vm.name, number) < self._waves:
                    # The number of the pool.
                    key = (vm.zone, vm.gpu)
                if chance.uniform(self._seed, "risk", *key, number) < risk:
                    share = chance.uniform(self._seed, "moment", *key, number)
                    return low + share * (high - low)
            number += 1
        return None


class FromLifetimes:
    """A file with `lifetime_hours`.

    Each VM, in the order of the inserts, gets the first free row that fits it, and lives that long
    on the emulated clock. VMs without a row are not revoked.

    Parameters
    ----------
    rows
        The rows of the file.
    clock
        The emulated clock.
    progress
        The stored progress. Its `rows` are the indices of used rows by VM.
    """

    def __init__(self, rows: Sequence[LifetimeRow], clock: Clock, progress: dict[str, Any]) -> None:
        self._rows = rows
        self._clock = clock
        self._used: dict[str, int] = progress.setdefault("rows", {})

    def due(self, vms: Sequence[Transient], now: float) -> Due:
        """Return the VMs that have lived as long as their rows say, see `Policy`."""
        # Ids grow, so this is the order of the inserts.
        for vm in sorted(vms, key=lambda vm: int(vm.identity)):
            if vm.identity not in self._used:
                row = self._first_free_row(vm)
                if row is not None:
                    self._used[vm.identity] = row
        take: list[Transient] = []
        later: list[float] = []
        for vm in vms:
            end = self._end(vm)
            if end is None:
                continue
            if end <= now:
                take.append(vm)
            else:
                later.append(end)
        return Due(tuple(take), min(later, default=None))

    def _first_free_row(self, vm: Transient) -> int | None:
        used = set(self._used.values())
        for index, row in enumerate(self._rows):
            if index not in used and files.fits(row, vm.zone, vm.gpu):
                return index
        return None

    def _end(self, vm: Transient) -> float | None:
        if vm.identity not in self._used or vm.began is None:
            return None
        lifetime = self._rows[self._used[vm.identity]].lifetime
        if lifetime is None:
            return None
        return self._clock.when(self._clock.at(vm.began) + lifetime)


class FromSchedule:
    """A file with `at_hours`.

    At the moment of a row, on the emulated clock, its `count` of the running VMs that fit it are
    revoked, each with the same probability. What was due while the emulator was dead is done when
    it is back.

    Parameters
    ----------
    rows
        The rows of the file.
    clock
        The emulated clock.
    since
        When the weather was set, on this machine's clock.
    seed
        The seed of the draws.
    progress
        The stored progress. Its `done` are the indices of finished rows.
    """

    def __init__(
        self,
        rows: Sequence[ScheduleRow],
        clock: Clock,
        since: float,
        seed: int,
        progress: dict[str, Any],
    ) -> None:
        self._rows = rows
        self._clock = clock
        self._since = clock.at(since)
        self._seed = seed
        self._done: list[int] = progress.setdefault("done", [])

    def due(self, vms: Sequence[Transient], now: float) -> Due:
        """Return the VMs of all rows whose moment has come, see `Policy`."""
        remaining = _running(vms)
        take: list[Transient] = []
        moments: list[float] = []
        emulated = self._clock.at(now)
        for index, row in enumerate(self._rows):
            if index in self._done:
                continue
            if self._since + row.at > emulated:
                moments.append(self._clock.when(self._since + row.at))
                continue
            self._done.append(index)
            fitting = [vm for vm in remaining if files.fits(row, vm.zone, vm.gpu)]
            draws = {
                vm: chance.uniform(self._seed, "schedule", index, vm.zone, vm.name)
                for vm in fitting
            }
            fitting.sort(key=draws.__getitem__)
            take += fitting[: row.count]
            # Two rows that are due do not count the same VM.
            remaining = [vm for vm in remaining if vm not in take]
        return Due(tuple(take), min(moments, default=None))
