"""The REST API: which request does what. Routes of Compute Engine v1 on one side, the fleet on the other.

Every handler returns the JSON of its answer; refusals are `ApiError`s and become error bodies of the API's form.
Unknown query parameters are ignored, full and partial URLs are understood everywhere. VMs and operations are served
here; each of the other kinds of resources brings its own routes.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from aiohttp import web

from .. import instances
from ..instances import Record
from ..network.firewall import Firewall
from ..project import policies
from ..project.state import Project
from ..rest import calls, lists, tables, wire, wording
from ..rest.calls import BASE, Answer, Route, answering, body
from ..rest.operations import Operations
from ..vms.fleet import Fleet
from . import api_batches
from .advice import Advice
from .api_tables import TablesApi
from .changes import Changes
from .creation import refusals
from .creation.bulk import Bulk
from .creation.single import Creation
from .disks import Disks
from .images import Images
from .networks import Networks
from .reserved_addresses import Addresses
from .routers import Routers

_LOG = logging.getLogger(__name__)


@web.middleware
async def errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Refusals in the API's own form."""
    try:
        return await handler(request)
    except wire.ApiError as error:
        return web.json_response(error.body(), status=error.status)
    except web.HTTPException as error:
        reason = {403: "forbidden", 404: "notFound", 405: "httpMethodNotAllowed"}.get(error.status, "invalid")
        known = wire.ApiError(error.status, reason, (error.text or error.reason).strip())
        return web.json_response(known.body(), status=error.status)
    except OSError as error:
        _LOG.exception("%s %s failed", request.method, request.path)
        known = wire.ApiError(503, "backendError", f"The emulator could not do it: {error.strerror or error}")
        return web.json_response(known.body(), status=503)
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        # A body whose parts are of the wrong type: the client's mistake, not ours, but worth a line in the log.
        _LOG.warning("%s %s was not understood", request.method, request.path, exc_info=error)
        known = wire.ApiError(400, "invalid", f"The request cannot be understood: {error!r}")
        return web.json_response(known.body(), status=400)


