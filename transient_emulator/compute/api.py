"""The REST API: routes of Compute Engine v1 on one side, the fleet on the other.

Every handler returns the JSON of its answer. Refusals are `ApiError`s, which become error bodies in
the API's form. Unknown query parameters are ignored, and full and partial URLs are understood
everywhere. VMs, operations and batches are served here. Each of the other kinds of resources brings
its own routes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from .. import instances
from ..instances import Record
from ..network.firewall import Firewall
from ..project import policies
from ..project.state import Project
from ..rest import batches, calls, lists, tables, wire, wording
from ..rest.calls import BASE, Answer, Route, answering, body
from ..rest.operations import Operations
from ..vms.fleet import Fleet
from .advice import Advice
from .api_tables import TablesApi
from .changes import Changes
from .creation.bulk import Bulk
from .creation.single import Creation, refused_by
from .disks import Disks
from .images import Images
from .networks import Networks, Routers
from .reserved_addresses import Addresses

_LOG = logging.getLogger(__name__)
_MOST_CALLS = 1000
_Action = Callable[[Record, str | None], dict[str, Any]]


@web.middleware
async def errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Answer failures of handlers in the API's own form."""
    try:
        return await handler(request)
    except wire.ApiError as error:
        refusal = error
    except web.HTTPException as error:
        reasons = {403: "forbidden", 404: "notFound", 405: "httpMethodNotAllowed"}
        reason = reasons.get(error.status, "invalid")
        refusal = wire.ApiError(error.status, reason, (error.text or error.reason).strip())
    except OSError as error:
        _LOG.exception("%s %s failed", request.method, request.path)
        why = f"The emulator could not do it: {error.strerror or error}"
        refusal = wire.ApiError(503, "backendError", why)
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        # A body whose parts have the wrong types: the client's mistake, not ours, but worth a line
        # in the log.
        _LOG.warning("%s %s is invalid", request.method, request.path, exc_info=error)
        refusal = wire.ApiError(400, "invalid", f"The request cannot be understood: {error!r}")
    return web.json_response(refusal.body(), status=refusal.status)


