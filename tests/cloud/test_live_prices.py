"""Google's prices of today: read from its list of SKUs, kept, and put in place of the catalog's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scripted_api import Api, refusal

from tests.emulator.discovery import faults
from transient_magics import catalog
from transient_magics.client import Declaration
from transient_magics.client.declaring import specify
from transient_magics.cloud import ComputeEngine
from transient_magics.cloud.list_prices import price_rows
from transient_magics.controller.vms.lookup import find_prices, refresh_prices, repriced
from transient_magics.errors import AccessError, CredentialsError
from transient_magics.journal import events, replay

SKUS = "v1/services/6F81-5844-456A/skus"
DAY = "2031-01-31"
HERE = ["us-west1", "us-central1"]


def sku(description: str, dollars: float, usage: str = "OnDemand", unit: str = "h", **more: Any) -> dict[str, Any]:
    """A SKU as Cloud Billing describes it."""
    nanos = round(dollars * 1e9)
    rate = {
        "startUsageAmount": 0,
        "unitPrice": {"currencyCode": "USD", "units": str(nanos // 10**9), "nanos": nanos % 10**9},
    }
    return {
        "name": "services/6F81-5844-456A/skus/0000-0000-0000", "skuId": "0000-0000-0000", "description": description,
        "category": {"resourceFamily": "Compute", "resourceGroup": "GPU", "usageType": usage},
        "serviceRegions": HERE, "serviceProviderName": "Google",
        "pricingInfo": [{"pricingExpression": {"usageUnit": unit, "displayQuantity": 1, "tieredRates": [rate]}}],
    } | more  # fmt: skip


T4 = [
    sku("Nvidia Tesla T4 GPU running in Americas", 0.35),
    sku("Nvidia Tesla T4 GPU attached to Spot Preemptible VMs running in Americas", 0.11, "Preemptible"),
]
N1 = [
    sku("N1 Predefined Instance Core running in Americas", 0.03),
    sku("N1 Predefined Instance Ram running in Americas", 0.004, unit="GiBy.h"),
    sku("Spot Preemptible N1 Predefined Instance Core running in Americas", 0.01, "Preemptible"),
    sku("Spot Preemptible N1 Predefined Instance Ram running in Americas", 0.001, "Preemptible", "GiBy.h"),
]
N2 = [
    sku("N2 Instance Core running in Americas", 0.04),
    sku("N2 Instance Ram running in Americas", 0.005, unit="GiBy.h"),
    sku("N2 Custom Instance Core running in Americas", 9.0),
]
E2 = [
    sku("E2 Instance Core running in Americas", 0.02),
    sku("E2 Instance Ram running in Americas", 0.003, unit="GiBy.h"),
]
L4 = [
    sku("Nvidia L4 GPU running in Americas", 0.5),
    sku("G2 Instance Core running in Americas", 0.02),
    sku("G2 Instance Ram running in Americas", 0.003, unit="GiBy.h"),
]
OTHERS = [
    sku("Commitment v1: Nvidia Tesla T4 GPU running in Americas for 1 Year", 0.1, "Commit1Yr"),
    sku("Nvidia Tesla T4 Virtual Workstation GPU running in Americas", 9.0),
    sku("Nvidia H100 80GB Mega GPU running in Americas", 9.0),
    sku("Nvidia RTX 9999 GPU running in Americas", 9.0),
    sku("N1 Predefined Instance Core running in Americas", 7.0, unit="mo"),
    sku("Extreme PD Capacity", 0.1, unit="GiBy.mo"),
    sku("Nvidia Tesla P4 GPU running in Americas", 0.6, pricingInfo=[]),
    sku("Regional Balanced PD Capacity", 0.2, unit="GiBy.mo"),
    sku("External IP Charge on a Standard VM", 9.0, pricingInfo=[]),
]
_FREE = {"startUsageAmount": 0, "unitPrice": {"currencyCode": "USD", "units": "0", "nanos": 0}}
_PAID = {"startUsageAmount": 744, "unitPrice": {"currencyCode": "USD", "units": "0", "nanos": 6_000_000}}
EXTRAS = [
    sku("Balanced PD Capacity", 0.2, unit="GiBy.mo", serviceRegions=HERE[:1]),
    sku("Balanced PD Capacity in Iowa", 0.3, unit="GiBy.mo", serviceRegions=HERE[1:]),
    sku("External IP Charge on a Spot Preemptible VM", 0.003, serviceRegions=["global"]),
    sku("External IP Charge on a Standard VM", 0.0, serviceRegions=["global"],
        pricingInfo=[{"pricingExpression": {"usageUnit": "h", "tieredRates": [_FREE, _PAID]}}]),
]  # fmt: skip
MINE = specify(Declaration("t4x2", name="c", project="a-project", zone=("us-west1-b",)))


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is learned here is forgotten after the test."""
    monkeypatch.setenv("TRANSIENT_MAGICS_HOME", str(tmp_path))


def test_the_samples_are_what_the_api_says_of_itself() -> None:
    assert faults("ListSkusResponse", {"skus": [*T4, *N1, *N2, *E2, *L4, *OTHERS, *EXTRAS]}, "cloudbilling") == []


