"""The offer of the declare panel: a pure function of the choices on it.

The choices become a line, which is read as if it had been typed. So the panel cannot offer what the
magic refuses, and its errors are those of the magic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..catalog import ACCELERATORS, region, zones_with
from ..catalog.published import LAST_HOUR, lifetimes, stand_in_words
from ..cli import arguments
from ..client import Declaration, Preview, specify, text
from ..client.planning.bottlenecks import foreseen
from ..errors import DeclarationError

MAGIC = "%transient_cluster"
FIRST: Mapping[str, Any] = {"groups": [{"gpu": "l4", "count": "4", "zone": ""}]}
"""The choices when the panel opens."""
_OPTIONS = {
    "name": "--name",
    "ps": "--ps",
    "model": "--provisioning-model",
    "hours": "--max-hours",
    "cost": "--max-cost",
    "project": "--project",
    "purpose": "--for",
    "machine": "--machine-type",
    "disk": "--disk",
    "ps_zone": "--ps-zone",
}
_DEFAULTS = {"ps": "1", "model": "spot", "purpose": "training"}
_MODELS = {"spot": "Spot", "preemptible": "preemptible (24 h at most)", "standard": "on demand"}
_PURPOSES = {"training": "training", "jobs": "jobs, Dask, bags alone"}
_HOUR = 3600.0


def menu() -> dict[str, Any]:
    """Return the choices: GPUs with their zones, all zones, provisioning models and purposes."""
    gpus = [
        {
            "name": name,
            "label": name.upper()
            + (f", {entry.gpu_memory_gb:g} GB" if entry.gpu_memory_gb else ", no GPU"),
            "zones": list(zones_with(name)),
        }
        for name, entry in ACCELERATORS.items()
        if not entry.withdrawn
    ]
    models = [{"name": name, "label": label} for name, label in _MODELS.items()]
    purposes = [{"name": name, "label": label} for name, label in _PURPOSES.items()]
    zones = sorted({zone for gpu in gpus for zone in gpu["zones"]})
    return {"gpus": gpus, "zones": zones, "models": models, "purposes": purposes}


def words(choices: Mapping[str, Any]) -> list[str]:
    """Return the words after `%transient_cluster` for these choices, without defaults."""
    typed = ["+".join(_group(group) for group in choices.get("groups", ()))]
    for name, option in _OPTIONS.items():
        value = str(choices.get(name) or "").strip()
        if value and value != _DEFAULTS.get(name):
            typed += [option, value]
    return typed


def declaration(choices: Mapping[str, Any]) -> Declaration:
    """Return the declaration for these choices. Raises DeclarationError."""
    return Declaration(**arguments.parse("cluster", words(choices), called=MAGIC).values)


def offer(choices: Mapping[str, Any]) -> dict[str, Any]:
    """Return the line, and its error, or what it creates, its price, and the risk of such VMs."""
    line = " ".join([MAGIC, *(_quoted(word) for word in words(choices))])
    try:
        preview = foreseen(Preview(specify(declaration(choices))))
    except DeclarationError as error:
        return {"line": line, "error": str(error)}
    spec = preview.spec
    saved = 0.0
    if spec.on_demand_hourly:
        saved = 1 - spec.hourly / spec.on_demand_hourly
    return {
        "line": line,
        "error": "",
        "name": spec.name,
        "vms": text.count(sum(row["count"] for row in preview.rows), "VM"),
        "billed": not spec.emulated,
        "facts": [
            ["per hour", text.money(spec.hourly)],
            ["on demand", text.money(spec.on_demand_hourly)],
            [
                "saved against Google's on-demand price",
                f"{100 * saved:.0f}%" if saved >= 0.005 else "-",
            ],
        ],
        "rows": [_row(row) for row in preview.rows],
        "notes": [
            *_risks(preview.rows),
            *preview.doubts,
            *filter(None, [preview.foreseen]),
            _paid(preview),
        ],
    }


def offer_text(offered: Mapping[str, Any]) -> str:
    """Return an offer as text for terminals."""
    facts = ", ".join(f"{name} {value}" for name, value in offered["facts"])
    rows = ["  ".join(row) for row in offered["rows"]]
    return "\n".join(
        [
            f"For example: {offered['line']}",
            *rows,
            facts,
            *offered["notes"],
            f"{MAGIC} -h lists the options.",
        ]
    )


def _group(group: Mapping[str, Any]) -> str:
    count = str(group.get("count", "")).strip()
    zone = str(group.get("zone") or "").strip()
    return (
        f"{group.get('gpu', '')}{'' if count == '1' else f'x{count}'}{f'@{zone}' if zone else ''}"
    )


def _quoted(word: str) -> str:
    if not set(word) & set(" '\"#;$"):
        return word
    if "'" in word:
        return f'"{word}"'
    return f"'{word}'"


def _row(row: Mapping[str, Any]) -> list[str]:
    gpu = ""
    if row["accelerator"] != "cpu":
        gpu = row["accelerator"].upper()
    return [
        f"{row['count']} × {row['role']}",
        " · ".join(filter(None, (gpu, row["machine_type"]))),
        row["zone"],
        text.RENTED[row["model"]],
        f"{text.money(row['hourly'])}/h each",
    ]


def _risks(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a sentence for each kind of Spot worker: published revocations of such VMs."""
    places = [
        (row["accelerator"], region(row["zone"])) for row in rows if row["model"] != "standard"
    ]
    return [_risk(gpu, place) for gpu, place in dict.fromkeys(places)]


def _risk(gpu: str, place: str) -> str:
    if stand_in := stand_in_words(gpu, place):
        return stand_in
    table = lifetimes(gpu, place)
    shares = [
        f"{table.fraction(hours * _HOUR):.0%} within {hours} h" for hours in (1, 8, LAST_HOUR)
    ]
    return (
        f"Revoked of {table.launched} preemptible {table.gpu.upper()} VMs in {table.region} "
        f"(published 2019 and 2020): {', '.join(shares)}."
    )


def _paid(preview: Preview) -> str:
    source = "; ".join(dict.fromkeys(row["source"] for row in preview.rows))
    return f"{'Emulated, nothing is billed. ' if preview.spec.emulated else ''}Prices: {source}."
