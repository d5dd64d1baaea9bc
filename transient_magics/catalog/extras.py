"""Parts of every VM that are paid for separately: its boot disk and, mostly, an external address and Local SSDs.

Disks are sold by GiB and month, counted as 730 hours, and cost the same under Spot VMs. VMs that boot from an image
have a disk of the image's size; it is taken for that of the images that we bake. Some machine types bring Local SSDs
along ("Accelerator-optimized machine family", docs.cloud.google.com/compute/docs/accelerator-optimized-machines), which
are billed beside the machine. They are computed at the list price of us-central1 on demand, as no other is known. What
Google gives an account for
nothing each month (an address on demand for as many hours as a month has) is not taken off: others may have used it.
"""

from __future__ import annotations

import re
from dataclasses import replace

from ..errors import DeclarationError
from .prices import VmPrice, item_price

DISK_TYPE = "pd-balanced"
DISK_TYPES = (DISK_TYPE, "pd-ssd", "pd-standard")
DISK_GB, CONTROLLER_DISK_GB = 50, 20
_LEAST_DISK_GB, _MOST_DISK_GB = 20, 65536
_HOURS_PER_MONTH = 730.0
_MIB_PER_SECOND = {"pd-balanced": (140.0, 0.28), "pd-ssd": (240.0, 0.48), "pd-standard": (0.0, 0.12)}
"""Of any disk, and for each of its GiB."""
_MOST_MIB_PER_SECOND = ((16, 1200.0), (8, 800.0), (0, 240.0))
"""By the least vCPUs of the machine."""
_LOCAL_SSD_GB = {
    **{f"a2-ultragpu-{count}g": 375 * count for count in (1, 2, 4, 8)},
    **{f"a3-highgpu-{count}g": 750 * count for count in (1, 2, 4, 8)},
}
_DISK = re.compile(r"(\d{1,6})\s*(gb|tb)?(?::(?:pd-)?([a-z]+))?")


def parse_disk(text: str, option: str = "--disk") -> tuple[int, str]:
    """GB and Compute Engine's name of the kind of a disk, as `200GB`, `200GB:ssd`, `1TB:standard`. DeclarationError."""
    found = _DISK.fullmatch(text.strip().lower())
    kind = f"pd-{found[3]}" if found and found[3] else DISK_TYPE
    if not found or kind not in DISK_TYPES:
        kinds = ", ".join(each.removeprefix("pd-") for each in DISK_TYPES)
        raise DeclarationError(f"Invalid disk '{text}'", where=option, fix=f"Write 200GB, or 200GB:KIND ({kinds}).")
    gb = int(found[1]) * (1024 if found[2] == "tb" else 1)
    if not _LEAST_DISK_GB <= gb <= _MOST_DISK_GB:
        raise DeclarationError(f"A disk has {_LEAST_DISK_GB} GB to {_MOST_DISK_GB // 1024} TB", where=option)
    return gb, kind


def disk_hourly(place: str, gb: float = DISK_GB, kind: str = DISK_TYPE) -> float:
    """US dollars per hour of a boot disk in a zone or region."""
    return gb * item_price(kind, place)[0] / _HOURS_PER_MONTH


def local_ssd_gb(machine_type: str) -> int:
    """Return the GB of Local SSD that a machine type brings along."""
    return _LOCAL_SSD_GB.get(machine_type, 0)


def local_ssd_hourly(machine_type: str) -> float:
    """Return the US dollars per hour of the Local SSDs that a machine type brings along."""
    gb = local_ssd_gb(machine_type)
    return gb * item_price("local-ssd", "global")[0] / _HOURS_PER_MONTH if gb else 0.0


def disk_speed(text: str, vcpus: int) -> float:
    """MiB that a boot disk as `--disk` says it (empty: the usual) reads in a second at most, on a machine with so many
    vCPUs: by Google's tables of persistent disks' performance, with the limits of N1."""
    gb, kind = parse_disk(text) if text else (DISK_GB, DISK_TYPE)
    base, each = _MIB_PER_SECOND[kind]
    most = next(limit for least, limit in _MOST_MIB_PER_SECOND if vcpus >= least)
    return min(base + each * gb, most)


def address_hourly() -> tuple[float, float]:
    """US dollars per hour of an external address in use: (on demand, Spot)."""
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
    """Return the price of a VM in a zone or region with its disk, its external address if it has one, and the Local
    SSDs of its `machine` type."""
    disks = disk_hourly(place, gb, kind) + local_ssd_hourly(machine)
    address = address_hourly() if external_ip else (0.0, 0.0)
    on_demand, transient = (disks + each for each in address)
    return replace(
        price, on_demand=price.on_demand + on_demand, transient=price.transient + transient,
        on_demand_extras=on_demand, transient_extras=transient,
    )  # fmt: skip
