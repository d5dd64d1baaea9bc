"""Which permission a request to Compute Engine takes, which role brings it, and how a request without it is refused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from aiohttp import web

from ..network.guard import FROM_A_VM
from ..rest import wire
from . import state
from .state import Project

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_BASE = "/compute/v1/projects/"
_VERBS = {"DELETE": "delete", "PATCH": "update", "PUT": "update"}
_READS = ("get", "list")


def refused(project: Project, permissions: Iterable[str]) -> list[str]:
    """Those of `permissions` that nobody has here, because the project lacks the role that brings them."""
    return [each for each in permissions if any(project.lacks(role) for role in _role(each))]


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
    return ()


class Door:
    """The middleware: what the project's state refuses before anything is looked at."""

    def __init__(self, project: Project) -> None:
        self._project = project

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """For aiohttp. What a VM asks is a matter of its own service account."""
        if not self._project.whole and request.path.startswith(_BASE) and not request.get(FROM_A_VM):
            name = request.path.removeprefix(_BASE).partition("/")[0]
            if self._project.lacks(state.COMPUTE):
                return web.json_response(disabled(state.COMPUTE, name), status=403)
            for permission, resource in wanted(request):
                if refused(self._project, [permission]):
                    why = f"Required '{permission}' permission for '{resource}'"
                    return web.json_response(wire.ApiError(403, "forbidden", why).body(), status=403)
        return await handler(request)


def disabled(service: str, project: str) -> dict[str, Any]:
    """The body of the 403 with which Google refuses requests to an API that is not enabled."""
    number = wire.fixed_id("projects", project)
    page = f"https://console.developers.google.com/apis/api/{service}/overview?project={number}"
    why = (
        f"{state.SERVICES[service].removeprefix('the ')} has not been used in project {number} before or it is "
        f"disabled. Enable it by visiting {page} then retry. If you enabled this API recently, wait a few minutes for "
        "the action to propagate to our systems and retry."
    )
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


def wanted(request: web.Request) -> list[tuple[str, str]]:
    """The permissions that a request takes, each with the resource that Google names beside it."""
    parts = request.path.removeprefix("/compute/v1/").strip("/").split("/")
    whole, rest = "/".join(parts), parts[2:]
    if rest[:1] in (["zones"], ["regions"]) and len(rest) > 2:
        rest = rest[2:]
    elif rest[:1] in (["global"], ["aggregated"]):
        rest = rest[1:]
    if not rest:
        return [("compute.projects.get", whole)]
    collection, named = rest[0], len(rest) > 1
    if collection == "operations":
        kind = {"zones": "zoneOperations", "regions": "regionOperations"}.get(parts[2], "globalOperations")
        return [(f"compute.{kind}.get", whole)]
    if request.method == "GET":
        verb = rest[2] if len(rest) > 2 and collection == "instances" else "get" if named else "list"
        verb = {"serialPort": "getSerialPortOutput", "family": "getFromFamily"}.get(verb, verb)
        return [(f"compute.{collection}.{verb}", whole)]
    verb = _VERBS.get(request.method) or (rest[-1] if len(rest) > 2 else "create")
    found = [(f"compute.{collection}.{verb}", whole)]
    if collection == "firewalls" and verb in ("create", "delete", "update"):
        found.append(("compute.networks.updatePolicy", "/".join([*parts[:2], "global/networks/default"])))
    return found
