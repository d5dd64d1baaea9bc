"""What traffic between VMs costs, in US dollars per GiB in each direction, over internal addresses of one network."""

from __future__ import annotations

from dataclasses import dataclass

from .regions import continent, region

_GOOGLE = "Google Cloud VPC network pricing"
_UNCONFIRMED = "unconfirmed"


@dataclass(frozen=True, slots=True)
class TransferPrice:
    """Dollars per GiB that leaves one VM for another; the way back is charged again.

    `dollars_per_gib` is what to compute with: the highest where only a range from `at_least` on is known. A price that
    is not `confirmed` was not read on any price list.
    """

    dollars_per_gib: float
    at_least: float
    between: str
    as_of: str
    source: str
    confirmed: bool


SAME_ZONE = TransferPrice(0.0, 0.0, "VMs of one zone", "2026-09", _GOOGLE, True)
SAME_REGION = TransferPrice(0.01, 0.01, "zones of one region", "2026-09", _GOOGLE, True)
NORTH_AMERICA = TransferPrice(0.02, 0.02, "regions of North America", "", _UNCONFIRMED, False)
SAME_CONTINENT = TransferPrice(0.08, 0.02, "regions of another continent", "", _UNCONFIRMED, False)
CONTINENTS = TransferPrice(0.15, 0.05, "continents", "", _UNCONFIRMED, False)
INTERNET = TransferPrice(0.12, 0.085, "a VM and a machine outside Google Cloud", "", _UNCONFIRMED, False)
"""What leaves Google's network; nothing is charged for the way in."""
TRANSFER_PRICES = (SAME_ZONE, SAME_REGION, NORTH_AMERICA, SAME_CONTINENT, CONTINENTS)


def transfer_price(zone: str, other: str) -> TransferPrice:
    """The price of traffic from a VM in one zone to a VM in another; it is the same in both directions."""
    if zone == other:
        return SAME_ZONE
    if region(zone) == region(other):
        return SAME_REGION
    if not continent(zone) or continent(zone) != continent(other):
        return CONTINENTS
    return NORTH_AMERICA if continent(zone) == "North America" else SAME_CONTINENT
