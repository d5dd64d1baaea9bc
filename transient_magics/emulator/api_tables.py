"""The part of the REST API that only tells: zones, regions, machine types, GPUs, images, the project, its network.

Firewall rules are remembered while the emulator lives and have no effect: nothing outside reaches an emulated VM.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiohttp import web

from .. import catalog
from . import lists, tables, wire
from .api import Answer, Handler, all_zones, answering, body
from .fleet import Fleet
from .operations import Operations
from .weather.weather import Weather

_BASE = "/compute/v1/projects/{project}"
_Table = Callable[[str, str], list[dict[str, Any]]]


class TablesApi:
    """All routes, to be added to an application."""

    def __init__(self, fleet: Fleet, operations: Operations, weather: Weather) -> None:
        self._fleet, self._operations, self._weather = fleet, operations, weather
        self._firewalls: dict[tuple[str, str], dict[str, Any]] = {}

    def add_to(self, application: web.Application) -> None:
        """Register the routes."""
        zone, everywhere = f"{_BASE}/zones/{{zone}}", f"{_BASE}/global"
        routes: list[tuple[str, str, Handler]] = [
            ("GET", _BASE, lambda request: tables.project(_project(request), self._resources(request))),
            ("GET", f"{_BASE}/zones", self._zones),
            ("GET", zone, lambda request: tables.zone(_project(request), request.match_info["zone"])),
            ("GET", f"{_BASE}/regions", self._regions),
            ("GET", f"{_BASE}/regions/{{region}}", self._region),
            ("GET", f"{_BASE}/regions/{{region}}/subnetworks", self._subnetworks),
            ("GET", f"{_BASE}/regions/{{region}}/subnetworks/{{subnetwork}}", self._subnetwork),
            ("GET", f"{everywhere}/images", self._images),
            ("GET", f"{everywhere}/images/{{image}}",
             lambda request: tables.image(_project(request), request.match_info["image"])),
            ("GET", f"{everywhere}/images/family/{{family}}",
             lambda request: tables.image_from_family(_project(request), request.match_info["family"])),
            ("GET", f"{everywhere}/networks",
             lambda request: lists.page(request, "compute#networkList", [_network(_project(request))],
                                        wire.link(_project(request), "global", "networks"))),
            ("GET", f"{everywhere}/networks/{{network}}", self._get_network),
            ("GET", f"{everywhere}/firewalls", self._list_firewalls),
            ("POST", f"{everywhere}/firewalls", self._insert_firewall),
            ("GET", f"{everywhere}/firewalls/{{firewall}}", self._get_firewall),
            ("DELETE", f"{everywhere}/firewalls/{{firewall}}", self._delete_firewall),
        ]  # fmt: skip
        routes += self._zonal("machineTypes", "compute#machineType", tables.machine_types, tables.machine_type)
        routes += self._zonal(
            "acceleratorTypes", "compute#acceleratorType", tables.accelerator_types, tables.accelerator_type
        )
        for method, path, handler in routes:
            application.router.add_route(method, path, answering(handler))

    def _zonal(
        self, collection: str, kind: str, table: _Table, entry: Callable[[str, str, str], dict[str, Any]]
    ) -> list[tuple[str, str, Handler]]:
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
            ("GET", f"{_BASE}/zones/{{zone}}/{collection}", listed),
            ("GET", f"{_BASE}/zones/{{zone}}/{collection}/{{name}}", single),
            ("GET", f"{_BASE}/aggregated/{collection}", everywhere),
        ]

    def _resources(self, request: web.Request) -> list[dict[str, Any]]:
        return [each.resource for each in self._fleet.records(_project(request))]

    def _zones(self, request: web.Request) -> Answer:
        project = _project(request)
        found = [tables.zone(project, zone) for zone in tables.ZONES]
        return lists.page(request, "compute#zoneList", found, wire.link(project, "zones"))

    def _regions(self, request: web.Request) -> Answer:
        project, used = _project(request), self._resources(request)
        found = [self._weather.limits(tables.region(project, region, used)) for region in tables.REGIONS]
        return lists.page(request, "compute#regionList", found, wire.link(project, "regions"))

    def _region(self, request: web.Request) -> Answer:
        region = tables.region(_project(request), request.match_info["region"], self._resources(request))
        return self._weather.limits(region)

    def _images(self, request: web.Request) -> Answer:
        project = _project(request)
        return lists.page(request, "compute#imageList", tables.images(project), wire.link(project, "global", "images"))

    def _get_network(self, request: web.Request) -> Answer:
        project, name = _project(request), request.match_info["network"]
        if name != "default":
            raise wire.not_found(f"projects/{project}/global/networks/{name}")
        return _network(project)

    def _subnetworks(self, request: web.Request) -> Answer:
        project, region = _project(request), request.match_info["region"]
        own = wire.link(project, "regions", region, "subnetworks")
        return lists.page(request, "compute#subnetworkList", [_default_subnetwork(project, region)], own)

    def _subnetwork(self, request: web.Request) -> Answer:
        project, region = _project(request), request.match_info["region"]
        if request.match_info["subnetwork"] != "default":
            raise wire.not_found(f"projects/{project}/regions/{region}/subnetworks/{request.match_info['subnetwork']}")
        return _default_subnetwork(project, region)

    def _list_firewalls(self, request: web.Request) -> Answer:
        project = _project(request)
        found = [each for (owner, _), each in self._firewalls.items() if owner == project]
        return lists.page(request, "compute#firewallList", found, wire.link(project, "global", "firewalls"))

    async def _insert_firewall(self, request: web.Request) -> Answer:
        project, given = _project(request), await body(request)
        name = wire.check_name(given.get("name"))
        if (project, name) in self._firewalls:
            path = f"projects/{project}/global/firewalls/{name}"
            raise wire.ApiError(409, "alreadyExists", f"The resource '{path}' already exists")
        own = wire.link(project, "global", "firewalls", name)
        self._firewalls[project, name] = {
            "direction": "INGRESS", "priority": 1000, "disabled": False, **given, "kind": "compute#firewall",
            "id": wire.fresh_id(), "creationTimestamp": wire.now(), "selfLink": own,
            "network": wire.link(project, "global", "networks", wire.last(given.get("network") or "default")),
        }  # fmt: skip
        return self._done(project, "insert", self._firewalls[project, name])

    def _get_firewall(self, request: web.Request) -> Answer:
        key = _project(request), request.match_info["firewall"]
        if key not in self._firewalls:
            raise wire.not_found(f"projects/{key[0]}/global/firewalls/{key[1]}")
        return self._firewalls[key]

    def _delete_firewall(self, request: web.Request) -> Answer:
        self._get_firewall(request)
        return self._done(
            _project(request), "delete", self._firewalls.pop((_project(request), request.match_info["firewall"]))
        )

    def _done(self, project: str, kind: str, target: dict[str, Any]) -> Answer:
        operation = self._operations.start(project, "global", kind, target["selfLink"], target["id"])
        return self._operations.finish(operation)


def _project(request: web.Request) -> str:
    return request.match_info["project"]


def _network(project: str) -> dict[str, Any]:
    return {
        "kind": "compute#network", "id": wire.fixed_id("networks", project), "name": "default",
        "creationTimestamp": "2026-01-15T00:00:00.000-08:00", "description": "Emulated network of this machine's VMs",
        "selfLink": wire.link(project, "global", "networks", "default"), "autoCreateSubnetworks": True,
        "routingConfig": {"routingMode": "REGIONAL"}, "networkFirewallPolicyEnforcementOrder": "AFTER_CLASSIC_FIREWALL",
        "subnetworks": [wire.link(project, "regions", region, "subnetworks", "default") for region in tables.REGIONS],
    }  # fmt: skip


def _default_subnetwork(project: str, region: str) -> dict[str, Any]:
    if region not in {catalog.region(zone) for zone in tables.ZONES}:
        raise wire.not_found(f"projects/{project}/regions/{region}")
    return {
        "kind": "compute#subnetwork", "id": wire.fixed_id("subnetworks", region), "name": "default",
        "creationTimestamp": "2026-01-15T00:00:00.000-08:00", "ipCidrRange": "10.128.0.0/20",
        "gatewayAddress": "10.128.0.1", "network": wire.link(project, "global", "networks", "default"),
        "region": wire.link(project, "regions", region), "privateIpGoogleAccess": True, "purpose": "PRIVATE",
        "stackType": "IPV4_ONLY", "fingerprint": wire.fingerprint(region),
        "selfLink": wire.link(project, "regions", region, "subnetworks", "default"),
    }  # fmt: skip
