"""Prices: dated, sourced, sane; ICAC'19's as published; the nearest region's where there is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transient_magics.catalog import (
    ACCELERATORS,
    ICAC19,
    SOURCES,
    ZONES,
    continent,
    controller_price,
    item_price,
    nearest,
    parameter_server_price,
    parse_disk,
    price_history,
    price_list,
    price_table,
    region,
    transfer_price,
    with_extras,
    worker_price,
    zones_with,
)
from transient_magics.errors import DeclarationError

from .published import GPU_OF, published

LISTED = "~2026-09-01"
"""The date that SkyPilot's catalog v9 has here."""


def test_every_row_is_dated_sourced_and_positive() -> None:
    rows = price_table()
    assert len({(row.item, row.region, row.as_of) for row in rows}) == len(rows)
    for row in rows:
        assert row.source in SOURCES
        assert 2018 <= int(row.as_of.removeprefix("~")[:4]) <= 2026
        prices = [price for price in (row.on_demand, row.transient) if price is not None]
        assert prices
        assert all(price > 0 for price in prices), row
        assert prices == sorted(prices, reverse=True), row


@pytest.mark.parametrize("gpu", ACCELERATORS)
def test_spot_is_cheaper_than_on_demand_everywhere(gpu: str) -> None:
    for zone in zones_with(gpu):
        price = worker_price(gpu, zone)
        assert 0 < price.transient < price.on_demand
        assert region(zone) in price.source
        assert price.transient_as_of in (("2022",) if gpu == "k80" else (LISTED, "2026-09-26", "~2026-09-26"))


def test_icac19_is_as_published() -> None:
    lines = price_list(["k80"])
    assert lines == ICAC19
    assert lines.source == "ICAC'19 prices (2019)"
    # The paper's table (S. Li et al., "Speeding up Deep Learning with Transient Servers", ICAC 2019).
    for gpu, prices in {"k80": (0.723, 0.256), "p100": (1.43, 0.551), "v100": (2.144, 0.861)}.items():
        assert lines.worker(gpu) == prices
    server = lines.parameter_server_price(4)
    assert (server.on_demand, server.transient) == (0.143, 0.041)


def test_the_controllers_machine_has_a_price_in_every_region_and_it_is_small() -> None:
    assert controller_price("us-central1-a").on_demand == pytest.approx(0.01675, abs=1e-5)
    for place in dict.fromkeys(map(region, ZONES)):
        price = controller_price(place)
        assert 0.01 < price.on_demand < 0.03
        assert f"list prices of {place}, " in price.source
    whole = with_extras(controller_price("us-west1-b"), "us-west1-b", gb=20)
    assert price_list(["k80"]).controller_price("us-west1-b") == whole


def test_a_cluster_with_a_k80_is_reckoned_by_icac19_wherever_it_runs() -> None:
    lines = price_list(["p100", "k80"], "asia-east1-a")
    assert lines.worker("k80") == (0.723, 0.256)
    assert lines.worker("p100", "asia-east1-a") == (1.43, 0.551)
    assert lines.parameter_server(8) == pytest.approx(0.286)
    assert lines.worker("t4", "us-central1-a") == price_list(["t4"], "us-central1-a").worker("t4")


def test_a_list_answers_for_its_zone_and_for_others() -> None:
    lines = price_list(["v100"], "us-central1-a")
    assert lines.worker("v100") == pytest.approx((2.48 + 0.38 + 0.01185, 1.2338 + 0.12765 + 0.00935), abs=1e-4)
    assert lines.worker("v100", "asia-east1-c")[1] < lines.worker("v100")[1] / 2
    # Google's list has 0.033174 and 0.004446 for the vCPUs and GB of custom N1 machines there.
    assert lines.parameter_server(4) == pytest.approx(4 * 0.033174 + 16 * 0.004446 + 0.01185, rel=1e-3)
    assert lines.source == f"list prices of us-central1, {LISTED}"
    assert price_list([]).worker("v100") == lines.worker("v100")


def test_a_vm_is_paid_for_with_its_disk_and_its_external_address() -> None:
    """As of Google's price lists: 50 GB of pd-balanced for $0.10 per GiB and month, $0.005 or $0.0025 per hour."""
    month = 730
    bare = worker_price("t4", "us-central1-a")
    for external_ip, standard, spot in ((True, 0.005, 0.0025), (False, 0.0, 0.0)):
        whole = price_list(["t4"], "us-central1-a", external_ip=external_ip).worker_price("t4")
        assert whole.on_demand * month == pytest.approx(bare.on_demand * month + 50 * 0.10 + standard * month)
        assert whole.transient * month == pytest.approx(bare.transient * month + 50 * 0.10 + spot * month)
        assert whole.transient_extras == pytest.approx(whole.transient - bare.transient)
    far = price_list(["t4"], "southamerica-east1-a")
    assert (far.controller_price().on_demand_extras - 0.005) * month == pytest.approx(20 * 0.15)
    assert not ICAC19.worker_price("k80").transient_extras, "as published"
    for place in dict.fromkeys(map(region, ZONES)):
        assert 0.04 <= item_price("pd-balanced", place)[0] <= 0.2


