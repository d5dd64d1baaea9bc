"""Prices of VMs per hour: dated list prices in US dollars by GPU, machine and region.

`prices.csv` holds them, one row per item, region and date. Items are a GPU alone, a machine without
its GPU, one vCPU or one GB of memory of an N1 or N2 machine; a GiB of a disk for a month
(`pd-balanced`, `local-ssd`); and an address for the life of a VM (`external-ipv4`, `global`).
`transient` is the price of Spot VMs, before 2022 that of preemptible ones; preemptible VMs now cost
as much as Spot VMs. The region `us` is the list price of the United States. A date with `~` is
ours: the source has none. That of SkyPilot's catalog v9 is the day for which others quote the same
on-demand prices; its Spot prices differ from those quoted for later days. A `quoted` row is the
GPU's part of the price of a whole machine. N1's prices per vCPU and GB follow from those of
n1-standard-96 and n1-ultramem-160, N2's from those of n2-standard-4 and n2-highmem-4. An e2-small
costs a 32nd of an e2-standard-16, of which it is that share (SkyPilot counts both of its vCPUs
fully). A larger machine of a bundled GPU has as much memory per vCPU, and costs by its vCPUs.

`learn` adds rows that Google's Cloud Billing API returned to this user later; the newest row
counts.

Prices age: Spot prices change up to once a day, and those of two machines were 9 % above the table
a month later. `drift` estimates the error of an old one. Prices exclude taxes, other currencies,
negotiated prices and sustained-use discounts.

A region without a price has the whole price of the nearest region with one, and the source names
that region. A VM's date is its GPU's.

Parts of every VM have their own prices: its boot disk, an external address and Local SSDs. Disks
are sold by GiB and month (730 hours), and cost the same with Spot VMs. VMs that boot from an image
have a disk of the image's size; the size of our baked images is assumed. Some machine types include
Local SSDs ("Accelerator-optimized machine family",
docs.cloud.google.com/compute/docs/accelerator-optimized-machines), which are billed separately.
They have the on-demand list price of us-central1, the only known one. Free monthly amounts of an
account (such as one address on demand) are not deducted: other VMs may use them.
"""

from __future__ import annotations

import csv
import io
import re
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from functools import lru_cache
from importlib import resources
from pathlib import Path

from .. import places
from ..errors import DeclarationError
from ..files import write_atomically
from .accelerators import Accelerator, accelerator
from .regions import nearest, region

STALE_DAYS = 60
"""The age at which prices get a warning."""
REFRESH = "They may have changed: transient catalog --project PROJECT asks Google for today's."
_DRIFT_PER_MONTH = 0.08
_MOST_DRIFT = 0.3
"""Standard deviations of the logarithm of a Spot price.

Two of two prices that others quote were 9 % higher within a month or two; a catalog's next version
had the host of an A2 at -12.5 %.
"""
_DAYS_PER_MONTH = 365.25 / 12
CONTROLLER_MACHINE = "e2-small"
"""The machine of a controller's own VM: half a vCPU in all, 2 GB."""
_CUSTOM = 1.05
"""The price of vCPUs and memory in custom N1 and N2 machines, relative to predefined ones."""
_LEARNED = "prices.csv"
SOURCES = {
    "skypilot-v9": "SkyPilot's catalog v9 (skypilot-org/skypilot-catalog 2c3d7ea)",
    "skypilot-v5": "SkyPilot's catalog v5 (skypilot-org/skypilot-catalog 0129130), undated",
    "skypilot-v1": "SkyPilot's catalog v1 (skypilot-org/skypilot-catalog 17e771d)",
    "launch": "reports on the launch of preemptible GPUs (ZDNet, January 2018)",
    "cloud-billing": "Google's Cloud Billing API",
    "gcosts": "the table of gcosts (Cyclenerd/google-cloud-pricing-cost-calculator 0166a59)",
    "vpc-pricing": "Google Cloud VPC network pricing, as others quote its SKUs C054-7F72-A02E and "
    "4AF8-7C1F-39C4",
    "quoted": "prices of whole machines that others quote of Google's lists and its Cloud Billing "
    "API",
    "probe": "constants of a published probe of preemptible GPUs' availability",
}
"""The table's sources, by their short names."""


@dataclass(frozen=True, slots=True)
class PriceRow:
    """One row of the table: US dollars per hour; None without a credible price in the source."""

    item: str
    region: str
    on_demand: float | None
    transient: float | None
    as_of: str
    source: str


