"""Named resources of one kind (firewall rules, disks, ...): what they all have in common.

Each kind is a subclass that says what a new one looks like and what stands against deleting one; listing, paging,
finding, operations, request ids, patching and survival are the same for all and live here.
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
_PATTERNS = {
    "zones": f"{calls.BASE}/zones/{{zone}}",
    "regions": f"{calls.BASE}/regions/{{region}}",
    "global": f"{calls.BASE}/{{global:global}}",
}


class Resources:
    """All resources of a kind, in all projects.

    What a resource's fields that begin with `_` hold is the emulator's own affair and never shown.
    """

    kind = ""
    """As the resources call it: `compute#firewall`."""
    collection = ""
    """As URLs call it: `firewalls`."""
    scopes: tuple[str, ...] = ("global",)
    """Where there are some: `global`, `regions`, `zones`."""
    noun = ""
    """As messages call one: `firewall`."""
    mutable: frozenset[str] = frozenset()
    """The fields that PATCH and PUT may change."""
    replaceable = False
    """Whether PUT is known besides PATCH."""
    labels = False
    """Whether they carry labels that can be set."""

    def __init__(self, state: Path, operations: Operations) -> None:
        self.operations = operations
        self._store = Store(state / self.collection)
        self._known: dict[tuple[str, str, str], Resource] = {}
        self._settled: set[str] = set()
        for entry in self._store:
            if entry["resource"] is None:
                self._settled.add(entry["project"])
            else:
                self._known[entry["project"], entry["scope"], entry["resource"]["name"]] = entry["resource"]

    # What a kind is.

    def standing(self, project: str, scope: str) -> Iterable[Resource]:
        """Those that are always there and that nobody can change."""
        return ()

    def first(self, project: str) -> Iterable[tuple[str, dict[str, Any]]]:
        """Those that a project begins with, as scope and body; they can be changed and deleted."""
        return ()

    def new(self, project: str, scope: str, body: dict[str, Any]) -> Resource:
        """The fields of a new one (name, id and the like excepted). ApiError if `body` is not a legal one."""
        raise NotImplementedError

    def changed(self, project: str, scope: str, resource: Resource) -> Resource:
        """The resource as it is after a PATCH or PUT, checked like a new one."""
        return {**resource, **self.new(project, scope, resource)}

    def users(self, project: str, resource: Resource) -> list[str]:
        """The URLs of what uses it and so keeps it from being deleted."""
        return []

    def shown(self, project: str, resource: Resource) -> Resource:
        """The resource as clients see it."""
        return {name: value for name, value in resource.items() if not name.startswith("_")}

    def forgotten(self, project: str, scope: str, resource: Resource) -> None:
        """It has been deleted; what belongs to it can go."""

    # What there is.

    def everywhere(self, project: str) -> Iterator[tuple[str, Resource]]:
        """All of a project, each with its scope, as the emulator knows them."""
        self._begin(project)
        for (owner, scope, _), resource in list(self._known.items()):
            if owner == project:
                yield scope, resource

    def within(self, project: str, scope: str) -> list[Resource]:
        """All of a scope, as the emulator knows them."""
        own = [resource for where, resource in self.everywhere(project) if where == scope]
        return [*self.standing(project, scope), *own]

    def find(self, project: str, scope: str, name: str) -> Resource:
        """One of them, by name or id. ApiError 404 where there is none."""
        for each in self.within(project, scope):
            if name in (each["name"], each["id"]):
                return each
        raise wire.not_found(self.path(project, scope, name))

    def path(self, project: str, scope: str, name: str) -> str:
        """`projects/...` of the one called `name`."""
        return f"projects/{project}/{scope}/{self.collection}/{name}"

    def place_of(self, url: str, project: str, scope: str) -> tuple[str, str, str]:
        """Project, scope and name that a full or partial URL means where `project` and `scope` go without saying."""
        parts = wire.path_of(url).split("/")
        if parts[0] == "projects" and len(parts) > 2:
            project, parts = parts[1], parts[2:]
        if parts[0] in ("zones", "regions") and len(parts) > 2:
            scope = "/".join(parts[:2])
        return project, scope, parts[-1]

    def referred(self, url: object, field: str, project: str, scope: str) -> Resource:
        """The one that a field of a request refers to. ApiError 400 where it refers to none."""
        if not url or not isinstance(url, str):
            raise wire.required(field)
        try:
            return self.find(*self.place_of(url, project, scope))
        except wire.ApiError:
            why = f"The referenced {self.noun} resource cannot be found."
            raise wire.invalid(field, url, why) from None

    # What changes.

    def add(self, project: str, scope: str, body: dict[str, Any]) -> Resource:
        """A new one. ApiError if there is one of that name, or `body` is not legal."""
        name = wire.check_name(body.get("name"))
        if any(each["name"] == name for each in self.within(project, scope)):
            raise wire.ApiError(
                409, "alreadyExists", f"The resource '{self.path(project, scope, name)}' already exists"
            )
        resource: Resource = {
            "kind": self.kind, "id": wire.fresh_id(), "creationTimestamp": wire.now(), "name": name,
            "selfLink": wire.link(project, scope, self.collection, name), **self.new(project, scope, body),
        }  # fmt: skip
        place, _, where = scope.partition("/")
        if where:
            resource[place.removesuffix("s")] = wire.link(project, scope)
        if self.labels:
            resource |= instances.label_fields(body.get("labels") or {})
        if body.get("description"):
            resource["description"] = str(body["description"])
        self.keep(project, scope, resource)
        return resource

    def keep(self, project: str, scope: str, resource: Resource) -> None:
        """Write down what a resource is now."""
        entry = {"project": project, "scope": scope, "resource": resource}
        self._store.put(resource["id"], entry)
        self._known[project, scope, resource["name"]] = resource

    def remove(self, project: str, scope: str, resource: Resource) -> None:
        """Forget it, and what belongs to it."""
        self._known.pop((project, scope, resource["name"]), None)
        self._store.drop(resource["id"])
        self.forgotten(project, scope, resource)

    def done(
        self, project: str, scope: str, kind: str, resource: Resource, request: str | None = None
    ) -> dict[str, Any]:
        """A DONE operation of type `kind` on a resource."""
        return self.operations.finish(self.begun(project, scope, kind, resource, request))

    def begun(
        self, project: str, scope: str, kind: str, resource: Resource, request: str | None = None
    ) -> dict[str, Any]:
        """A RUNNING operation of type `kind` on a resource."""
        return self.operations.start(project, scope, kind, resource["selfLink"], resource["id"], request=request)

    def _begin(self, project: str) -> None:
        """Give a project that is new here what projects begin with."""
        if project in self._settled or type(self).first is Resources.first:
            return
        self._settled.add(project)
        for scope, body in self.first(project):
            self.add(project, scope, body)
        self._store.put(f"first-{project}", {"project": project, "scope": "", "resource": None})

    # Requests.

    def routes(self) -> list[calls.Route]:
        """What clients can ask for."""
        routes: list[calls.Route] = []
        for scope in self.scopes:
            every, single = f"{_PATTERNS[scope]}/{self.collection}", f"{_PATTERNS[scope]}/{self.collection}/{{name}}"
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
            routes.append(("GET", f"{calls.BASE}/aggregated/{self.collection}", self._aggregate))
        return routes

    def asked(self, request: web.Request) -> tuple[str, str, Resource]:
        """Project, scope and the resource that a request is about. ApiError 404 where there is none."""
        project, scope = calls.project(request), calls.scope(request)
        return project, scope, self.find(project, scope, request.match_info["name"])

    def own(self, request: web.Request) -> tuple[str, str, Resource]:
        """The same for a request that changes it. ApiError 403 for those that nobody can change."""
        project, scope, resource = self.asked(request)
        if (project, scope, resource["name"]) not in self._known:
            path = self.path(project, scope, resource["name"])
            raise wire.ApiError(403, "forbidden", f"Permission to change '{path}' is denied")
        return project, scope, resource

    def repeated(self, request: web.Request) -> calls.Answer:
        """The operation that this very request started before, if any."""
        return self.operations.repeated(calls.project(request), calls.request_id(request))

    def _list(self, request: web.Request) -> calls.Answer:
        project, scope = calls.project(request), calls.scope(request)
        found = [self.shown(project, each) for each in self.within(project, scope)]
        return lists.page(request, f"{self.kind}List", found, wire.link(project, scope, self.collection))

    def _aggregate(self, request: web.Request) -> calls.Answer:
        project = calls.project(request)
        scopes = [
            *(calls.all_zones() if "zones" in self.scopes else ()),
            *(calls.all_regions() if "regions" in self.scopes else ()),
            *(("global",) if "global" in self.scopes else ()),
        ]
        found = [(scope, self.shown(project, each)) for scope in scopes for each in self.within(project, scope)]
        own = wire.link(project, "aggregated", self.collection)
        return lists.aggregated(request, f"{self.kind}AggregatedList", self.collection, found, scopes, own)

    def _get(self, request: web.Request) -> calls.Answer:
        project, _, resource = self.asked(request)
        return self.shown(project, resource)

    async def _insert(self, request: web.Request) -> calls.Answer:
        project, scope, body = calls.project(request), calls.scope(request), await calls.body(request)
        if known := self.repeated(request):
            return known
        given = {name: value for name, value in body.items() if not name.startswith("_")}
        resource = self.add(project, scope, {**given, "_query": dict(request.query)})
        return self.inserted(project, scope, resource, calls.request_id(request))

    def inserted(self, project: str, scope: str, resource: Resource, request: str | None) -> dict[str, Any]:
        """The operation of an insert."""
        return self.done(project, scope, "insert", resource, request)

    def _delete(self, request: web.Request) -> calls.Answer:
        if known := self.repeated(request):
            return known
        project, scope, resource = self.own(request)
        if users := self.users(project, resource):
            raise in_use(self.noun, resource["selfLink"], users[0])
        operation = self.done(project, scope, "delete", resource, calls.request_id(request))
        self.remove(project, scope, resource)
        return operation

    async def _patch(self, request: web.Request) -> calls.Answer:
        body = await calls.body(request)
        if known := self.repeated(request):
            return known
        project, scope, resource = self.own(request)
        if "fingerprint" in resource:
            calls.check_fingerprint(body.get("fingerprint"), resource["fingerprint"], self.noun)
        given = {name: value for name, value in body.items() if name in self.mutable}
        if request.method == "PATCH":
            wanted = {**resource, **given}
        else:
            wanted = {name: value for name, value in resource.items() if name not in self.mutable} | given
        # What is null, or empty in a replacement, is no more.
        wanted = {name: value for name, value in wanted.items() if value is not None}
        self.keep(project, scope, self.changed(project, scope, wanted))
        kind = "patch" if request.method == "PATCH" else "update"
        return self.done(project, scope, kind, resource, calls.request_id(request))

    async def _set_labels(self, request: web.Request) -> calls.Answer:
        body = await calls.body(request)
        if known := self.repeated(request):
            return known
        project, scope, resource = self.own(request)
        calls.check_fingerprint(body.get("labelFingerprint"), resource["labelFingerprint"], "label")
        fields = instances.label_fields(body.get("labels") or {})
        self.keep(project, scope, {**{k: v for k, v in resource.items() if k != "labels"}, **fields})
        return self.done(project, scope, "setLabels", resource, calls.request_id(request))


def in_use(noun: str, link: str, user: str) -> wire.ApiError:
    """400 for a resource that something else needs."""
    message = f"The {noun} resource '{wire.path_of(link)}' is already being used by '{wire.path_of(user)}'"
    return wire.ApiError(400, "resourceInUseByAnotherResource", message)
