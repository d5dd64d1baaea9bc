"""The quotas of a new project: their limits, and the VMs that exceed them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from ..rest import tables, wire
from .state import QUOTAS, Project

_Use = Counter[tuple[str, str]]
"""The use of quotas, by metric and region (empty: all regions)."""


def limited(
    state: Project, resource: dict[str, Any], instances: Iterable[dict[str, Any]]
) -> dict[str, Any]:
    """Set the limits and the usage in the resource of a region or of the project.

    Parameters
    ----------
    state
        What the project lacks.
    resource
        The resource, which is changed if the project lacks quotas.
    instances
        The VMs of the project.
    """
    if not state.lacking(QUOTAS):
        return resource
    region = resource["name"] if resource["kind"] == "compute#region" else ""
    used = _use_of_all(state, instances)
    for quota in resource["quotas"]:
        metric = quota["metric"]
        if metric not in QUOTAS:
            continue
        quota["usage"] = float(used[metric, region])
        if state.lacks(metric):
            quota["limit"] = QUOTAS[metric]
    return resource


def over(
    state: Project, instance: dict[str, Any], present: Iterable[dict[str, Any]]
) -> tuple[str, float, str] | None:
    """Return the first quota that a new VM exceeds.

    Parameters
    ----------
    state
        What the project lacks.
    instance
        The new VM.
    present
        The VMs that exist.

    Returns
    -------
    tuple or None
        Metric, limit and region (empty: all regions); None if the VM exceeds none.
    """
    lacking = state.lacking(QUOTAS)
    if not lacking:
        return None
    needed = _use(state, instance)
    used = _use_of_all(state, present)
    for (metric, region), count in needed.items():
        if metric in lacking and count + used[metric, region] > QUOTAS[metric]:
            return metric, QUOTAS[metric], region
    return None


def _use_of_all(state: Project, instances: Iterable[dict[str, Any]]) -> _Use:
    used = _Use()
    for vm in instances:
        if vm["status"] != "TERMINATED":
            used.update(_use(state, vm))
    return used


def _use(state: Project, instance: dict[str, Any]) -> _Use:
    """Return what a VM uses."""
    zone = wire.last(instance["zone"])
    region = zone.rpartition("-")[0]
    machine = wire.last(instance["machineType"])
    spot = instance["scheduling"]["preemptible"]

    def metric_for(metric: str, preemptible: str) -> str:
        # Spot VMs use ordinary quotas where the project has no preemptible quota.
        if spot and not state.lacks(preemptible):
            return preemptible
        return metric

    vcpus = tables.machine_type("any", zone, machine)["guestCpus"]
    used = _Use({("CPUS_ALL_REGIONS", ""): vcpus})
    used[metric_for(tables.cpu_metric(machine), "PREEMPTIBLE_CPUS"), region] += vcpus
    for gpu in instance.get("guestAccelerators", ()):
        metric = tables.gpu_metric(wire.last(gpu["acceleratorType"]))
        count = gpu["acceleratorCount"]
        used["GPUS_ALL_REGIONS", ""] += count
        used[metric_for(metric, f"PREEMPTIBLE_{metric}"), region] += count
    for interface in instance["networkInterfaces"]:
        used["IN_USE_ADDRESSES", region] += bool(interface.get("accessConfigs"))
    return used
