"""Measured availability, replayed: a trace has the transient VMs that a zone has with a GPU.

A request beyond that number meets a stockout. Where the number falls, running VMs are revoked, each
with the same probability. A trace runs on the emulated clock from the moment at which the weather
was set, and starts again at its end. It shows the market where and when it was measured, and is not
a forecast for the zone that replays it.
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
from .revocations import Due, Policy, Transient, earlier

_OPTION = "--availability"
# Bytes.
_LARGEST = 1_000_000


@dataclass(frozen=True)
class Replayed:
    """A trace at work in a zone.

    Attributes
    ----------
    zone, gpu
        The zone, and the catalog's name of the GPU.
    name
        The name of the file.
    trace
        The trace.
    """

    zone: str
    gpu: str
    name: str
    trace: Trace

    def __str__(self) -> str:
        return f"{self.zone}:{self.gpu}={self.name}:{self.trace.name}"

    def to_store(self) -> dict[str, str]:
        """Return the form that `read` accepts."""
        return {"zone": self.zone, "gpu": self.gpu, "name": self.name, "csv": self.trace.to_csv()}


def read(value: Any) -> tuple[Replayed, ...]:
    """Read the setting.

    Parameters
    ----------
    value
        A list of objects in the form of `Replayed.to_store`, or the word `none`.

    Raises
    ------
    DeclarationError
        For anything else, and for a zone and GPU with two traces.
    """
    if value in ("none", ["none"]):
        return ()
    is_list = isinstance(value, (list, tuple))
    if not is_list or not all(isinstance(entry, Mapping) for entry in value):
        fix = "Write ZONE=FILE.csv:TRACE, or none."
        raise DeclarationError("Availability needs a file", where=_OPTION, fix=fix)
    found = tuple(_read(entry) for entry in value)
    places: set[tuple[str, str]] = set()
    for replayed in found:
        place = (replayed.zone, replayed.gpu)
        if place in places:
            what = f"{replayed.zone} has two traces for the {replayed.gpu.upper()}"
            raise DeclarationError(what, where=_OPTION, fix="Leave one out.")
        places.add(place)
    return found


def _read(given: Mapping[str, Any]) -> Replayed:
    zone, gpu, name, text = (str(given.get(key) or "") for key in ("zone", "gpu", "name", "csv"))
    if len(text) > _LARGEST:
        what = f"{name} is larger than {_LARGEST // 1_000_000} MB"
        raise DeclarationError(what, where=_OPTION)
    traces = read_traces(text, name or "the file")
    if len(traces) != 1:
        what = f"{zone} can replay only one trace, not {len(traces)}"
        raise DeclarationError(what, where=_OPTION, fix="Name one with ZONE=FILE.csv:TRACE.")
    # Without a GPU in the setting, the zone gets the one of the trace.
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
    """The traces at work.

    Parameters
    ----------
    replayed
        The traces.
    clock
        The emulated clock.
    since
        When the weather was set, on this machine's clock.
    """

    def __init__(self, replayed: Sequence[Replayed], clock: Clock, since: float) -> None:
        self._replayed = replayed
        self._clock = clock
        self._since = clock.at(since)

    def numbers(self, now: float) -> dict[tuple[str, str], int]:
        """Return the transient VMs that zones have now, running ones included, by zone and GPU."""
        passed = self._passed(now)
        return {(entry.zone, entry.gpu): entry.trace.at(passed) for entry in self._replayed}

    def changes(self, now: float) -> float | None:
        """Return when, on this machine's clock, a number may change next; None without traces."""
        if not self._replayed:
            return None
        passed = self._passed(now)
        moment = min(entry.trace.changes(passed) for entry in self._replayed)
        return self._clock.when(self._since + moment)

    def _passed(self, now: float) -> float:
        return max(self._clock.at(now) - self._since, 0.0)


class Falling:
    """The policy that revokes what a zone no longer has, and what another policy revokes."""

    def __init__(self, replay: Replay, other: Policy, seed: int) -> None:
        self._replay = replay
        self._other = other
        self._seed = seed

    def due(self, vms: Sequence[Transient], now: float) -> Due:
        """Return as many of a zone's running VMs as its number has fallen by, see `Policy`."""
        other = self._other.due(vms, now)
        take = list(other.take)
        for place, number in self._replay.numbers(now).items():
            # VMs that boot count, but are not revoked.
            present = [vm for vm in vms if (vm.zone, vm.gpu) == place and vm not in take]
            running = [vm for vm in present if vm.began is not None]
            running.sort(key=self._draw)
            take += running[: max(len(present) - number, 0)]
        return Due(tuple(take), earlier(other.again, self._replay.changes(now)))

    def _draw(self, vm: Transient) -> float:
        return chance.uniform(self._seed, "falls", vm.zone, vm.identity)
