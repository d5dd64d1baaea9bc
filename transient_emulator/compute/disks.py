"""Disks: those that VMs bring along, and those that are created separately.

A disk that a VM brings along is deleted with it, unless its `autoDelete` is false. Of a boot disk
that outlives its VM, the home directory is kept (see `contents`), and a VM that boots from it later
finds it again. Other disks are declared, sized and attached, but hold nothing.
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
# Compute Engine's size of a disk without a size and without a source.
_BLANK_GB = 500


class Disks(Filled):
    """`zones/Z/disks`.

    `_holder` in a disk is the VM that brought it or that it is attached to, and whether the disk is
    deleted with it.
    """

    kind = "compute#disk"
    collection = "disks"
    noun = "disk"
    scopes = ("zones",)
    labels = True

    def __init__(self, state: Path, operations: Operations, fleet: Fleet, images: Images) -> None:
        super().__init__(state, operations)
        self._fleet = fleet
        self._images = images
        self._vms = state / "vms"
        # Images are created before disks, but find theirs here.
        images.disk = self._source

    def routes(self) -> list[calls.Route]:
        """Return the routes."""
        resize = f"{calls.BASE}/zones/{{zone}}/disks/{{name}}/resize"
        return [*super().routes(), ("POST", resize, self._resize)]

    def new(self, project: str, scope: str, body: dict[str, Any]) -> Resource:
        """Return the fields of a new disk, empty or from an image or another disk."""
        zone = scope.partition("/")[2]
        kind = wire.last(str(body.get("type") or "pd-standard"))
        if kind not in tables.DISK_TYPES:
            why = "The referenced diskType resource cannot be found."
            raise wire.invalid("resource.type", body["type"], why)
        resource: Resource = {
            "type": wire.link(project, "zones", zone, "diskTypes", kind),
            "status": "READY",
            "architecture": "X86_64",
            "physicalBlockSizeBytes": "4096",
        }
        smallest = 0
        # The API takes the image in the body or in the query.
        image_url = body.get("sourceImage") or body.get("_query", {}).get("sourceImage")
        disk_url = body.get("sourceDisk")
        if image_url:
            image = self._images.named(image_url, "resource.sourceImage", project)
            smallest = int(image["diskSizeGb"])
            resource["sourceImage"] = image["selfLink"]
            resource["sourceImageId"] = image["id"]
            resource |= _copied_from(self._images.contents(image))
        elif disk_url:
            disk, contents, _ = self._source(project, disk_url)
            smallest = int(disk["sizeGb"])
            resource["sourceDisk"] = disk["selfLink"]
            resource["sourceDiskId"] = disk["id"]
            resource |= _copied_from(contents)
        size = str(body.get("sizeGb") or smallest or _BLANK_GB)
        if not size.isdigit() or not 1 <= int(size) <= 65536:
            raise wire.invalid("resource.sizeGb", size, "Must be between 1 and 65536.")
        if int(size) < smallest:
            why = f"Requested disk size cannot be smaller than the image size ({smallest} GB)"
            raise wire.invalid("resource.sizeGb", size, why)
        resource["sizeGb"] = size
        if "_holder" in body:
            resource["_holder"] = body["_holder"]
            resource["lastAttachTimestamp"] = wire.now()
        return resource

    def public(self, project: str, resource: Resource) -> Resource:
        """Return the disk as clients see it, with the VMs that use it."""
        shown = super().public(project, resource)
        users = self.users(project, resource)
        if users:
            shown["users"] = users
        return shown

    def users(self, project: str, resource: Resource) -> list[str]:
        """Return the URLs of the VMs that use the disk."""
        link = resource["selfLink"]
        return [
            record.resource["selfLink"]
            for record in self._fleet.records(project)
            if any(disk.get("source") == link for disk in record.resource["disks"])
        ]

    # -------------------- disks of VMs

    def attach(
        self, project: str, zone: str, disk: Resource, instance: str, auto_delete: bool
    ) -> None:
        """Store that a VM has this disk.

        Parameters
        ----------
        project, zone, disk
            The disk.
        instance
            The URL of the VM.
        auto_delete
            Whether the disk is deleted with the VM.
        """
        attached = {
            "_holder": holder(instance, auto_delete),
            "lastAttachTimestamp": wire.now(),
        }
        self.save(project, f"zones/{zone}", disk | attached)

    def detach(self, project: str, zone: str, disk: Resource) -> None:
        """Store that no VM has this disk any more."""
        detached = {name: value for name, value in disk.items() if name != "_holder"}
        detached["lastDetachTimestamp"] = wire.now()
        self.save(project, f"zones/{zone}", detached)

    def follow(self) -> None:
        """Delete or detach the disks of VMs that are gone."""
        living = {record.resource["selfLink"] for record in self._fleet.records()}
        for (project, scope, _), disk in list(self._resources.items()):
            owner = disk.get("_holder")
            if not owner or owner["instance"] in living:
                continue
            try:
                if owner["autoDelete"]:
                    self.remove(project, scope, disk)
                else:
                    self.detach(project, scope.partition("/")[2], disk)
            except OSError:
                # A full disk must not stop what is in progress. The next change tries again.
                _LOG.exception("cannot save the state of disk %s", disk["name"])

    def mount(self, record: Record, disk: Resource) -> None:
        """Make the contents of `disk` the VM's home directory. They stay when the VM goes."""
        home = self._vms / record.folder / "home"
        contents = self.contents(disk)
        if home.is_symlink():
            return
        places.private(home.parent)
        if home.is_dir():
            # The VM runs already: its files move to the disk.
            home.rename(contents)
        else:
            contents.mkdir(exist_ok=True, mode=0o700)
        home.symlink_to(contents, target_is_directory=True)

    async def prepare(self, record: Record) -> None:
        """Fill the disks of a VM before it boots."""
        scope = f"zones/{record.zone}"
        for attached in record.resource["disks"]:
            name = wire.last(attached.get("source", ""))
            disk = self._resources.get((record.project, scope, name))
            if disk:
                await self.fill(record.project, scope, disk)

    # -------------------- helpers

    def _source(self, project: str, url: str) -> tuple[Resource, Path, str]:
        """Return a disk, the folder of its contents, and the running VM that uses it (or '')."""
        disk = self.resolve(url, "resource.sourceDisk", project, "")
        for record in self._fleet.records(project):
            boot = record.resource["disks"][0]
            if boot.get("source") == disk["selfLink"]:
                # Its contents are the home directory, on the disk or still in the VM's folder.
                user = "" if record.status == "TERMINATED" else record.resource["selfLink"]
                return disk, self._vms / record.folder / "home", user
        return disk, self.contents(disk), ""

    async def _resize(self, request: web.Request) -> calls.Answer:
        body = await calls.body(request)
        earlier = self.repeated(request)
        if earlier:
            return earlier
        project, scope, disk = self.changeable(request)
        size = str(body.get("sizeGb") or "")
        if not size.isdigit() or int(size) <= int(disk["sizeGb"]):
            why = f"New disk size '{size}' must be larger than existing size '{disk['sizeGb']}'."
            raise wire.invalid("sizeGb", size, why)
        self.save(project, scope, disk | {"sizeGb": size})
        request_id = calls.request_id(request)
        return self.finish_operation(project, scope, "resizeDisk", disk, request_id)


def _copied_from(contents: Path) -> Resource:
    """Return the field that names the folder to copy; nothing if it does not exist."""
    if not contents.is_dir():
        return {}
    return {"_copy": str(contents)}


def holder(instance: str, auto_delete: bool) -> dict[str, Any]:
    """Return the `_holder` of a disk: the URL of a VM, and whether the disk is deleted with it."""
    return {"instance": instance, "autoDelete": auto_delete}
