"""The price of traffic between VMs, and the limits on what a VM sends within its network.

Prices are in US dollars per GiB in each direction, over internal addresses of one network. Limits are by family and
number of vCPUs, without the extra tier. The figure of n1-standard-8 was found in Google's pages in 2026; the others
were not looked up. They decide only whether runs may begin beside each other. What a VM receives has no limit of its
own there; it is taken to be the same.
"""

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


_GBIT = 1e9 / 8
# By family: from so many vCPUs on, so many Gbit/s.
_EGRESS: dict[str, tuple[tuple[int, float], ...]] = {
    "n1": ((1, 2), (2, 10), (8, 16), (16, 32)),
    "n2": ((2, 10), (8, 16), (16, 32)),
    "e2": ((1, 1), (2, 4), (4, 8), (8, 16)),
}


def egress(family: str, vcpus: int) -> float:
    """Bytes per second that a VM may send; of a family that is not known, what the slowest of them may."""
    steps = _EGRESS.get(family) or min(_EGRESS.values(), key=lambda each: each[-1][1])
    return max(rate for least, rate in steps if vcpus >= least or least == steps[0][0]) * _GBIT
