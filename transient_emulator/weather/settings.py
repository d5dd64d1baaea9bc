"""What can be set about the weather, each setting from the text that people type to a value, and back to text.

The same words are the options of `%transient_weather`, the keys of the JSON under /emulator/v1/weather and the keyword
arguments of `cluster.weather`. Everything that is wrong is a DeclarationError: one sentence that names the setting.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from transient_magics import catalog
from transient_magics.catalog import published
from transient_magics.errors import DeclarationError, unknown
from transient_magics.spec import parse_cpus

from ..rest import tables, wire
from . import availability, files, reading, reclaiming
from .availability import Replayed
from .files import Rows
from .reclaiming import Reclaim

STOCKOUT_DELAY = 7.0
"""Seconds until an operation fails for want of capacity, as seen in 2024 (96 s in 2018)."""

SCALED = "scaled"
SCALED_NOTICE = 30.0
"""Emulated seconds from a notice to the VM's end, where notices scale: what Compute Engine gives."""
_FASTEST = 100_000.0  # hours per minute
_LONGEST_ROUND_TRIP = 2.0
_LONGEST_NOTICE = 120.0  # that Compute Engine gives; bills go by it


@dataclass(frozen=True)
class Revocations:
    """How VMs are taken away: `none`, `published`, `every` (each `period` seconds), or `file` (its name and text)."""

    kind: str = "none"
    period: float = 0.0
    name: str = ""
    text: str = ""

    @property
    def rows(self) -> Rows:
        """The rows of the file."""
        return files.read(self.name, self.text, tables.ZONES)

    def __str__(self) -> str:
        return {"every": f"every={reading.seconds(self.period)}", "file": self.name}.get(self.kind, self.kind)


@dataclass(frozen=True)
class Stockout:
    """No capacity in a zone for VMs with a GPU (`cpu`: for those without; empty: for all), until a moment (None: for
    good); with `spot`, transient VMs only. An operation fails `delay` seconds after it was begun."""

    zone: str
    gpu: str = ""
    spot: bool = False
    until: float | None = None
    delay: float = STOCKOUT_DELAY

    def holds(self, zone: str, gpu: str, transient: bool, now: float) -> bool:
        """Whether it refuses such a VM now."""
        if self.until is not None and now >= self.until:
            return False
        return self.zone == zone and self.gpu in ("", gpu) and (transient or not self.spot)

    def __str__(self) -> str:
        until = f"until={wire.now(self.until)}" if self.until is not None else ""
        delay = f"delay={reading.seconds(self.delay)}" if self.delay != STOCKOUT_DELAY else ""
        place = f"{self.zone}:{self.gpu}" if self.gpu else self.zone
        return ",".join(filter(None, [place, "spot" if self.spot else "", until, delay]))


@dataclass(frozen=True)
class Quota:
    """At most `limit` GPUs of a kind (`cpus`: vCPUs) in a region (empty: in each)."""

    what: str
    limit: int
    region: str = ""

    def __str__(self) -> str:
        return f"{self.what}{f'@{self.region}' if self.region else ''}={self.limit}"


@dataclass(frozen=True)
class Latency:
    """The API's answers come so late: log-normally distributed, nine of ten between `low` and `high` seconds."""

    low: float
    high: float

    def __str__(self) -> str:
        low, high = reading.seconds(self.low), reading.seconds(self.high)
        return low if low == high else f"{low}..{high}"


@dataclass(frozen=True)
class Expired:
    """The API accepts no credentials, until a moment (None: for good)."""

    until: float | None = None

    def holds(self, now: float) -> bool:
        """Whether it refuses now."""
        return self.until is None or now < self.until

    def __str__(self) -> str:
        return f"expired,until={wire.now(self.until)}" if self.until is not None else "expired"


