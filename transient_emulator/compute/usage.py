"""How much of each quota is used beside the VMs' own, from what exists."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..rest import tables, wire

Used = dict[str, float]
_LIMIT = 5000.0


def of_region(region: str, disks: Iterable[tuple[str, dict[str, Any]]], addresses: Iterable[tuple[str, Any]]) -> Used:
    """Of a region's quotas: gigabytes of disks, reserved addresses. Resources come with their scopes."""
    used = dict.fromkeys(["DISKS_TOTAL_GB", "SSD_TOTAL_GB", "STATIC_ADDRESSES"], 0.0)
    for scope, disk in disks:
        if scope.partition("/")[2].rpartition("-")[0] == region:
            metric = "DISKS_TOTAL_GB" if wire.last(disk["type"]) == "pd-standard" else "SSD_TOTAL_GB"
            used[metric] += float(disk["sizeGb"])
    external = [where for where, each in addresses if each["addressType"] == "EXTERNAL"]
    used["STATIC_ADDRESSES"] = float(external.count(f"regions/{region}"))
    return used


def of_project(instances: Iterable[dict[str, Any]], **resources: Iterable[tuple[str, dict[str, Any]]]) -> Used:
    """Of a project's quotas: vCPUs everywhere, and one for each of the `resources` (by the quota's name)."""
    used = {metric.upper(): float(len(list(found))) for metric, found in resources.items()}
    used["CPUS_ALL_REGIONS"] = float(
        sum(
            tables.machine_type("any", wire.last(each["zone"]), wire.last(each["machineType"]))["guestCpus"]
            for each in instances if each["status"] != "TERMINATED"
        )
    )  # fmt: skip
    return used


def shown(resource: dict[str, Any], used: Used) -> dict[str, Any]:
    """A region or project whose quotas tell what is used."""
    known = {quota["metric"] for quota in resource["quotas"]}
    quotas = [{**quota, "usage": used.get(quota["metric"], quota["usage"])} for quota in resource["quotas"]]
    more = [
        {"metric": metric, "limit": _LIMIT, "usage": usage} for metric, usage in used.items() if metric not in known
    ]
    return {**resource, "quotas": [*quotas, *more]}
