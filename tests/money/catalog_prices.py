"""The catalog's price data as a table to reckon with: the file is read, none of the code that reads it otherwise."""

from __future__ import annotations

import csv
from pathlib import Path

from .reckoning import Prices

_TABLE = Path(__file__).parents[2] / "transient_magics" / "catalog" / "prices.csv"
_ACCELERATORS = {"t4": "nvidia-tesla-t4", "v100": "nvidia-tesla-v100", "p100": "nvidia-tesla-p100", "l4": "nvidia-l4"}
_RESOURCES = {"n1-vcpu": "n1-vcpu", "n1-gb": "n1-gib", "n2-vcpu": "n2-vcpu", "n2-gb": "n2-gib"}


def catalog_prices() -> Prices:
    """The latest row of each item and region, by the date that it bears."""
    hourly: dict[tuple[str, str, bool], float] = {}
    disk_month: dict[tuple[str, str], float] = {}
    with _TABLE.open(newline="") as file:
        for row in sorted(csv.DictReader(file), key=lambda row: row["as_of"].removeprefix("~")):
            if row["item"].startswith("pd-"):
                disk_month[row["item"], row["region"]] = float(row["on_demand"])
                continue
            item = _ACCELERATORS.get(row["item"]) or _RESOURCES.get(row["item"], row["item"])
            for column, spot in (("on_demand", False), ("transient", True)):
                if row[column]:
                    hourly[item, row["region"], spot] = float(row[column])
    address_hour = {spot: hourly["external-ipv4", "global", spot] for spot in (False, True)}
    return Prices(hourly, disk_month, address_hour=address_hour)
