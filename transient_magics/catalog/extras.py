"""What comes with every VM and is paid for besides: its boot disk and, mostly, an external address.

Disks are sold by GiB and month, reckoned as 730 hours, and cost the same under Spot VMs. VMs that boot from an image
have a disk of the image's size; it is taken for that of the images that we bake. What Google gives an account for
nothing each month (an address on demand for as many hours as a month has) is not taken off: others may have used it.
"""

from __future__ import annotations

from dataclasses import replace

from .prices import VmPrice, item_price

DISK_TYPE = "pd-balanced"
DISK_GB, CONTROLLER_DISK_GB = 50, 20
_HOURS_PER_MONTH = 730.0


def disk_hourly(place: str, gb: float = DISK_GB) -> float:
    """US dollars per hour of a boot disk in a zone or region."""
    return gb * item_price(DISK_TYPE, place)[0] / _HOURS_PER_MONTH


def address_hourly() -> tuple[float, float]:
    """US dollars per hour of an external address in use: (on demand, Spot)."""
    return item_price("external-ipv4", "global")


def with_extras(price: VmPrice, place: str, *, gb: float = DISK_GB, external_ip: bool = True) -> VmPrice:
    """The price of a VM in a zone or region with its disk, and its external address if it has one."""
    disk, address = disk_hourly(place, gb), address_hourly() if external_ip else (0.0, 0.0)
    on_demand, transient = (disk + each for each in address)
    return replace(
        price, on_demand=price.on_demand + on_demand, transient=price.transient + transient,
        on_demand_extras=on_demand, transient_extras=transient,
    )  # fmt: skip
