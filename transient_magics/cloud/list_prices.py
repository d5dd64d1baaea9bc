"""Google's present list prices for GPUs and machines, from the SKUs of its Cloud Billing API.

Compute Engine's own API has no prices. A SKU is the price of one part (a GPU, a core or a GiB of
memory of a machine family) in some regions; only its description names the part. SKUs of parts that
we do not rent are skipped.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ..catalog import ACCELERATORS, CONTROLLER_MACHINE, PriceRow
from .calling.calls import charged, content_of

if TYPE_CHECKING:
    from .calling.calls import Calls

SOURCE = "cloud-billing"
HOST = "https://cloudbilling.googleapis.com"
_PATH = "/v1/services/6F81-5844-456A/skus"  # Compute Engine's number among Google's services
_PAGE = 5000
_MOST_PAGES = 50
_SPOT = "Spot Preemptible "
_GPU = re.compile(
    rf"Nvidia (?:Tesla )?([A-Z]\d+(?: 80GB)?) GPU (?:attached to {_SPOT}VMs )?running in "
)
_PART = re.compile(rf"(?:{_SPOT})?(N1 Predefined|N2|E2|G2|A2|A3) Instance (Core|Ram) running in ")
_DISK = re.compile(r"(Balanced PD|SSD backed PD|Storage PD) Capacity(?: in |$)")
_DISK_NAMES = {"Balanced PD": "pd-balanced", "SSD backed PD": "pd-ssd", "Storage PD": "pd-standard"}
_ADDRESSES = {
    "External IP Charge on a Standard VM": "on_demand",
    f"External IP Charge on a {_SPOT}VM": "transient",
}
_COLUMNS = {"OnDemand": "on_demand", "Preemptible": "transient"}
_NAMES = {"H100 80GB": "h100", "A100 80GB": "a100-80gb"}

Part = tuple[str, str]
"""A GPU's name and '', or a machine family and `Core` or `Ram`."""


async def list_prices(calls: Calls, project: str, endpoint: str | None, day: str) -> list[PriceRow]:
    """Return Google's list prices for all regions, with some twelve requests.

    `day` is today's date (2026-01-31). Raises CloudError.
    """
    skus: list[Mapping[str, Any]] = []
    token = ""
    session = calls.clients.billing
    for _ in range(_MOST_PAGES):
        query = {"pageSize": _PAGE, "currencyCode": "USD"}
        if token:
            query["pageToken"] = token

        def ask(query: Mapping[str, Any] = query) -> dict[str, Any]:
            def once(headers: Mapping[str, str]) -> Any:
                return session.get(
                    f"{endpoint or HOST}{_PATH}", params=query, headers=headers, timeout=30.0
                )

            return content_of(charged(calls, project, once))

        page = await calls.call("Cloud Billing", ask)
        skus += page.get("skus", [])
        token = page.get("nextPageToken", "")
        if not token:
            break
    return price_rows(skus, day)


def price_rows(skus: Iterable[Mapping[str, Any]], day: str) -> list[PriceRow]:
    """Return rows for the catalog's table of prices.

    They are of GPUs, machines with built-in GPUs, vCPUs and memory of N1 and N2, the controller's
    machine, disks and external addresses.
    """
    found: dict[str, dict[Part, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    addresses: dict[str, float] = {}
    for sku in skus:
        address = _ADDRESSES.get(sku["description"])
        if address and (hourly := _dollars(sku, "h", tier=-1)):
            addresses[address] = hourly
        disk = _DISK.match(sku["description"])
        monthly = _dollars(sku, "GiBy.mo", tier=-1) if disk else 0.0
        if disk and monthly:
            for region in sku.get("serviceRegions", ()):
                found[region][_DISK_NAMES[disk[1]], ""] = {
                    "on_demand": monthly,
                    "transient": monthly,
                }
        column = _COLUMNS.get(sku["category"]["usageType"])
        part = _part(sku["description"])
        dollars = _hourly(sku)
        if column and part and dollars:
            for region in sku.get("serviceRegions", ()):
                found[region][part][column] = dollars
    rows = [
        PriceRow(item, region, prices.get("on_demand"), prices.get("transient"), day, SOURCE)
        for region in sorted(found)
        for item, prices in sorted(_items(found[region]).items())
    ]
    if addresses:
        found_addresses = addresses.get("on_demand"), addresses.get("transient")
        rows.append(PriceRow("external-ipv4", "global", *found_addresses, day, SOURCE))
    return rows


def _items(parts: Mapping[Part, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Return prices per hour in one region, by item and column of the catalog."""
    items = {name: dict(prices) for (name, part), prices in parts.items() if not part}
    for family, name in (("N1 Predefined", "n1"), ("N2", "n2")):
        vcpu = parts.get((family, "Core"))
        memory = parts.get((family, "Ram"))
        if vcpu and memory:
            items |= {f"{name}-vcpu": dict(vcpu), f"{name}-gb": dict(memory)}
    vcpu = parts.get(("E2", "Core"), {})
    memory = parts.get(("E2", "Ram"), {})
    if both := vcpu.keys() & memory.keys():
        # An e2-small has half of a vCPU and 2 GB.
        items[CONTROLLER_MACHINE] = {
            column: 0.5 * vcpu[column] + 2 * memory[column] for column in both
        }
    for gpu in ACCELERATORS.values():
        family = gpu.machine_type.partition("-")[0].upper()
        core = parts.get((family, "Core"), {})
        ram = parts.get((family, "Ram"), {})
        if gpu.bundled and (both := core.keys() & ram.keys()):
            items[gpu.machine_type] = {
                column: gpu.vcpus * core[column] + gpu.memory_gb * ram[column] for column in both
            }
    return items


def _part(description: str) -> Part | None:
    if gpu := _GPU.match(description):
        name = _NAMES.get(gpu[1], gpu[1].lower())
        if name in ACCELERATORS:
            return (name, "")
        return None
    part = _PART.match(description)
    if part:
        return (part[1], part[2])
    return None


def _hourly(sku: Mapping[str, Any]) -> float:
    """Return dollars per hour of one unit without discounts; 0 for other units."""
    return _dollars(sku, "h", "GiBy.h")


def _dollars(sku: Mapping[str, Any], *units: str, tier: int = 0) -> float:
    """Return dollars of one unit, if it is one of `units`, at a tier.

    Tier -1 is the one beyond a free amount.
    """
    if not sku.get("pricingInfo"):
        return 0.0
    expression = sku["pricingInfo"][-1]["pricingExpression"]
    if expression.get("usageUnit") not in units or not expression.get("tieredRates"):
        return 0.0
    price = expression["tieredRates"][tier]["unitPrice"]
    return int(price.get("units", 0)) + price.get("nanos", 0) / 1e9
