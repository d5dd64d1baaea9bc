"""What people read about GPUs and prices, and what a declaration is reckoned at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.money.catalog_prices import catalog_prices
from transient_magics.catalog import ACCELERATORS, price_list
from transient_magics.client import Declaration, catalog, preview
from transient_magics.client.declaring import resized, specify
from transient_magics.errors import DeclarationError

LISTED = catalog_prices()


def host(vcpus: int, gb: float, place: str, *, spot: bool) -> float:
    """US dollars per hour by the price lists: so many vCPUs and GB, a disk of 50 GB and an external address."""
    of_it = vcpus * LISTED.hourly["n1-vcpu", place, spot] + gb * LISTED.hourly["n1-gib", place, spot]
    return of_it + 50 * LISTED.disk_month["pd-balanced", place] / 730 + LISTED.address_hour[spot]


def test_all_gpus_on_one_screen() -> None:
    offers = catalog()
    said = str(offers)
    assert [row["gpu"] for row in offers.rows] == list(ACCELERATORS)
    assert "k80: withdrawn May 2024, use t4 or l4" in said
    assert "a100-80gb on demand ~2024" in said
    assert "SkyPilot's catalog v9" in said
    assert "unconfirmed" in said
    assert max(map(len, said.splitlines())) < 80
    t4 = next(row for row in offers.rows if row["gpu"] == "t4")
    gpu, vcpu, gb = (LISTED.hourly[item, "us-west3", True] for item in ("nvidia-tesla-t4", "n1-vcpu", "n1-gib"))
    assert (t4["zone"], t4["transient"]) == ("us-west3-b", pytest.approx(gpu + 4 * vcpu + 15 * gb)), "the least"


@pytest.mark.parametrize("gpu", ACCELERATORS)
def test_one_gpu_with_its_zones_prices_and_limits(gpu: str) -> None:
    offers = catalog(gpu.upper())
    said = str(offers)
    assert max(map(len, said.splitlines())) < 100
    for row in offers.rows:
        assert row["region"] in said
        assert row["source"]
    assert ACCELERATORS[gpu].machine_type in said
    if gpu == "v100":
        assert "1 GPU: 12 vCPUs, 78 GB" in said
        assert "2019-20" in said
    if gpu == "p100":
        assert "4 GPU: 64 vCPUs, 208 GB in us-east1-c, europe-west1-b, europe-west1-d" in said
    if gpu == "l4":
        assert "g2-standard-24: 2 GPU, 24 vCPUs, 96 GB" in said


def test_a_gpu_that_does_not_exist() -> None:
    with pytest.raises(DeclarationError, match="Unknown GPU"):
        catalog("k81")


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRANSIENT_MAGICS_HOME", str(tmp_path))


def test_each_worker_is_reckoned_at_the_price_of_its_zone() -> None:
    shown = preview(Declaration("v100@us-central1-a+v100x2@asia-east1-c"))
    spec = shown.spec
    near, far = (
        LISTED.hourly["nvidia-tesla-v100", place, True] + host(8, 30, place, spot=True)
        for place in ("us-central1", "asia-east1")
    )
    assert spec.price("v100", "us-central1-a").hourly == pytest.approx(near)
    assert spec.price("v100", "asia-east1-c").hourly == pytest.approx(far)
    assert spec.home_zone == "asia-east1-c"
    server = host(4, 16, "asia-east1", spot=False)
    server += 0.05 * sum(
        many * LISTED.hourly[item, "asia-east1", False] for many, item in ((4, "n1-vcpu"), (16, "n1-gib"))
    )  # custom machines cost five per cent more
    assert spec.hourly == pytest.approx(near + 2 * far + server)
    assert "$0.15 per GiB" in str(shown)
    assert type(spec).from_dict(spec.to_dict()) == spec


def test_zones_to_fail_over_to_have_prices_of_their_own() -> None:
    spec = preview(Declaration("t4x2", zone=("us-central1-a", "us-central1-b", "us-west4-a"))).spec
    assert set(spec.prices) == {"t4", "t4@us-west4-a", "parameter-server", "parameter-server@us-west4-a"}
    more = resized(spec, "t4x3+v100")
    assert set(more.prices) >= {"t4", "v100"}
    assert (
        more.price("v100", "us-central1-a").hourly
        == price_list(["v100"]).worker_price("v100", "us-central1-a").transient
    )


@pytest.mark.parametrize(
    ("spec", "zone"),
    [("k80", "us-west1-b"), ("cpu", "us-central1-a"), ("k80@us-west1-b+p100", "us-west1-b"),
     ("k80@us-west1-b+a100-80gb", "us-east4-c")],
)  # fmt: skip
def test_groups_without_a_zone_go_where_their_gpu_is(spec: str, zone: str) -> None:
    assert preview(Declaration(spec)).spec.zones == (zone,)


def test_a_dry_run_names_what_a_zone_does_not_have() -> None:
    said = str(preview(Declaration("p100@us-central1-a")))
    assert (
        "P100s are not available in us-central1-a, according to the catalog. Use us-central1-c or us-central1-f."
        in said
    )
    assert "N1 machines are not available in us-east5-a" in str(preview(Declaration("a100-80gb@us-east5-a")))


def test_an_h100_boots_from_the_default_image_and_old_gpus_are_said_to_lack_cuda_13() -> None:
    real = {"project": "my-own", "zone": ("us-central1-a",), "controller": "local", "bucket": "none"}
    assert specify(Declaration("t4+h100", **real)).worker_count == 2
    assert "CUDA 13" in " ".join(str(catalog("v100")).split())
    assert "CUDA 13" not in str(catalog("t4"))


@pytest.mark.parametrize("more", [{"provisioning_model": "standard"}, {"fallback_seconds": 600.0}])
def test_what_is_sold_as_spot_only_is_not_declared_on_demand(more: dict[str, Any]) -> None:
    said = r"sells machines with one H100 \(a3-highgpu-1g\) as Spot only"
    with pytest.raises(DeclarationError, match=said):
        specify(Declaration("t4+h100", **more))
    with pytest.raises(DeclarationError, match=said):
        resized(specify(Declaration("t4", **more)), "h100")
    assert specify(Declaration("t4", **more)).prices


def test_and_prices_on_demand_that_nobody_can_have_are_called_so() -> None:
    for text in (catalog(), catalog("h100"), preview(Declaration("h100"))):
        assert "H100: sold as Spot only" in " ".join(str(text).split())
    assert "sold as Spot only" not in str(preview(Declaration("a100")))