def test_another_machine_and_another_disk_cost_what_their_parts_do() -> None:
    usual, larger = (
        price_list(["t4"], "us-central1-a", machines=machines).worker_price("t4")
        for machines in ({}, {"t4": "n1-standard-16"})
    )
    vcpu, gb = (item_price(item, "us-central1") for item in ("n1-vcpu", "n1-gb"))
    assert larger.on_demand - usual.on_demand == pytest.approx(12 * vcpu[0] + 45 * gb[0])
    assert larger.transient - usual.transient == pytest.approx(12 * vcpu[1] + 45 * gb[1])
    custom = price_list(["t4"], "us-central1-a", machines={"t4": "n1-custom-16-61440"}).worker_price("t4")
    assert custom.on_demand - larger.on_demand == pytest.approx(0.05 * (16 * vcpu[0] + 60 * gb[0]))
    g2 = [price_list(["l4"], machines={"l4": f"g2-standard-{size}"}).worker("l4", "us-east4-a") for size in (4, 16)]
    assert g2[1][0] - g2[0][0] == pytest.approx(3 * item_price("g2-standard-4", "us-east4")[0])
    ssd = price_list(["t4"], "us-central1-a", disk_gb=200, disk_type="pd-ssd")
    assert ssd.worker_price("t4").transient - usual.transient == pytest.approx((200 * 0.17 - 50 * 0.10) / 730)
    assert ssd.parameter_server_price(4).on_demand_extras == pytest.approx(200 * 0.17 / 730 + 0.005)
    assert ssd.controller_price() == price_list(["t4"], "us-central1-a").controller_price(), "of workers and servers"
    old = price_list(["k80"], machines={"k80": "n1-standard-8"}, disk_gb=100).worker_price("k80", "us-west1-b")
    west = [item_price(item, "us-west1")[1] for item in ("n1-vcpu", "n1-gb")]
    assert old.transient == pytest.approx(0.256 + 4 * west[0] + 15 * west[1] + 100 * 0.10 / 730)
    assert old.source == "ICAC'19 prices (2019), n1-standard-8 by list prices of us-west1, 2022, disks by list prices"


@given(st.integers(20, 65536), st.sampled_from(["balanced", "ssd", "standard"]))
def test_a_disk_is_read_as_it_is_written(gb: int, kind: str) -> None:
    assert parse_disk(f"{gb}GB:{kind}") == parse_disk(f" {gb} gb:pd-{kind} ") == (gb, f"pd-{kind}")
    assert parse_disk(f"{gb}") == (gb, "pd-balanced")


@pytest.mark.parametrize("text", ["", "big", "200GB:fast", "19GB", "65TB", "200 GiB", "-5GB", "200:local-ssd"])
def test_a_disk_that_there_is_not_is_refused(text: str) -> None:
    with pytest.raises(DeclarationError, match=r"\(--disk\)"):
        parse_disk(text)
    assert parse_disk("1TB:ssd") == (1024, "pd-ssd")


def test_a_bundled_machine_is_its_gpu_and_its_own_host() -> None:
    assert worker_price("a100", "us-west4-b").transient == pytest.approx(1.4323 + 0.38454)
    assert worker_price("l4", "us-central1-a").on_demand == pytest.approx(0.56004 + 0.44038 / 3, abs=1e-4)


def test_the_a100_80gb_has_a_price_with_a_source() -> None:
    price = worker_price("a100-80gb", "us-central1-a")
    assert price.on_demand == pytest.approx(3.92808 + 1.09962)
    assert price.source == f"list prices of us-central1 (on demand 2026-09-01, Spot {LISTED})"


@pytest.mark.parametrize(
    ("gpu", "place", "said"),
    [
        ("t4", "us-east5-a", f"list prices of us-east4, the nearest known to us-east5, {LISTED}"),
        ("v100", "europe-west9-a", f"list prices of europe-west4, the nearest known to europe-west9, {LISTED}"),
        ("p100", "southamerica-east1", "the nearest known to southamerica-east1"),
        ("t4", "us-newest7-a", f"list prices of us-central1, the nearest known to us-newest7, {LISTED}"),
        ("h100", "europe-north1-c", f"(on demand {LISTED} of europe-west4, Spot {LISTED})"),
    ],
)
def test_a_region_without_a_price_says_whose_it_takes(gpu: str, place: str, said: str) -> None:
    assert said in worker_price(gpu, place).source


