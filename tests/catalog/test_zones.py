"""Zones: which have which GPU, and in which order they are offered."""

from __future__ import annotations

import re

import pytest

from transient_magics.catalog import (
    ACCELERATORS,
    ZONES,
    continent,
    default_zone,
    has_gpu,
    region,
    worker_price,
    zones_with,
)

from .published import GPU_OF, published


@pytest.mark.parametrize("gpu", ACCELERATORS)
def test_a_gpus_zones_are_known_and_differ(gpu: str) -> None:
    zones = zones_with(gpu)
    assert len(set(zones)) == len(zones) > 0
    assert set(zones) <= set(ZONES)
    assert all(has_gpu(zone, gpu) for zone in zones)


def test_zones_are_well_formed_and_lie_on_a_continent() -> None:
    assert list(ZONES) == sorted(ZONES)
    for zone in ZONES:
        assert re.fullmatch(r"[a-z]+-[a-z]+\d+-[a-z]", zone)
        assert continent(zone) == continent(region(zone)) != ""
    assert region("us-west1-b") == "us-west1" == region("us-west1")
    assert continent("northamerica-northeast1") == continent("us-east1") == "North America"
    assert continent("europe-west4") == "Europe"


@pytest.mark.parametrize("gpu", [gpu for gpu in ACCELERATORS if gpu not in ("k80", "cpu")])
def test_the_default_continent_comes_first_and_within_it_the_lowest_spot_price(gpu: str) -> None:
    zones = [zone for zone in zones_with(gpu) if has_gpu(zone, "cpu")]
    order = [(continent(zone) != "North America", worker_price(gpu, zone).transient, zone) for zone in zones]
    at_home = [each for each in order if not each[0]]
    assert at_home == sorted(at_home)
    assert order[: len(at_home)] == at_home


def test_zones_without_machines_for_parameter_servers_come_last_on_their_continent() -> None:
    assert zones_with("a100-80gb")[3:5] == ("us-east5-a", "us-east5-b")
    assert not has_gpu("us-east5-a", "cpu")


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        (["k80"], "us-west1-b"),
        (["cpu"], "us-central1-a"),
        (["k80", "p100"], "us-west1-b"),
        (["p100"], "us-central1-c"),
        (["v100"], "us-central1-a"),
        (["p4", "a100"], "us-central1-a"),
        (["cpu", "h100"], "us-central1-a"),
        (["h100", "p4"], "us-east4-a"),
    ],
)
def test_default_zones(gpus: list[str], expected: str) -> None:
    assert default_zone(gpus) == expected
    assert all(has_gpu(expected, gpu) for gpu in gpus)


def test_without_a_common_zone_the_first_gpu_decides() -> None:
    assert default_zone(["k80", "a100-80gb", "h100", "l4", "p4"]) in zones_with("k80")


def test_no_gpu_is_on_another_continent_by_default() -> None:
    assert {continent(default_zone([gpu])) for gpu in ACCELERATORS} == {"North America"}


def test_the_zones_agree_with_the_published_ones() -> None:
    compared = set()
    for row in published("prices/gcp_prices.csv"):
        gpu = GPU_OF.get(row["resource"], "")
        if gpu and row["as_of"] == ("2022" if gpu == "k80" else "2026"):
            assert set(row["zones"].split()) <= set(zones_with(gpu)), row
            compared.add(gpu)
    assert compared == set(GPU_OF.values())
