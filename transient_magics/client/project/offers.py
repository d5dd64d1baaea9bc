"""The catalog as tables and text: the answer of `transient catalog [GPU]`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from ...catalog import (
    ACCELERATORS,
    DISK_GB,
    DISK_TYPE,
    ICAC19,
    REFRESH,
    SOURCES,
    STALE_DAYS,
    TRANSFER_PRICES,
    TransferPrice,
    accelerator,
    address_hourly,
    age_days,
    default_zone,
    disk_hourly,
    item_price,
    limits,
    machines_with,
    never_on_demand,
    price_history,
    region,
    runs_cuda_13,
    shapes,
    worker_price,
    zones_with,
)
from ..commands import run_program
from ..text import table

_WIDTH = 79
_NOT_IN_IT = (
    "Prices exclude taxes, other currencies, negotiated prices and sustained-use discounts."
)
_UNIT = "US dollars per hour of the whole VM"


@dataclass(frozen=True)
class Offers:
    """The catalog as rows and as text.

    Attributes
    ----------
    gpu : str
        The GPU; empty for all GPUs.

    Examples
    --------
    >>> from transient_magics.client import catalog
    >>> catalog("t4").rows
    """

    gpu: str = ""

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One dict per GPU, or per region if there is one GPU.

        Keys per GPU: gpu, memory_gb, machine_type, zone (the default) and zones (their number).
        Keys per region: region and zones (a list). Keys of both: transient and on_demand (US
        dollars per hour of the whole VM), transient_as_of, on_demand_as_of and source.
        """
        if self.gpu:
            return _regions(self.gpu)
        return [_offer(name) for name in ACCELERATORS]

    def __str__(self) -> str:
        if self.gpu:
            return "\n".join(_one(self.gpu, self.rows))
        return "\n".join(_all(self.rows))

    def __repr__(self) -> str:
        return str(self)


def catalog(gpu: str | None = None, project: str | None = None) -> Offers:
    """Return the GPUs of the catalog with machines and prices, or one GPU in detail.

    Parameters
    ----------
    gpu
        The GPU (default: all).
    project
        A project with whose permissions today's prices are fetched first and stored.

    Returns
    -------
    Offers
        The catalog, shown as a table.

    Raises
    ------
    DeclarationError
        The GPU is unknown.
    CloudError
        Today's prices cannot be fetched.
    """
    if project:
        run_program("queries", "Fetching today's prices", "prices", project)
    if not gpu:
        return Offers()
    return Offers(accelerator(gpu.lower()).name)


def _offer(name: str) -> dict[str, Any]:
    entry = ACCELERATORS[name]
    zone = default_zone([name])
    if entry.withdrawn:
        price = ICAC19.worker_price(name)
    else:
        price = worker_price(name, zone)
    return {
        "gpu": name,
        "memory_gb": entry.gpu_memory_gb,
        "machine_type": entry.machine_type,
        "zone": zone,
        "zones": len(zones_with(name)),
        **asdict(price),
    }


def _regions(name: str) -> list[dict[str, Any]]:
    zones: dict[str, list[str]] = {}
    for zone in zones_with(name):
        zones.setdefault(region(zone), []).append(zone)
    return [
        {"region": place, "zones": there, **asdict(worker_price(name, place))}
        for place, there in zones.items()
    ]


def _all(rows: list[dict[str, Any]]) -> list[str]:
    header = ("GPU", "MEMORY", "MACHINE", "DEFAULT ZONE", "ZONES", "SPOT $/H", "ON DEMAND")
    lines = table(
        header,
        [
            (
                row["gpu"],
                f"{row['memory_gb']:g} GB" if row["memory_gb"] else "-",
                row["machine_type"],
                row["zone"],
                str(row["zones"]),
                f"{row['transient']:.3f}",
                f"{row['on_demand']:.3f}",
            )
            for row in rows
        ],
    )
    notes = [f"{_UNIT}, in the default zone. Details of a GPU: transient catalog GPU."]
    notes += [_withdrawn(name) for name, entry in ACCELERATORS.items() if entry.withdrawn]
    notes += filter(None, [never_on_demand(ACCELERATORS)])
    older = [
        f"{row['gpu']} on demand {row['on_demand_as_of']}"
        for row in rows
        if row["on_demand_as_of"] != row["transient_as_of"]
    ]
    age = _age(rows)
    if older:
        age += f" Prices of other dates: {', '.join(older)}."
    notes.append(age)
    notes.append(f"{_NOT_IN_IT} {_sources(rows)}")
    return [*lines, "", *_filled([*notes, _extras(rows[0]["zone"]), _traffic()])]


def _one(name: str, rows: list[dict[str, Any]]) -> list[str]:
    entry = ACCELERATORS[name]
    what = "No GPU"
    if name != "cpu":
        what = f"{name.upper()} ({entry.compute_engine_name}), {entry.gpu_memory_gb:g} GB"
    notes = [
        f"{what}. Default machine: {entry.machine_type} with {entry.vcpus} vCPUs, "
        f"{entry.memory_gb:g} GB."
    ]
    if others := [shape for shape in shapes(name) if shape != entry.machine_type]:
        machines = ", ".join(others)
        if not entry.bundled:
            machines += ", or a custom one"
        notes.append(f"With --machine-type: {machines}.")
    if entry.withdrawn:
        price = ICAC19.worker_price(name)
        published = (
            f"There a VM costs ${price.transient:.3f} per hour, on demand ${price.on_demand:.3f}."
        )
        notes.append(f"{_withdrawn(name)} {published} The last list prices were:")
    notes += filter(None, [never_on_demand([name]), _cuda(name)])
    header = ("REGION", "ZONES", "SPOT $/H", "ON DEMAND", "AS OF")
    lines = table(
        header,
        [
            (
                row["region"],
                " ".join(zone.rpartition("-")[2] for zone in row["zones"]),
                f"{row['transient']:.3f}",
                f"{row['on_demand']:.3f}",
                _dates(row),
            )
            for row in rows
        ],
    )
    parts = [_filled(notes), lines, _limits(name), _history(name)]
    parts.append(
        _filled(
            [
                f"{_UNIT}. {_dating(rows)} {_sources(rows, name)}",
                _extras(default_zone([name])),
                _traffic(),
            ]
        )
    )
    return "\n\n".join("\n".join(part) for part in parts if part).splitlines()