@dataclass(frozen=True, slots=True)
class VmPrice:
    """The price of a whole VM in US dollars per hour.

    Attributes
    ----------
    source
        Publisher and date of the price.
    on_demand_as_of, transient_as_of
        The date of each price, with ` of REGION` for another region's price.
    on_demand_extras, transient_extras
        The included prices of disk and external address.
    """

    on_demand: float
    transient: float
    source: str
    on_demand_as_of: str
    transient_as_of: str
    on_demand_extras: float = 0.0
    transient_extras: float = 0.0
    published: bool = False
    """Whether it is a publication's own price, which does not age."""

    @property
    def drift(self) -> float:
        """The possible relative error of the Spot price by now (`drift`)."""
        if self.published:
            return 0.0
        return drift(self.transient_as_of)

    @property
    def age_words(self) -> str:
        """The age of the Spot price in a sentence; '' for a publication's own."""
        if self.published:
            return ""
        days = age_days(self.transient_as_of)
        age = f"Spot prices are of {self.transient_as_of}, {days:.0f} days old"
        if days > STALE_DAYS:
            return f"{age}. {REFRESH}"
        return f"{age}."


@dataclass(frozen=True, slots=True)
class _Quote:
    dollars: float
    region: str
    as_of: str


def worker_price(gpu: str, place: str) -> VmPrice:
    """Return the newest list price of a worker VM with this GPU (`cpu`: none) in a zone or region.

    Raises DeclarationError if no price is known anywhere.
    """
    return priced(accelerator(gpu), place)


def priced(entry: Accelerator, place: str) -> VmPrice:
    """Return the newest list price of a worker VM with this entry, perhaps in another machine."""
    return _vm_price(
        place, _worker_quote(entry, place, "on_demand"), _worker_quote(entry, place, "transient")
    )


def parameter_server_price(cores: int, place: str) -> VmPrice:
    """Return the newest list price of a parameter server with `cores` vCPUs of 4 GB each.

    It is a custom N1; with a single vCPU an n1-standard-1. `place` is a zone or region.
    """
    if cores > 1:
        return parts_price("n1", cores, 4.0 * cores, place, custom=True)
    return parts_price("n1", 1, 3.75, place)


def parts_price(
    family: str, vcpus: int, memory_gb: float, place: str, *, custom: bool = False
) -> VmPrice:
    """Return the newest list price of vCPUs and GB of N1, N2 or E2 in a zone or region.

    In `custom` N1 and N2 machines they cost 5 % more than in predefined ones ("General-purpose
    machine family"). E2 has prices only for VMs with 4 GB per vCPU: an e2-small is a certain share
    of such a VM.
    """
    columns = ("on_demand", "transient")
    return _vm_price(
        place,
        *(
            _machine_quote(family, vcpus, memory_gb, place, column, custom=custom)
            for column in columns
        ),
    )


def controller_price(place: str) -> VmPrice:
    """Return the newest list price of a controller's own VM, in a zone or region."""
    return _vm_price(
        place, *(_quote(CONTROLLER_MACHINE, place, column) for column in ("on_demand", "transient"))
    )


def item_price(item: str, place: str) -> tuple[float, float]:
    """Return the newest (on demand, transient) price of an item in a zone or region.

    Without one there, it is that of the nearest region. In the item's own unit. Raises
    DeclarationError if no price is known anywhere.
    """
    on_demand, transient = (
        _quote(item, place, column).dollars for column in ("on_demand", "transient")
    )
    return on_demand, transient


def age_days(as_of: str, now: float | None = None) -> float:
    """Return the age in days of a price dated `as_of` (`2026-09-01`, `~2024`, `2022 of us-east1`).

    A month counts from its first day, a year from the first of July. `now` is in seconds since
    1970.
    """
    year, *rest = as_of.removeprefix("~").split()[0].split("-")
    if rest:
        month, day = (*map(int, rest), 1)[:2]
    else:
        month = 7
        day = 1
    dated = datetime(int(year), min(month, 12), day, tzinfo=UTC)
    return max((time.time() if now is None else now) - dated.timestamp(), 0.0) / 86400.0


def drift(as_of: str, now: float | None = None) -> float:
    """Return the standard deviation of the logarithm of a Spot price dated `as_of`."""
    return min(_DRIFT_PER_MONTH * age_days(as_of, now) / _DAYS_PER_MONTH, _MOST_DRIFT)


def price_history(gpu: str) -> tuple[PriceRow, ...]:
    """Return the known prices of this GPU in the United States or us-central1, oldest first."""
    return tuple(
        sorted((row for row in _rows(gpu) if row.region in ("us", "us-central1")), key=_year)
    )


def priced_regions(item: str) -> tuple[str, ...]:
    """Return the regions for which the table has an item (a GPU, a machine type, `n1-vcpu`)."""
    return tuple(dict.fromkeys(row.region for row in _rows(item) if row.region != "us"))


def price_table() -> tuple[PriceRow, ...]:
    """Return the whole table, including the learned prices."""
    return _table(*_learned())


