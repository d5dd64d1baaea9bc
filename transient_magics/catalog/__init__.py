"""What exists and what it costs: GPUs, machine types, zones, dated prices. Tables and look-ups, no network."""

from .accelerators import ACCELERATORS, Accelerator, accelerator, living_alternative
from .prices import PriceList, price_list
from .zones import ZONES, default_zone, region, zones_with

__all__ = [
    "ACCELERATORS",
    "ZONES",
    "Accelerator",
    "PriceList",
    "accelerator",
    "default_zone",
    "living_alternative",
    "price_list",
    "region",
    "zones_with",
]