@dataclass(frozen=True)
class Link:
    """What a VM's network carries, each way, in bits per second; `far`: between regions, if less, with `round_trip`
    seconds there and back (None: none worth telling)."""

    rate: float
    far: float | None = None
    round_trip: float | None = None

    def __str__(self) -> str:
        late = f"/{reading.seconds(self.round_trip)}" if self.round_trip is not None else ""
        return reading.bits(self.rate) + (f",far={reading.bits(self.far)}{late}" if self.far else "")


@dataclass(frozen=True)
class Pressure:
    """So many `cpus` (vCPUs) are taken from all transient VMs together, until a moment (None: for good)."""

    cpus: float
    until: float | None = None

    def holds(self, now: float) -> bool:
        """Whether they are now."""
        return self.until is None or now < self.until

    def __str__(self) -> str:
        return f"{self.cpus:g}cpu" + (f",until={wire.now(self.until)}" if self.until is not None else "")


@dataclass(frozen=True)
class GpuSpeeds:
    """How many times as fast as a K80 by the published measurement GPUs are taken to be, by their name."""

    times: tuple[tuple[str, float], ...]

    def __str__(self) -> str:
        return ",".join(f"{gpu}={times:g}" for gpu, times in self.times)


@dataclass(frozen=True)
class Settings:
    """The whole weather as it is set. Nothing set is fair weather: an emulator that never refuses."""

    revocations: Revocations = Revocations()
    availability: tuple[Replayed, ...] = ()
    waves: float = published.WAVES
    hours_per_minute: float | None = None
    stockout: tuple[Stockout, ...] = ()
    quota: tuple[Quota, ...] = ()
    api_errors: float = 0.0
    api_latency: Latency | None = None
    credentials: Expired | None = None
    creation_preemptions: float = 0.0
    boot: float | str | None = None
    notice: float | str | None = None
    gpu_driver: str = "works"
    gpu_speed: str | GpuSpeeds = "equal"
    link: Link | None = None
    pressure: Pressure | None = None
    reclaim: Reclaim | None = None
    seed: int = 0

    def changed(self, given: Mapping[str, Any]) -> Settings:
        """These settings with what is given (texts, numbers, lists of texts; null: as in fair weather).

        Raises DeclarationError for a setting that is unknown or has no such value.
        """
        values: dict[str, Any] = {}
        for key, value in given.items():
            if key not in _READERS:
                raise unknown("weather setting", key, _READERS)
            values[key] = getattr(Settings(seed=self.seed), key) if value is None else _READERS[key](value)
        return replace(self, **values)

    def to_json(self) -> dict[str, Any]:
        """As `changed` reads it, but for the text of a file."""
        return {
            "revocations": str(self.revocations),
            "availability": [str(each) for each in self.availability],
            "waves": self.waves, "hours_per_minute": self.hours_per_minute,
            "stockout": [str(each) for each in self.stockout], "quota": [str(each) for each in self.quota],
            "api_errors": self.api_errors, "api_latency": self.api_latency and str(self.api_latency),
            "credentials": self.credentials and str(self.credentials),
            "creation_preemptions": self.creation_preemptions,
            "boot": reading.seconds(self.boot) if isinstance(self.boot, float) else self.boot,
            "notice": reading.seconds(self.notice) if isinstance(self.notice, float) else self.notice,
            "gpu_driver": self.gpu_driver, "gpu_speed": str(self.gpu_speed),
            "link": self.link and str(self.link), "pressure": self.pressure and str(self.pressure),
            "reclaim": self.reclaim and str(self.reclaim), "seed": self.seed,
        }  # fmt: skip

    def to_store(self) -> dict[str, Any]:
        """As `changed` reads it, the text of a file included."""
        rained = self.revocations
        file = {"name": rained.name, "csv": rained.text} if rained.kind == "file" else str(rained)
        replayed, reclaim = [each.to_store() for each in self.availability], self.reclaim and self.reclaim.to_store()
        return {**self.to_json(), "revocations": file, "availability": replayed, "reclaim": reclaim}


