"""Why a request for a VM is refused: no capacity in the zone, or a quota used up; in the API's own words.

A stockout is never an HTTP error: the operation is accepted and fails later. A quota shows in one of the two forms in
which Compute Engine says it, by this rule: a request that is larger than the whole limit is refused at once (HTTP 403,
`quotaExceeded`); one that would fit alone, but not beside what is in use, is accepted and its operation fails
(`QUOTA_EXCEEDED`). Usage is counted from the VMs, transient ones (PREEMPTIBLE_...) and others each for themselves; a
limit holds for both kinds.
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
    """How an operation fails: `error` is an entry of its `error.errors`, `http` its status, after `delay` seconds."""

    error: dict[str, Any]
    http: tuple[int, str]
    delay: float = 0.0


@dataclass(frozen=True)
class Wanted:
    """The VM that is asked for: `instance` is its resource, `gpu` the catalog's name (`cpu`: none)."""

    project: str
    zone: str
    gpu: str
    transient: bool
    instance: dict[str, Any] = field(repr=False)


def no_capacity(wanted: Wanted, stockouts: Sequence[Stockout], now: float) -> Refusal | None:
    """The stockout that the request meets, if any."""
    met = _met(stockouts, wanted.zone, wanted, now)
    if met is None:
        return None
    machine = wire.last(wanted.instance["machineType"])
    attached = [
        f"{wire.last(each['acceleratorType'])}:{each['acceleratorCount']}"
        for each in wanted.instance.get("guestAccelerators", ())
    ]
    words = [f"{each.partition(':')[2]} {each.partition(':')[0]} accelerator(s)" for each in attached]
    what = f"A {machine} VM instance{f' with {words[0]}' if words else ''}"
    elsewhere = [zone for zone in _offering(wanted) if _met(stockouts, zone, wanted, now) is None]
    metadatas = {"vmType": machine, "attachment": ",".join(attached), "zone": wanted.zone}
    metadatas |= {"zonesAvailable": ",".join(elsewhere)}
    error = {
        "code": "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
        "message": f"The zone 'projects/{wanted.project}/zones/{wanted.zone}' does not have enough resources available "
        "to fulfill the request.  '(resource type:compute)'.",
        "errorDetails": [
            {"help": {"links": [{"description": "Troubleshooting documentation", "url": _HELP}]}},
            {"localizedMessage": {
                "locale": "en-US",
                "message": f"{what} is currently unavailable in the {wanted.zone} zone. Alternatively, you can try "
                "your request again with a different VM hardware configuration or at a later time."}},
            {"errorInfo": {"domain": "compute.googleapis.com", "reason": "resource_availability",
                           "metadatas": {key: value for key, value in metadatas.items() if value}}},
        ],
    }  # fmt: skip
    return Refusal(error, (503, "SERVICE UNAVAILABLE"), met.delay)


def over_quota(wanted: Wanted, quotas: Iterable[Quota], present: list[dict[str, Any]]) -> Refusal | None:
    """The quota that the request goes beyond, if any; ApiError 403 for one that it alone is larger than.

    `present` are the resources of the project's VMs.
    """
    region = catalog.region(wanted.zone)
    used, asked = (
        {each["metric"]: each["usage"] for each in tables.region(wanted.project, region, resources)["quotas"]}
        for resources in (present, [wanted.instance])
    )
    for metric, limit in limits(quotas, region).items():
        needed = asked.get(metric, 0.0)
        if needed and needed + used.get(metric, 0.0) > limit:
            message = f"Quota '{metric}' exceeded.  Limit: {limit:.1f} in region {region}."
            if needed > limit:
                raise wire.ApiError(403, "quotaExceeded", message)
            info = {
                "metricName": f"compute.googleapis.com/{metric.lower()}", "limit": limit,
                "limitName": f"{metric.replace('_', '-')}-per-project-region", "dimensions": {"region": region},
            }  # fmt: skip
            error = {"code": "QUOTA_EXCEEDED", "message": message, "errorDetails": [{"quotaInfo": info}]}
            return Refusal(error, (403, "FORBIDDEN"))
    return None


def limits(quotas: Iterable[Quota], region: str) -> dict[str, float]:
    """The limits that are set for a region, by metric. One for a region counts before one for all."""
    found: dict[str, float] = {}
    for quota in sorted(quotas, key=lambda quota: bool(quota.region)):
        if quota.region in ("", region):
            kind = quota.what.upper().replace("-", "_")
            name = "CPUS" if quota.what == "cpus" else f"NVIDIA_{kind}_GPUS"
            found |= {name: float(quota.limit), f"PREEMPTIBLE_{name}": float(quota.limit)}
    return found


def _met(stockouts: Iterable[Stockout], zone: str, wanted: Wanted, now: float) -> Stockout | None:
    return next((each for each in stockouts if each.holds(zone, wanted.gpu, wanted.transient, now)), None)


def _offering(wanted: Wanted) -> list[str]:
    """The zones that have what is wanted, those of its own region first."""
    zones = tables.ZONES if wanted.gpu == "cpu" else catalog.zones_with(wanted.gpu)
    own = catalog.region(wanted.zone)
    return sorted(zones, key=lambda zone: (catalog.region(zone) != own, zone))
