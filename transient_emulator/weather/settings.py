"""The settings of the weather: from text to values, and back to text.

The same words are the options of `%transient_weather`, the keys of the JSON under
/emulator/v1/weather and the keyword arguments of `cluster.weather`. Everything invalid is a
DeclarationError: one sentence that names the setting.
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

# As seen in 2024; it was 96 s in 2018.
STOCKOUT_DELAY = 7.0
"""Seconds until an operation fails without capacity."""

SCALED = "scaled"
"""The value of `notice` with which notices run on the emulated clock."""
# What Compute Engine gives.
SCALED_NOTICE = 30.0
"""Emulated seconds from a notice to the VM's end, where notices scale."""
# Hours per minute.
_FASTEST = 100_000.0
# Seconds.
_LONGEST_ROUND_TRIP = 2.0
# The longest that Compute Engine gives. Bills are computed with it.
_LONGEST_NOTICE = 120.0


def _until(moment: float) -> str:
    return f"until={wire.now(moment)}"


def _after(given: str, option: str) -> float:
    """Return the moment after a duration, in seconds since 1970. Raises DeclarationError."""
    # Times are stored and shown with milliseconds.
    return round(time.time() + reading.duration(given, option), 3)


@dataclass(frozen=True)
class Revocations:
    """How VMs are revoked.

    Attributes
    ----------
    kind
        `none`, `published`, `every` or `file`.
    period
        Seconds between two revocations, for `every`.
    name, text
        The name and the text of the file, for `file`.
    """

    kind: str = "none"
    period: float = 0.0
    name: str = ""
    text: str = ""

    @property
    def rows(self) -> Rows:
        """The rows of the file."""
        return files.read(self.name, self.text, tables.ZONES)

    def __str__(self) -> str:
        match self.kind:
            case "every":
                return f"every={reading.seconds(self.period)}"
            case "file":
                return self.name
        return self.kind


@dataclass(frozen=True)
class Stockout:
    """No capacity in a zone.

    Attributes
    ----------
    zone
        The zone.
    gpu
        The GPU of the VMs that are refused (`cpu`: VMs without one; empty: all VMs).
    spot
        Whether only transient VMs are refused.
    until
        Its end, in seconds since 1970; None without an end.
    delay
        Seconds from the start of an operation to its failure.
    """

    zone: str
    gpu: str = ""
    spot: bool = False
    until: float | None = None
    delay: float = STOCKOUT_DELAY

    def holds(self, zone: str, gpu: str, transient: bool, now: float) -> bool:
        """Return whether it refuses such a VM now."""
        if self.until is not None and now >= self.until:
            return False
        return self.zone == zone and self.gpu in ("", gpu) and (transient or not self.spot)

    def __str__(self) -> str:
        parts = [f"{self.zone}:{self.gpu}" if self.gpu else self.zone]
        if self.spot:
            parts.append("spot")
        if self.until is not None:
            parts.append(_until(self.until))
        if self.delay != STOCKOUT_DELAY:
            parts.append(f"delay={reading.seconds(self.delay)}")
        return ",".join(parts)


@dataclass(frozen=True)
class Quota:
    """A limit of `limit` GPUs of a kind (`cpus`: vCPUs) in a region (empty: in each)."""

    what: str
    limit: int
    region: str = ""

    def __str__(self) -> str:
        place = f"@{self.region}" if self.region else ""
        return f"{self.what}{place}={self.limit}"


@dataclass(frozen=True)
class Latency:
    """Late answers: log-normally distributed, nine of ten between `low` and `high` seconds."""

    low: float
    high: float

    def __str__(self) -> str:
        low = reading.seconds(self.low)
        if self.low == self.high:
            return low
        return f"{low}..{reading.seconds(self.high)}"


@dataclass(frozen=True)
class Expired:
    """Refused credentials, until a moment (seconds since 1970; None: without an end)."""

    until: float | None = None

    def holds(self, now: float) -> bool:
        """Return whether the API refuses them now."""
        return self.until is None or now < self.until

    def __str__(self) -> str:
        if self.until is None:
            return "expired"
        return f"expired,{_until(self.until)}"


@dataclass(frozen=True)
class Link:
    """The network of a VM.

    Attributes
    ----------
    rate
        Bits per second each way.
    far
        Bits per second between regions; None for `rate`.
    round_trip
        Seconds of a round trip between regions; None without a latency.
    """

    rate: float
    far: float | None = None
    round_trip: float | None = None

    def __str__(self) -> str:
        text = reading.bits(self.rate)
        if self.far:
            text += f",far={reading.bits(self.far)}"
            if self.round_trip is not None:
                text += f"/{reading.seconds(self.round_trip)}"
        return text


@dataclass(frozen=True)
class Pressure:
    """Reclaimed vCPUs of all transient VMs together, until a moment (None: without an end)."""

    cpus: float
    until: float | None = None

    def holds(self, now: float) -> bool:
        """Return whether they are reclaimed now."""
        return self.until is None or now < self.until

    def __str__(self) -> str:
        text = f"{self.cpus:g}cpu"
        if self.until is not None:
            text += f",{_until(self.until)}"
        return text


