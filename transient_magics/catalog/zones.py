"""Zones and the GPUs that each of them has, as read in 2026 (the K80's: 2022, before it was withdrawn)."""

from __future__ import annotations

_BY_ACCELERATOR: dict[str, tuple[str, ...]] = {
    "k80": (
        "us-west1-b", "us-central1-a", "us-central1-c", "us-east1-c", "us-east1-d", "europe-west1-b", "europe-west1-d",
    ),
    "p100": (
        "us-central1-c", "us-central1-f", "us-east1-b", "us-east1-c", "us-west1-a", "us-west1-b",
        "europe-west1-b", "europe-west1-d", "europe-west4-a", "asia-east1-a", "asia-east1-c", "australia-southeast1-b",
    ),
    "v100": (
        "us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f", "us-east1-b", "us-east1-c",
        "us-west1-a", "us-west1-b", "europe-west4-a", "europe-west4-b", "europe-west4-c", "asia-east1-c",
    ),
    "p4": ("us-central1-a", "us-central1-c", "us-east4-a", "us-east4-b", "us-east4-c"),
    "t4": (
        "us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f", "us-east1-c", "us-east1-d",
        "us-east4-b", "us-east4-c", "us-west1-a", "us-west1-b", "europe-west1-b", "europe-west1-c", "europe-west1-d",
        "europe-west4-a", "europe-west4-b", "europe-west4-c", "asia-east1-a", "asia-east1-c",
    ),
    "l4": (
        "us-central1-a", "us-central1-b", "us-central1-c", "us-east1-b", "us-east1-c", "us-east1-d",
        "us-east4-a", "us-east4-c", "us-west1-a", "us-west1-b", "europe-west1-b", "europe-west1-c",
        "europe-west4-a", "europe-west4-b", "europe-west4-c", "asia-east1-a", "asia-east1-b", "asia-east1-c",
    ),
    "a100": ("us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f", "us-east1-b", "us-west1-b",
             "europe-west4-a", "europe-west4-b"),
    "a100-80gb": ("us-central1-a", "us-central1-c", "us-east4-c", "europe-west4-a"),
    "h100": ("us-central1-a", "us-central1-b", "us-central1-c", "us-east4-a", "us-east4-b", "us-west1-a", "us-west1-b",
             "europe-west4-b", "europe-west4-c", "europe-west1-b"),
}  # fmt: skip

ZONES: tuple[str, ...] = tuple(sorted({zone for zones in _BY_ACCELERATOR.values() for zone in zones}))


def zones_with(accelerator: str) -> tuple[str, ...]:
    """Zones that have this GPU, best first (`cpu`: all)."""
    return _BY_ACCELERATOR.get(accelerator, ZONES)


def default_zone(accelerators: list[str]) -> str:
    """The first zone that has all these GPUs, else the first that has the first of them."""
    candidates = zones_with(accelerators[0]) if accelerators[0] in _BY_ACCELERATOR else ("us-central1-a", *ZONES)
    return next((zone for zone in candidates if all(zone in zones_with(each) for each in accelerators)), candidates[0])


def region(zone: str) -> str:
    """`us-west1` for `us-west1-b`."""
    return zone.rpartition("-")[0]
