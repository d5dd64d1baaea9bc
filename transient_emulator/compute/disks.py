"""Disks: those that VMs bring along, and those that are made by themselves.

A disk that a VM brings along goes with it, unless its `autoDelete` is false. Of a boot disk that outlives its VM the
home directory is kept (see `contents`), and a VM that boots from it later finds it again; other disks are declared,
sized and attached, but hold nothing.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from aiohttp import web

from transient_magics import places

from ..instances import Record
from ..rest import calls, tables, wire
from ..rest.operations import Operations
from ..vms.fleet import Fleet
from .contents import Filled
from .images import Images
from .resources import Resource

_LOG = logging.getLogger(__name__)
_BLANK_GB = 500  # what Compute Engine makes of a disk without a size and without a source


class Disks(Filled):
    """`zones/Z/disks`. `_holder` in a disk is the VM that brought it or got it attached, and how it ends with it."""

    kind, collection, noun, scopes = "compute#disk", "disks", "disk", ("zones",)
    labels = True

    def __init__(self, state: Path, operations: Operations, fleet: Fleet, images: Images) -> None:
        super().__init__(state, operations)
        self._fleet, self._images, self._vms = fleet, images, state / "vms"
        images.disk = self._source

    def routes(self) -> list[calls.Route]:
        return [*super().routes(), ("POST", f"{calls.BASE}/zones/{{zone}}/disks/{{name}}/resize", self._resize)]

    def new(self, project: str, scope: str, body: dict[str, Any]) -> Resource:
        zone = scope.partition("/")[2]
        kind = wire.last(str(body.get("type") or "pd-standard"))
        if kind not in tables.DISK_TYPES:
            raise wire.invalid("resource.type", body["type"], "The referenced diskType resource cannot be found.")
        resource: Resource = {
            "type": wire.link(project, "zones", zone, "diskTypes", kind), "status": "READY", "architecture": "X86_64",
            "physicalBlockSizeBytes": "4096",
        }  # fmt: skip
        least = 0
        if image := body.get("sourceImage") or body.get("_query", {}).get("sourceImage"):
            origin = self._images.named(image, "resource.sourceImage", project)
            least = int(origin["diskSizeGb"])
            resource |= {"sourceImage": origin["selfLink"], "sourceImageId": origin["id"]}
            resource |= self._from(self._images.contents(origin))
        elif url := body.get("sourceDisk"):
            origin, contents, _ = self._source(project, url)
            least = int(origin["sizeGb"])
            resource |= {"sourceDisk": origin["selfLink"], "sourceDiskId": origin["id"], **self._from(contents)}
        size = str(body.get("sizeGb") or least or _BLANK_GB)
        if not size.isdigit() or not 1 <= int(size) <= 65536:
            raise wire.invalid("resource.sizeGb", size, "Must be between 1 and 65536.")
        if int(size) < least:
            why = f"Requested disk size cannot be smaller than the image size ({least} GB)"
            raise wire.invalid("resource.sizeGb", size, why)
        held = {"_holder": body["_holder"], "lastAttachTimestamp": wire.now()} if "_holder" in body else {}
        return {**resource, "sizeGb": size, **held}

    def shown(self, project: str, resource: Resource) -> Resource:
        users = self.users(project, resource)
        return super().shown(project, resource) | ({"users": users} if users else {})

    def users(self, project: str, resource: Resource) -> list[str]:
        own = resource["selfLink"]
        return [
            record.resource["selfLink"]
            for record in self._fleet.records(project)
            if any(each.get("source") == own for each in record.resource["disks"])
        ]

    # Disks of VMs.

    def hold(self, project: str, zone: str, disk: Resource, instance: str, auto_delete: bool) -> None:
        """Note that the VM at URL `instance` has this disk, and whether that is the disk's end, too."""
        held = {"_holder": holder(instance, auto_delete), "lastAttachTimestamp": wire.now()}
        self.keep(project, f"zones/{zone}", disk | held)

    def release(self, project: str, zone: str, disk: Resource) -> None:
        """Note that no VM has this disk any more."""
        rest_of = {name: value for name, value in disk.items() if name != "_holder"}
        self.keep(project, f"zones/{zone}", rest_of | {"lastDetachTimestamp": wire.now()})

    def follow(self) -> None:
        """VMs have come or gone: disks whose VM is gone go with it, or are free again."""
        living = {record.resource["selfLink"] for record in self._fleet.records()}
        for (project, scope, _), disk in list(self._known.items()):
            held = disk.get("_holder")
            if not held or held["instance"] in living:
                continue
            try:
                if held["autoDelete"]:
                    self.remove(project, scope, disk)
                else:
                    self.release(project, scope.partition("/")[2], disk)
            except OSError:
                # A full disk must not stop what is under way; the next change tries again.
                _LOG.exception("what became of disk %s cannot be written", disk["name"])

    def mount(self, record: Record, disk: Resource) -> None:
        """Let the VM's home directory be the contents of `disk`, which stay when the VM goes."""
        home, contents = self._vms / record.folder / "home", self.contents(disk)
        if home.is_symlink():
            return
        places.private(home.parent)
        if home.is_dir():
            home.rename(contents)
        else:
            contents.mkdir(exist_ok=True, mode=0o700)
        home.symlink_to(contents, target_is_directory=True)

    async def prepare(self, record: Record) -> None:
        """Before a VM boots: what its disk is still to be filled with."""
        for attached in record.resource["disks"]:
            key = (record.project, f"zones/{record.zone}", wire.last(attached.get("source", "")))
            if key in self._known:
                await self.fill(*key[:2], self._known[key])

    # Small parts.

    def _from(self, contents: Path) -> Resource:
        return {"_copy": str(contents)} if contents.is_dir() else {}

    def _source(self, project: str, url: str) -> tuple[Resource, Path, str]:
        field = "resource.sourceDisk"
        disk = self.referred(url, field, project, "")
        for record in self._fleet.records(project):
            boot = record.resource["disks"][0]
            if boot.get("source") == disk["selfLink"]:
                user = "" if record.status == "TERMINATED" else record.resource["selfLink"]
                return disk, self._vms / record.folder / "home", user
        return disk, self.contents(disk), ""

    async def _resize(self, request: web.Request) -> calls.Answer:
        body = await calls.body(request)
        if known := self.repeated(request):
            return known
        project, scope, disk = self.own(request)
        size = str(body.get("sizeGb") or "")
        if not size.isdigit() or int(size) <= int(disk["sizeGb"]):
            why = f"New disk size '{size}' must be larger than existing size '{disk['sizeGb']}'."
            raise wire.invalid("sizeGb", size, why)
        self.keep(project, scope, disk | {"sizeGb": size})
        return self.done(project, scope, "resizeDisk", disk, calls.request_id(request))


def holder(instance: str, auto_delete: bool) -> dict[str, Any]:
    """Whose a disk is, as its `_holder` says it: the URL of a VM, and whether the disk goes with it."""
    return {"instance": instance, "autoDelete": auto_delete}
