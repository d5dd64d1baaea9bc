"""The quotas of a new project: their limits where they are told, and the VMs that they refuse."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from ..rest import tables, wire
from .state import QUOTAS, Project


def limited(state: Project, resource: dict[str, Any], instances: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """A region's or the project's resource with its limits, and what VMs use of them, while quotas are lacking."""
    if not state.lacking(QUOTAS):
        return resource
    place = resource["name"] if resource["kind"] == "compute#region" else ""
    used = Counter[tuple[str, str]]()
    for each in instances:
        if each["status"] != "TERMINATED":
            used.update(_use(state, each))
    for quota in resource["quotas"]:
        if (metric := quota["metric"]) in QUOTAS:
            quota["usage"] = float(used[metric, place])
            quota["limit"] = QUOTAS[metric] if state.lacks(metric) else quota["limit"]
    return resource


def over(state: Project, instance: dict[str, Any], present: Iterable[dict[str, Any]]) -> tuple[str, float, str] | None:
    """Metric, limit and region (empty: all) of the first quota that a VM goes beyond, beside those `present`."""
    lacking = state.lacking(QUOTAS)
    if not lacking:
        return None
    region = wire.last(instance["zone"]).rpartition("-")[0]
    others = [each for each in present if each["status"] != "TERMINATED"]
    asked, used = _use(state, instance), Counter[tuple[str, str]]()
    for each in others:
        used.update(_use(state, each))
    for (metric, place), count in asked.items():
        if metric in lacking and place in ("", region) and count + used[metric, place] > QUOTAS[metric]:
            return metric, QUOTAS[metric], place
    return None


def _use(state: Project, instance: dict[str, Any]) -> Counter[tuple[str, str]]:
    """By metric and region (empty: all), what a VM takes. Spot takes ordinary quotas where it has none of its own."""
    zone, machine = wire.last(instance["zone"]), wire.last(instance["machineType"])
    region, spot = zone.rpartition("-")[0], instance["scheduling"]["preemptible"]

    def own(metric: str, preemptible: str) -> str:
        return preemptible if spot and not state.lacks(preemptible) else metric

    cores = tables.machine_type("any", zone, machine)["guestCpus"]
    found = Counter({("CPUS_ALL_REGIONS", ""): cores})
    found[own(tables.cpu_metric(machine), "PREEMPTIBLE_CPUS"), region] += cores
    for card in instance.get("guestAccelerators", ()):
        metric = tables.gpu_metric(wire.last(card["acceleratorType"]))
        found["GPUS_ALL_REGIONS", ""] += card["acceleratorCount"]
        found[own(metric, f"PREEMPTIBLE_{metric}"), region] += card["acceleratorCount"]
    found["IN_USE_ADDRESSES", region] += sum(bool(each.get("accessConfigs")) for each in instance["networkInterfaces"])
    return found
