"""What the REST API only tells: zones, regions, machine types, GPUs, kinds of disks, the project, quotas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiohttp import web

from ..project import quotas
from ..project.state import Project
from ..rest import lists, tables, wire
from ..rest.calls import BASE, Answer, Route, all_regions, all_zones
from ..vms.fleet import Fleet
from . import usage
from .disks import Disks
from .images import Images
from .networks import Networks
from .reserved_addresses import Addresses

_Table = Callable[[str, str], list[dict[str, Any]]]


class TablesApi:
    """All routes, to be added to an application."""

    def __init__(
        self, fleet: Fleet, networks: Networks, images: Images, disks: Disks, addresses: Addresses, project: Project
    ) -> None:
        self._fleet, self._networks, self._images, self._lacking = fleet, networks, images, project
        self._disks, self._addresses = disks, addresses

    def routes(self) -> list[Route]:
        """What clients can ask for."""
        zone = f"{BASE}/zones/{{zone}}"
        routes: list[Route] = [
            ("GET", BASE, self._get_project),
            ("GET", f"{BASE}/zones", self._zones),
            ("GET", zone, lambda request: tables.zone(_project(request), request.match_info["zone"])),
            ("GET", f"{BASE}/regions", self._regions),
            ("GET", f"{BASE}/regions/{{region}}", self._region),
        ]  # fmt: skip
        routes += self._zonal("machineTypes", "compute#machineType", tables.machine_types, tables.machine_type)
        routes += self._zonal(
            "acceleratorTypes", "compute#acceleratorType", tables.accelerator_types, tables.accelerator_type
        )
        routes += self._zonal("diskTypes", "compute#diskType", tables.disk_types, tables.disk_type)
        return routes

    def _zonal(
        self, collection: str, kind: str, table: _Table, entry: Callable[[str, str, str], dict[str, Any]]
    ) -> list[Route]:
        def listed(request: web.Request) -> Answer:
            project, zone = _project(request), request.match_info["zone"]
            tables.zone(project, zone)
            return lists.page(
                request, f"{kind}List", table(project, zone), wire.link(project, "zones", zone, collection)
            )

        def single(request: web.Request) -> Answer:
            project, zone = _project(request), request.match_info["zone"]
            tables.zone(project, zone)
            return entry(project, zone, request.match_info["name"])

        def everywhere(request: web.Request) -> Answer:
            project = _project(request)
            found = [(f"zones/{zone}", each) for zone in tables.ZONES for each in table(project, zone)]
            own = wire.link(project, "aggregated", collection)
            return lists.aggregated(request, f"{kind}AggregatedList", collection, found, all_zones(), own)

        return [
            ("GET", f"{BASE}/zones/{{zone}}/{collection}", listed),
            ("GET", f"{BASE}/zones/{{zone}}/{collection}/{{name}}", single),
            ("GET", f"{BASE}/aggregated/{collection}", everywhere),
        ]

    def _resources(self, request: web.Request) -> list[dict[str, Any]]:
        return [each.resource for each in self._fleet.records(_project(request))]

    def _zones(self, request: web.Request) -> Answer:
        project = _project(request)
        found = [tables.zone(project, zone) for zone in tables.ZONES]
        return lists.page(request, "compute#zoneList", found, wire.link(project, "zones"))

    def _regions(self, request: web.Request) -> Answer:
        project = _project(request)
        found = [self._with_usage(request, region) for region in tables.REGIONS]
        return lists.page(request, "compute#regionList", found, wire.link(project, "regions"))

    def _region(self, request: web.Request) -> Answer:
        return self._with_usage(request, request.match_info["region"])

    def _with_usage(self, request: web.Request, region: str) -> dict[str, Any]:
        project = _project(request)
        used = usage.of_region(region, self._disks.everywhere(project), self._addresses.everywhere(project))
        shown = usage.shown(tables.region(project, region, self._resources(request)), used)
        return self._fleet.weather.limits(quotas.limited(self._lacking, shown, self._resources(request)))

    def _get_project(self, request: web.Request) -> Answer:
        name, networks = _project(request), self._networks
        subnetworks = [(region, each) for region in all_regions() for each in networks.subnetworks.within(name, region)]
        used = usage.of_project(
            self._resources(request), networks=networks.everywhere(name), subnetworks=subnetworks,
            firewalls=networks.firewalls.everywhere(name), images=self._images.everywhere(name),
            static_addresses=[pair for pair in self._addresses.everywhere(name) if pair[0] == "global"],
        )  # fmt: skip
        shown = usage.shown(tables.project(name, self._resources(request)), used)
        return quotas.limited(self._lacking, shown, self._resources(request))


def _project(request: web.Request) -> str:
    return request.match_info["project"]
