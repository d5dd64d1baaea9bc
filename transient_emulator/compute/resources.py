"""Named resources of one kind (firewall rules, disks, ...): what all kinds have in common.

Each kind is a subclass that defines what a new resource looks like and what prevents its deletion.
Listing, paging, lookup, operations, request ids, changes and storage are the same for all kinds and
are here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from aiohttp import web

from .. import instances
from ..rest import calls, lists, wire
from ..rest.operations import Operations
from ..rest.store import Store

Resource = dict[str, Any]
"""The JSON of a resource. The emulator's own fields start with `_` and are never shown."""
_PATTERNS = {
    "zones": f"{calls.BASE}/zones/{{zone}}",
    "regions": f"{calls.BASE}/regions/{{region}}",
    "global": f"{calls.BASE}/{{global:global}}",
}


class Resources:
    """All resources of a kind, in all projects.

    Attributes
    ----------
    kind
        The name in the resources, such as `compute#firewall`.
    collection
        The name in URLs, such as `firewalls`.
    scopes
        The places of the kind: `global`, `regions`, `zones`.
    noun
        The name in messages, such as `firewall`.
    mutable
        The fields that PATCH and PUT may change.
    replaceable
        Whether PUT is supported besides PATCH.
    labels
        Whether they have labels that can be set.
    """

    kind = ""
    collection = ""
    scopes: tuple[str, ...] = ("global",)
    noun = ""
    mutable: frozenset[str] = frozenset()
    replaceable = False
    labels = False

    def __init__(self, state: Path, operations: Operations) -> None:
        self.operations = operations
        self._store = Store(state / self.collection)
        # By project, scope and name.
        self._resources: dict[tuple[str, str, str], Resource] = {}
        # Projects that have their initial resources. Clients may have deleted these since.
        self._initialized: set[str] = set()
        for entry in self._store:
            resource = entry["resource"]
            if resource is None:
                self._initialized.add(entry["project"])
            else:
                key = (entry["project"], entry["scope"], resource["name"])
                self._resources[key] = resource

    # -------------------- what a kind defines

    def permanent(self, project: str, scope: str) -> Iterable[Resource]:
        """Return the resources that always exist and that clients cannot change."""
        return ()

    def initial(self, project: str) -> Iterable[tuple[str, dict[str, Any]]]:
        """Return the resources that a project starts with, as scope and body.

        Clients can change them.
        """
        return ()

    def new(self, project: str, scope: str, body: dict[str, Any]) -> Resource:
        """Return the fields of a new resource, except name, id and the like.

        Raises
        ------
        ApiError
            If `body` is not legal.
        """
        raise NotImplementedError

    def changed(self, project: str, scope: str, resource: Resource) -> Resource:
        """Return the resource after a PATCH or PUT, checked like a new one."""
        return {**resource, **self.new(project, scope, resource)}

    def users(self, project: str, resource: Resource) -> list[str]:
        """Return the URLs of resources that use it and so prevent its deletion."""
        return []

    def public(self, project: str, resource: Resource) -> Resource:
        """Return the resource as clients see it."""
        return {name: value for name, value in resource.items() if not name.startswith("_")}

    def on_removed(self, project: str, scope: str, resource: Resource) -> None:
        """Clean up after a deleted resource."""

    def on_inserted(
        self, project: str, scope: str, resource: Resource, request: str | None
    ) -> dict[str, Any]:
        """Return the operation of an insert."""
        return self.finish_operation(project, scope, "insert", resource, request)

    # -------------------- lookup

    def everywhere(self, project: str) -> Iterator[tuple[str, Resource]]:
        """Yield the stored resources of a project, each after its scope."""
        self._initialize(project)
        # A copy, since callers may change resources while they iterate.
        for (owner, scope, _), resource in list(self._resources.items()):
            if owner == project:
                yield scope, resource

    def within(self, project: str, scope: str) -> list[Resource]:
        """Return all resources of a scope, permanent ones included."""
        found = list(self.permanent(project, scope))
        found += [resource for where, resource in self.everywhere(project) if where == scope]
        return found

    def find(self, project: str, scope: str, name: str) -> Resource:
        """Return one resource by name or id. Raises ApiError 404 if it does not exist."""
        for resource in self.within(project, scope):
            if name in (resource["name"], resource["id"]):
                return resource
        raise wire.not_found(self.path(project, scope, name))

    def path(self, project: str, scope: str, name: str) -> str:
        """Return `projects/...` of the resource called `name`."""
        return f"projects/{project}/{scope}/{self.collection}/{name}"

    def resolve(self, url: object, field: str, project: str, scope: str) -> Resource:
        """Return the resource that a field of a request refers to.

        Parameters
        ----------
        url
            The value of the field: a full or partial URL, or a name.
        field
            The name of the field, for the error.
        project, scope
            What partial URLs leave out.

        Raises
        ------
        ApiError
            400 if there is no such resource.
        """
        if not url or not isinstance(url, str):
            raise wire.required(field)
        parts = wire.path_of(url).split("/")
        if parts[0] == "projects" and len(parts) > 2:
            project = parts[1]
            parts = parts[2:]
        if parts[0] in ("zones", "regions") and len(parts) > 2:
            scope = "/".join(parts[:2])
        try:
            return self.find(project, scope, parts[-1])
        except wire.ApiError:
            why = f"The referenced {self.noun} resource cannot be found."
            raise wire.invalid(field, url, why) from None

    # -------------------- changes

    def add(self, project: str, scope: str, body: dict[str, Any]) -> Resource:
        """Create and store a resource.

        Raises
        ------
        ApiError
            If there is one of that name, or `body` is not legal.
        """
        name = wire.check_name(body.get("name"))
        if any(resource["name"] == name for resource in self.within(project, scope)):
            path = self.path(project, scope, name)
            raise wire.ApiError(409, "alreadyExists", f"The resource '{path}' already exists")
        resource: Resource = {
            "kind": self.kind,
            "id": wire.fresh_id(),
            "creationTimestamp": wire.now(),
            "name": name,
            "selfLink": wire.link(project, scope, self.collection, name),
            **self.new(project, scope, body),
        }
        place, _, where = scope.partition("/")
        if where:
            # `zone` or `region`.
            resource[place.removesuffix("s")] = wire.link(project, scope)
        if self.labels:
            resource |= instances.label_fields(body.get("labels") or {})
        if body.get("description"):
            resource["description"] = str(body["description"])
        self.save(project, scope, resource)
        return resource

    def save(self, project: str, scope: str, resource: Resource) -> None:
        """Store the present state of a resource."""
        entry = {"project": project, "scope": scope, "resource": resource}
        self._store.put(resource["id"], entry)
        self._resources[project, scope, resource["name"]] = resource

    def remove(self, project: str, scope: str, resource: Resource) -> None:
        """Delete a resource, and what belongs to it."""
        self._resources.pop((project, scope, resource["name"]), None)
        self._store.drop(resource["id"])
        self.on_removed(project, scope, resource)

    def start_operation(
        self, project: str, scope: str, kind: str, resource: Resource, request: str | None = None
    ) -> dict[str, Any]:
        """Create a RUNNING operation of type `kind` on a resource."""
        link = resource["selfLink"]
        return self.operations.start(project, scope, kind, link, resource["id"], request=request)

    def finish_operation(
        self, project: str, scope: str, kind: str, resource: Resource, request: str | None = None
    ) -> dict[str, Any]:
        """Create a DONE operation of type `kind` on a resource."""
        operation = self.start_operation(project, scope, kind, resource, request)
        return self.operations.finish(operation)

    def _initialize(self, project: str) -> None:
        """Create the initial resources of a new project."""
        if project in self._initialized or type(self).initial is Resources.initial:
            return
        # First, since `add` comes here again.
        self._initialized.add(project)
        for scope, body in self.initial(project):
            self.add(project, scope, body)
        entry = {"project": project, "scope": "", "resource": None}
        self._store.put(f"first-{project}", entry)

    # -------------------- requests

    def routes(self) -> list[calls.Route]:
        """Return the routes."""
        routes: list[calls.Route] = []
        for scope in self.scopes:
            every = f"{_PATTERNS[scope]}/{self.collection}"
            single = f"{every}/{{name}}"
            routes += [
                ("GET", every, self._list),
                ("POST", every, self._insert),
                ("GET", single, self._get),
                ("DELETE", single, self._delete),
            ]
            if self.mutable:
                routes.append(("PATCH", single, self._patch))
            if self.replaceable:
                routes.append(("PUT", single, self._patch))
            if self.labels:
                routes.append(("POST", f"{single}/setLabels", self._set_labels))
        if self.scopes != ("global",):
            aggregated = f"{calls.BASE}/aggregated/{self.collection}"
            routes.append(("GET", aggregated, self._aggregate))
        return routes

    def requested(self, request: web.Request) -> tuple[str, str, Resource]:
        """Return project, scope and the resource of a request.

        Raises ApiError 404 if it does not exist.
        """
        project = calls.project(request)
        scope = calls.scope(request)
        return project, scope, self.find(project, scope, request.match_info["name"])

    def changeable(self, request: web.Request) -> tuple[str, str, Resource]:
        """Return project, scope and the resource of a request that changes it.

        Raises
        ------
        ApiError
            404 if it does not exist, 403 if clients cannot change it.
        """
        project, scope, resource = self.requested(request)
        if (project, scope, resource["name"]) not in self._resources:
            path = self.path(project, scope, resource["name"])
            raise wire.ApiError(403, "forbidden", f"Permission to change '{path}' is denied")
        return project, scope, resource

    def repeated(self, request: web.Request) -> calls.Answer:
        """Return the operation that the same request started earlier; None if there is none."""
        return self.operations.repeated(calls.project(request), calls.request_id(request))

    def _list(self, request: web.Request) -> calls.Answer:
        project = calls.project(request)
        scope = calls.scope(request)
        found = [self.public(project, resource) for resource in self.within(project, scope)]
        link = wire.link(project, scope, self.collection)
        return lists.page(request, f"{self.kind}List", found, link)

    def _aggregate(self, request: web.Request) -> calls.Answer:
        project = calls.project(request)
        scopes: list[str] = []
        if "zones" in self.scopes:
            scopes += calls.all_zones()
        if "regions" in self.scopes:
            scopes += calls.all_regions()
        if "global" in self.scopes:
            scopes.append("global")
        found = [
            (scope, self.public(project, resource))
            for scope in scopes
            for resource in self.within(project, scope)
        ]
        kind = f"{self.kind}AggregatedList"
        link = wire.link(project, "aggregated", self.collection)
        return lists.aggregated(request, kind, self.collection, found, scopes, link)

    def _get(self, request: web.Request) -> calls.Answer:
        project, _, resource = self.requested(request)
        return self.public(project, resource)

    async def _insert(self, request: web.Request) -> calls.Answer:
        project = calls.project(request)
        scope = calls.scope(request)
        body = await calls.body(request)
        earlier = self.repeated(request)
        if earlier:
            return earlier
        # Clients must not set the emulator's own fields.
        given = {name: value for name, value in body.items() if not name.startswith("_")}
        given["_query"] = dict(request.query)
        resource = self.add(project, scope, given)
        return self.on_inserted(project, scope, resource, calls.request_id(request))

    def _delete(self, request: web.Request) -> calls.Answer:
        # Before the lookup: a repeated request finds no resource.
        earlier = self.repeated(request)
        if earlier:
            return earlier
        project, scope, resource = self.changeable(request)
        users = self.users(project, resource)
        if users:
            raise in_use(self.noun, resource["selfLink"], users[0])
        request_id = calls.request_id(request)
        operation = self.finish_operation(project, scope, "delete", resource, request_id)
        self.remove(project, scope, resource)
        return operation

    async def _patch(self, request: web.Request) -> calls.Answer:
        body = await calls.body(request)
        earlier = self.repeated(request)
        if earlier:
            return earlier
        project, scope, resource = self.changeable(request)
        if "fingerprint" in resource:
            calls.check_fingerprint(body.get("fingerprint"), resource["fingerprint"], self.noun)
        given = {name: value for name, value in body.items() if name in self.mutable}
        if request.method == "PATCH":
            kind = "patch"
            changed = {**resource, **given}
        else:
            # PUT also removes the fields that the request leaves out.
            kind = "update"
            fixed = {name: resource[name] for name in resource if name not in self.mutable}
            changed = {**fixed, **given}
        # Null removes a field.
        changed = {name: value for name, value in changed.items() if value is not None}
        self.save(project, scope, self.changed(project, scope, changed))
        request_id = calls.request_id(request)
        return self.finish_operation(project, scope, kind, resource, request_id)

    async def _set_labels(self, request: web.Request) -> calls.Answer:
        body = await calls.body(request)
        earlier = self.repeated(request)
        if earlier:
            return earlier
        project, scope, resource = self.changeable(request)
        fingerprint = resource["labelFingerprint"]
        calls.check_fingerprint(body.get("labelFingerprint"), fingerprint, "label")
        changed = {name: value for name, value in resource.items() if name != "labels"}
        changed |= instances.label_fields(body.get("labels") or {})
        self.save(project, scope, changed)
        request_id = calls.request_id(request)
        return self.finish_operation(project, scope, "setLabels", resource, request_id)


def in_use(noun: str, link: str, user: str) -> wire.ApiError:
    """Return the 400 for a resource that another one uses.

    Parameters
    ----------
    noun
        The name of its kind.
    link, user
        The URLs of the resource and of the one that uses it.
    """
    message = (
        f"The {noun} resource '{wire.path_of(link)}' is already being used by "
        f"'{wire.path_of(user)}'"
    )
    return wire.ApiError(400, "resourceInUseByAnotherResource", message)
