"""The read-only part of the REST API: zones, machine types, GPUs, the project, quotas."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from aiohttp import web

from ..project import quotas
from ..project.state import Project
from ..rest import calls, lists, tables, wire
from ..rest.calls import BASE, Answer, Route, all_regions, all_zones
from ..vms.fleet import Fleet
from .disks import Disks
from .images import Images
from .networks import Networks
from .reserved_addresses import Addresses

_Table = Callable[[str, str], list[dict[str, Any]]]
_Entry = Callable[[str, str, str], dict[str, Any]]
_Scoped = Iterable[tuple[str, dict[str, Any]]]
"""Resources, each after its scope."""
_LIMIT = 5000.0


class TablesApi:
    """The routes of what the emulator offers, and of the quotas that its resources use.

    Parameters
    ----------
    fleet, networks, images, disks, addresses
        The resources that use quotas.
    project
        The quotas that the project lacks.
    """

    def __init__(
        self,
        fleet: Fleet,
        networks: Networks,
        images: Images,
        disks: Disks,
        addresses: Addresses,
        project: Project,
    ) -> None:
        self._fleet = fleet
        self._networks = networks
        self._images = images
        self._disks = disks
        self._addresses = addresses
        self._project = project

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            ("GET", BASE, self._get_project),
            ("GET", f"{BASE}/zones", self._zones),
            ("GET", f"{BASE}/zones/{{zone}}", self._zone),
            ("GET", f"{BASE}/regions", self._regions),
            ("GET", f"{BASE}/regions/{{region}}", self._region),
            *_zonal("machineTypes", "machineType", tables.machine_types, tables.machine_type),
            *_zonal(
                "acceleratorTypes",
                "acceleratorType",
                tables.accelerator_types,
                tables.accelerator_type,
            ),
            *_zonal("diskTypes", "diskType", tables.disk_types, tables.disk_type),
        ]

    def _instances(self, request: web.Request) -> list[dict[str, Any]]:
        return [vm.resource for vm in self._fleet.records(calls.project(request))]

    def _zone(self, request: web.Request) -> Answer:
        return tables.zone(calls.project(request), request.match_info["zone"])

    def _zones(self, request: web.Request) -> Answer:
        project = calls.project(request)
        found = [tables.zone(project, zone) for zone in tables.ZONES]
        return lists.page(request, "compute#zoneList", found, wire.link(project, "zones"))

    def _regions(self, request: web.Request) -> Answer:
        project = calls.project(request)
        found = [self._with_usage(request, region) for region in tables.REGIONS]
        return lists.page(request, "compute#regionList", found, wire.link(project, "regions"))

    def _region(self, request: web.Request) -> Answer:
        return self._with_usage(request, request.match_info["region"])

    def _with_usage(self, request: web.Request, region: str) -> dict[str, Any]:
        project = calls.project(request)
        instances = self._instances(request)
        disks = self._disks.everywhere(project)
        addresses = self._addresses.everywhere(project)
        resource = tables.region(project, region, instances)
        resource = _with_quotas(resource, _region_usage(region, disks, addresses))
        # The limits of the weather come last: they replace those of a new project.
        return self._fleet.weather.limits(quotas.limited(self._project, resource, instances))

    def _get_project(self, request: web.Request) -> Answer:
        name = calls.project(request)
        instances = self._instances(request)
        networks = self._networks
        # Automatic subnetworks count, too.
        subnetworks = [
            subnetwork
            for region in all_regions()
            for subnetwork in networks.subnetworks.within(name, region)
        ]
        addresses = [scope for scope, _ in self._addresses.everywhere(name) if scope == "global"]
        used = {
            "NETWORKS": _count(networks.everywhere(name)),
            "SUBNETWORKS": _count(subnetworks),
            "FIREWALLS": _count(networks.firewalls.everywhere(name)),
            "IMAGES": _count(self._images.everywhere(name)),
            "STATIC_ADDRESSES": _count(addresses),
            "CPUS_ALL_REGIONS": _vcpus(instances),
        }
        resource = _with_quotas(tables.project(name, instances), used)
        return quotas.limited(self._project, resource, instances)


def _zonal(collection: str, noun: str, table: _Table, entry: _Entry) -> list[Route]:
    """Return the routes of zonal resources: one, all of a zone, and all of all zones."""
    kind = f"compute#{noun}"

    def listed(request: web.Request) -> Answer:
        project = calls.project(request)
        zone = request.match_info["zone"]
        tables.zone(project, zone)
        link = wire.link(project, "zones", zone, collection)
        return lists.page(request, f"{kind}List", table(project, zone), link)

    def single(request: web.Request) -> Answer:
        project = calls.project(request)
        zone = request.match_info["zone"]
        tables.zone(project, zone)
        return entry(project, zone, request.match_info["name"])

    def everywhere(request: web.Request) -> Answer:
        project = calls.project(request)
        found = [
            (f"zones/{zone}", resource)
            for zone in tables.ZONES
            for resource in table(project, zone)
        ]
        link = wire.link(project, "aggregated", collection)
        return lists.aggregated(
            request, f"{kind}AggregatedList", collection, found, all_zones(), link
        )

    return [
        ("GET", f"{BASE}/zones/{{zone}}/{collection}", listed),
        ("GET", f"{BASE}/zones/{{zone}}/{collection}/{{name}}", single),
        ("GET", f"{BASE}/aggregated/{collection}", everywhere),
    ]


# -------------------- usage of quotas beside what `tables` counts


def _region_usage(region: str, disks: _Scoped, addresses: _Scoped) -> dict[str, float]:
    """Return gigabytes of disks and reserved addresses in a region, by metric."""
    used = {"DISKS_TOTAL_GB": 0.0, "SSD_TOTAL_GB": 0.0, "STATIC_ADDRESSES": 0.0}
    for scope, disk in disks:
        zone = scope.partition("/")[2]
        if zone.rpartition("-")[0] != region:
            continue
        standard = wire.last(disk["type"]) == "pd-standard"
        metric = "DISKS_TOTAL_GB" if standard else "SSD_TOTAL_GB"
        used[metric] += float(disk["sizeGb"])
    for scope, address in addresses:
        if scope == f"regions/{region}" and address["addressType"] == "EXTERNAL":
            used["STATIC_ADDRESSES"] += 1
    return used


def _vcpus(instances: Iterable[dict[str, Any]]) -> float:
    """Return the vCPUs of all VMs that are not stopped."""
    total = 0.0
    for vm in instances:
        if vm["status"] != "TERMINATED":
            zone = wire.last(vm["zone"])
            total += tables.machine_type("any", zone, wire.last(vm["machineType"]))["guestCpus"]
    return total


def _count(items: Iterable[object]) -> float:
    return float(sum(1 for _ in items))


def _with_quotas(resource: dict[str, Any], used: dict[str, float]) -> dict[str, Any]:
    """Return a region or project with this usage in its quotas, further quotas included."""
    metrics = {quota["metric"] for quota in resource["quotas"]}
    shown = [
        {**quota, "usage": used.get(quota["metric"], quota["usage"])}
        for quota in resource["quotas"]
    ]
    for metric, usage in used.items():
        if metric not in metrics:
            shown.append({"metric": metric, "limit": _LIMIT, "usage": usage})
    return {**resource, "quotas": shown}