def _revocations(value: Any) -> Revocations:
    if isinstance(value, Mapping):
        file = Revocations("file", name=str(value.get("name") or "the file"), text=str(value.get("csv") or ""))
        files.read(file.name, file.text, tables.ZONES)  # for its mistakes
        return file
    text = reading.text(value, "--revocations")
    if text.startswith("every="):
        return Revocations("every", reading.duration(text.removeprefix("every="), "--revocations every="))
    if text in ("none", "published"):
        return Revocations(text)
    raise unknown("value", text, ("none", "published", "every=60s"), where="--revocations")


def _rate_of_compression(value: Any) -> float | None:
    if isinstance(value, str) and value.strip().lower() == "none":
        return None
    hours = reading.number(value, "--hours-per-minute")
    if not 0 < hours <= _FASTEST:
        raise DeclarationError(f"--hours-per-minute takes hours above 0 up to {_FASTEST:g}, or none, not '{value}'")
    return hours


def _stockout(text: str) -> Stockout:
    place, *rest = [part.strip() for part in text.lower().split(",")]
    zone, _, gpu = place.partition(":")
    if zone not in tables.ZONES:
        raise unknown("zone", zone, tables.ZONES, where="--stockout")
    if gpu and gpu not in catalog.ACCELERATORS:
        raise unknown("GPU", gpu, catalog.ACCELERATORS, where="--stockout")
    made = Stockout(zone, gpu)
    for part in rest:
        key, _, given = part.partition("=")
        if part == "spot":
            made = replace(made, spot=True)
        elif key == "for":
            made = replace(made, until=round(time.time() + reading.duration(given, "--stockout for="), 3))
        elif key == "until":
            made = replace(made, until=reading.moment(given, "--stockout until="))
        elif key == "delay":
            made = replace(made, delay=reading.duration(given, "--stockout delay=", zero=True))
        else:
            fix = "Write ZONE[:GPU][,spot][,for=10m][,delay=7s]."
            raise DeclarationError(f"'{part}' says nothing about a stockout", where="--stockout", fix=fix)
    return made


def _quota(text: str) -> Quota:
    place, equals, limit = (part.strip() for part in text.lower().partition("="))
    what, _, region = place.partition("@")
    countable = [*(name for name in catalog.ACCELERATORS if name not in ("cpu", "h100")), "cpus"]
    if not equals or not limit.isdecimal():
        fix = "Write GPU=N, or GPU@REGION=N."
        raise DeclarationError(f"Invalid quota '{text}'", where="--quota", fix=fix)
    if what not in countable:
        raise unknown("quota", what, countable, where="--quota")
    if region and region not in tables.REGIONS:
        raise unknown("region", region, tables.REGIONS, where="--quota")
    return Quota(what, int(limit), region)


def _latency(value: Any) -> Latency | None:
    text = reading.text(value, "--set api_latency")
    if text == "none":
        return None
    low, dots, high = text.partition("..")
    option = "--set api_latency"
    made = Latency(reading.duration(low, option), reading.duration(high if dots else low, option))
    if made.high < made.low:
        raise DeclarationError(f"'{text}' ends before it begins", where=option, fix="Write 50ms..400ms.")
    return made


def _credentials(value: Any) -> Expired | None:
    text, comma, rest = reading.text(value, "--credentials").partition(",")
    key, _, given = rest.partition("=")
    if text == "accepted" and not comma:
        return None
    if text == "expired" and not comma:
        return Expired()
    if text == "expired" and key == "for":
        return Expired(round(time.time() + reading.duration(given, "--credentials for="), 3))
    if text == "expired" and key == "until":
        return Expired(reading.moment(given, "--credentials until="))
    fix = "Write accepted, expired or expired,for=60s."
    raise DeclarationError(f"Credentials cannot be '{value}'", where="--credentials", fix=fix)


def _boot(value: Any) -> float | str | None:
    text = reading.text(value, "--boot")
    return text if text in ("published", "fails", "silent") else reading.duration(text, "--boot", zero=True)


