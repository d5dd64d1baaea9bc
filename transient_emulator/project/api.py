"""The project over HTTP: what it lacks at `/emulator/v1/project`, and what services beside Compute Engine tell.

Cloud Resource Manager v1, IAM v1, Organization Policy v2 and Service Usage v1 are served as far as clients ask before
they make VMs, at the paths that they have at hosts of their own.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from transient_magics.errors import DeclarationError, told

from ..rest import wire
from ..rest.calls import answering, body
from . import permissions, policies, state
from .state import Project

PATH = "/emulator/v1/project"
_MOST_PERMISSIONS = 100


class ProjectApi:
    """The routes, to be added to an application."""

    def __init__(self, project: Project) -> None:
        self._project = project

    def add_to(self, application: web.Application) -> None:
        """Register the routes."""
        router = application.router
        router.add_get(PATH, answering(lambda request: self._project.to_json()))
        router.add_patch(PATH, answering(self._patch))
        router.add_post("/v1/projects/{project:[^/:]+}:{verb:[A-Za-z]+}", self._resource_manager)
        account = "/v1/projects/{project:[^/:]+}/serviceAccounts/{account:[^/:]+}:testIamPermissions"
        router.add_post(account, self._service_account)
        policy = "/v2/projects/{project:[^/:]+}/policies/{constraint:[^/:]+}:getEffectivePolicy"
        router.add_get(policy, self._policy)
        router.add_get("/v1/projects/{project:[^/:]+}/services/{service}", self._service)

    async def _patch(self, request: web.Request) -> dict[str, Any]:
        given = await body(request)
        try:
            self._project.change(given)
        except DeclarationError as error:
            raise wire.ApiError(400, "invalid", str(error), told(error)) from None
        return self._project.to_json()

    async def _resource_manager(self, request: web.Request) -> web.Response:
        name = request.match_info["project"]
        if refusal := permissions.charge(self._project, request, state.RESOURCE_MANAGER, name):
            return refusal
        given = await body(request)
        match request.match_info["verb"]:
            case "testIamPermissions":
                return self._tested(given)
            case "getEffectiveOrgPolicy":
                if permissions.refused(self._project, ["orgpolicy.policy.get"]):
                    return _json(permissions.denied(403, "The caller does not have permission"), 403)
                return _json(policies.effective(self._project, str(given.get("constraint", ""))))
        return _json(permissions.denied(404, "Method not found."), 404)

    async def _service_account(self, request: web.Request) -> web.Response:
        if refusal := permissions.charge(self._project, request, state.IAM, request.match_info["project"]):
            return refusal
        return self._tested(await body(request))

    async def _policy(self, request: web.Request) -> web.Response:
        name = request.match_info["project"]
        if refusal := permissions.charge(self._project, request, state.ORGANIZATION_POLICY, name):
            return refusal
        if permissions.refused(self._project, ["orgpolicy.policy.get"]):
            return _json(permissions.denied(403, "The caller does not have permission"), 403)
        return _json(policies.evaluated(self._project, name, request.match_info["constraint"]))

    def _tested(self, given: dict[str, Any]) -> web.Response:
        asked = given.get("permissions") or []
        if len(asked) > _MOST_PERMISSIONS:
            why = f"There were {len(asked)} permissions, but {_MOST_PERMISSIONS} at most are allowed."
            return _json(permissions.denied(400, why), 400)
        lacking = permissions.refused(self._project, asked)
        granted = [each for each in asked if each not in lacking]
        return _json({"permissions": granted} if granted else {})

    async def _service(self, request: web.Request) -> web.Response:
        project, service = request.match_info["project"], request.match_info["service"]
        known = self._project.lacks(service)
        name = f"projects/{wire.fixed_id('projects', project)}/services/{service}"
        parent = f"projects/{wire.fixed_id('projects', project)}"
        return _json({"name": name, "parent": parent, "state": "DISABLED" if known else "ENABLED"})


def _json(content: dict[str, Any], status: int = 200) -> web.Response:
    return web.json_response(content, status=status)
