"""Measured availability, replayed: how many transient VMs with a GPU a zone has, as a trace says.

A request beyond that number meets a stockout, and where the number falls, running VMs are taken away, each as likely as
any other. A trace runs on the emulated clock from the moment at which the weather was set, and begins again at its end.
It shows what such a market was like where and when it was measured, and is no forecast of the zone that replays it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transient_magics import catalog
from transient_magics.catalog.traces import Trace, read_traces
from transient_magics.clock import Clock
from transient_magics.errors import DeclarationError, unknown

from ..rest import tables
from . import chance
from .revocations import Due, Policy, Transient

_OPTION = "--availability"
_LARGEST = 1_000_000


@dataclass(frozen=True)
class Replayed:
    """`zone` has as many transient VMs with a `gpu` as the `trace` says, which is of the file `name`."""

    zone: str
    gpu: str
    name: str
    trace: Trace

    def __str__(self) -> str:
        return f"{self.zone}:{self.gpu}={self.name}:{self.trace.name}"

    def to_store(self) -> dict[str, str]:
        """As `read` takes it."""
        return {"zone": self.zone, "gpu": self.gpu, "name": self.name, "csv": self.trace.to_csv()}


def read(value: Any) -> tuple[Replayed, ...]:
    """What is replayed where: a list of objects as `Replayed.to_store` makes them, or the word `none`.

    Raises DeclarationError for anything else.
    """
    if value in ("none", ["none"]):
        return ()
    if not isinstance(value, (list, tuple)) or not all(isinstance(each, Mapping) for each in value):
        raise DeclarationError("Availability needs a file", where=_OPTION, fix="Write ZONE=FILE.csv:TRACE, or none.")
    found = tuple(_read(each) for each in value)
    places = [(each.zone, each.gpu) for each in found]
    if twice := [place for place in places if places.count(place) > 1]:
        zone, gpu = twice[0]
        raise DeclarationError(f"{zone} has two traces for the {gpu.upper()}", where=_OPTION, fix="Leave one out.")
    return found


def _read(given: Mapping[str, Any]) -> Replayed:
    zone, gpu, name, text = (str(given.get(key) or "") for key in ("zone", "gpu", "name", "csv"))
    if len(text) > _LARGEST:
        raise DeclarationError(f"{name} is larger than {_LARGEST // 1_000_000} MB", where=_OPTION)
    traces = read_traces(text, name or "the file")
    if len(traces) != 1:
        raise DeclarationError(f"{len(traces)} traces for {zone}", where=_OPTION, fix="A zone replays one.")
    gpu = gpu or traces[0].gpu
    if zone not in tables.ZONES:
        raise unknown("zone", zone, tables.ZONES, where=_OPTION)
    if gpu not in catalog.ACCELERATORS:
        raise unknown("GPU", gpu, catalog.ACCELERATORS, where=_OPTION)
    if gpu != "cpu" and zone not in catalog.zones_with(gpu):
        others = ", ".join(list(catalog.zones_with(gpu))[:3])
        fix = f"Choose from {others}; or write {zone}:GPU=..., another GPU of the zone."
        raise DeclarationError(f"{zone} has no {gpu.upper()}", where=_OPTION, fix=fix)
    return Replayed(zone, gpu, name, traces[0])


class Replay:
    """The traces at work. `since`, on this machine's clock, is when the weather was set."""

    def __init__(self, replayed: Sequence[Replayed], clock: Clock, since: float) -> None:
        self._replayed, self._clock, self._since = replayed, clock, clock.at(since)

    def numbers(self, now: float) -> dict[tuple[str, str], int]:
        """How many transient VMs a zone has of a GPU now, those that run included."""
        passed = self._passed(now)
        return {(each.zone, each.gpu): each.trace.at(passed) for each in self._replayed}

    def changes(self, now: float) -> float | None:
        """When, on this machine's clock, a number may change next; None where nothing is replayed."""
        passed = self._passed(now)
        moments = [each.trace.changes(passed) for each in self._replayed]
        return self._clock.when(self._since + min(moments)) if moments else None

    def _passed(self, now: float) -> float:
        return max(self._clock.at(now) - self._since, 0.0)


class Falling:
    """Takes what is more than a zone has, and else whatever another policy takes."""

    def __init__(self, replay: Replay, other: Policy, seed: int) -> None:
        self._replay, self._other, self._seed = replay, other, seed

    def due(self, vms: Sequence[Transient], now: float) -> Due:
        """At every fall of a number, as many of the zone's running VMs."""
        rest = self._other.due(vms, now)
        take = list(rest.take)
        for place, number in self._replay.numbers(now).items():
            held = [vm for vm in vms if (vm.zone, vm.gpu) == place and vm not in take]
            running = [vm for vm in held if vm.began is not None]
            running.sort(key=lambda vm: chance.uniform(self._seed, "falls", vm.zone, vm.identity))
            take += running[: max(len(held) - number, 0)]
        moments = [moment for moment in (rest.again, self._replay.changes(now)) if moment is not None]
        return Due(tuple(take), min(moments, default=None))
