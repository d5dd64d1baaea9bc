"""Spot capacity as it was measured, as a table in the package: zones whose number of VMs changes like it did there.

The table (`google-h100-2025.csv`, which names its source) has transitions of a Markov chain on the number of VMs, in
levels, by zone. Drawn from it, traces have the shares of time and the mean spells of the counts that were published;
they are examples of such a market, and no forecast of a zone.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path

from .traces import Trace

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
    return Path(str(resources.files("transient_magics.catalog").joinpath(f"{GOOGLE_H100_2025}.csv")))


def drawn(seed: int = 0, days: float = DAYS) -> tuple[Trace, ...]:
    """A trace of each zone, in the order of the table."""
    return tuple(_drawn(zone, chain, random.Random(f"{seed} {zone}"), days) for zone, chain in _chains().items())


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
    """Draw how many of 16 requested VMs there are in each of these rounds, which say whether there are any.

    They change like in one of the table's zones while it had any, each zone being as likely as another.
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
    """The zones' chains without their ways to no VM."""
    return tuple({vms: _some(*ways) for vms, ways in chain.items()} for chain in _chains().values())


def _some(thens: tuple[int, ...], rounds: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    ways = [(then, count) for then, count in zip(thens, rounds, strict=True) if then]
    return tuple(then for then, _ in ways), tuple(count for _, count in ways)


@cache
def _chains() -> dict[str, _Chain]:
    """By zone, to which numbers each number changes, and how often."""
    found: dict[str, dict[int, list[tuple[int, int]]]] = {}
    for row in _rows():
        found.setdefault(row["zone"], {}).setdefault(int(row["vms"]), []).append((int(row["then"]), int(row["rounds"])))
    return {
        zone: {
            vms: (tuple(then for then, _ in ways), tuple(rounds for _, rounds in ways)) for vms, ways in chain.items()
        }
        for zone, chain in found.items()
    }


def _rows() -> Iterator[dict[str, str]]:
    lines = table().read_text(encoding="utf-8").splitlines()
    return csv.DictReader(line for line in lines if not line.startswith("#"))
