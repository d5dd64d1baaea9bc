"""Making one VM: what its request refers to is looked up and checked, its disks are made, and the fleet gets it.

Single and bulk inserts both come here, one VM at a time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...instances import new_record
from ...project import policies
from ...project.state import Project
from ...rest import wire
from ...vms.fleet import Fleet
from ..disks import Disks, holder
from ..images import Images
from ..networks import Networks
from ..resources import Resource, in_use
from .local_ssds import local_ssds

_DEFAULT_GB = 10


class Creation:
    """The one way into the fleet."""

    def __init__(self, fleet: Fleet, networks: Networks, images: Images, disks: Disks, project: Project) -> None:
        self._fleet, self._networks, self._images, self._disks = fleet, networks, images, disks
        self._project = project

    def check(self, project: str, zone: str, body: dict[str, Any]) -> dict[str, Any]:
        """The request with all that it refers to resolved. ApiError where something does not exist or is taken."""
        name = wire.check_name(body.get("name"))
        checked = {key: value for key, value in body.items() if value is not None}
        policies.check_instance(self._project, project, zone, checked)
        if body.get("networkInterfaces"):
            checked["networkInterfaces"] = self._networks.check_interfaces(project, zone, body["networkInterfaces"])
        checked["disks"] = [
            self._disk(project, zone, name, index, each) for index, each in enumerate(body.get("disks") or ())
        ]
        checked["disks"] += local_ssds(wire.last(str(body.get("machineType", ""))))
        return checked

    def dry_run(self, project: str, zone: str, body: dict[str, Any]) -> None:
        """Check what can be checked without making anything. ApiError where the VM could not be made."""
        new_record(project, zone, self.check(project, zone, body), 0, "", "", Path())

    def insert(self, project: str, zone: str, body: dict[str, Any], request: str | None) -> dict[str, Any]:
        """A new VM with its disks. Returns the operation, which is DONE when the VM runs."""
        if any(each.key == (project, zone, body.get("name")) for each in self._fleet.records(project)):
            path = f"projects/{project}/zones/{zone}/instances/{body['name']}"
            raise wire.ApiError(409, "alreadyExists", f"The resource '{path}' already exists")
        checked = self.check(project, zone, body)
        scope = f"zones/{zone}"
        own = wire.link(project, "zones", zone, "instances", body["name"])
        made: list[Resource] = []
        try:
            for each in checked["disks"]:
                if each.get("type") != "SCRATCH" and not each.get("source"):
                    # Written together with whose it is, so that it goes if the emulator ends before there is a VM.
                    held = {"_holder": holder(own, bool(each.get("autoDelete")))}
                    made.append(self._disks.add(project, scope, _disk_body(each) | held))
            operation = self._fleet.insert(project, zone, checked, request)
        except BaseException:
            for disk in made:
                self._disks.remove(project, scope, disk)
            raise
        record = self._fleet.get(project, zone, body["name"])
        try:
            for index, each in enumerate(checked["disks"]):
                if each.get("type") == "SCRATCH":
                    continue
                disk = self._disks.find(project, scope, wire.last(record.resource["disks"][index]["source"]))
                if each.get("source"):
                    self._disks.hold(project, zone, disk, own, bool(each.get("autoDelete")))
                if index == 0 and (each.get("source") or not each.get("autoDelete") or "_copy" in disk):
                    self._disks.mount(record, disk)
        except OSError:
            self._fleet.delete(record, None)
            raise
        return operation

    def _disk(self, project: str, zone: str, name: str, index: int, given: dict[str, Any]) -> dict[str, Any]:
        field, scope = f"resource.disks[{index}]", f"zones/{zone}"
        if given.get("type") == "SCRATCH":
            return given
        if given.get("source"):
            disk = self._disks.referred(given["source"], f"{field}.source", project, scope)
            if users := self._disks.users(project, disk):
                raise in_use("disk", disk["selfLink"], users[0])
            return {**given, "source": disk["selfLink"], "diskSizeGb": disk["sizeGb"]}
        made = dict(given.get("initializeParams") or {})
        made["diskName"] = made.get("diskName") or (name if index == 0 else f"{name}-{index}")
        if any(each["name"] == made["diskName"] for each in self._disks.within(project, scope)):
            path = self._disks.path(project, scope, made["diskName"])
            raise wire.ApiError(409, "alreadyExists", f"The resource '{path}' already exists")
        size = given.get("diskSizeGb") or made.get("diskSizeGb")
        if made.get("sourceImage"):
            image = self._images.named(made["sourceImage"], f"{field}.initializeParams.sourceImage", project)
            made["sourceImage"] = image["selfLink"]
            size = size or image["diskSizeGb"]
            if str(size).isdigit() and int(size) < int(image["diskSizeGb"]):
                why = f"Requested disk size cannot be smaller than the image size ({image['diskSizeGb']} GB)"
                raise wire.invalid(f"{field}.initializeParams.diskSizeGb", size, why)
        return {**given, "initializeParams": made, "diskSizeGb": str(size or _DEFAULT_GB)}


def _disk_body(attached: dict[str, Any]) -> dict[str, Any]:
    """The disk resource that an attached disk of an insert asks for."""
    made = attached["initializeParams"]
    return {
        "name": made["diskName"], "sizeGb": attached["diskSizeGb"], "type": made.get("diskType"),
        "sourceImage": made.get("sourceImage"), "labels": made.get("labels"), "description": made.get("description"),
    }  # fmt: skip