@dataclass(frozen=True)
class GpuSpeeds:
    """Speeds of GPUs by name, relative to a K80 in the published measurement."""

    times: tuple[tuple[str, float], ...]

    def __str__(self) -> str:
        return ",".join(f"{gpu}={times:g}" for gpu, times in self.times)


@dataclass(frozen=True)
class Settings:
    """The whole weather as it is set.

    The defaults are fair weather: an emulator that never refuses.
    """

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
        """Return these settings with some changed.

        Parameters
        ----------
        given
            Texts, numbers and lists of texts by setting; None for fair weather.

        Raises
        ------
        DeclarationError
            For an unknown setting or an invalid value.
        """
        # The seed is not weather: fair weather keeps it.
        fair = Settings(seed=self.seed)
        values: dict[str, Any] = {}
        for key, value in given.items():
            if key not in _READERS:
                raise unknown("weather setting", key, _READERS)
            if value is None:
                values[key] = getattr(fair, key)
            else:
                values[key] = _READERS[key](value)
        return replace(self, **values)

    def to_json(self) -> dict[str, Any]:
        """Return the form that `changed` reads, without the text of a file."""
        return {
            "revocations": str(self.revocations),
            "availability": [str(replayed) for replayed in self.availability],
            "waves": self.waves,
            "hours_per_minute": self.hours_per_minute,
            "stockout": [str(stockout) for stockout in self.stockout],
            "quota": [str(quota) for quota in self.quota],
            "api_errors": self.api_errors,
            "api_latency": _text_or_none(self.api_latency),
            "credentials": _text_or_none(self.credentials),
            "creation_preemptions": self.creation_preemptions,
            "boot": _seconds_or_word(self.boot),
            "notice": _seconds_or_word(self.notice),
            "gpu_driver": self.gpu_driver,
            "gpu_speed": str(self.gpu_speed),
            "link": _text_or_none(self.link),
            "pressure": _text_or_none(self.pressure),
            "reclaim": _text_or_none(self.reclaim),
            "seed": self.seed,
        }

    def to_store(self) -> dict[str, Any]:
        """Return the form that `changed` reads, with the text of a file."""
        stored = self.to_json()
        if self.revocations.kind == "file":
            stored["revocations"] = {"name": self.revocations.name, "csv": self.revocations.text}
        stored["availability"] = [replayed.to_store() for replayed in self.availability]
        if self.reclaim:
            stored["reclaim"] = self.reclaim.to_store()
        return stored


def _text_or_none(value: object) -> str | None:
    if value is None:
        return None
    return str(value)


def _seconds_or_word(value: float | str | None) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return reading.seconds(value)


def _revocations(value: Any) -> Revocations:
    if isinstance(value, Mapping):
        name = str(value.get("name") or "the file")
        text = str(value.get("csv") or "")
        # Mistakes in the file are reported now, not when the rows are used.
        files.read(name, text, tables.ZONES)
        return Revocations("file", name=name, text=text)
    option = "--revocations"
    text = reading.text(value, option)
    if text.startswith("every="):
        period = reading.duration(text.removeprefix("every="), f"{option} every=")
        return Revocations("every", period)
    if text in ("none", "published"):
        return Revocations(text)
    raise unknown("value", text, ("none", "published", "every=60s"), where=option)


def _hours_per_minute(value: Any) -> float | None:
    if isinstance(value, str) and value.strip().lower() == "none":
        return None
    option = "--hours-per-minute"
    hours = reading.number(value, option)
    if not 0 < hours <= _FASTEST:
        raise DeclarationError(
            f"{option} must be greater than 0 and at most {_FASTEST:g} hours, or none, not "
            f"'{value}'"
        )
    return hours


def _stockout(text: str) -> Stockout:
    option = "--stockout"
    place, *parts = [part.strip() for part in text.lower().split(",")]
    zone, _, gpu = place.partition(":")
    if zone not in tables.ZONES:
        raise unknown("zone", zone, tables.ZONES, where=option)
    if gpu and gpu not in catalog.ACCELERATORS:
        raise unknown("GPU", gpu, catalog.ACCELERATORS, where=option)
    stockout = Stockout(zone, gpu)
    for part in parts:
        key, _, given = part.partition("=")
        if part == "spot":
            stockout = replace(stockout, spot=True)
        elif key == "for":
            stockout = replace(stockout, until=_after(given, f"{option} for="))
        elif key == "until":
            stockout = replace(stockout, until=reading.moment(given, f"{option} until="))
        elif key == "delay":
            delay = reading.duration(given, f"{option} delay=", zero=True)
            stockout = replace(stockout, delay=delay)
        else:
            fix = "Write ZONE[:GPU][,spot][,for=10m][,delay=7s]."
            raise DeclarationError(f"Unknown stockout setting '{part}'", where=option, fix=fix)
    return stockout