class Api:
    """All routes, to be added to an application."""

    def __init__(self, state: Path, fleet: Fleet, operations: Operations, project: Project, own_network: bool) -> None:
        self._fleet, self._operations, self._project = fleet, operations, project
        self._networks = Networks(state, operations, project)
        self._routers = Routers(state, operations, self._networks, project)
        self._networks.instances = lambda project: [each.resource for each in fleet.records(project)]
        rules = self._networks.firewalls
        self.firewall = Firewall(
            fleet.records, lambda project: (rule for _, rule in rules.everywhere(project)), own_network
        )
        rules.on_change = self.firewall.wake
        self._images = Images(state, operations)
        self._disks = Disks(state, operations, fleet, self._images)
        self._addresses = Addresses(state, operations)
        self._creation = Creation(fleet, self._networks, self._images, self._disks, project)
        self._bulk = Bulk(state, operations, fleet, self._creation)
        self._tables = TablesApi(fleet, self._networks, self._images, self._disks, self._addresses, project)
        fleet.prepare = self._disks.prepare
        fleet.forbidden = refusals.of(project)

    def add_to(self, application: web.Application) -> None:
        """Register the routes."""
        parts = (
            self._bulk, Changes(self._fleet, self._operations, self._disks), self._tables, self._disks, self._images,
            self._networks, self._networks.subnetworks, self._networks.firewalls, self._addresses, self._routers,
            Advice(self._fleet.weather),
        )  # fmt: skip
        for method, path, handler in [*self.routes(), *(route for part in parts for route in part.routes())]:
            application.router.add_route(method, path, answering(handler))
        api_batches.add_to(application)

    def resume(self) -> None:
        """Go on with what an earlier emulator did not finish."""
        self.follow()
        awaited = {name for record in self._fleet.records() for name in record.operations}
        self._operations.abandon(awaited | self._images.awaited() | self._disks.awaited() | self._bulk.awaited())
        self._images.resume()
        self._disks.resume()
        self._bulk.resume()

    def follow(self) -> None:
        """VMs have come, gone or changed."""
        self._disks.follow()
        self.firewall.wake()

    def routes(self) -> list[Route]:
        """What is served here."""
        zone, region = f"{BASE}/zones/{{zone}}", f"{BASE}/regions/{{region}}"
        instance = f"{zone}/instances/{{instance}}"
        routes: list[Route] = [
            ("POST", f"{zone}/instances", self._insert),
            ("GET", f"{zone}/instances", self._list_instances),
            ("GET", f"{BASE}/aggregated/instances", self._aggregate_instances),
            ("GET", instance, lambda request: self._record(request).resource),
            ("DELETE", instance, self._delete),
            ("POST", f"{instance}/stop", self._stop),
            ("POST", f"{instance}/start", lambda request: self._act(request, self._fleet.start)),
            (
                "POST",
                f"{instance}/simulateMaintenanceEvent",
                lambda request: self._act(request, self._fleet.simulate_maintenance),
            ),
            ("POST", f"{instance}/setLabels", self._set_labels),
            ("POST", f"{instance}/setMetadata", self._set_metadata),
            ("GET", f"{instance}/getGuestAttributes", self._guest_attributes),
            ("GET", f"{instance}/serialPort", self._serial_port),
            ("GET", f"{BASE}/aggregated/operations", self._aggregate_operations),
        ]
        for scope in (zone, region, f"{BASE}/{{global:global}}"):
            routes += [
                ("GET", f"{scope}/operations", self._list_operations),
                ("GET", f"{scope}/operations/{{operation}}",
                 lambda request: self._operations.get(*_operation(request))),
                ("POST", f"{scope}/operations/{{operation}}/wait",
                 lambda request: self._operations.wait(*_operation(request))),
                ("DELETE", f"{scope}/operations/{{operation}}", self._delete_operation),
            ]  # fmt: skip
        return routes

    # Instances.

    def _record(self, request: web.Request) -> Record:
        parts = request.match_info
        tables.zone(parts["project"], parts["zone"])
        return self._fleet.get(parts["project"], parts["zone"], parts["instance"])

    async def _insert(self, request: web.Request) -> Answer:
        project, zone = request.match_info["project"], request.match_info["zone"]
        tables.zone(project, zone)
        asked, wanted = calls.request_id(request), await body(request)
        if known := self._operations.repeated(project, asked):
            return known
        return self._creation.insert(project, zone, wanted, asked)

    def _delete(self, request: web.Request) -> Answer:
        def delete(record: Record, asked: str | None) -> dict[str, Any]:
            if record.resource.get("deletionProtection"):
                path = wire.path_of(record.resource["selfLink"])
                why = f"Resource cannot be deleted if it's protected against deletion: '{path}'"
                raise wire.invalid("resource.deletionProtection", True, why)
            return self._fleet.delete(record, asked)

        return self._act(request, delete)

    def _stop(self, request: web.Request) -> Answer:
        def stop(record: Record, asked: str | None) -> dict[str, Any]:
            scratch = any(disk["type"] == "SCRATCH" for disk in record.resource["disks"])
            if scratch and "discardLocalSsd" not in request.query:
                raise wire.ApiError(400, "badRequest", wording.UNDEFINED_LOCAL_SSD)
            return self._fleet.stop(record, asked)

        return self._act(request, stop)

    def _act(self, request: web.Request, action: Callable[[Record, str | None], dict[str, Any]]) -> Answer:
        asked = calls.request_id(request)
        if known := self._operations.repeated(request.match_info["project"], asked):
            return known
        return action(self._record(request), asked)

    async def _set_labels(self, request: web.Request) -> Answer:
        record, given = self._record(request), await body(request)
        if known := self._operations.repeated(record.project, calls.request_id(request)):
            return known
        calls.check_fingerprint(given.get("labelFingerprint"), record.resource["labelFingerprint"], "label")
        fields = {"labels": {}, **instances.label_fields(given.get("labels") or {})}
        return self._fleet.change(record, "setLabels", fields, calls.request_id(request))

    async def _set_metadata(self, request: web.Request) -> Answer:
        record, given = self._record(request), await body(request)
        if known := self._operations.repeated(record.project, calls.request_id(request)):
            return known
        calls.check_fingerprint(given.get("fingerprint"), record.resource["metadata"]["fingerprint"])
        fields = {"metadata": instances.check_metadata(given)}
        return self._fleet.change(record, "setMetadata", fields, calls.request_id(request))

    def _guest_attributes(self, request: web.Request) -> Answer:
        record = self._record(request)
        policies.check_guest_attributes(self._project, record.project)
        query, key = request.query.get("queryPath", ""), request.query.get("variableKey", "")
        namespace, _, wanted = (query or key).partition("/")
        items = [
            {"namespace": space, "key": name, "value": value}
            for space, values in record.guest_attributes.items() if space == namespace or not namespace
            for name, value in values.items() if name == wanted or not wanted
        ]  # fmt: skip
        if not items or record.attributes().get("enable-guest-attributes", "").upper() != "TRUE":
            why = f"The resource '{query or key}' of type 'Guest Attribute' was not found."
            raise wire.ApiError(404, "notFound", why)
        answer: dict[str, Any] = {
            "kind": "compute#guestAttributes", "selfLink": f"{record.resource['selfLink']}/getGuestAttributes"
        }  # fmt: skip
        if key:
            return {**answer, "variableKey": key, "variableValue": items[0]["value"]}
        return {**answer, "queryPath": query, "queryValue": {"items": items}}

    def _serial_port(self, request: web.Request) -> Answer:
        record = self._record(request)
        start = int(request.query.get("start", 0))
        text, end = self._fleet.serial_output(record, start)
        return {
            "kind": "compute#serialPortOutput", "selfLink": f"{record.resource['selfLink']}/serialPort",
            "contents": text, "start": str(start), "next": str(end),
        }  # fmt: skip

    def _list_instances(self, request: web.Request) -> Answer:
        project, zone = request.match_info["project"], request.match_info["zone"]
        tables.zone(project, zone)
        found = [each.resource for each in self._fleet.records(project) if each.zone == zone]
        return lists.page(request, "compute#instanceList", found, wire.link(project, "zones", zone, "instances"))

    def _aggregate_instances(self, request: web.Request) -> Answer:
        project = request.match_info["project"]
        found = [(f"zones/{each.zone}", each.resource) for each in self._fleet.records(project)]
        own = wire.link(project, "aggregated", "instances")
        return lists.aggregated(request, "compute#instanceAggregatedList", "instances", found, calls.all_zones(), own)

    # Operations.

    def _list_operations(self, request: web.Request) -> Answer:
        project, scope, _ = _operation(request)
        found = [each for _, each in self._operations.select(project, scope)]
        own = wire.link(project, scope, "operations")
        return lists.page(request, "compute#operationList", found, own)

    def _aggregate_operations(self, request: web.Request) -> Answer:
        project = request.match_info["project"]
        own = wire.link(project, "aggregated", "operations")
        found = self._operations.select(project)
        scopes = ["global", *calls.all_regions(), *calls.all_zones()]
        return lists.aggregated(request, "compute#operationAggregatedList", "operations", found, scopes, own)

    def _delete_operation(self, request: web.Request) -> Answer:
        self._operations.delete(*_operation(request))
        return None


def _operation(request: web.Request) -> tuple[str, str, str]:
    parts = request.match_info
    return parts["project"], calls.scope(request), parts.get("operation", "")
