"""VMs and requests for them, in our form and in Compute Engine's.

A `VmRequest` describes a VM to create, a `Vm` what we need of an existing one. `request_id` derives
the identity of a request from its purpose. So a second attempt, even by another process, is the
same request to Google and never creates a second VM.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from ..catalog import DISK_TYPE
from ..protocol.layout import NOTICE_KEY
from ..protocol.machines import KEY, WHOLE, Share, share_of
from .images import image_url

if TYPE_CHECKING:
    from google.cloud import compute_v1

STOPPED = ("STOPPED", "TERMINATED")
LEAVING = ("STOPPING", "STOPPED", "TERMINATED", "SUSPENDING", "SUSPENDED")
"""States of a VM that does not run any more, or soon will not."""
ProvisioningModel = Literal["spot", "preemptible", "standard"]

_NAMESPACE = uuid.UUID("5c0f3c2e-6d0b-5b6a-9a53-4f1a7c1d7e10")

IMAGE = "projects/debian-cloud/global/images/family/debian-12"
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"


def request_id(*parts: object) -> str:
    """Return the id of the request that `parts` describe: the same UUID on every machine.

    Google remembers ids only for a while, and a deleted VM may be requested again. So `parts` must
    distinguish the VM from every other: the cluster's id, the VM's name, the number of the attempt.
    """
    return str(uuid.uuid5(_NAMESPACE, "\x1f".join(str(part) for part in parts)))


@dataclass(frozen=True)
class VmRequest:
    """One VM to create.

    Attributes
    ----------
    termination_time
        When Google deletes the VM (with a time zone). The legacy model `preemptible` ignores it:
        such VMs end after at most 24 hours, and are stopped instead of deleted. Prefer `spot`.
    image
        A full or partial URL of an image or a family, or `NAME` or `family/NAME` in the project;
        '' is Debian 12, whose Python is 3.11.
    ssh_public_key
        '' permits no login.
    disk_gb
        0 is the size of the image.
    subnet
        Without a slash a name in the zone's region.
    service_account
        An address or "default"; attached with all rights of its roles. Most VMs have none.
    notice_seconds
        Time between the preemption notice in the VM's metadata and its shutdown (0 or 120; Spot
        only). The metadata attribute `NOTICE_KEY` repeats it for programs on the VM.
    """

    name: str
    zone: str
    machine_type: str
    ssh_public_key: str
    accelerator: str = ""
    accelerator_count: int = 0
    provisioning_model: ProvisioningModel = "spot"
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    user: str = "transient"
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    tags: tuple[str, ...] = ()
    termination_time: datetime | None = None
    image: str = ""
    disk_gb: int = 50
    disk_type: str = DISK_TYPE
    network: str = ""
    subnet: str = ""
    external_ip: bool = True
    service_account: str = ""
    request_id: str = ""
    notice_seconds: int = 0


@dataclass(frozen=True)
class Vm:
    """An existing VM. `id` is unique, unlike names and addresses; times have a time zone."""

    name: str
    zone: str
    id: str
    status: str
    address: str
    external_address: str
    labels: Mapping[str, str]
    created: datetime | None
    preemptible: bool
    last_start: datetime | None
    machine_type: str = ""
    ends: datetime | None = None
    """When Compute Engine will end it; None without such a time."""
    share: Share = WHOLE
    """The rest of its processors and its network after deflation."""
    ssh_keys: str = ""
    """Permitted logins: lines `USER:KEY`."""

    def made_by(self, request: VmRequest) -> bool:
        """Return whether `request` created this VM, judging by labels, machine and key."""
        key = request.ssh_public_key.strip()
        return (
            request.labels.items() <= self.labels.items()
            and self.machine_type == request.machine_type
            and self.preemptible == (request.provisioning_model != "standard")
            and (not key or f"{request.user}:{key}" in self.ssh_keys.splitlines())
        )


@dataclass(frozen=True)
class Life:
    """When a VM ran: from `started` until it had to stop; None if unknown."""

    id: str
    started: datetime
    stopping: datetime | None


# Conversions to and from the messages of Compute Engine's API.
#
# `instance_of` converts a `VmRequest` to the body of an insert request (the dictionary that
# Google's message classes accept), `vm_of` converts an instance of the API to a `Vm`. Both are pure
# and import nothing of Google's.


def labelled(labels: Mapping[str, str]) -> str:
    """Return the filter of a list request for resources with all of these labels."""
    return " AND ".join(f"(labels.{key} = {value})" for key, value in sorted(labels.items()))


def instance_of(request: VmRequest) -> dict[str, Any]:
    """Return the instance of a request."""
    zone = f"zones/{request.zone}"
    labels = dict(request.labels)
    body: dict[str, Any] = {
        "name": request.name,
        "machine_type": f"{zone}/machineTypes/{request.machine_type}",
        "labels": labels,
        "scheduling": _scheduling(request),
        "metadata": {
            "items": [{"key": key, "value": value} for key, value in _metadata(request).items()]
        },
        "network_interfaces": [_network(request)],
        "disks": [
            {
                "boot": True,
                "auto_delete": True,
                "initialize_params": {
                    "source_image": image_url(request.image or IMAGE),
                    **({"disk_size_gb": request.disk_gb} if request.disk_gb else {}),
                    "disk_type": f"{zone}/diskTypes/{request.disk_type}",
                    "labels": labels,
                },
            }
        ],
    }
    if request.accelerator:
        kind = f"{zone}/acceleratorTypes/{request.accelerator}"
        body["guest_accelerators"] = [
            {"accelerator_type": kind, "accelerator_count": request.accelerator_count or 1}
        ]
    if request.tags:
        body["tags"] = {"items": list(request.tags)}
    if request.service_account:
        # Its roles limit its rights. Tokens of a narrower scope could not be exchanged for those of
        # other VMs.
        body["service_accounts"] = [{"email": request.service_account, "scopes": [_SCOPE]}]
    return body


def properties_of(request: VmRequest) -> dict[str, Any]:
    """Return the common properties of many such instances, with plain names instead of paths."""
    body = instance_of(request)
    del body["name"]
    body["machine_type"] = request.machine_type
    for disk in body["disks"]:
        initial = disk["initialize_params"]
        initial["disk_type"] = initial["disk_type"].rpartition("/")[2]
    for card in body.get("guest_accelerators", []):
        card["accelerator_type"] = request.accelerator
    return body


def vm_of(instance: compute_v1.Instance) -> Vm:
    """Return the VM in the API's description of an instance."""
    interfaces = list(instance.network_interfaces)
    outside = [
        access.nat_i_p
        for interface in interfaces
        for access in interface.access_configs
        if access.nat_i_p
    ]
    created = moment_of(instance.creation_timestamp)
    return Vm(
        name=instance.name,
        zone=instance.zone.rsplit("/", 1)[-1],
        id=str(instance.id),
        status=instance.status,
        address=interfaces[0].network_i_p if interfaces else "",
        external_address=outside[0] if outside else "",
        labels=dict(instance.labels),
        created=created,
        preemptible=instance.scheduling.preemptible,
        last_start=moment_of(instance.last_start_timestamp) or created,
        machine_type=instance.machine_type.rpartition("/")[2],
        ends=moment_of(instance.scheduling.termination_time),
        share=share_of(_item(instance, KEY)),
        ssh_keys=_item(instance, "ssh-keys"),
    )


