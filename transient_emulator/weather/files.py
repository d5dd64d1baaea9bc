"""Revocations from a CSV file, in one of two forms that its header distinguishes.

    lifetime_hours[,zone][,gpu]          one row per VM, in the order of their inserts; empty: no
    end at_hours[,count][,zone][,gpu]        one row per wave: hours after the weather was set, VMs
    that go (1)

Hours count on the emulated clock. An empty zone or GPU fits any. `#` starts a comment line.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Collection
from dataclasses import dataclass

from transient_magics import catalog
from transient_magics.catalog.published import HOUR
from transient_magics.errors import DeclarationError, unknown

# The further columns of each form.
_FORMS = {"lifetime_hours": {"zone", "gpu"}, "at_hours": {"count", "zone", "gpu"}}
# Bytes.
_LARGEST = 1_000_000


@dataclass(frozen=True)
class LifetimeRow:
    """The lifetime of one VM, in seconds (None: no end). An empty `zone` or `gpu` fits any."""

    lifetime: float | None
    zone: str
    gpu: str


@dataclass(frozen=True)
class ScheduleRow:
    """A wave of `count` VMs, `at` seconds after the weather was set.

    An empty `zone` or `gpu` fits any.
    """

    at: float
    count: int
    zone: str
    gpu: str


Rows = list[LifetimeRow] | list[ScheduleRow]


def fits(row: LifetimeRow | ScheduleRow, zone: str, gpu: str) -> bool:
    """Return whether a row applies to a VM with this GPU in this zone."""
    return row.zone in ("", zone) and row.gpu in ("", gpu)


def read(name: str, text: str, zones: Collection[str]) -> Rows:
    """Read the rows of a file.

    Parameters
    ----------
    name
        The name of the file, for errors.
    text
        Its contents.
    zones
        The zones that exist.

    Raises
    ------
    DeclarationError
        With the line and the reason.
    """
    if len(text) > _LARGEST:
        raise DeclarationError(f"{name} is larger than {_LARGEST // 1_000_000} MB")
    lines: list[tuple[int, str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            lines.append((number, line))
    if len(lines) < 2:
        fix = "Write a header, such as lifetime_hours, and a row per VM."
        raise DeclarationError(f"{name} has no rows", fix=fix)
    header = _cells(name, *lines[0])
    form = _form(name, lines[0][0], header)
    lifetimes: list[LifetimeRow] = []
    schedule: list[ScheduleRow] = []
    for number, line in lines[1:]:
        cells = _cells(name, number, line)
        if len(cells) != len(header):
            why = f"the row has {len(cells)} values for {len(header)} columns"
            raise _invalid(name, number, why)
        row = dict(zip(header, cells, strict=True))
        zone = row.get("zone", "")
        gpu = row.get("gpu", "")
        at = f"{name}, line {number}"
        if zone and zone not in zones:
            raise unknown("zone", zone, zones, at=at)
        if gpu and gpu not in catalog.ACCELERATORS:
            raise unknown("GPU", gpu, catalog.ACCELERATORS, at=at)
        if form == "at_hours":
            count = _number(name, number, "count", row.get("count") or "1")
            if count != int(count) or count < 1:
                why = f"count must be a whole number of at least 1, not '{row['count']}'"
                raise _invalid(name, number, why)
            seconds = _number(name, number, form, row[form]) * HOUR
            schedule.append(ScheduleRow(seconds, int(count), zone, gpu))
        else:
            lifetime = None
            if row[form]:
                lifetime = _number(name, number, form, row[form]) * HOUR
            lifetimes.append(LifetimeRow(lifetime, zone, gpu))
    # A file has one form, so one of them is empty.
    return schedule or lifetimes


def _form(name: str, number: int, header: list[str]) -> str:
    """Return the form of the file with this header. Raises DeclarationError."""
    forms = [form for form in _FORMS if form in header]
    if not forms:
        why = f"one column must be {' or '.join(_FORMS)}, but the columns are {', '.join(header)}"
        raise _invalid(name, number, why)
    form = forms[0]
    columns = {form, *_FORMS[form]}
    for column in header:
        if column not in columns:
            at = f"{name}, line {number}"
            raise unknown(f"column of a file with {form}", column, columns, at=at)
    if len(set(header)) != len(header):
        raise _invalid(name, number, "duplicate column")
    return form


def _cells(name: str, number: int, line: str) -> list[str]:
    """Return the cells of a line, in lower case. Raises DeclarationError."""
    try:
        cells = next(csv.reader([line], strict=True))
    except csv.Error as error:
        raise _invalid(name, number, str(error)) from None
    return [cell.strip().lower() for cell in cells]


def _number(name: str, number: int, column: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    # NaN fails this comparison, too.
    if not 0 <= value < math.inf:
        why = f"{column} must be a number of at least 0, not '{text}'"
        raise _invalid(name, number, why)
    return value


def _invalid(name: str, line: int, why: str) -> DeclarationError:
    return DeclarationError(f"{name}, line {line}: {why}")