def _notice(value: Any) -> float | str:
    text = reading.text(value, "--notice")
    if text == SCALED:
        return text
    seconds = reading.duration(text, "--notice", zero=True)
    if seconds > _LONGEST_NOTICE:
        raise DeclarationError(f"--notice takes 0s to {_LONGEST_NOTICE:.0f}s, or {SCALED}, not '{value}'")
    return seconds


def read_link(value: Any) -> Link | None:
    """What the option says; None: nothing is in the way. Raises DeclarationError."""
    text = reading.text(value, "--link")
    if text == "none":
        return None
    near, *rest = [part.strip() for part in text.split(",")]
    far = round_trip = None
    for part in rest:
        key, _, given = part.partition("=")
        if key != "far":
            fix = "Write 100mbit, or 1gbit,far=100mbit/30ms."
            raise DeclarationError(f"'{part}' says nothing about a link", where="--link", fix=fix)
        carried, late, span = given.partition("/")
        far = reading.bit_rate(carried)
        round_trip = reading.duration(span, "--link", zero=True) if late else None
        if round_trip is not None and round_trip > _LONGEST_ROUND_TRIP:
            fix = "Write 30ms; around the globe and back it is 300ms."
            raise DeclarationError(f"No round trip takes {span}", where="--link", fix=fix)
    return Link(reading.bit_rate(near), far, round_trip)


def _pressure(value: Any) -> Pressure | None:
    text = reading.text(value, "--pressure")
    if text == "none":
        return None
    cpus, comma, rest = (part.strip() for part in text.partition(","))
    key, _, given = rest.partition("=")
    if comma and key not in ("for", "until"):
        fix = "Write 1cpu, or 1cpu,for=5m."
        raise DeclarationError(f"'{rest}' says nothing about pressure", where="--pressure", fix=fix)
    until = None
    if key == "for":
        until = round(time.time() + reading.duration(given, "--pressure for="), 3)
    elif key == "until":
        until = reading.moment(given, "--pressure until=")
    return Pressure(parse_cpus(cpus, "--pressure"), until)


def _gpu_speed(value: Any) -> str | GpuSpeeds:
    text = reading.text(value, "--gpu-speed")
    if "=" not in text:
        return reading.choice("--gpu-speed", "equal", "published")(text)
    found: dict[str, float] = {}
    for part in text.split(","):
        gpu, _, times = (each.strip() for each in part.partition("="))
        if gpu not in catalog.ACCELERATORS:
            raise unknown("GPU", gpu, catalog.ACCELERATORS, where="--gpu-speed")
        found[gpu] = reading.number(times, "--gpu-speed")
        if not 0 < found[gpu] < math.inf:
            raise DeclarationError(f"--gpu-speed takes speeds above 0, not '{part.strip()}'")
    return GpuSpeeds(tuple(found.items()))


def _seed(value: Any) -> int:
    text = str(value).strip()
    if not text.isdecimal() or int(text) >= 1 << 63:
        raise DeclarationError(f"--seed takes a whole number from 0 on, not '{value}'")
    return int(text)


_READERS: dict[str, Callable[[Any], Any]] = {
    "revocations": _revocations,
    "availability": availability.read,
    "waves": reading.share("--set waves"),
    "hours_per_minute": _rate_of_compression,
    "stockout": reading.each("--stockout", _stockout),
    "quota": reading.each("--quota", _quota),
    "api_errors": reading.share("--api-errors"),
    "api_latency": _latency,
    "credentials": _credentials,
    "creation_preemptions": reading.share("--set creation_preemptions"),
    "boot": _boot,
    "notice": _notice,
    "gpu_driver": reading.choice("--set gpu_driver", "works", "fails"),
    "gpu_speed": _gpu_speed,
    "link": read_link,
    "pressure": _pressure,
    "reclaim": reclaiming.read,
    "seed": _seed,
}
