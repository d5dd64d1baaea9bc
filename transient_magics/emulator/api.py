"""The REST API: which request does what. Routes of Compute Engine v1 on one side, the fleet on the other.

Every handler returns the JSON of its answer; refusals are `ApiError`s and become error bodies of the API's form.
Unknown query parameters are ignored, full and partial URLs are understood everywhere.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from . import instances, lists, tables, wire
from .fleet import Fleet
from .instances import Record
from .operations import Operations

Answer = dict[str, Any] | None
Handler = Callable[[web.Request], Answer | Awaitable[Answer]]
_LOG = logging.getLogger(__name__)
_BASE = "/compute/v1/projects/{project}"


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

    def __init__(self, fleet: Fleet, operations: Operations) -> None:
        self._fleet, self._operations = fleet, operations

    def add_to(self, application: web.Application) -> None:
        """Register the routes."""
        zone, region = f"{_BASE}/zones/{{zone}}", f"{_BASE}/regions/{{region}}"
        instance = f"{zone}/instances/{{instance}}"
        routes: list[tuple[str, str, Handler]] = [
            ("POST", f"{zone}/instances", self._insert),
            ("GET", f"{zone}/instances", self._list_instances),
            ("GET", f"{_BASE}/aggregated/instances", self._aggregate_instances),
            ("GET", instance, lambda request: self._record(request).resource),
            ("DELETE", instance, lambda request: self._act(request, self._fleet.delete)),
            ("POST", f"{instance}/stop", lambda request: self._act(request, self._fleet.stop)),
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
            ("GET", f"{zone}/disks", self._list_disks),
            ("GET", f"{zone}/disks/{{disk}}", self._get_disk),
            ("GET", f"{_BASE}/aggregated/disks", self._aggregate_disks),
            ("GET", f"{_BASE}/aggregated/operations", self._aggregate_operations),
        ]
        for scope in (zone, region, f"{_BASE}/{{global:global}}"):
            routes += [
                ("GET", f"{scope}/operations", self._list_operations),
                ("GET", f"{scope}/operations/{{operation}}",
                 lambda request: self._operations.get(*_operation(request))),
                ("POST", f"{scope}/operations/{{operation}}/wait",
                 lambda request: self._operations.wait(*_operation(request))),
                ("DELETE", f"{scope}/operations/{{operation}}", self._delete_operation),
            ]  # fmt: skip
        for method, path, handler in routes:
            application.router.add_route(method, path, answering(handler))

    # Instances.

    def _record(self, request: web.Request) -> Record:
        parts = request.match_info
        tables.zone(parts["project"], parts["zone"])
        return self._fleet.get(parts["project"], parts["zone"], parts["instance"])

    async def _insert(self, request: web.Request) -> Answer:
        project, zone = request.match_info["project"], request.match_info["zone"]
        tables.zone(project, zone)
        asked = _request_id(request)
        if known := self._operations.repeated(project, asked):
            return known
        return self._fleet.insert(project, zone, await body(request), asked)

    def _act(self, request: web.Request, action: Callable[[Record, str | None], dict[str, Any]]) -> Answer:
        asked = _request_id(request)
        if known := self._operations.repeated(request.match_info["project"], asked):
            return known
        return action(self._record(request), asked)

    async def _set_labels(self, request: web.Request) -> Answer:
        record, given = self._record(request), await body(request)
        _check_fingerprint(given.get("labelFingerprint"), record.resource["labelFingerprint"])
        record.resource.pop("labels", None)
        fields = instances.labelled(given.get("labels") or {})
        return self._fleet.change(record, "setLabels", fields, _request_id(request))

    async def _set_metadata(self, request: web.Request) -> Answer:
        record, given = self._record(request), await body(request)
        _check_fingerprint(given.get("fingerprint"), record.resource["metadata"]["fingerprint"])
        fields = {"metadata": instances.checked_metadata(given)}
        return self._fleet.change(record, "setMetadata", fields, _request_id(request))

    def _guest_attributes(self, request: web.Request) -> Answer:
        record = self._record(request)
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
        return lists.aggregated(request, "compute#instanceAggregatedList", "instances", found, all_zones(), own)

    # The disks that instances bring along.

    def _list_disks(self, request: web.Request) -> Answer:
        project, zone = request.match_info["project"], request.match_info["zone"]
        tables.zone(project, zone)
        found = [instances.boot_disk(each) for each in self._fleet.records(project) if each.zone == zone]
        return lists.page(request, "compute#diskList", found, wire.link(project, "zones", zone, "disks"))

    def _get_disk(self, request: web.Request) -> Answer:
        project, zone, name = (request.match_info[part] for part in ("project", "zone", "disk"))
        for record in self._fleet.records(project):
            disk = instances.boot_disk(record)
            if record.zone == zone and disk["name"] == name:
                return disk
        raise wire.not_found(f"projects/{project}/zones/{zone}/disks/{name}")

    def _aggregate_disks(self, request: web.Request) -> Answer:
        project = request.match_info["project"]
        found = [(f"zones/{each.zone}", instances.boot_disk(each)) for each in self._fleet.records(project)]
        own = wire.link(project, "aggregated", "disks")
        return lists.aggregated(request, "compute#diskAggregatedList", "disks", found, all_zones(), own)

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
        return lists.aggregated(request, "compute#operationAggregatedList", "operations", found, all_zones(), own)

    def _delete_operation(self, request: web.Request) -> Answer:
        self._operations.delete(*_operation(request))
        return None


def answering(handler: Handler) -> Callable[[web.Request], Awaitable[web.Response]]:
    """The handler as aiohttp wants it: its answer as JSON, or 204 for none."""

    async def answer(request: web.Request) -> web.Response:
        result = handler(request)
        content = await result if isinstance(result, Awaitable) else result
        return web.Response(status=204) if content is None else web.json_response(content)

    return answer


async def body(request: web.Request) -> dict[str, Any]:
    """The JSON object in the request's body; empty if there is none."""
    text = await request.text()
    try:
        content = json.loads(text) if text.strip() else {}
    except json.JSONDecodeError as error:
        raise wire.ApiError(400, "parseError", f"The body is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise wire.ApiError(400, "parseError", "The body is not a JSON object")
    return content


def all_zones() -> list[str]:
    """The scopes of an aggregated list."""
    return [f"zones/{zone}" for zone in tables.ZONES]


def _request_id(request: web.Request) -> str | None:
    return wire.check_request_id(request.query.get("requestId"))


def _operation(request: web.Request) -> tuple[str, str, str]:
    parts = request.match_info
    if "zone" in parts:
        scope = f"zones/{wire.last(tables.zone(parts['project'], parts['zone'])['selfLink'])}"
    else:
        scope = f"regions/{parts['region']}" if "region" in parts else "global"
    return parts["project"], scope, parts.get("operation", "")


def _check_fingerprint(given: object, present: str) -> None:
    if given and given != present:
        raise wire.ApiError(412, "conditionNotMet", "Supplied fingerprint does not match current metadata fingerprint.")
