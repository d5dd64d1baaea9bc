"""A measurement of availability: its declaration, and the moments, zones and results it recorded.

It observes some zones of one project for some hours. The data is kept with its time and its source,
and predicts nothing else.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, Self

from .. import places
from ..errors import DeclarationError
from ..protocol import checks, jsonl, layout
from ..protocol.checks import checked_name
from ..protocol.machines import CPU

log = logging.getLogger(__name__)

SEEN = "seen.jsonl"
TRACE = "availability.csv"
ENDED = "ended.json"
STOP = "stop"
"""Files of a measurement: its observations, the same as traces, why it ended, and the request to
stop.
"""
LIFE_SECONDS = 300.0
"""Time after which Compute Engine deletes a requested VM, even if the requesting process died."""
LEAST_SECONDS = 60.0
"""Shortest time for which a VM is billed."""


@dataclass(frozen=True, slots=True)
class MeasureSpec:
    """A measurement: request a VM in each zone every `every_seconds`, and delete it again.

    It ends when the `budget` (US dollars) is spent or `max_seconds` have passed. `hourly` is the
    price by zone, `declared_at` in seconds since 1970. VMs are Spot or on demand (`standard`).
    """

    name: str
    gpu: str
    zones: tuple[str, ...]
    hourly: Mapping[str, float]
    budget: float
    every_seconds: float
    max_seconds: float
    declared_at: float
    project: str | None = None
    id: str = ""
    provisioning_model: Literal["spot", "standard"] = "spot"

    @property
    def source(self) -> str:
        """The provider of the VMs."""
        if self.project:
            return f"Compute Engine, project {self.project}"
        return "the emulator"

    @property
    def round_dollars(self) -> float:
        """The cost of one request to each zone if no process is left to delete the VMs."""
        return sum(self.hourly[zone] for zone in self.zones) * LIFE_SECONDS / 3600

    @property
    def kind(self) -> str:
        """The VMs in words: `Spot T4s`, `T4s on demand`."""
        if self.gpu == CPU:
            vms = "VMs without a GPU"
        else:
            vms = f"{self.gpu.upper()}s"
        if self.provisioning_model == "standard":
            return f"{vms} on demand"
        return f"Spot {vms}"

    def to_dict(self) -> dict[str, object]:
        """Return plain JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Self:
        """Read what `to_dict` wrote. Raises DeclarationError."""
        try:
            spec = checks.built(cls, values)
            checked_name(spec.name)
            _ = spec.round_dollars
        except (LookupError, ValueError) as error:
            raise DeclarationError(
                f"The declaration of the measurement is invalid: {error}"
            ) from None
        return spec


@dataclass(frozen=True, slots=True)
class Sighting:
    """An observation of a zone at a moment (seconds since 1970): did it give a VM, at what cost.

    `dollars` are US dollars.
    """

    at: float
    zone: str
    given: bool
    dollars: float = 0.0


def read_sightings(folder: Path) -> list[Sighting]:
    """Return a measurement's observations in order; unreadable lines are skipped."""
    found: list[Sighting] = []
    for values in jsonl.read(folder / SEEN):
        with suppress(ValueError):
            found.append(checks.built(Sighting, values))
    return found


def measurements() -> list[tuple[MeasureSpec, list[Sighting]]]:
    """Return all measurements of this machine and their observations.

    Unreadable measurements are skipped with a warning.
    """
    found: list[tuple[MeasureSpec, list[Sighting]]] = []
    for path in sorted(places.measurements().glob(f"*/{layout.SPEC}")):
        try:
            spec = MeasureSpec.from_dict(checks.parsed_object(path.read_bytes()))
        except (OSError, ValueError, DeclarationError) as error:
            log.warning("%s is skipped: %s", path.parent.name, error)
            continue
        found.append((spec, read_sightings(path.parent)))
    return found


def write_sightings(folder: Path, seen: Iterable[Sighting]) -> None:
    """Append observations to a measurement."""
    for sighting in seen:
        jsonl.append(folder / SEEN, asdict(sighting))


def shares(seen: Iterable[Sighting]) -> dict[str, tuple[int, int]]:
    """Return the number of requests and of received VMs, by zone."""
    counted: dict[str, tuple[int, int]] = {}
    for sighting in seen:
        asked, given = counted.get(sighting.zone, (0, 0))
        counted[sighting.zone] = asked + 1, given + sighting.given
    return counted


def next_request(spec: MeasureSpec, seen: Iterable[Sighting], now: float) -> tuple[float, str]:
    """Return when the next request is due (seconds since 1970), or why there is none: a clause."""
    sightings = list(seen)
    spent = sum(sighting.dollars for sighting in sightings)
    if spent + spec.round_dollars > spec.budget:
        more = f"another request could cost ${spec.round_dollars:.2f}"
        return 0.0, f"${spent:.2f} of ${spec.budget:.2f} are spent, and {more}"
    first = spec.declared_at - spec.every_seconds
    last = max((sighting.at for sighting in sightings), default=first)
    due = last + spec.every_seconds
    if max(due, now) >= spec.declared_at + spec.max_seconds:
        return 0.0, "its time is over"
    return max(due, now), ""
