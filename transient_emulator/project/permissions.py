"""The permissions of requests to Compute Engine, the roles that grant them, and refusals.

The permissions are those of Google's reference, where each method lists its own. This table was
made from that reference alone, not from what our client expects. A list requires `list` and a
single resource requires `get`. `instances.bulkInsert` requires what `instances.insert` requires: it
has no permission of its own.
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
"""The header that names the project to charge."""
# In a path to a service account, this stands for the project of the account, whichever it is.
_ANY = "-"
_BASE = "/compute/v1/projects/"
_VERBS = {"DELETE": "delete", "PATCH": "update", "PUT": "update"}
_READS = {"getGuestAttributes": "getGuestAttributes", "serialPort": "getSerialPortOutput"}
_OPERATIONS = {"zones": "zoneOperations", "regions": "regionOperations"}
# A VM's service account has the role that docs/accounts.md gives to controllers, and advice
# (Compute Viewer).
_OF_VMS = frozenset(
    (*ROLES[CONTROLLER_ROLE], "compute.advice.capacity", "compute.advice.capacityHistory")
)
# Services that write the older list of errors beside the ErrorInfo.
_OLDER = (state.COMPUTE, state.STORAGE)
# A custom role of docs/accounts.md decides the permissions of these services. Others are granted
# elsewhere.
_OF_ROLES = ("compute", "storage")
_STATUSES = {400: "INVALID_ARGUMENT", 403: "PERMISSION_DENIED", 404: "NOT_FOUND"}


def refused(project: Project, permissions: Iterable[str]) -> list[str]:
    """Return those of `permissions` that neither a custom nor a predefined role grants."""
    granted = project.permissions
    return [name for name in permissions if _is_refused(project, granted, name)]


def _is_refused(project: Project, granted: frozenset[str] | None, permission: str) -> bool:
    service = permission.partition(".")[0]
    if granted is not None and service in _OF_ROLES and permission not in granted:
        return True
    role = _role(permission)
    return role is not None and project.lacks(role)


def _role(permission: str) -> str | None:
    """Return the predefined role that grants a permission; None for what every user has here."""
    service, _, rest = permission.partition(".")
    collection, _, verb = rest.partition(".")
    match service:
        case "compute":
            if collection == "firewalls":
                return state.SECURITY
            if collection == "networks" and verb == "updatePolicy":
                return state.SECURITY
            changes = ("create", "delete", "setLabels", "update")
            if collection in ("images", "snapshots") and verb in changes:
                return state.IMAGES
            return state.INSTANCES
        case "storage":
            return state.BUCKETS
        case "iam":
            return state.ACT_AS
        case "orgpolicy":
            return state.POLICY_VIEWER
        case "serviceusage":
            return state.CONSUMER
    return None


class AccessCheck:
    """The middleware that refuses, before any handler runs, what the project does not permit."""

    def __init__(self, project: Project) -> None:
        self._project = project

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Refuse requests to Compute Engine without the permissions that they require.

        Requests from VMs have exactly the role of docs/accounts.md for controllers.
        """
        if not request.path.startswith(_BASE):
            return await handler(request)
        if request.get(FROM_A_VM):
            for permission, resource in await required(request):
                if permission not in _OF_VMS:
                    return _missing(permission, resource)
        elif not self._project.complete:
            name = request.path.removeprefix(_BASE).partition("/")[0]
            refusal = charge(self._project, request, state.COMPUTE, name)
            if refusal:
                return refusal
            for permission, resource in await required(request):
                if refused(self._project, [permission]):
                    return _missing(permission, resource)
        return await handler(request)


def _missing(permission: str, resource: str) -> web.Response:
    why = f"Required '{permission}' permission for '{resource}'"
    return _json(wire.ApiError(403, "forbidden", why).body())


def charge(
    project: Project, request: web.BaseRequest, service: str, name: str
) -> web.Response | None:
    """Check that a request may be charged to its consumer.

    The consumer is the project that the header `USER_PROJECT` names, or else the project of the
    request.

    Parameters
    ----------
    project
        The state of the project.
    request
        The request.
    service
        The API's name, such as `compute.googleapis.com`.
    name
        The project that the request is about; `-` for the consumer.

    Returns
    -------
    Response or None
        Google's refusal; None if the request may be charged.
    """
    named = request.headers.get(USER_PROJECT, "")
    consumer = named or name
    if name == _ANY:
        name = consumer
    if named and refused(project, ["serviceusage.services.use"]):
        why = wording.USER_PROJECT_DENIED.format(project=named, role=state.CONSUMER)
        errors = _errors(service, why)
        return _json(denied(403, why, "USER_PROJECT_DENIED", service, named, errors))
    if project.lacks(service) or (consumer != name and project.lacks(state.QUOTA_PROJECT)):
        return _json(disabled(service, consumer))
    if not project.lacks(state.BILLING):
        return None
    if service == state.STORAGE:
        return _json(wire.ApiError(403, "accountDisabled", wording.NO_BILLING_ACCOUNT).body())
    if service == state.COMPUTE:
        number = wire.fixed_id("projects", consumer)
        why = wording.BILLING_DISABLED.format(number=number)
        errors = _errors(service, why)
        return _json(denied(403, why, "BILLING_DISABLED", service, number, errors))
    # Other services answer without a billing account.
    return None


def _errors(service: str, why: str) -> list[Any]:
    """Return the older list of errors, which only the older services write beside the ErrorInfo."""
    if service not in _OLDER:
        return []
    return wire.ApiError(403, "forbidden", why).body()["error"]["errors"]