def learn(rows: Iterable[PriceRow]) -> None:
    """Store these rows as the learned prices of this machine, instead of earlier ones."""
    file = places.private(places.home()) / _LEARNED
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, [field.name for field in fields(PriceRow)])
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    write_atomically(file, out.getvalue(), durable=False)


def learned_seconds_ago() -> float:
    """Return the age of the learned prices in seconds; infinite if there are none."""
    if _learned()[1]:
        return time.time() - _learned()[1] / 1e9
    return float("inf")


def _learned() -> tuple[Path, int]:
    """Return the file of the learned prices and its time (ns; 0: no file), the caches' key."""
    file = places.home() / _LEARNED
    try:
        return file, file.stat().st_mtime_ns
    except OSError:
        return file, 0


@lru_cache(maxsize=2)
def _table(file: Path, learned: int) -> tuple[PriceRow, ...]:
    packaged = resources.files("transient_magics.catalog").joinpath("prices.csv")
    text = packaged.read_text(encoding="utf-8")
    own: list[str] = []
    if learned:
        own = file.read_text(encoding="utf-8").splitlines()[1:]

    def number(cell: str) -> float | None:
        if cell:
            return float(cell)
        return None

    return tuple(
        PriceRow(
            row["item"],
            row["region"],
            number(row["on_demand"]),
            number(row["transient"]),
            row["as_of"],
            row["source"],
        )
        for row in csv.DictReader([*text.splitlines(), *own])
    )


def _worker_quote(entry: Accelerator, place: str, column: str) -> _Quote:
    if not entry.compute_engine_name:
        return _host_quote(entry, place, column)
    gpu = _quote(entry.name, place, column)
    return _Quote(
        gpu.dollars + _host_quote(entry, gpu.region, column).dollars, gpu.region, gpu.as_of
    )


def _host_quote(entry: Accelerator, place: str, column: str) -> _Quote:
    """Return the price of a machine without its GPU; bundled ones cost by their vCPUs."""
    if entry.bundled:
        usual = accelerator(entry.name)
        host = _quote(usual.machine_type, place, column)
        return replace(host, dollars=host.dollars * entry.vcpus / usual.vcpus)
    family = entry.machine_type.partition("-")[0].replace("custom", "n1")
    custom = "custom-" in entry.machine_type
    return _machine_quote(family, entry.vcpus, entry.memory_gb, place, column, custom=custom)


def _machine_quote(
    family: str, vcpus: int, memory_gb: float, place: str, column: str, *, custom: bool
) -> _Quote:
    if family == "e2":
        share = _quote(CONTROLLER_MACHINE, place, column)
        return replace(share, dollars=share.dollars * 2 * vcpus)
    parts = _parts_quote(family, vcpus, memory_gb, place, column)
    return replace(parts, dollars=parts.dollars * (_CUSTOM if custom else 1.0))


def _parts_quote(family: str, vcpus: float, memory_gb: float, place: str, column: str) -> _Quote:
    vcpu = _quote(f"{family}-vcpu", place, column)
    gigabyte = _quote(f"{family}-gb", vcpu.region, column)
    return _Quote(vcpus * vcpu.dollars + memory_gb * gigabyte.dollars, vcpu.region, vcpu.as_of)


def _quote(item: str, place: str, column: str) -> _Quote:
    """Return the newest price of an item in the region of `place`, or in the nearest priced one."""
    quotes = _newest(item, column, *_learned())
    if not quotes:
        raise DeclarationError(f"The price of {item} is unknown, so its cost cannot be estimated")
    return quotes[nearest(place, quotes)]


@lru_cache(maxsize=256)
def _newest(item: str, column: str, file: Path, learned: int) -> dict[str, _Quote]:
    """Return the newest price of an item, by region."""
    found: dict[str, _Quote] = {}
    for row in sorted(_rows(item), key=_year):
        dollars = getattr(row, column)
        if row.region != "us" and dollars is not None:
            found[row.region] = _Quote(dollars, row.region, row.as_of)
    return found


def _vm_price(place: str, on_demand: _Quote, transient: _Quote) -> VmPrice:
    asked = region(place)
    dates = [
        quote.as_of if quote.region == asked else f"{quote.as_of} of {quote.region}"
        for quote in (on_demand, transient)
    ]
    if dates[0] != dates[1]:
        source = f"list prices of {asked} (on demand {dates[0]}, Spot {dates[1]})"
    elif transient.region == asked:
        source = f"list prices of {asked}, {transient.as_of}"
    else:
        source = (
            f"list prices of {transient.region}, the nearest known to {asked}, {transient.as_of}"
        )
    return VmPrice(on_demand.dollars, transient.dollars, source, dates[0], dates[1])


@lru_cache(maxsize=2)
def _by_item(file: Path, learned: int) -> dict[str, tuple[PriceRow, ...]]:
    items: dict[str, tuple[PriceRow, ...]] = {}
    for row in _table(file, learned):
        items[row.item] = (*items.get(row.item, ()), row)
    return items


