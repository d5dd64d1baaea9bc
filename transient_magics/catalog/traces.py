"""Measured availability: how many Spot VMs of a kind a zone would have given at each moment.

A CSV file holds one or more traces, a row each time a number changes:

    zone,gpu,gpus_per_vm,seconds,available

`seconds` count from a trace's start, which is 0; its last row has no number and says where it ends.
Rows of one trace (zone, gpu, gpus_per_vm) stand together, in the order of time. Whoever measured
saw one zone of one cloud in one year: a trace tells what such a market looks like, and forecasts
none.

The package has a table of Spot capacity that was measured. It (`google-h100-2025.csv`, which names
its source) has transitions of a Markov chain on the number of VMs, in levels, by zone. Drawn from
it, traces have the shares of time and the mean spells of the counts that were published; they are
examples of such a market, and no forecast of a zone.
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
_GAP = 3.0  # times as long as usual between two looks: what was between is not known
_MOST = 1_000_000  # VMs at a time, and rows of a file
_Row = tuple[int, dict[str, str]]


@dataclass(frozen=True, slots=True)
class Trace:
    """What one zone had of one kind of VM: `numbers[i]` of them from `seconds[i]` on, until `end`."""

    zone: str
    gpu: str
    gpus_per_vm: int
    seconds: tuple[float, ...]
    numbers: tuple[int, ...]
    end: float

    @property
    def name(self) -> str:
        """`us-west-2a:k80x8`: distinct within a file."""
        return f"{self.zone}:{self.gpu}x{self.gpus_per_vm}"

    def at(self, second: float) -> int:
        """How many there are at that second; after its end a trace begins again."""
        return self.numbers[bisect_right(self.seconds, second % self.end) - 1]

    def changes(self, second: float) -> float:
        """The next moment after that second at which a row says something, or at which it begins
        again.
        """
        rounds, within = divmod(second, self.end)
        place = bisect_right(self.seconds, within)
        return rounds * self.end + (self.seconds[place] if place < len(self.seconds) else self.end)

    def to_csv(self) -> str:
        """The text of a file with this trace alone."""
        kind = f"{self.zone},{self.gpu},{self.gpus_per_vm}"
        rows = [
            f"{kind},{at!r},{number}" for at, number in zip(self.seconds, self.numbers, strict=True)
        ]
        return "\n".join([",".join(COLUMNS), *rows, f"{kind},{self.end!r},", ""])


def sampled(zone: str, gpu: str, seen: Sequence[tuple[float, int]], every: float) -> Trace | None:
    """What was seen of a zone as a trace: `seen` has moments (seconds) and how many VMs it gave
    then, in order.

    A number holds until the next look, the last one for `every` seconds. Where nobody looked for
    far longer than that nothing is known: of the stretches between such gaps the longest counts.
    None where there is no look at all.
    """
    stretches: list[list[tuple[float, int]]] = []
    for at, number in seen:
        if not stretches or at - stretches[-1][-1][0] > _GAP * every:
            stretches.append([])
        stretches[-1].append((at, number))
    if not stretches:
        return None
    longest = max(stretches, key=lambda each: each[-1][0] - each[0][0])
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
    """The text of a file with these traces."""
    heads, bodies = zip(*(trace.to_csv().split("\n", 1) for trace in traces), strict=True)
    return "\n".join([heads[0], "".join(bodies)])


def read_traces(text: str, name: str) -> tuple[Trace, ...]:
    """The traces of a file in their order. Raises DeclarationError, which names the file, the row
    and what is wrong.
    """
    table = csv.DictReader(text.splitlines())
    columns = tuple(table.fieldnames or ())
    if wrong := [column for column in columns if column not in COLUMNS]:
        raise _wrong(name, f"unknown column '{wrong[0]}'")
    if missing := [column for column in COLUMNS if column not in columns]:
        raise _wrong(name, f"no column '{missing[0]}'")
    rows: list[_Row] = []
    for number, row in enumerate(table, 2):
        if any(key is None or value is None for key, value in row.items()):  # pyright: ignore[reportUnnecessaryComparison]
            raise _wrong(name, f"row {number} does not have {len(COLUMNS)} values")
        rows.append((number, {key: value.strip() for key, value in row.items()}))
        if len(rows) > _MOST:
            raise _wrong(name, f"more than {_MOST:,} rows")
    found = tuple(
        _trace(name, list(part)) for _, part in groupby(rows, key=lambda row: _kind(row[1]))
    )
    if not found:
        raise _wrong(name, "no rows")
    names = [trace.name for trace in found]
    if twice := [each for each in names if names.count(each) > 1]:
        raise _wrong(name, f"the rows of {twice[0]} do not stand together")
    return found


def _kind(row: dict[str, str]) -> tuple[str, ...]:
    return row["zone"], row["gpu"].lower(), row["gpus_per_vm"]


def _trace(name: str, rows: list[_Row]) -> Trace:
    zone, gpu, gpus = _kind(rows[0][1])
    at = list(_seconds(name, rows))
    if not zone or not gpu:
        raise _wrong(name, f"row {rows[0][0]} names no zone or no GPU")
    per_vm = _count(name, rows[0][0], "gpus_per_vm", gpus)
    if at[0] != 0:
        raise _wrong(name, f"row {rows[0][0]}: the trace of {zone} begins at {at[0]:g} s, not at 0")
    for (number, _), (before, after) in zip(rows[1:], pairwise(at), strict=True):
        if after <= before:
            raise _wrong(name, f"row {number}: {after:g} s does not come after {before:g} s")
    if rows[-1][1]["available"] or len(rows) < 2:
        raise _wrong(name, f"the trace of {zone} has no end", "Its last row has an empty number.")
    if gaps := [number for number, row in rows[:-1] if not row["available"]]:
        raise _wrong(
            name,
            f"row {gaps[0]}: a gap in the trace of {zone}",
            "Only its last row has an empty number.",
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
                name, f"row {number}: seconds must be a number from 0 on, not '{row['seconds']}'"
            )
        yield seconds


def _count(name: str, number: int, column: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 8 and int(text) <= _MOST):
        raise _wrong(name, f"row {number}: {column} must be a whole number, not '{text}'")
    return int(text)


def _wrong(name: str, what: str, fix: str = "") -> DeclarationError:
    return DeclarationError(f"{name}: {what}", fix=fix or f"Columns: {', '.join(COLUMNS)}.")


GOOGLE_H100_2025 = "google-h100-2025"
"""The name by which weathers and plans have it."""
LEVELS = (0, 2, 5, 10, 14, 16)
"""Numbers of VMs that the table tells apart; 16 were requested."""
REQUESTED = LEVELS[-1]
ROUND = 600.0
"""Seconds between two counts."""
DAYS = 14
_Chain = Mapping[int, tuple[tuple[int, ...], tuple[int, ...]]]


def table() -> Path:
    """The file in the package."""
    return Path(
        str(resources.files("transient_magics.catalog").joinpath(f"{GOOGLE_H100_2025}.csv"))
    )


def drawn(seed: int = 0, days: float = DAYS) -> tuple[Trace, ...]:
    """A trace of each zone, in the order of the table."""
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
    """Draw how many of 16 requested VMs there are in each of these rounds, which say whether there
    are any.

    They change like in one of the table's zones while it had any, each zone being as likely as
    another.
    """
    chain = chance.choice(_while_any())
    found: list[int] = []
    number = 0
    for any_ in rounds:
        if any_:
            number = chance.choices(*chain[number])[0]
        else:
            number = 0
        found.append(number)
    return found


@cache
def _while_any() -> tuple[_Chain, ...]:
    """The zones' chains without their ways to no VM."""
    return tuple({vms: _some(*ways) for vms, ways in chain.items()} for chain in _chains().values())


def _some(
    thens: tuple[int, ...], rounds: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    ways = [(then, count) for then, count in zip(thens, rounds, strict=True) if then]
    return tuple(then for then, _ in ways), tuple(count for _, count in ways)


@cache
def _chains() -> dict[str, _Chain]:
    """By zone, to which numbers each number changes, and how often."""
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
