"""Which permissions a request to Compute Engine takes, which role brings them, and how one without them is refused.

The permissions are those of Google's reference, where each method names its own; this table is made without a look at
what our client believes. A list takes `list` and one resource takes `get`. `instances.bulkInsert` takes what
`instances.insert` takes: there is no permission of that name.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from aiohttp import web

from transient_magics.spec.project import CONTROLLER_ROLE, ROLES

from ..network.guard import FROM_A_VM
from ..rest import calls, wire, wording
from . import state
from .state import Project

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
USER_PROJECT = "x-goog-user-project"
_ANY = "-"
"""In a path to a service account: whichever project it is of."""
_BASE = "/compute/v1/projects/"
_VERBS = {"DELETE": "delete", "PATCH": "update", "PUT": "update"}
_READS = {"getGuestAttributes": "getGuestAttributes", "serialPort": "getSerialPortOutput"}
_OPERATIONS = {"zones": "zoneOperations", "regions": "regionOperations"}
_OF_VMS = frozenset((*ROLES[CONTROLLER_ROLE], "compute.advice.capacity", "compute.advice.capacityHistory"))
"""Of a VM's service account: the role of docs/accounts.md for controllers, and advice (Compute Viewer)."""
_OLDER = (state.COMPUTE, state.STORAGE)
_OF_ROLES = ("compute", "storage")
"""Services whose permissions a custom role of docs/accounts.md decides; those of others are granted elsewhere."""


def refused(project: Project, permissions: Iterable[str]) -> list[str]:
    """Return those of `permissions` that users lack, by their custom role or for want of a predefined one."""
    granted = project.permissions
    return [name for name in permissions if _is_refused(project, granted, name)]


def _is_refused(project: Project, granted: frozenset[str] | None, permission: str) -> bool:
    if granted is not None and permission.partition(".")[0] in _OF_ROLES and permission not in granted:
        return True
    return any(project.lacks(role) for role in _role(permission))


def _role(permission: str) -> tuple[str, ...]:
    """The role that brings it; none for what everybody has here."""
    service, _, rest = permission.partition(".")
    collection, _, verb = rest.partition(".")
    match service:
        case "compute":
            if collection == "firewalls" or (collection == "networks" and verb == "updatePolicy"):
                return (state.SECURITY,)
            if collection in ("images", "snapshots") and verb in ("create", "delete", "setLabels", "update"):
                return (state.IMAGES,)
            return (state.INSTANCES,)
        case "storage":
            return (state.BUCKETS,)
        case "iam":
            return (state.ACT_AS,)
        case "orgpolicy":
            return (state.POLICY_VIEWER,)
        case "serviceusage":
            return (state.CONSUMER,)
    return ()


class Door:
    """The middleware: what the project's state refuses before anything is looked at."""

    def __init__(self, project: Project) -> None:
        self._project = project

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """For aiohttp. A VM's service account has the role of docs/accounts.md for controllers, and no other."""
        if not request.path.startswith(_BASE):
            return await handler(request)
        if request.get(FROM_A_VM):
            for permission, resource in await wanted(request):
                if permission not in _OF_VMS:
                    return _missing(permission, resource)
        elif not self._project.whole:
            name = request.path.removeprefix(_BASE).partition("/")[0]
            if refusal := charge(self._project, request, state.COMPUTE, name):
                return refusal
            for permission, resource in await wanted(request):
                if refused(self._project, [permission]):
                    return _missing(permission, resource)
        return await handler(request)


def _missing(permission: str, resource: str) -> web.Response:
    return _json(wire.ApiError(403, "forbidden", f"Required '{permission}' permission for '{resource}'").body())


def charge(project: Project, request: web.BaseRequest, service: str, name: str) -> web.Response | None:
    """Refuse a request whose consumer may not be charged for it; None where it may be.

    The consumer is the project that the header names, else the one that the request is about.
    """
    named = request.headers.get(USER_PROJECT, "")
    consumer = named or name
    if name == _ANY:
        name = consumer
    if named and refused(project, ["serviceusage.services.use"]):
        why = wording.USER_PROJECT_DENIED.format(project=named, role=state.CONSUMER)
        return _json(denied(403, why, "USER_PROJECT_DENIED", service, named, _errors(service, why)))
    if project.lacks(service) or (consumer != name and project.lacks(state.QUOTA_PROJECT)):
        return _json(disabled(service, consumer))
    if not project.lacks(state.BILLING):
        return None
    if service == state.STORAGE:
        return _json(wire.ApiError(403, "accountDisabled", wording.NO_BILLING_ACCOUNT).body())
    if service == state.COMPUTE:
        number = wire.fixed_id("projects", consumer)
        why = wording.BILLING_DISABLED.format(number=number)
        return _json(denied(403, why, "BILLING_DISABLED", service, number, _errors(service, why)))
    return None


def _errors(service: str, why: str) -> list[Any]:
    """The older list of errors, which only the older services write beside the ErrorInfo."""
    return wire.ApiError(403, "forbidden", why).body()["error"]["errors"] if service in _OLDER else []


