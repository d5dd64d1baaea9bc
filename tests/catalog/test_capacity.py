"""Spot capacity like Google's of October 2025: zones have the shares of time and the spells that were published."""

from __future__ import annotations

import random
from itertools import groupby

import pytest

from transient_magics.catalog import has_gpu
from transient_magics.catalog.traces import ROUND, Trace, drawn, numbers_while_any, read_traces, table, to_csv

SHARES = {
    "asia-south2-b": (1.00, 1.00), "us-central1-a": (0.98, 0.86), "us-central1-c": (0.94, 0.64),
    "europe-west1-c": (0.88, 0.01), "us-east4-b": (0.87, 0.27), "us-east4-a": (0.86, 0.59),
    "asia-southeast1-c": (0.55, 0.49), "europe-west3-c": (0.48, 0.0), "us-west1-b": (0.24, 0.09),
}  # fmt: skip
"""By zone, the published shares of rounds with at least one VM, and with all sixteen."""
SPELLS = {"us-west1-b": 0.56, "us-east4-a": 2.1, "us-central1-c": 3.7, "us-central1-a": 11.2}
"""Published mean hours of a spell with at least one VM."""


def numbers(trace: Trace) -> list[int]:
    return [trace.at(moment) for moment in range(0, int(trace.end), int(ROUND))]


def test_zones_have_vms_as_often_and_for_as_long_as_was_published() -> None:
    traces = {trace.zone: trace for trace in drawn(1, 140)}
    assert set(traces) == set(SHARES)
    for zone, (some, all_) in SHARES.items():
        counted = numbers(traces[zone])
        assert sum(number > 0 for number in counted) / len(counted) == pytest.approx(some, abs=0.06), zone
        assert sum(number == 16 for number in counted) / len(counted) == pytest.approx(all_, abs=0.06), zone
    for zone, hours in SPELLS.items():
        spells = [len(list(spell)) for there, spell in groupby(number > 0 for number in numbers(traces[zone])) if there]
        assert sum(spells) / len(spells) * ROUND / 3600 == pytest.approx(hours, rel=0.35), zone


def test_how_many_there_are_while_there_are_any_is_as_in_the_zones() -> None:
    rounds = [place % 50 < 40 for place in range(1000)]
    drawn_ = [numbers_while_any(rounds, random.Random(seed)) for seed in range(90)]
    counted = [number for numbers in drawn_ for number, any_ in zip(numbers, rounds, strict=True) if any_]
    assert all((number > 0) == any_ for numbers in drawn_ for number, any_ in zip(numbers, rounds, strict=True))
    all_ = sum(share / some for some, share in SHARES.values()) / len(SHARES)
    assert sum(number == 16 for number in counted) / len(counted) == pytest.approx(all_, abs=0.1)


def test_a_seed_draws_the_same_traces_in_zones_that_have_the_gpu_and_the_table_names_its_source() -> None:
    assert drawn(3) == drawn(3) != drawn(4)
    assert read_traces(to_csv(drawn()), "drawn") == drawn()
    assert all(has_gpu(trace.zone, "h100") for trace in drawn())
    head = table().read_text(encoding="utf-8").partition("zone,")[0]
    for said in ("skynomad-artifact", "Apache-2.0", "October 2025"):
        assert said in head
