"""Zones and their GPUs, as read in 2026 (the K80's: 2022, before it was withdrawn).

The H100's zones are those that offer single GPUs (a3-highgpu-1g).
"""

from __future__ import annotations

from functools import cache

from .prices import priced_regions, worker_price
from .regions import HOME_CONTINENT, continent, region

# The zones of a region by their letters. Source: SkyPilot's catalog, as for the prices.
_BY_ACCELERATOR: dict[str, str] = {
    "k80": "us-west1-b us-central1-ac us-east1-cd europe-west1-bd",
    "p100": "us-central1-cf us-east1-bc us-west1-ab europe-west1-bd europe-west4-a asia-east1-ac "
    "australia-southeast1-b",
    "v100": "us-central1-abcf us-east1-bc us-west1-ab europe-west4-abc asia-east1-c",
    "p4": "us-central1-ac us-east4-abc us-west2-bc northamerica-northeast1-abc europe-west4-bc asia-southeast1-abc "
    "australia-southeast1-ab",
    "t4": "us-central1-abcf us-east1-bcd us-east4-abc us-west1-ab us-west2-bc us-west3-b us-west4-ab "
    "northamerica-northeast1-c southamerica-east1-abc europe-central2-bc europe-west1-bcd europe-west2-ab "
    "europe-west3-b europe-west4-abc me-west1-bc asia-east1-ac asia-east2-ac asia-northeast1-ac asia-northeast3-bc "
    "asia-south1-ab asia-southeast1-abc asia-southeast2-ab australia-southeast1-ac",
    "l4": "us-central1-abc us-east1-bcd us-east4-ac us-west1-abc us-west4-ac northamerica-northeast1-bc "
    "northamerica-northeast2-ab europe-west1-bc europe-west2-ab europe-west3-ab europe-west4-abc europe-west6-bc "
    "me-central2-ac asia-east1-abc asia-northeast1-abc asia-northeast3-ab asia-south1-abc asia-southeast1-abc",
    "a100": "us-central1-abcf us-east1-b us-west1-b us-west3-b us-west4-b europe-west4-ab me-west1-ac "
    "asia-northeast1-ac asia-northeast3-ab asia-southeast1-abc",
    "a100-80gb": "us-central1-ac us-east4-c us-east5-ab europe-west4-a asia-southeast1-c",
    "h100": "us-central1-abc us-east4-abc us-east5-a us-west1-ab us-west4-a europe-north1-c europe-west1-bc "
    "europe-west3-c europe-west4-bc europe-west9-c asia-east1-c asia-northeast1-b asia-south1-c asia-south2-b "
    "asia-southeast1-bc australia-southeast1-c",
}
# The published measurements with the K80 come from us-west1; us-central1 is Compute Engine's own
# example.
_HOME = {"k80": "us-west1", "cpu": "us-central1"}


def _zones(text: str) -> frozenset[str]:
    pieces = (word.rpartition("-") for word in text.split())
    return frozenset(f"{place}-{letter}" for place, _, letters in pieces for letter in letters)


_GPU_ZONES: dict[str, frozenset[str]] = {
    name: _zones(text) for name, text in _BY_ACCELERATOR.items()
}

ZONES: tuple[str, ...] = tuple(sorted({zone for zones in _GPU_ZONES.values() for zone in zones}))
"""All zones that a declaration can name."""


@cache
def zones_with(accelerator: str) -> tuple[str, ...]:
    """Return the zones with this GPU (`cpu`: N1 machines), best first.

    North America comes first, by Spot price, then the rest. Zones without N1 machines, on which
    parameter servers run, come after those of their continent with them.
    """
    n1 = priced_regions("n1-vcpu")
    zones = _GPU_ZONES.get(accelerator) or {zone for zone in ZONES if region(zone) in n1}
    kind = accelerator if accelerator in _GPU_ZONES else "cpu"

    def rank(zone: str) -> tuple[bool, bool, bool, float, str]:
        abroad = continent(zone) != HOME_CONTINENT
        return (
            region(zone) != _HOME.get(kind),
            abroad,
            region(zone) not in n1,
            worker_price(kind, zone).transient,
            zone,
        )

    return tuple(sorted(zones, key=rank))


def has_gpu(zone: str, accelerator: str) -> bool:
    """Return whether the zone has this GPU (`cpu`: N1 machines)."""
    return zone in zones_with(accelerator)


def default_zone(accelerators: list[str]) -> str:
    """Return the first zone with all these GPUs, or the first zone with the first of them."""
    candidates = zones_with(accelerators[0])
    return next(
        (
            zone
            for zone in candidates
            if all(has_gpu(zone, accelerator) for accelerator in accelerators)
        ),
        candidates[0],
    )
