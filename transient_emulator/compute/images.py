"""Images that VMs boot from: public ones, and those that a project makes.

A project makes an image from a disk or from another image.

An image of a project contains the home directory of the VM from whose disk it was made (see
`contents`).
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
"""Finds a disk by project and URL; returns it, its contents, and its running VM (or '')."""
_SOURCES = ("sourceDisk", "sourceImage", "sourceSnapshot", "rawDisk")
_STATES = ("ACTIVE", "DEPRECATED", "OBSOLETE", "DELETED")


class Images(Filled):
    """`global/images`."""

    kind = "compute#image"
    collection = "images"
    noun = "image"
    mutable = frozenset({"description", "family"})
    labels = True
    making = "PENDING"
    disk: DiskSource
    """The function that finds disks, set by `Disks`."""

    def permanent(self, project: str, scope: str) -> Iterable[Resource]:
        """Return the public images that the project publishes."""
        return tables.images(project)

    def routes(self) -> list[calls.Route]:
        """Return the routes."""
        images = f"{calls.BASE}/{{global:global}}/images"
        views = f"{calls.BASE}/zones/{{in_zone}}/imageFamilyViews"
        return [
            *super().routes(),
            ("GET", f"{images}/family/{{family}}", self._get_family),
            ("GET", f"{views}/{{family}}", self._get_view),
            ("POST", f"{images}/{{name}}/deprecate", self._deprecate),
        ]

    def newest(self, project: str, family: str) -> Resource:
        """Return the newest image of a family that is not deprecated. Raises ApiError 404."""
        found = [
            image
            for image in self.within(project, "global")
            if image.get("family") == family
            and image.get("deprecated", {}).get("state", "ACTIVE") == "ACTIVE"
        ]
        if not found:
            raise wire.not_found(f"projects/{project}/global/images/family/{family}")
        return max(found, key=_created)

    def named(self, url: str, field: str, project: str) -> Resource:
        """Return the image that a field of a request names, directly or by its family.

        Raises
        ------
        ApiError
            400 or 404 if there is none.
        """
        parts = wire.path_of(url).split("/")
        if len(parts) > 1 and parts[-2] in ("family", "imageFamilyViews"):
            owner = parts[1] if parts[0] == "projects" else project
            return self.newest(owner, parts[-1])
        return self.resolve(url, field, project, "global")

    def new(self, project: str, scope: str, body: dict[str, Any]) -> Resource:
        """Return the fields of a new image, from a disk or from another image."""
        sources = [name for name in _SOURCES if body.get(name)]
        resource: Resource = {
            "sourceType": "RAW",
            "status": "READY",
            "architecture": "X86_64",
            "storageLocations": ["us"],
            "archiveSizeBytes": "1000000000",
            **_family(body),
        }
        if sources == ["sourceDisk"]:
            disk, contents, user = self.disk(project, body["sourceDisk"])
            forced = body.get("_query", {}).get("forceCreate", "").lower() == "true"
            if user and not forced:
                raise in_use("disk", disk["selfLink"], user)
            resource["sourceDisk"] = disk["selfLink"]
            resource["sourceDiskId"] = disk["id"]
            resource["diskSizeGb"] = disk["sizeGb"]
        elif sources == ["sourceImage"]:
            image = self.named(body["sourceImage"], "resource.sourceImage", project)
            contents = self.contents(image)
            resource["sourceImage"] = image["selfLink"]
            resource["sourceImageId"] = image["id"]
            resource["diskSizeGb"] = image["diskSizeGb"]
        else:
            why = "Exactly one of sourceDisk and sourceImage must be specified on this emulator."
            raise wire.invalid("resource.sourceDisk", body.get("sourceDisk", ""), why)
        resource["_copy"] = str(contents)
        return resource

    def changed(self, project: str, scope: str, resource: Resource) -> Resource:
        """Return the image after a change. Only its family needs a check."""
        return resource | _family(resource)

    async def _get_family(self, request: web.Request) -> calls.Answer:
        project = calls.project(request)
        return self.public(project, self.newest(project, request.match_info["family"]))

    async def _get_view(self, request: web.Request) -> calls.Answer:
        # The zone may be `-`; every zone has the same images.
        return {"image": await self._get_family(request)}

    async def _deprecate(self, request: web.Request) -> calls.Answer:
        body = await calls.body(request)
        earlier = self.repeated(request)
        if earlier:
            return earlier
        project, scope, resource = self.changeable(request)
        state = body.get("state") or "ACTIVE"
        if state not in _STATES:
            why = "Must be ACTIVE, DEPRECATED, OBSOLETE or DELETED."
            raise wire.invalid("resource.state", state, why)
        changed = {name: value for name, value in resource.items() if name != "deprecated"}
        if state != "ACTIVE":
            deprecated = {"state": state}
            for name in ("replacement", "deprecated", "obsolete", "deleted"):
                if body.get(name):
                    deprecated[name] = str(body[name])
            changed["deprecated"] = deprecated
        self.save(project, scope, changed)
        request_id = calls.request_id(request)
        return self.finish_operation(project, scope, "deprecate", resource, request_id)


def _family(body: dict[str, Any]) -> Resource:
    """Return the field of an image's family; nothing without one. Raises ApiError 400."""
    if not body.get("family"):
        return {}
    return {"family": wire.check_name(body["family"], "resource.family")}


def _created(image: Resource) -> float:
    return wire.moment(image["creationTimestamp"], "creationTimestamp")
