"""Measured availability: the number of available Spot VMs of a kind in a zone over time.

A CSV file holds one or more traces, with a row for each change of the number:

    zone,gpu,gpus_per_vm,seconds,available

`seconds` count from the trace's start, which is 0; the last row has no number and marks the end.
Rows of one trace (zone, gpu, gpus_per_vm) are consecutive and ordered by time. A trace comes from
one zone of one cloud in one year: it is an example of such a market, and forecasts none.

The package contains a table of measured Spot capacity. It (`google-h100-2025.csv`, which names its
source) has, by zone, the transitions of a Markov chain on the number of VMs, in levels. Traces
drawn from it have the published shares of time and mean spells of the counts; they too are examples
and no forecasts.
"""

from __future__ import annotations

import csv
import math
import random
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import groupby, pairwise
from pathlib import Path

from ..errors import DeclarationError

COLUMNS = ("zone", "gpu", "gpus_per_vm", "seconds", "available")
_GAP = 3.0  # usual intervals between two observations from which on the time between is unknown
_MOST = 1_000_000  # VMs simultaneously, and rows of a file
_Row = tuple[int, dict[str, str]]


@dataclass(frozen=True, slots=True)
class Trace:
    """The VMs of one kind in one zone: `numbers[i]` from `seconds[i]` on, until `end`."""

    zone: str
    gpu: str
    gpus_per_vm: int
    seconds: tuple[float, ...]
    numbers: tuple[int, ...]
    end: float

    @property
    def name(self) -> str:
        """A name that is unique within a file: `us-west-2a:k80x8`."""
        return f"{self.zone}:{self.gpu}x{self.gpus_per_vm}"

    def at(self, second: float) -> int:
        """Return the number of VMs at a second; after its end a trace begins again."""
        return self.numbers[bisect_right(self.seconds, second % self.end) - 1]

    def changes(self, second: float) -> float:
        """Return the next second with a new row, or at which the trace begins again."""
        rounds, within = divmod(second, self.end)
        place = bisect_right(self.seconds, within)
        if place < len(self.seconds):
            return rounds * self.end + self.seconds[place]
        return rounds * self.end + self.end

    def to_csv(self) -> str:
        """Return the text of a file with only this trace."""
        kind = f"{self.zone},{self.gpu},{self.gpus_per_vm}"
        rows = [
            f"{kind},{at!r},{number}" for at, number in zip(self.seconds, self.numbers, strict=True)
        ]
        return "\n".join([",".join(COLUMNS), *rows, f"{kind},{self.end!r},", ""])


def sampled(zone: str, gpu: str, seen: Sequence[tuple[float, int]], every: float) -> Trace | None:
    """Return the observations of a zone as a trace; None without observations.

    `seen` has moments (seconds) and numbers of VMs, in order. A number holds until the next
    observation, the last one for `every` seconds. A far longer gap is unknown: the longest of the
    stretches between such gaps counts.
    """
    stretches: list[list[tuple[float, int]]] = []
    for at, number in seen:
        if not stretches or at - stretches[-1][-1][0] > _GAP * every:
            stretches.append([])
        stretches[-1].append((at, number))
    if not stretches:
        return None
    longest = max(stretches, key=lambda stretch: stretch[-1][0] - stretch[0][0])
    begin = longest[0][0]
    changes = [
        longest[0],
        *(later for earlier, later in pairwise(longest) if later[1] != earlier[1]),
    ]
    seconds = tuple(round(at - begin, 3) for at, _ in changes)
    return Trace(
        zone,
        gpu,
        1,
        seconds,
        tuple(number for _, number in changes),
        round(longest[-1][0] - begin + every, 3),
    )


def to_csv(traces: Sequence[Trace]) -> str:
    """Return the text of a file with these traces."""
    heads, bodies = zip(*(trace.to_csv().split("\n", 1) for trace in traces), strict=True)
    return "\n".join([heads[0], "".join(bodies)])


def read_traces(text: str, name: str) -> tuple[Trace, ...]:
    """Return the traces of a file in order.

    Raises DeclarationError that names the file, the row and the mistake.
    """
    table = csv.DictReader(text.splitlines())
    columns = tuple(table.fieldnames or ())
    if wrong := [column for column in columns if column not in COLUMNS]:
        raise _wrong(name, f"unknown column '{wrong[0]}'")
    if missing := [column for column in COLUMNS if column not in columns]:
        raise _wrong(name, f"the column '{missing[0]}' is missing")
    rows: list[_Row] = []
    for number, row in enumerate(table, 2):
        if any(key is None or value is None for key, value in row.items()):  # pyright: ignore[reportUnnecessaryComparison]
            raise _wrong(name, f"row {number} does not have {len(COLUMNS)} values")
        rows.append((number, {key: value.strip() for key, value in row.items()}))
        if len(rows) > _MOST:
            raise _wrong(name, f"the file has more than {_MOST:,} rows")
    found = tuple(
        _trace(name, list(part)) for _, part in groupby(rows, key=lambda row: _kind(row[1]))
    )
    if not found:
        raise _wrong(name, "the file has no rows")
    names = [trace.name for trace in found]
    if twice := [trace_name for trace_name in names if names.count(trace_name) > 1]:
        raise _wrong(name, f"the rows of {twice[0]} are not consecutive")
    return found


def _kind(row: dict[str, str]) -> tuple[str, ...]:
    return row["zone"], row["gpu"].lower(), row["gpus_per_vm"]


