"""The project over HTTP: `/emulator/v1/project`, and services beside Compute Engine.

Cloud Resource Manager v1, IAM v1, Organization Policy v2 and Service Usage v1 are served as far as
clients use them before they create VMs, at the paths that they have at hosts of their own.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from transient_magics.errors import DeclarationError, to_message

from ..rest import wire
from ..rest.calls import answering, body
from . import permissions, policies, state
from .state import Project

PATH = "/emulator/v1/project"
# Cloud Resource Manager's limit of one testIamPermissions.
_MOST_PERMISSIONS = 100


class ProjectApi:
    """The routes of the project."""

    def __init__(self, project: Project) -> None:
        self._project = project

    def add_to(self, application: web.Application) -> None:
        """Register the routes."""
        router = application.router
        router.add_get(PATH, answering(lambda request: self._project.to_json()))
        router.add_patch(PATH, answering(self._patch))
        router.add_post("/v1/projects/{project:[^/:]+}:{verb:[A-Za-z]+}", self._resource_manager)
        project = "/v1/projects/{project:[^/:]+}"
        account = f"{project}/serviceAccounts/{{account:[^/:]+}}:testIamPermissions"
        router.add_post(account, self._service_account)
        policy = "/v2/projects/{project:[^/:]+}/policies/{constraint:[^/:]+}:getEffectivePolicy"
        router.add_get(policy, self._policy)
        router.add_get(f"{project}/services/{{service}}", self._service)

    async def _patch(self, request: web.Request) -> dict[str, Any]:
        change = await body(request)
        try:
            self._project.change(change)
        except DeclarationError as error:
            raise wire.ApiError(400, "invalid", str(error), to_message(error)) from None
        return self._project.to_json()

    async def _resource_manager(self, request: web.Request) -> web.Response:
        name = request.match_info["project"]
        refusal = permissions.charge(self._project, request, state.RESOURCE_MANAGER, name)
        if refusal:
            return refusal
        content = await body(request)
        match request.match_info["verb"]:
            case "testIamPermissions":
                return self._test(content)
            case "getEffectiveOrgPolicy":
                if permissions.refused(self._project, ["orgpolicy.policy.get"]):
                    return _no_permission()
                constraint = str(content.get("constraint", ""))
                return _json(policies.effective(self._project, constraint))
        return _json(permissions.denied(404, "Method not found."), 404)

    async def _service_account(self, request: web.Request) -> web.Response:
        name = request.match_info["project"]
        refusal = permissions.charge(self._project, request, state.IAM, name)
        if refusal:
            return refusal
        return self._test(await body(request))

    async def _policy(self, request: web.Request) -> web.Response:
        name = request.match_info["project"]
        refusal = permissions.charge(self._project, request, state.ORGANIZATION_POLICY, name)
        if refusal:
            return refusal
        if permissions.refused(self._project, ["orgpolicy.policy.get"]):
            return _no_permission()
        return _json(policies.evaluated(self._project, name, request.match_info["constraint"]))

    def _test(self, content: dict[str, Any]) -> web.Response:
        """Answer testIamPermissions: the permissions of the request that the caller has."""
        requested = content.get("permissions") or []
        if len(requested) > _MOST_PERMISSIONS:
            why = (
                f"There were {len(requested)} permissions, "
                f"but {_MOST_PERMISSIONS} at most are allowed."
            )
            return _json(permissions.denied(400, why), 400)
        lacking = permissions.refused(self._project, requested)
        granted = [permission for permission in requested if permission not in lacking]
        # Google leaves out an empty list.
        return _json({"permissions": granted} if granted else {})

    async def _service(self, request: web.Request) -> web.Response:
        service = request.match_info["service"]
        parent = f"projects/{wire.fixed_id('projects', request.match_info['project'])}"
        status = "DISABLED" if self._project.lacks(service) else "ENABLED"
        name = f"{parent}/services/{service}"
        return _json({"name": name, "parent": parent, "state": status})


def _no_permission() -> web.Response:
    return _json(permissions.denied(403, "The caller does not have permission"), 403)


def _json(content: dict[str, Any], status: int = 200) -> web.Response:
    return web.json_response(content, status=status)
