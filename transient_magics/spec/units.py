"""Texts that users type or read, and their values: durations, names, money, tables, run options.

A duration is `90s`, `30m`, `24h` or `2d`, an interval `500` (steps) or `5m`. `check_run` and
`make_run` read the options of a run, whose record is `protocol.run.RunSpec`.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Mapping, Sequence

from ..errors import DeclarationError, unknown
from ..protocol import checks
from ..protocol.checks import is_name
from ..protocol.run import RunSpec, choices, contradiction, option

_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd]?)")
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})")
_CPUS = re.compile(r"(\d+(?:\.\d+)?)\s*(?:v?cpus?)?")
_MOST_CPUS = 100_000

BYTES_EACH_WAY = {"fp32": 4, "bf16": 2}
"""Bytes per parameter and step in each direction, by `--wire`.

The worker receives each parameter's value and sends back its gradient.
"""


def parse_duration(text: str, option: str, *, unit: str = "s") -> float:
    """Return the seconds in `text`; a bare number counts in `unit`.

    Raises DeclarationError that names the option.
    """
    match = _DURATION.fullmatch(text.strip().lower())
    if not match:
        raise DeclarationError(
            f"Invalid duration '{text}'", where=option, fix="Write 90s, 30m, 24h or 2d."
        )
    seconds = float(match[1]) * _SECONDS[match[2] or unit]
    if not 0 < seconds < math.inf:
        raise DeclarationError(f"A duration must be longer than 0, not '{text}'", where=option)
    return seconds


def parse_deadline(text: str, option: str, now: float) -> float:
    """Return the seconds from `now` (UTC) until a deadline.

    `6h` is a duration, `18:00` the next such time by this machine's clock; a bare number counts
    hours. Raises DeclarationError that names the option.
    """
    clock = _CLOCK.fullmatch(text.strip())
    if not clock and not _DURATION.fullmatch(text.strip().lower()):
        raise DeclarationError(
            f"Invalid deadline '{text}'", where=option, fix="Write 6h, 90m, or 18:00."
        )
    if not clock:
        return parse_duration(text, option, unit="h")
    hour = int(clock[1])
    minute = int(clock[2])
    if hour > 23 or minute > 59:
        raise DeclarationError(
            f"Invalid deadline '{text}'", where=option, fix="Write 00:00 to 23:59."
        )
    today = time.localtime(now)
    moments = [
        time.mktime((today.tm_year, today.tm_mon, today.tm_mday + days, hour, minute, 0, 0, 0, -1))
        for days in (0, 1)
    ]
    return next(moment for moment in moments if moment > now) - now


def render_duration(seconds: float) -> str:
    """Return a duration in its largest readable units: `45 s`, `12 min`, `3 h 20 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 90:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if minutes:
        return f"{hours} h {minutes} min"
    return f"{hours} h"


def parse_interval(text: str, option: str) -> tuple[int | None, float | None]:
    """Return (steps, None) for a bare whole number, (None, seconds) for a duration with a unit.

    Raises DeclarationError that names the option.
    """
    stripped = text.strip().lower()
    if stripped.isdecimal():
        if int(stripped) < 1:
            raise DeclarationError(
                f"An interval must be at least 1 step, not '{text}'", where=option
            )
        return int(stripped), None
    if not _DURATION.fullmatch(stripped):
        raise DeclarationError(
            f"Invalid interval '{text}'", where=option, fix="Write 500 (steps), 90s, 5m or 1h."
        )
    return None, parse_duration(stripped, option)


def parse_share(text: str, option: str, least: float = 0.0) -> float:
    """Return the part of a whole in `50%` or `0.5`, from `least` to 1.

    Raises DeclarationError that names the option.
    """
    written = text.strip()
    try:
        part = float(written.removesuffix("%")) / (100 if written.endswith("%") else 1)
    except ValueError:
        part = math.nan
    if not least <= part <= 1:
        what = f"{option} must be from {least:.0%} to 100%, not '{text}'"
        raise DeclarationError(what, fix="For example: 50%.")
    return part


def parse_cpus(text: str, option: str) -> float:
    """Return the number of vCPUs in `1.5cpu`. Raises DeclarationError that names the option."""
    match = _CPUS.fullmatch(text.strip().lower())
    if not match or not 0 < float(match[1]) <= _MOST_CPUS:
        raise DeclarationError(
            f"Invalid number of vCPUs '{text}'", where=option, fix="Write 1.5cpu."
        )
    return float(match[1])


def parse_name(text: str, option: str) -> str:
    """Return a name of a cluster or of work, as Compute Engine allows names.

    Names have at most 40 characters of a-z, 0-9 and '-', with a letter first. Raises
    DeclarationError.
    """
    name = text.strip().lower()
    if not is_name(name):
        raise DeclarationError(
            f"Invalid name '{text}'",
            where=option,
            fix="Use a-z, 0-9 and '-', a letter first and no '-' last, 40 characters at most.",
        )
    return name


def render_money(dollars: float) -> str:
    """Return US dollars with the digits that matter: `$0.0042`, `$0.318`, `$12.40`."""
    if not abs(dollars) >= 0.00005:
        return "$0.00"
    if dollars < 0:
        return f"-{render_money(-dollars)}"
    if dollars < 0.01:
        return f"${dollars:,.4f}"
    if dollars < 1:
        return f"${dollars:,.3f}"
    return f"${dollars:,.2f}"


def render_small_money(dollars: float) -> str:
    """Return US dollars, with three significant digits below a cent (the price of a step)."""
    if not 0 < dollars < 0.01:
        return render_money(dollars)
    return f"${dollars:.{2 - math.floor(math.log10(dollars))}f}"


def render_workers(workers: Iterable[tuple[str, str, int]]) -> str:
    """Return workers in words: `2 Spot T4s and 1 K80 on demand`, or `no worker`.

    Parameters
    ----------
    workers
        GPU, provisioning model and number of each kind.
    """
    parts: list[str] = []
    for gpu, terms, count in workers:
        name = gpu.upper()
        if count > 1:
            name += "s"
        if terms == "standard":
            parts.append(f"{count} {name} on demand")
        else:
            parts.append(f"{count} Spot {name}")
    return " and ".join(parts) or "no worker"


def if_capacity_lasts(provisioning_model: str) -> str:
    """Return the condition of an estimate that assumes capacity; '' for on-demand VMs."""
    return {
        "spot": ", if Spot capacity lasts",
        "preemptible": ", if capacity for preemptible VMs lasts",
    }.get(provisioning_model, "")


def render_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a text table; columns are as wide as their longest cell."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (header, *rows)
    ]


# Options of a run. The record itself is `protocol.run.RunSpec`, which VMs read.


def check_run(given: Mapping[str, object]) -> None:
    """Check the options given for a run (fields of RunSpec). Raises DeclarationError.

    This function alone decides which options exclude each other. The reader of one option's text
    only converts it.
    """
    for name, value in given.items():
        allowed = choices(name)
        if allowed and value is not None and value not in allowed:
            what = f"Invalid {option(name)} '{value}'"
            raise DeclarationError(what, fix=f"Choose from {', '.join(allowed)}.")
    what, fix = contradiction(given)
    if what:
        raise DeclarationError(what, fix=fix)


def make_run(values: Mapping[str, object]) -> RunSpec:
    """Return the declaration of a run. Raises DeclarationError for invalid or unknown fields."""
    other = next((name for name in values if name not in RunSpec.__dataclass_fields__), "")
    if other:
        fix = "help(transient_magics.train) lists them."
        raise unknown("option of a run", other, RunSpec.__dataclass_fields__, otherwise=fix)
    try:
        return checks.built(RunSpec, values)
    except ValueError as error:
        name, _, why = str(error).partition(": ")
        raise DeclarationError(f"Invalid {option(name)}: {why}") from None


def parse_workers(text: str) -> dict[str, int]:
    """Return the least and the most workers in `2:4`; `2` is both. Raises DeclarationError."""
    least, colon, most = (part.strip() for part in text.partition(":"))
    if not colon:
        most = least
    numbers = [int(part) if part.isdecimal() else 0 for part in (least, most)]
    if not 0 < numbers[0] <= numbers[1]:
        raise DeclarationError(f"Invalid --workers '{text}'", fix="For example: 2, or 2:4")
    return {"least_workers": numbers[0], "most_workers": numbers[1]}
