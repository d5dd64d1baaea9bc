"""A measurement of availability, as it is declared, and what it has seen: moments, zones, whether
there was a VM.

Whoever measures sees some zones of one project in some hours: that is kept with its moment and its
source, and is a forecast of nothing else.
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
"""In a measurement's folder: what it saw, the same as traces, why it ended, and the wish that it
ends.
"""
LIFE_SECONDS = 300.0
"""After which Compute Engine itself deletes a VM that was asked for, whatever became of who asked.
"""
LEAST_SECONDS = 60.0
"""For which a VM is paid at least."""


@dataclass(frozen=True, slots=True)
class MeasureSpec:
    """Every `every_seconds` one VM with this GPU is asked for in each zone and given back, until
    the `budget` (US dollars) is spent or `max_seconds` have passed. `hourly`: its price by zone;
    `declared_at` in seconds since 1970; `provisioning_model`: as Spot, or on demand (standard).
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
        """Who gave the VMs or did not."""
        if self.project:
            return f"Compute Engine, project {self.project}"
        return "the emulator"

    @property
    def round_dollars(self) -> float:
        """What one look into all zones could cost, should nobody live to give its VMs back."""
        return sum(self.hourly[zone] for zone in self.zones) * LIFE_SECONDS / 3600

    @property
    def kind(self) -> str:
        """`Spot T4s`, `T4s on demand`."""
        if self.gpu == CPU:
            vms = "VMs without a GPU"
        else:
            vms = f"{self.gpu.upper()}s"
        if self.provisioning_model == "standard":
            return f"{vms} on demand"
        return f"Spot {vms}"

    def to_dict(self) -> dict[str, object]:
        """Plain JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Self:
        """Read what `to_dict` wrote. Raises DeclarationError."""
        try:
            spec = checks.built(cls, values)
            checked_name(spec.name)
            _ = spec.round_dollars
        except (LookupError, ValueError) as error:
            raise DeclarationError(f"A measurement's declaration cannot be read: {error}") from None
        return spec


@dataclass(frozen=True, slots=True)
class Sighting:
    """At this moment (seconds since 1970) a zone gave a VM or did not, which cost so many US
    dollars.
    """

    at: float
    zone: str
    given: bool
    dollars: float = 0.0


def read_sightings(folder: Path) -> list[Sighting]:
    """Return what a measurement has seen, in order; unreadable lines are skipped."""
    found: list[Sighting] = []
    for values in jsonl.read(folder / SEEN):
        with suppress(ValueError):
            found.append(checks.built(Sighting, values))
    return found


def measurements() -> list[tuple[MeasureSpec, list[Sighting]]]:
    """All measurements of this machine and what they saw; those that cannot be read are passed
    over, with a warning.
    """
    found: list[tuple[MeasureSpec, list[Sighting]]] = []
    for path in sorted(places.measurements().glob(f"*/{layout.SPEC}")):
        try:
            spec = MeasureSpec.from_dict(checks.parsed_object(path.read_bytes()))
        except (OSError, ValueError, DeclarationError) as error:
            log.warning("%s is passed over: %s", path.parent.name, error)
            continue
        found.append((spec, read_sightings(path.parent)))
    return found


def write_sightings(folder: Path, seen: Iterable[Sighting]) -> None:
    """Append to what was seen."""
    for sighting in seen:
        jsonl.append(folder / SEEN, asdict(sighting))


def shares(seen: Iterable[Sighting]) -> dict[str, tuple[int, int]]:
    """By zone: how often a VM was asked for, and how often there was one."""
    counted: dict[str, tuple[int, int]] = {}
    for each in seen:
        asked, given = counted.get(each.zone, (0, 0))
        counted[each.zone] = asked + 1, given + each.given
    return counted


def next_look(spec: MeasureSpec, seen: Iterable[Sighting], now: float) -> tuple[float, str]:
    """When it looks again (seconds since 1970), or why it does not: a clause."""
    known = list(seen)
    spent = sum(each.dollars for each in known)
    if spent + spec.round_dollars > spec.budget:
        more = f"another look could cost ${spec.round_dollars:.2f}"
        return 0.0, f"${spent:.2f} of ${spec.budget:.2f} are spent, and {more}"
    due = (
        max((each.at for each in known), default=spec.declared_at - spec.every_seconds)
        + spec.every_seconds
    )
    if max(due, now) >= spec.declared_at + spec.max_seconds:
        return 0.0, "its time is over"
    return max(due, now), ""