class Api:
    """All routes of Compute Engine.

    Parameters
    ----------
    state
        The emulator's directory.
    fleet
        The VMs.
    operations
        The operations.
    project
        What the project lacks.
    own_network
        Whether VMs have a network of their own, in which firewall rules are enforced.
    """

    def __init__(
        self,
        state: Path,
        fleet: Fleet,
        operations: Operations,
        project: Project,
        own_network: bool,
    ) -> None:
        self._fleet = fleet
        self._operations = operations
        self._project = project
        self._networks = Networks(state, operations, project)
        self._networks.instances = lambda name: [vm.resource for vm in fleet.records(name)]
        self._routers = Routers(state, operations, self._networks, project)
        rules = self._networks.firewalls
        self.firewall = Firewall(
            fleet.records,
            lambda name: (rule for _, rule in rules.everywhere(name)),
            own_network,
        )
        rules.on_change = self.firewall.wake
        self._images = Images(state, operations)
        self._disks = Disks(state, operations, fleet, self._images)
        self._addresses = Addresses(state, operations)
        self._creation = Creation(fleet, self._networks, self._images, self._disks, project)
        self._bulk = Bulk(state, operations, fleet, self._creation)
        self._tables = TablesApi(
            fleet, self._networks, self._images, self._disks, self._addresses, project
        )
        # The fleet is created before this object and needs both when it boots VMs.
        fleet.prepare = self._disks.prepare
        fleet.forbidden = refused_by(project)

    def add_to(self, application: web.Application) -> None:
        """Register the routes."""
        parts = (
            self,
            self._bulk,
            Changes(self._fleet, self._operations, self._disks),
            self._tables,
            self._disks,
            self._images,
            self._networks,
            self._networks.subnetworks,
            self._networks.firewalls,
            self._addresses,
            self._routers,
            Advice(self._fleet.weather),
        )
        for part in parts:
            for method, path, handler in part.routes():
                application.router.add_route(method, path, answering(handler))
        _add_batches(application)

    def resume(self) -> None:
        """Continue what an earlier emulator did not finish."""
        self.follow()
        # Operations that no part of this emulator will finish end now.
        awaited = {name for record in self._fleet.records() for name in record.operations}
        for part in (self._images, self._disks, self._bulk):
            awaited |= part.awaited()
        self._operations.abandon(awaited)
        self._images.resume()
        self._disks.resume()
        self._bulk.resume()

    def follow(self) -> None:
        """React to VMs that were added, removed or changed."""
        self._disks.follow()
        self.firewall.wake()

    def routes(self) -> list[Route]:
        """Return the routes of instances and operations."""
        zone = f"{BASE}/zones/{{zone}}"
        region = f"{BASE}/regions/{{region}}"
        instance = f"{zone}/instances/{{instance}}"
        routes: list[Route] = [
            ("POST", f"{zone}/instances", self._insert),
            ("GET", f"{zone}/instances", self._list_instances),
            ("GET", f"{BASE}/aggregated/instances", self._aggregate_instances),
            ("GET", instance, lambda request: self._record(request).resource),
            ("DELETE", instance, self._delete),
            ("POST", f"{instance}/stop", self._stop),
            ("POST", f"{instance}/start", self._start),
            ("POST", f"{instance}/simulateMaintenanceEvent", self._simulate_maintenance),
            ("POST", f"{instance}/setLabels", self._set_labels),
            ("POST", f"{instance}/setMetadata", self._set_metadata),
            ("GET", f"{instance}/getGuestAttributes", self._guest_attributes),
            ("GET", f"{instance}/serialPort", self._serial_port),
            ("GET", f"{BASE}/aggregated/operations", self._aggregate_operations),
        ]
        for scope in (zone, region, f"{BASE}/{{global:global}}"):
            operation = f"{scope}/operations/{{operation}}"
            routes += [
                ("GET", f"{scope}/operations", self._list_operations),
                ("GET", operation, self._get_operation),
                ("POST", f"{operation}/wait", self._wait_for_operation),
                ("DELETE", operation, self._delete_operation),
            ]
        return routes

    # -------------------- instances

    def _record(self, request: web.Request) -> Record:
        parts = request.match_info
        tables.zone(parts["project"], parts["zone"])
        return self._fleet.get(parts["project"], parts["zone"], parts["instance"])

    async def _insert(self, request: web.Request) -> Answer:
        project = calls.project(request)
        zone = request.match_info["zone"]
        tables.zone(project, zone)
        request_id = calls.request_id(request)
        instance = await body(request)
        earlier = self._operations.repeated(project, request_id)
        if earlier:
            return earlier
        return self._creation.insert(project, zone, instance, request_id)

    def _delete(self, request: web.Request) -> Answer:
        def delete(record: Record, request_id: str | None) -> dict[str, Any]:
            if record.resource.get("deletionProtection"):
                path = wire.path_of(record.resource["selfLink"])
                why = f"Resource cannot be deleted if it's protected against deletion: '{path}'"
                raise wire.invalid("resource.deletionProtection", True, why)
            return self._fleet.delete(record, request_id)

        return self._act(request, delete)

    def _stop(self, request: web.Request) -> Answer:
        def stop(record: Record, request_id: str | None) -> dict[str, Any]:
            scratch = any(disk["type"] == "SCRATCH" for disk in record.resource["disks"])
            if scratch and "discardLocalSsd" not in request.query:
                raise wire.ApiError(400, "badRequest", wording.UNDEFINED_LOCAL_SSD)
            return self._fleet.stop(record, request_id)

        return self._act(request, stop)

    def _start(self, request: web.Request) -> Answer:
        return self._act(request, self._fleet.start)

    def _simulate_maintenance(self, request: web.Request) -> Answer:
        return self._act(request, self._fleet.simulate_maintenance)

    def _act(self, request: web.Request, action: _Action) -> Answer:
        """Run an action on a VM, or return the operation if this request was sent before."""
        request_id = calls.request_id(request)
        earlier = self._operations.repeated(calls.project(request), request_id)
        if earlier:
            # Before the VM is looked up: a repeated delete finds none.
            return earlier
        return action(self._record(request), request_id)

    async def _set_labels(self, request: web.Request) -> Answer:
        record = self._record(request)
        given = await body(request)
        request_id = calls.request_id(request)
        earlier = self._operations.repeated(record.project, request_id)
        if earlier:
            return earlier
        fingerprint = record.resource["labelFingerprint"]
        calls.check_fingerprint(given.get("labelFingerprint"), fingerprint, "label")
        fields = {"labels": {}, **instances.label_fields(given.get("labels") or {})}
        return self._fleet.change(record, "setLabels", fields, request_id)

    async def _set_metadata(self, request: web.Request) -> Answer:
        record = self._record(request)
        given = await body(request)
        request_id = calls.request_id(request)
        earlier = self._operations.repeated(record.project, request_id)
        if earlier:
            return earlier
        fingerprint = record.resource["metadata"]["fingerprint"]
        calls.check_fingerprint(given.get("fingerprint"), fingerprint)
        fields = {"metadata": instances.check_metadata(given)}
        return self._fleet.change(record, "setMetadata", fields, request_id)

    def _guest_attributes(self, request: web.Request) -> Answer:
        record = self._record(request)
        policies.check_guest_attributes(self._project, record.project)
        query = request.query.get("queryPath", "")
        variable = request.query.get("variableKey", "")
        # Either one is NAMESPACE/KEY. Without a key, all of the namespace match.
        namespace, _, key = (query or variable).partition("/")
        items: list[dict[str, str]] = []
        for space, values in record.guest_attributes.items():
            if namespace and space != namespace:
                continue
            for name, value in values.items():
                if not key or name == key:
                    items.append({"namespace": space, "key": name, "value": value})
        enabled = record.attributes().get("enable-guest-attributes", "").upper() == "TRUE"
        if not items or not enabled:
            why = f"The resource '{query or variable}' of type 'Guest Attribute' was not found."
            raise wire.ApiError(404, "notFound", why)
        answer: dict[str, Any] = {
            "kind": "compute#guestAttributes",
            "selfLink": f"{record.resource['selfLink']}/getGuestAttributes",
        }
        if variable:
            return {**answer, "variableKey": variable, "variableValue": items[0]["value"]}
        return {**answer, "queryPath": query, "queryValue": {"items": items}}

    def _serial_port(self, request: web.Request) -> Answer:
        record = self._record(request)
        start = int(request.query.get("start", 0))
        text, end = self._fleet.serial_output(record, start)
        return {
            "kind": "compute#serialPortOutput",
            "selfLink": f"{record.resource['selfLink']}/serialPort",
            "contents": text,
            "start": str(start),
            "next": str(end),
        }

    def _list_instances(self, request: web.Request) -> Answer:
        project = calls.project(request)
        zone = request.match_info["zone"]
        tables.zone(project, zone)
        found = [vm.resource for vm in self._fleet.records(project) if vm.zone == zone]
        link = wire.link(project, "zones", zone, "instances")
        return lists.page(request, "compute#instanceList", found, link)

    def _aggregate_instances(self, request: web.Request) -> Answer:
        project = calls.project(request)
        found = [(f"zones/{vm.zone}", vm.resource) for vm in self._fleet.records(project)]
        link = wire.link(project, "aggregated", "instances")
        kind = "compute#instanceAggregatedList"
        return lists.aggregated(request, kind, "instances", found, calls.all_zones(), link)

    # -------------------- operations

    def _get_operation(self, request: web.Request) -> Answer:
        return self._operations.get(*_operation(request))

    def _wait_for_operation(self, request: web.Request) -> Awaitable[Answer]:
        return self._operations.wait(*_operation(request))

    def _list_operations(self, request: web.Request) -> Answer:
        project, scope, _ = _operation(request)
        found = [operation for _, operation in self._operations.select(project, scope)]
        link = wire.link(project, scope, "operations")
        return lists.page(request, "compute#operationList", found, link)

    def _aggregate_operations(self, request: web.Request) -> Answer:
        project = calls.project(request)
        found = self._operations.select(project)
        scopes = ["global", *calls.all_regions(), *calls.all_zones()]
        link = wire.link(project, "aggregated", "operations")
        kind = "compute#operationAggregatedList"
        return lists.aggregated(request, kind, "operations", found, scopes, link)

    def _delete_operation(self, request: web.Request) -> Answer:
        self._operations.delete(*_operation(request))
        return None