def _trace(name: str, rows: list[_Row]) -> Trace:
    zone, gpu, gpus = _kind(rows[0][1])
    at = list(_seconds(name, rows))
    if not zone or not gpu:
        raise _wrong(name, f"row {rows[0][0]} has no zone or no GPU")
    per_vm = _count(name, rows[0][0], "gpus_per_vm", gpus)
    if at[0] != 0:
        raise _wrong(
            name, f"row {rows[0][0]}: the trace of {zone} must begin at 0 s, not at {at[0]:g} s"
        )
    for (number, _), (before, after) in zip(rows[1:], pairwise(at), strict=True):
        if after <= before:
            raise _wrong(
                name, f"row {number}: seconds must increase, but {after:g} follows {before:g}"
            )
    if rows[-1][1]["available"] or len(rows) < 2:
        raise _wrong(
            name, f"the trace of {zone} has no end", "Leave the number of its last row empty."
        )
    if gaps := [number for number, row in rows[:-1] if not row["available"]]:
        raise _wrong(
            name,
            f"row {gaps[0]}: the trace of {zone} has an empty number before its end",
            "Leave only the number of its last row empty.",
        )
    numbers = tuple(
        _count(name, number, "available", row["available"]) for number, row in rows[:-1]
    )
    return Trace(zone, gpu, per_vm, tuple(at[:-1]), numbers, at[-1])


def _seconds(name: str, rows: list[_Row]) -> Iterator[float]:
    for number, row in rows:
        try:
            seconds = float(row["seconds"])
        except ValueError:
            seconds = math.nan
        if not 0 <= seconds < math.inf:
            raise _wrong(
                name,
                f"row {number}: seconds must be a number of at least 0, not '{row['seconds']}'",
            )
        yield seconds


def _count(name: str, number: int, column: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 8 and int(text) <= _MOST):
        raise _wrong(name, f"row {number}: {column} must be a whole number, not '{text}'")
    return int(text)


def _wrong(name: str, what: str, fix: str = "") -> DeclarationError:
    return DeclarationError(f"{name}: {what}", fix=fix or f"Its columns are: {', '.join(COLUMNS)}.")


GOOGLE_H100_2025 = "google-h100-2025"
"""Its name in weathers and plans."""
LEVELS = (0, 2, 5, 10, 14, 16)
"""The numbers of VMs that the table distinguishes; 16 were requested."""
REQUESTED = LEVELS[-1]
ROUND = 600.0
"""Seconds between two counts."""
DAYS = 14
_Chain = Mapping[int, tuple[tuple[int, ...], tuple[int, ...]]]


def table() -> Path:
    """Return the file in the package."""
    return Path(
        str(resources.files("transient_magics.catalog").joinpath(f"{GOOGLE_H100_2025}.csv"))
    )


def drawn(seed: int = 0, days: float = DAYS) -> tuple[Trace, ...]:
    """Draw a trace of each zone, in the order of the table."""
    return tuple(
        _drawn(zone, chain, random.Random(f"{seed} {zone}"), days)
        for zone, chain in _chains().items()
    )


def _drawn(zone: str, chain: _Chain, chance: random.Random, days: float) -> Trace:
    levels = list(chain)
    number = chance.choices(levels, [sum(chain[level][1]) for level in levels])[0]
    seconds: list[float] = []
    numbers: list[int] = []
    for count in range(round(days * 86400 / ROUND)):
        if not numbers or number != numbers[-1]:
            seconds.append(count * ROUND)
            numbers.append(number)
        number = chance.choices(*chain[number])[0]
    return Trace(zone, "h100", 1, tuple(seconds), tuple(numbers), days * 86400.0)


def numbers_while_any(rounds: Sequence[bool], chance: random.Random) -> list[int]:
    """Draw the number of available VMs (of 16 requested) in each round.

    `rounds` tells whether there are any. Numbers change as in one of the table's zones while it had
    VMs; all zones are equally likely.
    """
    chain = chance.choice(_while_any())
    found: list[int] = []
    number = 0
    for any_ in rounds:
        number = chance.choices(*chain[number])[0] if any_ else 0
        found.append(number)
    return found


@cache
def _while_any() -> tuple[_Chain, ...]:
    """Return the zones' chains without their ways to no VM."""
    return tuple({vms: _some(*ways) for vms, ways in chain.items()} for chain in _chains().values())


def _some(
    thens: tuple[int, ...], rounds: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    ways = [(then, count) for then, count in zip(thens, rounds, strict=True) if then]
    return tuple(then for then, _ in ways), tuple(count for _, count in ways)


@cache
def _chains() -> dict[str, _Chain]:
    """Return the transitions by zone: the next numbers after each number, with their frequency."""
    found: dict[str, dict[int, list[tuple[int, int]]]] = {}
    for row in _rows():
        found.setdefault(row["zone"], {}).setdefault(int(row["vms"]), []).append(
            (int(row["then"]), int(row["rounds"]))
        )
    return {
        zone: {
            vms: (tuple(then for then, _ in ways), tuple(rounds for _, rounds in ways))
            for vms, ways in chain.items()
        }
        for zone, chain in found.items()
    }


def _rows() -> Iterator[dict[str, str]]:
    lines = table().read_text(encoding="utf-8").splitlines()
    return csv.DictReader(line for line in lines if not line.startswith("#"))
