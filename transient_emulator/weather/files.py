"""Revocations from a CSV file, in one of two forms that its header tells apart.

    lifetime_hours[,zone][,gpu]          one row per VM, in the order of their inserts; an empty lifetime: for ever
    at_hours[,count][,zone][,gpu]        one row per wave: when, after the weather was set, how many VMs go (1)

Hours count on the emulated clock. An empty zone or gpu fits any; `#` begins a comment line.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Collection
from dataclasses import dataclass

from transient_magics import catalog
from transient_magics.catalog.published import HOUR
from transient_magics.errors import DeclarationError, unknown

_FORMS = {"lifetime_hours": {"zone", "gpu"}, "at_hours": {"count", "zone", "gpu"}}
_LARGEST = 1_000_000


@dataclass(frozen=True)
class LifetimeRow:
    """How long one VM lives, in seconds (None: for ever)."""

    lifetime: float | None
    zone: str
    gpu: str


@dataclass(frozen=True)
class ScheduleRow:
    """`count` VMs go at `at` seconds after the weather was set."""

    at: float
    count: int
    zone: str
    gpu: str


Rows = list[LifetimeRow] | list[ScheduleRow]


def fits(row: LifetimeRow | ScheduleRow, zone: str, gpu: str) -> bool:
    """Whether a VM with this GPU in this zone is one that the row means."""
    return row.zone in ("", zone) and row.gpu in ("", gpu)


def read(name: str, text: str, zones: Collection[str]) -> Rows:
    """The rows of a file. Raises DeclarationError with the line and the reason."""
    if len(text) > _LARGEST:
        raise DeclarationError(f"{name} is larger than {_LARGEST // 1_000_000} MB")
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip() and line[0] != "#"]
    if len(lines) < 2:
        raise DeclarationError(f"{name} has no rows", fix="It needs a header, as lifetime_hours, and a row per VM.")
    first, header = lines[0][0], [cell.strip().lower() for cell in _cells(name, *lines[0])]
    form = next((form for form in _FORMS if form in header), "")
    if not form:
        raise _wrong(name, first, f"one column must be {' or '.join(_FORMS)}, and there are {', '.join(header)}")
    for column in header:
        if column != form and column not in _FORMS[form]:
            at = f"{name}, line {first}"
            raise unknown(f"column of a file with {form}", column, {form, *_FORMS[form]}, at=at)
    if len(set(header)) != len(header):
        raise _wrong(name, first, "a column stands there twice")
    lifetimes: list[LifetimeRow] = []
    schedule: list[ScheduleRow] = []
    for number, line in lines[1:]:
        cells = [cell.strip().lower() for cell in _cells(name, number, line)]
        if len(cells) != len(header):
            raise _wrong(name, number, f"{len(cells)} values under {len(header)} columns")
        row = dict(zip(header, cells, strict=True))
        zone, gpu = row.get("zone", ""), row.get("gpu", "")
        if zone and zone not in zones:
            raise unknown("zone", zone, zones, at=f"{name}, line {number}")
        if gpu and gpu not in catalog.ACCELERATORS:
            raise unknown("GPU", gpu, catalog.ACCELERATORS, at=f"{name}, line {number}")
        if form == "at_hours":
            count = _number(name, number, "count", row.get("count") or "1")
            if count != int(count) or count < 1:
                raise _wrong(name, number, f"count must be a whole number from 1 on, not '{row['count']}'")
            schedule.append(ScheduleRow(_number(name, number, form, row[form]) * HOUR, int(count), zone, gpu))
        else:
            lifetime = _number(name, number, form, row[form]) * HOUR if row[form] else None
            lifetimes.append(LifetimeRow(lifetime, zone, gpu))
    return schedule or lifetimes


def _cells(name: str, number: int, line: str) -> list[str]:
    try:
        return next(csv.reader([line], strict=True))
    except csv.Error as error:
        raise _wrong(name, number, str(error)) from None


def _number(name: str, number: int, column: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise _wrong(name, number, f"{column} must be a number from 0 on, not '{text}'")
    return value


def _wrong(name: str, line: int, why: str) -> DeclarationError:
    return DeclarationError(f"{name}, line {line}: {why}")