def disabled(service: str, project: str) -> dict[str, Any]:
    """The body of the 403 with which Google refuses requests to an API that is not enabled."""
    number = wire.fixed_id("projects", project)
    title = state.SERVICES.get(service, service).removeprefix("the ")
    why = wording.SERVICE_DISABLED.format(title=title, number=number, service=service)
    error = wire.ApiError(403, "accessNotConfigured", why).body()
    error["error"]["errors"][0]["domain"] = "usageLimits"
    return denied(403, why, "SERVICE_DISABLED", service, number, error["error"]["errors"])


def denied(
    status: int, message: str, reason: str = "", service: str = "", number: str = "", errors: list[Any] | None = None
) -> dict[str, Any]:
    """A refusal as Google's newer services write it."""
    error: dict[str, Any] = {"code": status, "message": message}
    if errors:
        error["errors"] = errors
    error["status"] = {400: "INVALID_ARGUMENT", 403: "PERMISSION_DENIED", 404: "NOT_FOUND"}[status]
    if reason:
        metadata = {"service": service, "consumer": f"projects/{number}"}
        kind = "type.googleapis.com/google.rpc.ErrorInfo"
        error["details"] = [{"@type": kind, "reason": reason, "domain": "googleapis.com", "metadata": metadata}]
    return {"error": error}


async def wanted(request: web.Request) -> list[tuple[str, str]]:
    """The permissions that a request takes, each with the resource that Google names beside it."""
    parts = request.path.removeprefix("/compute/v1/").strip("/").split("/")
    whole, rest = "/".join(parts), parts[2:]
    if rest[:1] in (["zones"], ["regions"]) and len(rest) > 2:
        rest = rest[2:]
    elif rest[:1] in (["global"], ["aggregated"]):
        rest = rest[1:]
    if not rest:
        return [("compute.projects.get", whole)]
    if request.method == "GET":
        return [(_reading(parts, rest), whole)]
    found = [(permission, whole) for permission in await _changing(request, parts, rest)]
    if rest[0] == "firewalls" and found:
        found.append(("compute.networks.updatePolicy", "/".join([*parts[:2], "global/networks/default"])))
    return found


def _reading(parts: list[str], rest: list[str]) -> str:
    """The permission that a GET takes."""
    collection, named = rest[0], len(rest) > 1
    if collection == "operations":
        return f"compute.{_OPERATIONS.get(parts[2], 'globalOperations')}.{'get' if named else 'list'}"
    if collection == "images" and rest[1:2] == ["family"]:
        return "compute.images.getFromFamily"
    verb = "get" if named else "list"
    if collection == "instances" and len(rest) > 2:
        verb = _READS.get(rest[2], "get")
    return f"compute.{collection}.{verb}"


async def _changing(request: web.Request, parts: list[str], rest: list[str]) -> list[str]:
    """The permissions that a request of another method takes."""
    collection = rest[0]
    if collection == "operations":
        verb = "delete" if request.method == "DELETE" else "get"  # a POST waits for it
        return [f"compute.{_OPERATIONS.get(parts[2], 'globalOperations')}.{verb}"]
    if collection == "advice":
        return [f"compute.advice.{rest[-1]}"]
    if len(parts) == 3:  # a method of the project itself
        return [f"compute.projects.{collection}"]
    if verb := _VERBS.get(request.method):
        return [f"compute.{collection}.{verb}"]
    if collection == "instances" and rest[1:] in ([], ["bulkInsert"]):
        body = await calls.body(request)
        return _inserting(body.get("instanceProperties") or body, parts[1])
    if len(rest) > 2:
        return [f"compute.{collection}.{rest[-1]}"]
    body = await calls.body(request)
    found = [f"compute.{collection}.create"]
    if body.get("labels"):
        found.append(f"compute.{collection}.setLabels")
    if collection == "images" and body.get("sourceDisk"):
        found.append("compute.disks.useReadOnly")
    return found


def _inserting(body: dict[str, Any], project: str) -> list[str]:
    """What making such a VM takes, by the fields of its request (reference of `instances.insert`)."""
    found = ["compute.instances.create"]
    if body.get("labels"):
        found.append("compute.instances.setLabels")
    if (body.get("metadata") or {}).get("items"):
        found.append("compute.instances.setMetadata")
    if (body.get("tags") or {}).get("items"):
        found.append("compute.instances.setTags")
    if body.get("serviceAccounts"):
        found.append("compute.instances.setServiceAccount")
    for disk in body.get("disks") or ():
        made = disk.get("initializeParams") or {}
        found.append("compute.disks.useReadOnly" if disk.get("source") else "compute.disks.create")
        if made.get("labels"):
            found.append("compute.disks.setLabels")
        image = wire.path_of(str(made.get("sourceImage") or ""))
        if image and (not image.startswith("projects/") or image.split("/")[1] == project):
            found.append("compute.images.useReadOnly")
    for interface in body.get("networkInterfaces") or ():
        found.append("compute.subnetworks.use")
        if interface.get("accessConfigs"):
            found.append("compute.subnetworks.useExternalIp")
    return list(dict.fromkeys(found))


def _json(content: dict[str, Any]) -> web.Response:
    return web.json_response(content, status=int(content["error"]["code"]))