def _dates(row: dict[str, Any]) -> str:
    """Return the date of both prices, or that of the Spot price and that of the on-demand price."""
    dates = dict.fromkeys((row["transient_as_of"], row["on_demand_as_of"]))
    return ", ".join(dates)


def _withdrawn(name: str) -> str:
    entry = ACCELERATORS[name]
    use = " or ".join(entry.alternatives)
    return (
        f"{name}: withdrawn {entry.withdrawn}, use {use}; on the emulator only, at {ICAC19.source}."
    )


def _cuda(name: str) -> str:
    """Return a note if a GPU is too old for programs that are built for CUDA 13."""
    if name == "cpu" or runs_cuda_13(name):
        return ""
    return (
        "Programs for CUDA 13, such as PyTorch 2.11 and later, do not run on it. Use: --pip "
        "'torch<2.8'."
    )


def _limits(name: str) -> list[str]:
    if own := machines_with(name):
        lines = [
            f"{machine.name}: {machine.gpu_count} GPU, {machine.vcpus} vCPUs, "
            f"{machine.memory_gb:g} GB"
            for machine in own
        ]
        return ["Its machine types:", *(f"  {line}" for line in lines)]
    general = limits(name)
    lines = [
        f"  {count} GPU: {most.vcpus} vCPUs, {most.memory_gb:g} GB"
        for count, most in general.items()
    ]
    odd: dict[str, list[str]] = {}
    for zone in zones_with(name):
        for count, most in limits(name, zone).items():
            if most != general[count]:
                limit = f"{count} GPU: {most.vcpus} vCPUs, {most.memory_gb:g} GB"
                odd.setdefault(limit, []).append(zone)
    lines += [f"  {limit} in {', '.join(zones)}" for limit, zones in odd.items()]
    if lines:
        return ["Limits of an N1 VM:", *lines]
    return []


def _history(name: str) -> list[str]:
    rows = [
        (row.as_of, row.region, _dollars(row.transient), _dollars(row.on_demand))
        for row in price_history(name)
    ]
    lines = table(("DATE", "REGION", "PREEMPTIBLE OR SPOT", "ON DEMAND"), rows)
    if rows:
        return ["Earlier prices of the GPU alone:", *(f"  {line}" for line in lines)]
    return []


def _extras(zone: str) -> str:
    """Return the costs of a VM in addition to its machine."""
    month = item_price(DISK_TYPE, zone)[0]
    standard, spot = address_hourly()
    return (
        f"Prices of clusters and plans also include the disk ({DISK_GB} GB {DISK_TYPE}, in "
        f"{region(zone)} "
        f"${month:.3f} per GB and month, ${disk_hourly(zone):.4f} per hour), the external address "
        f"(${spot:.4f} per "
        f"hour for Spot, ${standard:.4f} on demand), and Local SSDs of the machine type. "
        f"Sources: {SOURCES['gcosts']}; {SOURCES['vpc-pricing']}."
    )


def _traffic() -> str:
    prices = ", ".join(f"{_range(price)} between {price.between}" for price in TRANSFER_PRICES)
    read = TRANSFER_PRICES[0]
    recalled = TRANSFER_PRICES[-1]
    dated = f"{read.source}, {read.as_of}; *: {recalled.source}."
    return f"Traffic between VMs, per GiB and direction: {prices}. {dated}"


def _range(price: TransferPrice) -> str:
    dollars = f"{price.dollars_per_gib:.2f}"
    if price.at_least != price.dollars_per_gib:
        dollars = f"{price.at_least:.2f} to {dollars}"
    if not price.confirmed:
        dollars += "*"
    return f"${dollars}"


def _dating(rows: list[dict[str, Any]]) -> str:
    dates = [_dates(row) for row in rows]
    sentences = [
        _age(rows),
        "Dates are those of the GPU's price. ~: the source has no date; others quote these prices "
        "for that day.",
    ]
    if any(", " in date for date in dates):
        sentences.append("The first of two dates is that of the Spot price.")
    if any(" of " in date for date in dates):
        sentences.append("`of`: the nearest region with a known price.")
    return " ".join(sentences)


def _age(rows: list[dict[str, Any]]) -> str:
    """Return the age of the oldest Spot price, without prices from publications."""
    dates = [row["transient_as_of"] for row in rows if not row["published"]]
    if not dates:
        return ""
    oldest = max(dates, key=age_days)
    days = age_days(oldest)
    age = f"Spot prices are up to {days:.0f} days old ({oldest.split()[0]})."
    if days > STALE_DAYS:
        return f"{age} {REFRESH}"
    return age


def _sources(rows: list[dict[str, Any]], gpu: str = "") -> str:
    names = {"skypilot-v9", *(row.source for row in price_history(gpu))}
    if any(row["on_demand_as_of"].startswith("~2024") for row in rows):
        names.add("skypilot-v5")
    return f"Sources: {'; '.join(text for name, text in SOURCES.items() if name in names)}."


def _dollars(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}"


def _filled(notes: Iterable[str]) -> list[str]:
    return [line for note in notes for line in textwrap.wrap(note, _WIDTH, break_on_hyphens=False)]
