"""The creation of one VM: check its request, create its disks, and hand it to the fleet.

Single and bulk inserts both come here, one VM at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from transient_magics.catalog import local_ssd_gb

from ...instances import Record, new_record
from ...project import policies, quotas, state
from ...project.state import Project
from ...rest import wire
from ...vms.fleet import Fleet
from ...weather.capacity import Refusal
from ..disks import Disks, holder
from ..images import Images
from ..networks import Networks
from ..resources import Resource, in_use

_DEFAULT_GB = 10
# The size of every Local SSD.
_LOCAL_SSD_GB = 375


class Creation:
    """The only way into the fleet."""

    def __init__(
        self,
        fleet: Fleet,
        networks: Networks,
        images: Images,
        disks: Disks,
        project: Project,
    ) -> None:
        self._fleet = fleet
        self._networks = networks
        self._images = images
        self._disks = disks
        self._project = project

    def check(self, project: str, zone: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return the body of an insert with everything that it refers to resolved.

        Raises
        ------
        ApiError
            If something does not exist, is used already, or is forbidden by a policy.
        """
        name = wire.check_name(body.get("name"))
        checked = {key: value for key, value in body.items() if value is not None}
        policies.check_instance(self._project, project, zone, checked)
        interfaces = body.get("networkInterfaces")
        if interfaces:
            checked["networkInterfaces"] = self._networks.check_interfaces(
                project, zone, interfaces
            )
        disks = [
            self._check_disk(project, zone, name, index, disk)
            for index, disk in enumerate(body.get("disks") or ())
        ]
        disks += _local_ssds(wire.last(str(body.get("machineType", ""))))
        checked["disks"] = disks
        return checked

    def dry_run(self, project: str, zone: str, body: dict[str, Any]) -> None:
        """Check an insert without creating anything.

        Raises ApiError if the VM cannot be created.
        """
        new_record(project, zone, self.check(project, zone, body), 0, "", "", Path())

    def insert(
        self, project: str, zone: str, body: dict[str, Any], request: str | None
    ) -> dict[str, Any]:
        """Create a VM with its disks.

        Parameters
        ----------
        project, zone, body
            The request of the insert.
        request
            The client's request id.

        Returns
        -------
        dict
            The operation, which is DONE when the VM runs.

        Raises
        ------
        ApiError
            If the VM cannot be created.
        """
        name = body.get("name")
        if any(vm.key == (project, zone, name) for vm in self._fleet.records(project)):
            path = f"projects/{project}/zones/{zone}/instances/{name}"
            raise wire.ApiError(409, "alreadyExists", f"The resource '{path}' already exists")
        checked = self.check(project, zone, body)
        created: list[Resource] = []
        try:
            self._create_disks(project, zone, checked, created)
            operation = self._fleet.insert(project, zone, checked, request)
        except BaseException:
            for disk in created:
                self._disks.remove(project, f"zones/{zone}", disk)
            raise
        record = self._fleet.get(project, zone, checked["name"])
        try:
            self._attach_disks(record, checked)
        except OSError:
            self._fleet.delete(record, None)
            raise
        return operation

    def _create_disks(
        self, project: str, zone: str, body: dict[str, Any], created: list[Resource]
    ) -> None:
        """Create the disks that the VM brings along, and append them to `created`."""
        instance = wire.link(project, "zones", zone, "instances", body["name"])
        for disk in body["disks"]:
            if disk.get("type") == "SCRATCH" or disk.get("source"):
                continue
            # Stored together with its holder, so that it is removed if the emulator ends before the
            # VM exists.
            owner = {"_holder": holder(instance, bool(disk.get("autoDelete")))}
            created.append(self._disks.add(project, f"zones/{zone}", _disk_body(disk) | owner))

    def _attach_disks(self, record: Record, body: dict[str, Any]) -> None:
        instance = record.resource["selfLink"]
        for index, given in enumerate(body["disks"]):
            if given.get("type") == "SCRATCH":
                continue
            name = wire.last(record.resource["disks"][index]["source"])
            disk = self._disks.find(record.project, f"zones/{record.zone}", name)
            auto_delete = bool(given.get("autoDelete"))
            if given.get("source"):
                self._disks.attach(record.project, record.zone, disk, instance, auto_delete)
            # A boot disk that has contents, or that outlives the VM, holds the home directory.
            if index == 0 and (given.get("source") or not auto_delete or "_copy" in disk):
                self._disks.mount(record, disk)

    def _check_disk(
        self, project: str, zone: str, name: str, index: int, given: dict[str, Any]
    ) -> dict[str, Any]:
        """Return a disk of an insert with everything that it refers to resolved."""
        field = f"resource.disks[{index}]"
        scope = f"zones/{zone}"
        if given.get("type") == "SCRATCH":
            return given
        if given.get("source"):
            disk = self._disks.resolve(given["source"], f"{field}.source", project, scope)
            users = self._disks.users(project, disk)
            if users:
                raise in_use("disk", disk["selfLink"], users[0])
            return {**given, "source": disk["selfLink"], "diskSizeGb": disk["sizeGb"]}
        parameters = dict(given.get("initializeParams") or {})
        # Compute Engine names a boot disk after its VM.
        default_name = name if index == 0 else f"{name}-{index}"
        disk_name = parameters.get("diskName") or default_name
        parameters["diskName"] = disk_name
        if any(disk["name"] == disk_name for disk in self._disks.within(project, scope)):
            path = self._disks.path(project, scope, disk_name)
            raise wire.ApiError(409, "alreadyExists", f"The resource '{path}' already exists")
        size = given.get("diskSizeGb") or parameters.get("diskSizeGb")
        if parameters.get("sourceImage"):
            image_field = f"{field}.initializeParams.sourceImage"
            image = self._images.named(parameters["sourceImage"], image_field, project)
            parameters["sourceImage"] = image["selfLink"]
            image_size = image["diskSizeGb"]
            size = size or image_size
            if str(size).isdigit() and int(size) < int(image_size):
                why = f"Requested disk size cannot be smaller than the image size ({image_size} GB)"
                raise wire.invalid(f"{field}.initializeParams.diskSizeGb", size, why)
        size = str(size or _DEFAULT_GB)
        return {**given, "initializeParams": parameters, "diskSizeGb": size}


