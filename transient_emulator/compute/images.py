"""Images that VMs boot from: the public ones, and those that a project makes from a disk or from another image.

What an image of a project carries is the home directory of the VM whose disk it was made from (see `contents`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from aiohttp import web

from ..rest import calls, tables, wire
from .contents import Filled
from .resources import Resource, in_use

DiskSource = Callable[[str, str], tuple[Resource, Path, str]]
"""Finds a disk by project and URL: the disk, where its contents are, and which running VM uses it (or nothing)."""


class Images(Filled):
    """`global/images`."""

    kind, collection, noun = "compute#image", "images", "image"
    mutable = frozenset({"description", "family"})
    labels = True
    making = "PENDING"
    disk: DiskSource
    """How images find disks."""

    def standing(self, project: str, scope: str) -> Iterable[Resource]:
        return tables.images(project)

    def routes(self) -> list[calls.Route]:
        single = f"{calls.BASE}/{{global:global}}/images"
        return [
            *super().routes(),
            ("GET", f"{single}/family/{{family}}", self._get_family),
            ("GET", f"{calls.BASE}/zones/{{in_zone}}/imageFamilyViews/{{family}}", self._get_view),
            ("POST", f"{single}/{{name}}/deprecate", self._deprecate),
        ]

    def newest(self, project: str, family: str) -> Resource:
        """The newest image of a family that is not deprecated. ApiError 404 where there is none."""
        found = [each for each in self.within(project, "global") if each.get("family") == family]
        found = [each for each in found if each.get("deprecated", {}).get("state", "ACTIVE") == "ACTIVE"]
        if not found:
            raise wire.not_found(f"projects/{project}/global/images/family/{family}")
        return max(found, key=lambda each: wire.moment(each["creationTimestamp"], "creationTimestamp"))

    def named(self, url: str, field: str, project: str) -> Resource:
        """The image that a field of a request names, itself or by its family."""
        parts = wire.path_of(url).split("/")
        if len(parts) > 1 and parts[-2] in ("family", "imageFamilyViews"):
            owner = parts[1] if parts[0] == "projects" else project
            return self.newest(owner, parts[-1])
        return self.referred(url, field, project, "global")

    def new(self, project: str, scope: str, body: dict[str, Any]) -> Resource:
        sources = [name for name in ("sourceDisk", "sourceImage", "sourceSnapshot", "rawDisk") if body.get(name)]
        if len(sources) != 1 or sources[0] in ("sourceSnapshot", "rawDisk"):
            why = "Exactly one of sourceDisk and sourceImage must be specified on this emulator."
            raise wire.invalid("resource.sourceDisk", body.get("sourceDisk", ""), why)
        resource: Resource = {"sourceType": "RAW", "status": "READY", "architecture": "X86_64",
                              "storageLocations": ["us"], **_family(body)}  # fmt: skip
        if "sourceDisk" in sources:
            disk, contents, user = self.disk(project, body["sourceDisk"])
            forced = body.get("_query", {}).get("forceCreate", "").lower() == "true"
            if user and not forced:
                raise in_use("disk", disk["selfLink"], user)
            origin, size, source = disk, disk["sizeGb"], {"sourceDisk": disk["selfLink"], "sourceDiskId": disk["id"]}
        else:
            origin = self.named(body["sourceImage"], "resource.sourceImage", project)
            contents, size = self.contents(origin), origin["diskSizeGb"]
            source = {"sourceImage": origin["selfLink"], "sourceImageId": origin["id"]}
        return {**resource, **source, "diskSizeGb": size, "archiveSizeBytes": "1000000000", "_copy": str(contents)}

    def changed(self, project: str, scope: str, resource: Resource) -> Resource:
        return resource | _family(resource)

    async def _get_family(self, request: web.Request) -> calls.Answer:
        project = calls.project(request)
        return self.shown(project, self.newest(project, request.match_info["family"]))

    async def _get_view(self, request: web.Request) -> calls.Answer:
        # The zone may be `-`; every zone has the same images.
        return {"image": await self._get_family(request)}

    async def _deprecate(self, request: web.Request) -> calls.Answer:
        body = await calls.body(request)
        if known := self.repeated(request):
            return known
        project, scope, resource = self.own(request)
        state = body.get("state") or "ACTIVE"
        if state not in ("ACTIVE", "DEPRECATED", "OBSOLETE", "DELETED"):
            raise wire.invalid("resource.state", state, "Must be ACTIVE, DEPRECATED, OBSOLETE or DELETED.")
        fields = {name: str(body[name]) for name in ("replacement", "deprecated", "obsolete", "deleted") if
                  body.get(name)}  # fmt: skip
        rest_of = {name: value for name, value in resource.items() if name != "deprecated"}
        self.keep(project, scope, rest_of | ({} if state == "ACTIVE" else {"deprecated": {"state": state, **fields}}))
        return self.done(project, scope, "deprecate", resource, calls.request_id(request))


def _family(body: dict[str, Any]) -> Resource:
    return {"family": wire.check_name(body["family"], "resource.family")} if body.get("family") else {}
