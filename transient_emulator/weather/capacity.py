"""Refusals of requests for VMs in the API's own words: no capacity, or an exhausted quota.

A stockout is never an HTTP error: the operation is accepted and fails later. A quota shows in one
of Compute Engine's two forms, by this rule. A request that is larger than the whole limit is
refused immediately (HTTP 403, `quotaExceeded`). A request that would fit alone, but not beside what
is in use, is accepted and its operation fails (`QUOTA_EXCEEDED`). Usage is counted from the VMs,
separately for transient ones (PREEMPTIBLE_...) and others. A limit applies to each kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from transient_magics import catalog

from ..rest import tables, wire
from .settings import Quota, Stockout

_HELP = "https://cloud.google.com/compute/docs/resource-error"


@dataclass(frozen=True)
class Refusal:
    """The way in which an operation fails.

    Attributes
    ----------
    error
        An entry of its `error.errors`.
    http
        The HTTP status and phrase that it shows.
    delay
        Seconds until it fails.
    """

    error: dict[str, Any]
    http: tuple[int, str]
    delay: float = 0.0


@dataclass(frozen=True)
class Request:
    """The VM that a client requests.

    Attributes
    ----------
    project, zone
        Where.
    gpu
        The catalog's name of its GPU (`cpu`: none).
    transient
        Whether it may be preempted.
    instance
        Its resource.
    """

    project: str
    zone: str
    gpu: str
    transient: bool
    instance: dict[str, Any] = field(repr=False)


def no_capacity(request: Request, stockouts: Sequence[Stockout], now: float) -> Refusal | None:
    """Return the refusal of the first stockout that the request meets; None without one."""
    stockout = _met(stockouts, request.zone, request, now)
    if stockout is None:
        return None
    message = (
        f"The zone 'projects/{request.project}/zones/{request.zone}' does not have enough "
        "resources available to fulfill the request.  '(resource type:compute)'."
    )
    machine = wire.last(request.instance["machineType"])
    what = f"A {machine} VM instance"
    attached: list[str] = []
    for gpu in request.instance.get("guestAccelerators", ()):
        kind = wire.last(gpu["acceleratorType"])
        count = gpu["acceleratorCount"]
        if not attached:
            what += f" with {count} {kind} accelerator(s)"
        attached.append(f"{kind}:{count}")
    sentence = (
        f"{what} is currently unavailable in the {request.zone} zone. Alternatively, you can try "
        "your request again with a different VM hardware configuration or at a later time."
    )
    elsewhere = [zone for zone in _offering(request) if not _met(stockouts, zone, request, now)]
    metadata = {
        "vmType": machine,
        "attachment": ",".join(attached),
        "zone": request.zone,
        "zonesAvailable": ",".join(elsewhere),
    }
    help_link = {"description": "Troubleshooting documentation", "url": _HELP}
    info = {
        "domain": "compute.googleapis.com",
        "reason": "resource_availability",
        # Google leaves out empty fields.
        "metadatas": {key: value for key, value in metadata.items() if value},
    }
    error = {
        "code": "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
        "message": message,
        "errorDetails": [
            {"help": {"links": [help_link]}},
            {"localizedMessage": {"locale": "en-US", "message": sentence}},
            {"errorInfo": info},
        ],
    }
    return Refusal(error, (503, "SERVICE UNAVAILABLE"), stockout.delay)


def over_quota(
    request: Request, quotas: Iterable[Quota], present: list[dict[str, Any]]
) -> Refusal | None:
    """Return the refusal of the first quota that the request exceeds.

    Parameters
    ----------
    request
        The requested VM.
    quotas
        The quotas of the weather.
    present
        The resources of the project's VMs.

    Returns
    -------
    Refusal or None
        The failure of the operation; None if no quota is exceeded.

    Raises
    ------
    ApiError
        403 if the request alone is larger than a quota.
    """
    region = catalog.region(request.zone)
    # The same count for what is used and for what is requested.
    used = _usage(request.project, region, present)
    requested = _usage(request.project, region, [request.instance])
    for metric, limit in limits(quotas, region).items():
        needed = requested.get(metric, 0.0)
        if needed and needed + used.get(metric, 0.0) > limit:
            # The two spaces are Google's.
            message = f"Quota '{metric}' exceeded.  Limit: {limit:.1f} in region {region}."
            if needed > limit:
                raise wire.ApiError(403, "quotaExceeded", message)
            info = {
                "metricName": f"compute.googleapis.com/{metric.lower()}",
                "limit": limit,
                "limitName": f"{metric.replace('_', '-')}-per-project-region",
                "dimensions": {"region": region},
            }
            error = {
                "code": "QUOTA_EXCEEDED",
                "message": message,
                "errorDetails": [{"quotaInfo": info}],
            }
            return Refusal(error, (403, "FORBIDDEN"))
    return None


def _usage(project: str, region: str, instances: list[dict[str, Any]]) -> dict[str, float]:
    quotas = tables.region(project, region, instances)["quotas"]
    return {quota["metric"]: quota["usage"] for quota in quotas}


def limits(quotas: Iterable[Quota], region: str) -> dict[str, float]:
    """Return the limits of a region, by metric."""
    found: dict[str, float] = {}
    # Quotas for one region come last: they replace those for all regions.
    for quota in sorted(quotas, key=lambda quota: bool(quota.region)):
        if quota.region not in ("", region):
            continue
        metric = "CPUS"
        if quota.what != "cpus":
            metric = f"NVIDIA_{quota.what.upper().replace('-', '_')}_GPUS"
        found[metric] = float(quota.limit)
        found[f"PREEMPTIBLE_{metric}"] = float(quota.limit)
    return found


def _met(stockouts: Iterable[Stockout], zone: str, request: Request, now: float) -> Stockout | None:
    """Return the first stockout that the request would meet in a zone; None without one."""
    for stockout in stockouts:
        if stockout.holds(zone, request.gpu, request.transient, now):
            return stockout
    return None


def _offering(request: Request) -> list[str]:
    """Return the zones that have the requested GPU, those of the same region first."""
    zones = tables.ZONES if request.gpu == "cpu" else catalog.zones_with(request.gpu)
    region = catalog.region(request.zone)
    return sorted(zones, key=lambda zone: (catalog.region(zone) != region, zone))
