"""Regions, their continents, and the price of data transfer between them."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Collection, Iterable
from dataclasses import dataclass

HOME_CONTINENT = "North America"
"""The continent on which zones are tried first by default."""

_ZONE = re.compile(r"(?P<region>[a-z]+-[a-z]+\d+)-[a-z]")
_CONTINENTS = {
    "us": "North America",
    "northamerica": "North America",
    "southamerica": "South America",
    "europe": "Europe",
    "me": "Middle East",
    "africa": "Africa",
    "asia": "Asia",
    "australia": "Oceania",
}
# Latitude and longitude in degrees of the town that Google names for the region.
_PLACES: dict[str, tuple[float, float]] = {
    "us-central1": (41.3, -95.9),
    "us-east1": (33.2, -80.0),
    "us-east4": (39.0, -77.5),
    "us-east5": (40.0, -83.0),
    "us-south1": (32.8, -96.8),
    "us-west1": (45.6, -121.2),
    "us-west2": (34.1, -118.2),
    "us-west3": (40.8, -111.9),
    "us-west4": (36.2, -115.1),
    "northamerica-northeast1": (45.5, -73.6),
    "northamerica-northeast2": (43.7, -79.4),
    "northamerica-south1": (20.6, -100.4),
    "southamerica-east1": (-23.5, -46.8),
    "southamerica-west1": (-33.4, -70.7),
    "europe-central2": (52.2, 21.0),
    "europe-north1": (60.6, 27.2),
    "europe-north2": (59.3, 18.1),
    "europe-southwest1": (40.4, -3.7),
    "europe-west1": (50.4, 3.8),
    "europe-west2": (51.5, -0.1),
    "europe-west3": (50.1, 8.7),
    "europe-west4": (53.4, 6.8),
    "europe-west6": (47.4, 8.5),
    "europe-west8": (45.5, 9.2),
    "europe-west9": (48.9, 2.4),
    "europe-west10": (52.5, 13.4),
    "europe-west12": (45.1, 7.7),
    "me-west1": (32.1, 34.8),
    "me-central1": (25.3, 51.5),
    "me-central2": (26.4, 50.1),
    "africa-south1": (-26.2, 28.0),
    "asia-east1": (24.1, 120.5),
    "asia-east2": (22.3, 114.2),
    "asia-northeast1": (35.7, 139.7),
    "asia-northeast2": (34.7, 135.5),
    "asia-northeast3": (37.6, 127.0),
    "asia-south1": (19.1, 72.9),
    "asia-south2": (28.6, 77.2),
    "asia-southeast1": (1.4, 103.8),
    "asia-southeast2": (-6.2, 106.8),
    "australia-southeast1": (-33.9, 151.2),
    "australia-southeast2": (-37.8, 145.0),
}


_GOOGLE = "Google Cloud VPC network pricing"
_UNCONFIRMED = "unconfirmed"


def region(place: str) -> str:
    """`us-west1` for the zone `us-west1-b`; a region's own name stays as it is."""
    match = _ZONE.fullmatch(place)
    if match:
        return match["region"]
    return place


def continent(place: str) -> str:
    """Return the continent (`Europe`) of the region `europe-west4` or of its zones; '' if unknown."""
    return _CONTINENTS.get(place.partition("-")[0], "")


def nearest(place: str, regions: Collection[str]) -> str:
    """Return the nearest of `regions`: itself, else on its continent, else by distance."""
    here = region(place)
    if here in regions:
        return here

    def far(other: str) -> tuple[bool, float, bool, str]:
        country = other.partition("-")[0] != here.partition("-")[0]
        return continent(other) != continent(here), degrees(here, other), country, other

    return min(regions, key=far)


def home_first(zones: Iterable[str], home: str) -> tuple[str, ...]:
    """Return the zone `home`, then its region's zones (cheap traffic), then the others in order."""
    return tuple(sorted(zones, key=lambda zone: (zone != home, region(zone) != region(home))))


def degrees(one: str, other: str) -> float:
    """Return the angle between two regions on the globe, in degrees; 0 if one is not on our map."""
    if one not in _PLACES or other not in _PLACES:
        return 0.0
    north, east = _PLACES[one]
    other_north, other_east = _PLACES[other]
    a = math.radians(north)
    b = math.radians(other_north)
    turn = math.radians(other_east - east)
    cosine = math.sin(a) * math.sin(b) + math.cos(a) * math.cos(b) * math.cos(turn)
    return math.degrees(math.acos(max(-1.0, min(1.0, cosine))))


def apart(one: str, other: str) -> float:
    """Return the angle between two regions on the globe, in degrees.

    A region that is not on our map counts as distant as its continent's regions in the median.
    """
    if one == other:
        return 0.0
    pairs = [(a, b) for a in _possible(one) for b in _possible(other) if a != b]
    return statistics.median(degrees(*pair) for pair in pairs)


def _possible(place: str) -> list[str]:
    """Return the region if it is on the map, otherwise its continent's regions, or all."""
    if place in _PLACES:
        return [place]
    near = [other for other in _PLACES if continent(other) == continent(place)]
    return near or list(_PLACES)


# The price of traffic between VMs, and the limit of a VM's outgoing traffic within its network.
#
# Prices are in US dollars per GiB in each direction, over internal addresses of one network. Limits
# are by family and number of vCPUs, without the extra tier. The figure of n1-standard-8 was found
# in Google's pages in 2026; the others are unverified. They only decide whether runs may begin side
# by side. Incoming traffic has no documented limit of its own; the same one is assumed.


@dataclass(frozen=True, slots=True)
class TransferPrice:
    """Dollars per GiB that leaves one VM for another; the way back is charged again.

    `dollars_per_gib` is the price for computations: the highest one if only a range from `at_least`
    on is known. An unconfirmed price was not read on any price list.
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

INTERNET = TransferPrice(
    0.12, 0.085, "a VM and a machine outside Google Cloud", "", _UNCONFIRMED, False
)
"""Traffic that leaves Google's network; incoming traffic is free."""

TRANSFER_PRICES = (SAME_ZONE, SAME_REGION, NORTH_AMERICA, SAME_CONTINENT, CONTINENTS)


def transfer_price(zone: str, other: str) -> TransferPrice:
    """Return the price of traffic between VMs in two zones, equal in both directions."""
    if zone == other:
        return SAME_ZONE
    if region(zone) == region(other):
        return SAME_REGION
    if not continent(zone) or continent(zone) != continent(other):
        return CONTINENTS
    if continent(zone) == "North America":
        return NORTH_AMERICA
    return SAME_CONTINENT


_GBIT = 1e9 / 8

# By family: Gbit/s from a number of vCPUs on.
_EGRESS: dict[str, tuple[tuple[int, float], ...]] = {
    "n1": ((1, 2), (2, 10), (8, 16), (16, 32)),
    "n2": ((2, 10), (8, 16), (16, 32)),
    "e2": ((1, 1), (2, 4), (4, 8), (8, 16)),
}


def egress(family: str, vcpus: int) -> float:
    """Return bytes per second that a VM may send; for an unknown family those of the slowest."""
    steps = _EGRESS.get(family) or min(
        _EGRESS.values(), key=lambda family_steps: family_steps[-1][1]
    )
    return max(rate for least, rate in steps if vcpus >= least or least == steps[0][0]) * _GBIT