def test_what_has_no_price_at_all_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transient_magics.catalog.prices._newest", lambda *asked: {})
    with pytest.raises(DeclarationError, match="The price of t4 is unknown"):
        worker_price("t4", "us-central1-a")


@given(st.integers(2, 16), st.sampled_from(ZONES))
def test_a_parameter_server_costs_in_proportion_to_its_cores(cores: int, zone: str) -> None:
    two, many = parameter_server_price(2, zone), parameter_server_price(cores, zone)
    assert many.on_demand == pytest.approx(cores / 2 * two.on_demand)
    assert parameter_server_price(1, zone).on_demand < two.on_demand / 2
    assert 0 < many.transient < many.on_demand


def test_the_preemptible_prices_of_the_papers_are_kept() -> None:
    old = {gpu: {row.as_of: row.transient for row in price_history(gpu)} for gpu in ("k80", "p100", "v100")}
    assert {gpu: prices["2019-20"] for gpu, prices in old.items()} == {"k80": 0.135, "p100": 0.43, "v100": 0.74}
    assert old["k80"]["2018-01"] == 0.22
    assert [row.as_of for row in price_history("v100")] == ["2019-20", "2022", LISTED]


@given(st.sampled_from(ZONES), st.sampled_from(ZONES))
def test_traffic_costs_the_same_both_ways_and_more_the_farther(zone: str, other: str) -> None:
    price = transfer_price(zone, other)
    assert price == transfer_price(other, zone)
    assert price.at_least <= price.dollars_per_gib
    if zone == other:
        assert price.dollars_per_gib == 0
    elif region(zone) == region(other):
        assert (price.dollars_per_gib, price.confirmed) == (0.01, True)
    else:
        assert price.dollars_per_gib > 0.01
        assert not price.confirmed
        assert "unconfirmed" in price.source
    if continent(zone) != continent(other):
        assert (price.at_least, price.dollars_per_gib) == (0.05, 0.15)


@given(st.sampled_from(ZONES), st.sets(st.sampled_from([region(zone) for zone in ZONES]), min_size=1))
def test_the_nearest_region_is_itself_or_on_the_same_continent(zone: str, regions: set[str]) -> None:
    found = nearest(zone, regions)
    assert found in regions
    if region(zone) in regions:
        assert found == region(zone)
    elif any(continent(each) == continent(zone) for each in regions):
        assert continent(found) == continent(zone)


def test_the_table_agrees_with_the_published_prices() -> None:
    ours = {(row.item, row.region, row.as_of): row for row in price_table()}
    compared = 0
    for row in published("prices/gcp_prices.csv"):
        gpu, date = GPU_OF.get(row["resource"], ""), row["as_of"]
        mine = ours.get((gpu, row["region"], {"2019-2020": "2019-20", "2026": LISTED}.get(date, date)))
        if mine is None:
            assert date != "2026" or not gpu, f"{row['resource']} in {row['region']} is missing"
            continue
        spot = float(row["preemptible_or_spot_usd_h"])
        assert mine.transient == pytest.approx(spot)
        if "do not use" in row["notes"]:
            assert mine.on_demand is None
        elif mine.on_demand is not None:
            assert mine.on_demand == pytest.approx(float(row["ondemand_usd_h"]))
        compared += 1
    assert compared > 60


def test_n1_on_demand_agrees_with_an_independent_list() -> None:
    units = {"n1 vCPU": "n1-vcpu", "n1 GB": "n1-gb"}
    ours = {(row.item, row.region): row.on_demand for row in price_table()}
    for row in published("prices/gcp_prices.csv"):
        if unit := units.get(row["resource"]):
            assert ours[unit, row["region"]] == pytest.approx(float(row["ondemand_usd_h"]), rel=0.002)


@pytest.mark.parametrize(
    ("other", "least", "most", "confirmed"),
    [
        # "Virtual Private Cloud pricing", September 2026, as far as it was seen.
        ("us-west1-a", 0.0, 0.0, True), ("us-west1-b", 0.01, 0.01, True), ("us-east1-b", 0.02, 0.02, False),
        ("asia-east1-a", 0.05, 0.15, False),
    ],
)  # fmt: skip
def test_traffic_costs_what_the_list_says_and_what_is_not_sure_says_so(
    other: str, least: float, most: float, confirmed: bool
) -> None:
    price = transfer_price("us-west1-a", other)
    assert (price.at_least, price.dollars_per_gib, price.confirmed) == (least, most, confirmed)