def _rows(item: str) -> Iterable[PriceRow]:
    return _by_item(*_learned()).get(item, ())


def _year(row: PriceRow) -> str:
    return row.as_of.removeprefix("~")


DISK_TYPE = "pd-balanced"
DISK_TYPES = (DISK_TYPE, "pd-ssd", "pd-standard")
DISK_GB = 50
CONTROLLER_DISK_GB = 20
_LEAST_DISK_GB = 20
_MOST_DISK_GB = 65536
_HOURS_PER_MONTH = 730.0
_MIB_PER_SECOND = {
    "pd-balanced": (140.0, 0.28),
    "pd-ssd": (240.0, 0.48),
    "pd-standard": (0.0, 0.12),
}
"""MiB per second of any disk, and for each of its GiB."""
_MOST_MIB_PER_SECOND = ((16, 1200.0), (8, 800.0), (0, 240.0))
"""Limits in MiB per second, by the smallest number of the machine's vCPUs."""
_LOCAL_SSD_GB = {
    **{f"a2-ultragpu-{count}g": 375 * count for count in (1, 2, 4, 8)},
    **{f"a3-highgpu-{count}g": 750 * count for count in (1, 2, 4, 8)},
}
_DISK = re.compile(r"(\d{1,6})\s*(gb|tb)?(?::(?:pd-)?([a-z]+))?")


def parse_disk(text: str, option: str = "--disk") -> tuple[int, str]:
    """Return size in GB and type of a disk in `200GB`, `200GB:ssd` or `1TB:standard`.

    Raises DeclarationError.
    """
    found = _DISK.fullmatch(text.strip().lower())
    kind = DISK_TYPE
    if found and found[3]:
        kind = f"pd-{found[3]}"
    if not found or kind not in DISK_TYPES:
        kinds = ", ".join(disk_type.removeprefix("pd-") for disk_type in DISK_TYPES)
        raise DeclarationError(
            f"Invalid disk '{text}'", where=option, fix=f"Write 200GB, or 200GB:KIND ({kinds})."
        )
    gb = int(found[1]) * (1024 if found[2] == "tb" else 1)
    if not _LEAST_DISK_GB <= gb <= _MOST_DISK_GB:
        raise DeclarationError(
            f"A disk must have {_LEAST_DISK_GB} GB to {_MOST_DISK_GB // 1024} TB, not '{text}'",
            where=option,
        )
    return gb, kind


def disk_hourly(place: str, gb: float = DISK_GB, kind: str = DISK_TYPE) -> float:
    """Return the US dollars per hour of a boot disk in a zone or region."""
    return gb * item_price(kind, place)[0] / _HOURS_PER_MONTH


def local_ssd_gb(machine_type: str) -> int:
    """Return the GB of Local SSD that a machine type includes."""
    return _LOCAL_SSD_GB.get(machine_type, 0)


def local_ssd_hourly(machine_type: str) -> float:
    """Return the US dollars per hour of the Local SSDs that a machine type includes."""
    gb = local_ssd_gb(machine_type)
    if gb:
        return gb * item_price("local-ssd", "global")[0] / _HOURS_PER_MONTH
    return 0.0


def disk_speed(text: str, vcpus: int) -> float:
    """Return the most MiB per second that a boot disk (`--disk`; '' for the usual one) can read.

    From Google's tables of persistent disks' performance, with the limits of N1, for a machine with
    these vCPUs.
    """
    gb = DISK_GB
    kind = DISK_TYPE
    if text:
        gb, kind = parse_disk(text)
    base, per_gib = _MIB_PER_SECOND[kind]
    most = next(limit for least, limit in _MOST_MIB_PER_SECOND if vcpus >= least)
    return min(base + per_gib * gb, most)


def address_hourly() -> tuple[float, float]:
    """Return the US dollars per hour of an external address in use: (on demand, Spot)."""
    return item_price("external-ipv4", "global")


def with_extras(
    price: VmPrice,
    place: str,
    *,
    gb: float = DISK_GB,
    kind: str = DISK_TYPE,
    external_ip: bool = True,
    machine: str = "",
) -> VmPrice:
    """Return the price of a VM with its disk, its external address, and included Local SSDs.

    `place` is a zone or region, `machine` the machine type.
    """
    disks = disk_hourly(place, gb, kind) + local_ssd_hourly(machine)
    address = (0.0, 0.0)
    if external_ip:
        address = address_hourly()
    on_demand, transient = (disks + dollars for dollars in address)
    return replace(
        price,
        on_demand=price.on_demand + on_demand,
        transient=price.transient + transient,
        on_demand_extras=on_demand,
        transient_extras=transient,
    )