def disabled(service: str, project: str) -> dict[str, Any]:
    """Return the body of Google's 403 for an API that is not enabled.

    Parameters
    ----------
    service
        The API's name, such as `compute.googleapis.com`.
    project
        The project in which it is not enabled.
    """
    number = wire.fixed_id("projects", project)
    title = state.SERVICES.get(service, service).removeprefix("the ")
    why = wording.SERVICE_DISABLED.format(title=title, number=number, service=service)
    errors = wire.ApiError(403, "accessNotConfigured", why).body()["error"]["errors"]
    errors[0]["domain"] = "usageLimits"
    return denied(403, why, "SERVICE_DISABLED", service, number, errors)


def denied(
    status: int,
    message: str,
    reason: str = "",
    service: str = "",
    number: str = "",
    errors: list[Any] | None = None,
) -> dict[str, Any]:
    """Return a refusal in the form of Google's newer services.

    Parameters
    ----------
    status
        The HTTP status: 400, 403 or 404.
    message
        A sentence.
    reason
        Google's name of the reason; without one there is no ErrorInfo.
    service, number
        The API and the consumer's number or name, for the ErrorInfo.
    errors
        The older list of errors.
    """
    error: dict[str, Any] = {"code": status, "message": message}
    if errors:
        error["errors"] = errors
    error["status"] = _STATUSES[status]
    if reason:
        info = {
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "reason": reason,
            "domain": "googleapis.com",
            "metadata": {"service": service, "consumer": f"projects/{number}"},
        }
        error["details"] = [info]
    return {"error": error}


async def required(request: web.Request) -> list[tuple[str, str]]:
    """Return the permissions that a request requires, each with the resource of its refusal."""
    parts = request.path.removeprefix("/compute/v1/").strip("/").split("/")
    resource = "/".join(parts)
    # The part after projects/P and after a scope. A scope alone is a resource itself.
    rest = parts[2:]
    if rest[:1] in (["zones"], ["regions"]) and len(rest) > 2:
        rest = rest[2:]
    elif rest[:1] in (["global"], ["aggregated"]):
        rest = rest[1:]
    if not rest:
        return [("compute.projects.get", resource)]
    if request.method == "GET":
        return [(_reading(parts, rest), resource)]
    found = [(permission, resource) for permission in await _changing(request, parts, rest)]
    if rest[0] == "firewalls" and found:
        # A rule also changes the network that it belongs to.
        network = "/".join([*parts[:2], "global/networks/default"])
        found.append(("compute.networks.updatePolicy", network))
    return found


def _reading(parts: list[str], rest: list[str]) -> str:
    """Return the permission that a GET requires."""
    collection = rest[0]
    verb = "get" if len(rest) > 1 else "list"
    if collection == "operations":
        return f"compute.{_OPERATIONS.get(parts[2], 'globalOperations')}.{verb}"
    if collection == "images" and rest[1:2] == ["family"]:
        return "compute.images.getFromFamily"
    if collection == "instances" and len(rest) > 2:
        verb = _READS.get(rest[2], "get")
    return f"compute.{collection}.{verb}"


async def _changing(request: web.Request, parts: list[str], rest: list[str]) -> list[str]:
    """Return the permissions that a request of another method requires."""
    collection = rest[0]
    if collection == "operations":
        # A POST waits for the operation, which is reading.
        verb = "delete" if request.method == "DELETE" else "get"
        return [f"compute.{_OPERATIONS.get(parts[2], 'globalOperations')}.{verb}"]
    if collection == "advice":
        return [f"compute.advice.{rest[-1]}"]
    if len(parts) == 3:
        # A method of the project itself.
        return [f"compute.projects.{collection}"]
    verb = _VERBS.get(request.method)
    if verb:
        return [f"compute.{collection}.{verb}"]
    if collection == "instances" and rest[1:] in ([], ["bulkInsert"]):
        body = await calls.body(request)
        return _inserting(body.get("instanceProperties") or body, parts[1])
    if len(rest) > 2:
        # A method of a resource, such as instances/I/stop.
        return [f"compute.{collection}.{rest[-1]}"]
    body = await calls.body(request)
    found = [f"compute.{collection}.create"]
    if body.get("labels"):
        found.append(f"compute.{collection}.setLabels")
    if collection == "images" and body.get("sourceDisk"):
        found.append("compute.disks.useReadOnly")
    return found


def _inserting(body: dict[str, Any], project: str) -> list[str]:
    """Return the permissions for creating a VM, by the fields of its `instances.insert`."""
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
        parameters = disk.get("initializeParams") or {}
        if disk.get("source"):
            found.append("compute.disks.useReadOnly")
        else:
            found.append("compute.disks.create")
        if parameters.get("labels"):
            found.append("compute.disks.setLabels")
        image = wire.path_of(str(parameters.get("sourceImage") or ""))
        # Public images belong to other projects, and everyone may use them.
        if image and (not image.startswith("projects/") or image.split("/")[1] == project):
            found.append("compute.images.useReadOnly")
    for interface in body.get("networkInterfaces") or ():
        found.append("compute.subnetworks.use")
        if interface.get("accessConfigs"):
            found.append("compute.subnetworks.useExternalIp")
    # Each permission once, in this order.
    return list(dict.fromkeys(found))


def _json(content: dict[str, Any]) -> web.Response:
    return web.json_response(content, status=int(content["error"]["code"]))