def _item(instance: compute_v1.Instance, key: str) -> str:
    return next((item.value for item in instance.metadata.items if item.key == key), "")


def _scheduling(request: VmRequest) -> dict[str, Any]:
    # We replace lost VMs ourselves; a VM that Google restarts unnoticed would count twice.
    scheduling: dict[str, Any] = {"automatic_restart": False}
    if request.provisioning_model == "standard":
        scheduling["provisioning_model"] = "STANDARD"
        # VMs with accelerators cannot move to another host.
        scheduling["on_host_maintenance"] = "TERMINATE" if _has_accelerator(request) else "MIGRATE"
    else:
        scheduling |= {"preemptible": True, "on_host_maintenance": "TERMINATE"}
    if request.provisioning_model == "spot":
        scheduling |= {"provisioning_model": "SPOT", "instance_termination_action": "DELETE"}
        if request.notice_seconds:
            scheduling["preemption_notice_duration"] = {"seconds": request.notice_seconds}
    if request.termination_time and request.provisioning_model != "preemptible":
        moment = moment_text(request.termination_time)
        scheduling |= {"termination_time": moment, "instance_termination_action": "DELETE"}
    return scheduling


def _has_accelerator(request: VmRequest) -> bool:
    """Return whether the VM has an accelerator, attached or built-in (A2, A3, A4, G2, G4)."""
    return bool(request.accelerator) or request.machine_type.startswith(
        ("a2-", "a3-", "a4-", "g2-", "g4-")
    )


def _metadata(request: VmRequest) -> dict[str, str]:
    key = request.ssh_public_key.strip()
    metadata = dict(request.metadata)
    if request.notice_seconds:
        metadata[NOTICE_KEY] = str(request.notice_seconds)
    if key:
        metadata["ssh-keys"] = f"{request.user}:{key}"
    metadata["block-project-ssh-keys"] = "true"
    metadata["enable-guest-attributes"] = "TRUE"  # the VM reports its host keys in them
    metadata["enable-oslogin"] = "FALSE"  # with OS Login, Google ignores ssh-keys
    return metadata


def _network(request: VmRequest) -> dict[str, Any]:
    network: dict[str, Any] = {}
    if request.subnet:
        region = request.zone.rsplit("-", 1)[0]
        partial = f"regions/{region}/subnetworks/{request.subnet}"
        network["subnetwork"] = request.subnet if "/" in request.subnet else partial
    if request.network or not request.subnet:
        name = request.network or "default"
        if "/" in name:
            network["network"] = name
        else:
            network["network"] = f"global/networks/{name}"
    if request.external_ip:
        network["access_configs"] = [{"name": "External NAT", "type_": "ONE_TO_ONE_NAT"}]
    return network


def moment_of(text: str) -> datetime | None:
    """Return a time in the API's form; None for ''."""
    if text:
        return datetime.fromisoformat(text)
    return None


def moment_text(moment: datetime) -> str:
    """Return a time in the API's form, to the second."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def place_of(resource: str, project: str) -> tuple[str, str]:
    """Return project and name of an image, network or subnetwork, given by name or URL."""
    parts = resource.split("/")
    if "projects" in parts:
        project = parts[parts.index("projects") + 1]
    return project, parts[-1]
