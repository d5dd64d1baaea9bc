"""What can be declared and what it costs, for people to read: the answer of `transient catalog
[GPU]`.
"""

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
    "No taxes, other currencies, negotiated prices or sustained-use discounts are in any price."
)
_UNIT = "US dollars per hour of the whole VM"


@dataclass(frozen=True)
class Offers:
    """The catalog as rows and as text. `gpu` is the one that it is about, or nothing for all of
    them.
    """

    gpu: str = ""

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One dict per GPU, or per region of the one GPU; prices in US dollars per hour of the
        whole VM.

        Per GPU: gpu, memory_gb, machine_type, zone (the default), zones (how many). Per region:
        region, zones (which). Both: transient, on_demand, and of whom and when: transient_as_of,
        on_demand_as_of, source.
        """
        if self.gpu:
            return _regions(self.gpu)
        return [_offer(name) for name in ACCELERATORS]

    def __str__(self) -> str:
        return "\n".join(_one(self.gpu, self.rows) if self.gpu else _all(self.rows))

    def __repr__(self) -> str:
        return str(self)


def catalog(gpu: str | None = None, project: str | None = None) -> Offers:
    """All GPUs with their machines and prices, or the zones, prices and limits of one. Raises
    DeclarationError.

    With a project Google is asked for today's prices first, and they are kept. Raises CloudError
    then.
    """
    if project:
        run_program("queries", "Asking for today's prices", "prices", project)
    return Offers(accelerator(gpu.lower()).name if gpu else "")


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
    notes = [f"{_UNIT}, in its default zone. More of one: transient catalog GPU."]
    notes += [_withdrawn(name) for name, entry in ACCELERATORS.items() if entry.withdrawn]
    notes += filter(None, [never_on_demand(ACCELERATORS)])
    older = [
        f"{row['gpu']} on demand {row['on_demand_as_of']}"
        for row in rows
        if row["on_demand_as_of"] != row["transient_as_of"]
    ]
    notes.append(
        f"{_age(rows)}{' Of other dates: ' if older else ''}{', '.join(older)}{'.' if older else ''}"
    )
    notes.append(f"{_NOT_IN_IT} {_sources(rows)}")
    return [*lines, "", *_filled([*notes, _extras(rows[0]["zone"]), _traffic()])]


def _one(name: str, rows: list[dict[str, Any]]) -> list[str]:
    entry = ACCELERATORS[name]
    if name != "cpu":
        what = f"{name.upper()} ({entry.compute_engine_name}), {entry.gpu_memory_gb:g} GB"
    else:
        what = "No GPU"
    notes = [
        f"{what}. By default in {entry.machine_type}: {entry.vcpus} vCPUs, {entry.memory_gb:g} GB."
    ]
    if len(others := [shape for shape in shapes(name) if shape != entry.machine_type]) > 0:
        notes.append(
            f"With --machine-type: {', '.join(others)}{'' if entry.bundled else ', or a custom one'}."
        )
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
    """The date of both prices, or Spot's, then that of the price on demand."""
    dates = dict.fromkeys((row["transient_as_of"], row["on_demand_as_of"]))
    return ", ".join(dates)


def _withdrawn(name: str) -> str:
    entry = ACCELERATORS[name]
    use = " or ".join(entry.alternatives)
    return (
        f"{name}: withdrawn {entry.withdrawn}, use {use}; on the emulator only, at {ICAC19.source}."
    )


def _cuda(name: str) -> str:
    """Return that a GPU is too old for programs built for CUDA 13, or nothing."""
    if name == "cpu" or runs_cuda_13(name):
        return ""
    return "Programs built for CUDA 13, as PyTorch from 2.11 on, do not run on it: --pip 'torch<2.8' does."


def _limits(name: str) -> list[str]:
    if own := machines_with(name):
        lines = [
            f"{each.name}: {each.gpu_count} GPU, {each.vcpus} vCPUs, {each.memory_gb:g} GB"
            for each in own
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
                said = f"{count} GPU: {most.vcpus} vCPUs, {most.memory_gb:g} GB"
                odd.setdefault(said, []).append(zone)
    lines += [f"  {said} in {', '.join(zones)}" for said, zones in odd.items()]
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
        return ["The GPU alone, over the years:", *(f"  {line}" for line in lines)]
    return []


def _extras(zone: str) -> str:
    """What a VM costs besides its machine."""
    month, (standard, spot) = item_price(DISK_TYPE, zone)[0], address_hourly()
    return (
        f"Besides, and in the price of every cluster and plan: its disk ({DISK_GB} GB {DISK_TYPE}, in {region(zone)} "
        f"${month:.3f} per GB and month, ${disk_hourly(zone):.4f} per hour) and its external address (${spot:.4f} per "
        f"hour of Spot, ${standard:.4f} on demand), and Local SSDs that come with its machine. "
        f"Sources: {SOURCES['gcosts']}; {SOURCES['vpc-pricing']}."
    )


def _traffic() -> str:
    prices = ", ".join(f"{_range(price)} between {price.between}" for price in TRANSFER_PRICES)
    read = TRANSFER_PRICES[0]
    recalled = TRANSFER_PRICES[-1]
    dated = f"{read.source}, {read.as_of}; *: {recalled.source}."
    return f"Traffic between VMs, per GiB and direction: {prices}. {dated}"


def _range(price: TransferPrice) -> str:
    if price.at_least != price.dollars_per_gib:
        least = f"{price.at_least:.2f} to "
    else:
        least = ""
    return f"${least}{price.dollars_per_gib:.2f}{'' if price.confirmed else '*'}"


def _dating(rows: list[dict[str, Any]]) -> str:
    dates = [_dates(row) for row in rows]
    said = [
        _age(rows),
        "The date is the GPU's. ~: the source has none, and others quote those prices for that day.",
    ]
    if any(", " in date for date in dates):
        said.append("Of two dates the first is Spot's.")
    if any(" of " in date for date in dates):
        said.append("`of`: the nearest region with a known price.")
    return " ".join(said)


def _age(rows: list[dict[str, Any]]) -> str:
    """How old the oldest of the Spot prices is that do not stand for themselves."""
    dates = [row["transient_as_of"] for row in rows if not row["published"]]
    if not dates:
        return ""
    oldest = max(dates, key=age_days)
    days = age_days(oldest)
    said = f"Spot prices are up to {days:.0f} days old ({oldest.split()[0]})."
    if days > STALE_DAYS:
        return f"{said} {REFRESH}"
    return said


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