def _operation(request: web.Request) -> tuple[str, str, str]:
    """Return project, scope and name of the operation in the request's path."""
    parts = request.match_info
    return parts["project"], calls.scope(request), parts.get("operation", "")


# -------------------- batches


def _add_batches(application: web.Application) -> None:
    """Register `/batch/compute/v1`: many requests in one, served simultaneously."""

    async def answer(request: web.Request) -> web.Response:
        # Only a request that has not been read can be cloned.
        blank = request.clone()
        content_type = request.headers.get("Content-Type", "")
        parts = batches.split(content_type, await request.read(), _MOST_CALLS)
        answers = await asyncio.gather(*(_answer_part(application, blank, part) for part in parts))
        kind, joined = batches.join(answers)
        return web.Response(body=joined, headers={"Content-Type": kind})

    application.router.add_post("/batch/compute/v1", answer)


async def _answer_part(
    application: web.Application, blank: web.Request, part: batches.Part
) -> batches.Answer:
    content_type = part.headers.get("Content-Type", "application/json")
    headers = CIMultiDict({"Host": blank.host, "Content-Type": content_type})
    url = URL(part.target, encoded=True)
    inner = blank.clone(method=part.method, rel_url=url, headers=headers)
    # aiohttp has no public way to serve a request that did not come alone over a connection.
    inner._read_bytes = part.body
    response = await application._handle(inner)
    text = b""
    if isinstance(response, web.Response) and isinstance(response.body, bytes):
        text = response.body
    return batches.Answer(part.identity, response.status, text)
