"""Where GPUs are, as Compute Engine lists them: what is asked, and what becomes of the declaration."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_api import Api, refusal

from transient_magics import catalog
from transient_magics.client import Declaration
from transient_magics.client.declaring import specify
from transient_magics.cloud import ComputeEngine, Shape
from transient_magics.controller.vms.lookup import find_zones, open_zones, with_zones
from transient_magics.journal import events, replay

V100 = Shape("n1-standard-8", "nvidia-tesla-v100")
SPEC = specify(Declaration("v100x2+l4", name="c"))
ZONES = SPEC.candidates["v100"]


def listed(kind: str, **zones: Any) -> dict[str, Any]:
    """An aggregated list: by zone (`_` for `-`), what is there."""
    return {"items": {f"zones/{zone.replace('_', '-')}": {kind: there} for zone, there in zones.items()}}


@pytest.mark.slow
async def test_the_emulator_has_what_the_catalog_says(url: str) -> None:
    async with ComputeEngine("emulated-project", url) as engine:
        assert await engine.zones_with(V100) == set(catalog.zones_with("v100"))
        assert await engine.zones_with(Shape("a2-highgpu-1g")) >= set(catalog.zones_with("a100"))
        assert await find_zones(SPEC, engine) is None, "so nothing has to be changed"


async def test_zones_are_asked_for_by_one_request_per_gpu(api: Api, engine: ComputeEngine) -> None:
    mine, other, old = {"name": V100.accelerator}, {"name": "nvidia-tesla-t4"}, {"deprecated": {"state": "OBSOLETE"}}
    api.on("GET", "aggregated/acceleratorTypes", listed(
        "acceleratorTypes", us_west1_b=[mine], us_south1_a=[other, mine], us_east1_c=[mine | old], us_east1_b=[other],
    ))  # fmt: skip
    api.on("GET", "aggregated/machineTypes", listed("machineTypes", us_west1_a=[{"name": "g2-standard-4"}]))
    found = await find_zones(SPEC, engine)
    assert found
    assert set(found.zones["v100"]) == {"us-west1-b", "us-south1-a"}
    assert found.zones["l4"] == ("us-west1-a",)
    assert [query["filter"] for _, path, query, _ in api.requests if path.startswith("aggregated/")] == [
        'name = "nvidia-tesla-v100"', 'name = "g2-standard-4"',
    ]  # fmt: skip


async def test_who_may_not_list_them_goes_by_the_catalog(api: Api, engine: ComputeEngine) -> None:
    api.on("GET", "aggregated/.*", refusal(403, "forbidden", "Required 'compute.acceleratorTypes.list' permission"))
    assert await find_zones(SPEC, engine) is None


def test_zones_that_the_user_named_stay() -> None:
    assert open_zones(specify(Declaration("v100x2", zone=("us-west1-b", "us-central1-a")))) == {}
    assert open_zones(specify(Declaration("v100x2@us-west1-b+cpux2"))) == {}
    assert list(open_zones(SPEC)) == ["v100", "l4"]


def test_a_cluster_goes_where_its_gpu_is_found_with_all_its_prices() -> None:
    gone, fresh = ZONES[0], "us-west1-c"
    changed = with_zones(SPEC, {"v100": {*ZONES[1:], fresh, "us-central1-ai1a", "mars-north1-a"}})
    assert changed
    assert gone not in changed.candidates["v100"]
    assert fresh in changed.candidates["v100"]
    assert not {"us-central1-ai1a", "mars-north1-a"} & set(changed.all_zones)
    assert changed.candidates["l4"] == SPEC.candidates["l4"]
    for zone in changed.all_zones:
        assert changed.price("parameter-server", zone).hourly > 0
        expected = catalog.transfer_price(zone, changed.home_zone).dollars_per_gib
        assert changed.transfer_prices.get(zone, 0.0) == expected
    for zone in changed.candidates["v100"]:
        assert changed.price("v100", zone).hourly == catalog.price_list(["v100"]).worker_price("v100", zone).transient
    history = [events.ClusterDeclared(spec=SPEC.to_dict()), events.ClusterZonesFound(zones={}, spec=changed.to_dict())]
    assert replay(history).spec == changed


known = st.lists(st.sampled_from([*ZONES, "us-south1-a", "us-west1-z", "europe-west4-a"]), unique=True)


@given(known)
def test_the_declared_order_holds_and_new_zones_come_after_the_known_ones_of_their_place(found: Iterable[str]) -> None:
    before, found = SPEC.candidates["v100"], set(found)
    changed = with_zones(SPEC, {"v100": found})
    after = changed.candidates["v100"] if changed else before
    near = {zone for zone in found if catalog.continent(zone) == "North America"}
    assert set(after) == (near or set(before))
    kept = [zone for zone in after if zone in before]
    assert kept == [zone for zone in before if zone in kept]