def _quota(text: str) -> Quota:
    option = "--quota"
    place, equals, limit = (part.strip() for part in text.lower().partition("="))
    what, _, region = place.partition("@")
    if not equals or not limit.isdecimal():
        fix = "Write GPU=N, or GPU@REGION=N."
        raise DeclarationError(f"Invalid quota '{text}'", where=option, fix=fix)
    # H100s have a regional quota for Spot VMs only.
    kinds = [name for name in catalog.ACCELERATORS if name not in ("cpu", "h100")]
    kinds.append("cpus")
    if what not in kinds:
        raise unknown("quota", what, kinds, where=option)
    if region and region not in tables.REGIONS:
        raise unknown("region", region, tables.REGIONS, where=option)
    return Quota(what, int(limit), region)


def _latency(value: Any) -> Latency | None:
    option = "--set api_latency"
    text = reading.text(value, option)
    if text == "none":
        return None
    first, dots, last = text.partition("..")
    low = reading.duration(first, option)
    high = reading.duration(last, option) if dots else low
    if high < low:
        what = f"Invalid range '{text}': the end is before the start"
        raise DeclarationError(what, where=option, fix="Write 50ms..400ms.")
    return Latency(low, high)


def _credentials(value: Any) -> Expired | None:
    option = "--credentials"
    word, comma, rest = reading.text(value, option).partition(",")
    key, _, given = rest.partition("=")
    if word == "accepted" and not comma:
        return None
    if word == "expired" and not comma:
        return Expired()
    if word == "expired" and key == "for":
        return Expired(_after(given, f"{option} for="))
    if word == "expired" and key == "until":
        return Expired(reading.moment(given, f"{option} until="))
    fix = "Write accepted, expired or expired,for=60s."
    raise DeclarationError(f"Invalid credentials '{value}'", where=option, fix=fix)


def _boot(value: Any) -> float | str | None:
    text = reading.text(value, "--boot")
    if text in ("published", "fails", "silent"):
        return text
    return reading.duration(text, "--boot", zero=True)


def _notice(value: Any) -> float | str:
    text = reading.text(value, "--notice")
    if text == SCALED:
        return text
    seconds = reading.duration(text, "--notice", zero=True)
    if seconds > _LONGEST_NOTICE:
        raise DeclarationError(
            f"--notice must be from 0s to {_LONGEST_NOTICE:.0f}s, or {SCALED}, not '{value}'"
        )
    return seconds


def read_link(value: Any) -> Link | None:
    """Read the setting of links; None for unlimited ones.

    Raises
    ------
    DeclarationError
        For an invalid text.
    """
    option = "--link"
    text = reading.text(value, option)
    if text == "none":
        return None
    near, *parts = [part.strip() for part in text.split(",")]
    far: float | None = None
    round_trip: float | None = None
    for part in parts:
        key, _, given = part.partition("=")
        if key != "far":
            fix = "Write 100mbit, or 1gbit,far=100mbit/30ms."
            raise DeclarationError(f"Unknown link setting '{part}'", where=option, fix=fix)
        rate, slash, span = given.partition("/")
        far = reading.bit_rate(rate)
        round_trip = reading.duration(span, option, zero=True) if slash else None
        if round_trip is not None and round_trip > _LONGEST_ROUND_TRIP:
            fix = "Write a shorter time, such as 30ms."
            what = f"A round trip of {span} is too long"
            raise DeclarationError(what, where=option, fix=fix)
    return Link(reading.bit_rate(near), far, round_trip)


def _pressure(value: Any) -> Pressure | None:
    option = "--pressure"
    text = reading.text(value, option)
    if text == "none":
        return None
    cpus, comma, rest = (part.strip() for part in text.partition(","))
    key, _, given = rest.partition("=")
    until: float | None = None
    if key == "for":
        until = _after(given, f"{option} for=")
    elif key == "until":
        until = reading.moment(given, f"{option} until=")
    elif comma:
        fix = "Write 1cpu, or 1cpu,for=5m."
        raise DeclarationError(f"Unknown pressure setting '{rest}'", where=option, fix=fix)
    return Pressure(parse_cpus(cpus, option), until)


def _gpu_speed(value: Any) -> str | GpuSpeeds:
    option = "--gpu-speed"
    text = reading.text(value, option)
    if "=" not in text:
        return reading.choice(option, "equal", "published")(text)
    found: dict[str, float] = {}
    for part in text.split(","):
        gpu, _, times = (word.strip() for word in part.partition("="))
        if gpu not in catalog.ACCELERATORS:
            raise unknown("GPU", gpu, catalog.ACCELERATORS, where=option)
        speed = reading.number(times, option)
        if not 0 < speed < math.inf:
            raise DeclarationError(
                f"{option} must have speeds greater than 0, not '{part.strip()}'"
            )
        found[gpu] = speed
    return GpuSpeeds(tuple(found.items()))


def _seed(value: Any) -> int:
    text = str(value).strip()
    if not text.isdecimal() or int(text) >= 1 << 63:
        raise DeclarationError(f"--seed must be a whole number of at least 0, not '{value}'")
    return int(text)


_READERS: dict[str, Callable[[Any], Any]] = {
    "revocations": _revocations,
    "availability": availability.read,
    "waves": reading.share("--set waves"),
    "hours_per_minute": _hours_per_minute,
    "stockout": reading.list_of("--stockout", _stockout),
    "quota": reading.list_of("--quota", _quota),
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