def _disk_body(attached: dict[str, Any]) -> dict[str, Any]:
    """Return the disk resource that an attached disk of an insert asks for."""
    parameters = attached["initializeParams"]
    return {
        "name": parameters["diskName"],
        "sizeGb": attached["diskSizeGb"],
        "type": parameters.get("diskType"),
        "sourceImage": parameters.get("sourceImage"),
        "labels": parameters.get("labels"),
        "description": parameters.get("description"),
    }


def _local_ssds(machine_type: str) -> list[dict[str, Any]]:
    """Return the Local SSDs that some accelerator-optimized machine types bring along."""
    count = local_ssd_gb(machine_type) // _LOCAL_SSD_GB
    return [
        {
            "type": "SCRATCH",
            "interface": "NVME",
            "autoDelete": True,
            "diskSizeGb": str(_LOCAL_SSD_GB),
            "deviceName": f"local-ssd-{number}",
        }
        for number in range(count)
    ]


# -------------------- legal requests that the project's state refuses


def refused_by(project: Project) -> Callable[[Record, list[Record]], Refusal | None]:
    """Return the function that refuses legal requests for VMs by the state of a project.

    It takes a new VM and all VMs that exist, and returns how the new VM's operation fails; None if
    it does not.
    """

    def refusal(record: Record, present: list[Record]) -> Refusal | None:
        return _no_account(project, record) or _no_quota(project, record, present)

    return refusal


def _no_account(project: Project, record: Record) -> Refusal | None:
    accounts = record.resource.get("serviceAccounts") or ()
    if not accounts or not project.lacks(state.ACT_AS):
        return None
    # The two spaces are Google's.
    why = (
        f"The user does not have access to service account '{accounts[0]['email']}'.  "
        f"User: '{wire.USER}'.  Ask a project owner to grant you the iam.serviceAccountUser role "
        "on the service account"
    )
    error = {"code": "SERVICE_ACCOUNT_ACCESS_DENIED", "message": why}
    return Refusal(error, (403, "FORBIDDEN"))


def _no_quota(project: Project, record: Record, present: list[Record]) -> Refusal | None:
    others = [vm.resource for vm in present if vm is not record]
    exceeded = quotas.over(project, record.resource, others)
    if not exceeded:
        return None
    metric, limit, region = exceeded
    if region:
        where = f"in region {region}"
        suffix = "-per-project-region"
    else:
        where = "globally"
        suffix = "-per-project"
    info: dict[str, Any] = {
        "metricName": f"compute.googleapis.com/{metric.lower()}",
        "limit": limit,
        "limitName": metric.replace("_", "-") + suffix,
        "dimensions": {"region": region or "global"},
    }
    error = {
        "code": "QUOTA_EXCEEDED",
        "message": f"Quota '{metric}' exceeded.  Limit: {limit:.1f} {where}.",
        "errorDetails": [{"quotaInfo": info}],
    }
    return Refusal(error, (403, "FORBIDDEN"))