def test_parts_become_rows_of_the_catalog_and_what_we_do_not_rent_is_passed_over() -> None:
    rows = {(row.item, row.region): row for row in price_rows([*OTHERS, *T4, *N1, *N2, *E2, *L4], DAY)}
    items = ("t4", "l4", "g2-standard-4", "n1-vcpu", "n1-gb", "n2-vcpu", "n2-gb", "e2-small")
    assert set(rows) == {(item, place) for item in items for place in HERE}
    assert (rows["n2-vcpu", "us-west1"].on_demand, rows["n2-gb", "us-west1"].on_demand) == (0.04, 0.005)
    assert rows["e2-small", "us-west1"].on_demand == pytest.approx(0.5 * 0.02 + 2 * 0.003)
    assert (rows["t4", "us-west1"].on_demand, rows["t4", "us-west1"].transient) == (0.35, 0.11)
    assert rows["g2-standard-4", "us-central1"].on_demand == pytest.approx(4 * 0.02 + 16 * 0.003)
    assert rows["l4", "us-west1"].transient is None
    assert {row.as_of for row in rows.values()} == {DAY}


def test_disks_and_addresses_are_among_them() -> None:
    tiers = [{**_FREE, "startUsageAmount": 0}, {**_PAID, "startUsageAmount": 30}]
    kinds = [
        sku("Storage PD Capacity", 0.0, serviceRegions=HERE,
            pricingInfo=[{"pricingExpression": {"usageUnit": "GiBy.mo", "tieredRates": tiers}}]),
        sku("SSD backed PD Capacity", 0.4, unit="GiBy.mo", serviceRegions=HERE),
    ]  # fmt: skip
    catalog.learn(price_rows([*EXTRAS, *OTHERS, *kinds], DAY))
    assert catalog.item_price("pd-standard", HERE[0])[0] == 0.006, "beyond what is free"
    assert catalog.item_price("pd-ssd", HERE[1])[0] == 0.4
    month = [round(730 * catalog.disk_hourly(place, 1), 9) for place in HERE]
    assert (month, catalog.address_hourly()) == ([0.2, 0.3], (0.006, 0.003))
    price = catalog.price_list(["t4"]).worker_price("t4", "us-central1-a")
    assert price.on_demand_extras == pytest.approx(50 * 0.3 / 730 + 0.006)


async def test_they_are_read_page_by_page_and_kept_for_a_day(api: Api, engine: ComputeEngine) -> None:
    before = catalog.worker_price("t4", "us-west1-b")
    api.on("GET", SKUS, {"skus": [*T4, *OTHERS], "nextPageToken": "more"}, {"skus": N1})
    assert await refresh_prices(engine) == 6
    assert [query.get("pageToken") for query, _ in api.asked("GET", SKUS)] == [None, "more"]
    after = catalog.worker_price("t4", "us-west1-b")
    assert after.on_demand == pytest.approx(0.35 + 4 * 0.03 + 15 * 0.004)
    assert after.transient == pytest.approx(0.11 + 4 * 0.01 + 15 * 0.001)
    assert after != before
    assert await refresh_prices(engine) == 0, "known for a day"
    assert len(api.asked("GET", SKUS)) == 2


async def test_a_cluster_is_reckoned_with_todays_prices_from_before_its_first_vm(
    api: Api, engine: ComputeEngine
) -> None:
    api.on("GET", SKUS, {"skus": [*T4, *N1]})
    priced = await find_prices(MINE, engine)
    assert priced
    state = replay([events.ClusterDeclared(spec=MINE.to_dict()), priced])
    assert state.spec
    assert state.spec.price("t4", "us-west1-b").hourly == pytest.approx(
        0.11 + 4 * 0.01 + 15 * 0.001 + 0.0093493, abs=1e-6
    )
    assert state.spec.price("parameter-server", "us-west1-b").hourly == pytest.approx(
        1.05 * (4 * 0.03 + 16 * 0.004) + 0.0118493, abs=1e-6
    ), "a custom machine costs 5 % more"
    assert priced.hourly == pytest.approx(state.spec.hourly)
    assert repriced(state.spec).prices == state.spec.prices
    assert await find_prices(state.spec, engine) is None


async def test_without_the_right_the_catalogs_dated_prices_stay(api: Api, engine: ComputeEngine) -> None:
    page = "https://console.developers.google.com/apis/api/cloudbilling.googleapis.com/overview?project=1"
    said = f"Cloud Billing API has not been used in project 1 before or it is disabled. Enable it by visiting {page}"
    api.on("GET", SKUS, refusal(403, "accessNotConfigured", said))
    assert await find_prices(MINE, engine) is None
    with pytest.raises(AccessError, match="gcloud services enable cloudbilling"):
        await refresh_prices(engine)
    api.on("GET", SKUS, refusal(401, "authError", "Invalid Credentials"))
    with pytest.raises(CredentialsError):
        await find_prices(MINE, engine)


async def test_an_emulated_cluster_asks_nobody(api: Api, engine: ComputeEngine) -> None:
    assert await find_prices(replace(MINE, project=None), engine) is None
    assert not api.requests


async def test_an_answer_in_which_nothing_is_recognised_teaches_nothing(api: Api, engine: ComputeEngine) -> None:
    api.on("GET", SKUS, {"skus": OTHERS})
    assert await refresh_prices(engine) == 0
    assert catalog.learned_seconds_ago() == float("inf")
