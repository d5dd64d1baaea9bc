"""VMs and requests for them, as our code has them and as Compute Engine writes them.

A `VmRequest` says everything about a VM that is to be made; a `Vm` is what we need to know about
one that exists. `request_id` makes the identity of a request from what it is for, so that a second
attempt, even by another process, is the same request to Google and never makes a second VM.
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
"""States of a VM that runs no more, or soon will not."""
ProvisioningModel = Literal["spot", "preemptible", "standard"]

_NAMESPACE = uuid.UUID("5c0f3c2e-6d0b-5b6a-9a53-4f1a7c1d7e10")

IMAGE = "projects/debian-cloud/global/images/family/debian-12"
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"


def request_id(*parts: object) -> str:
    """The identity of the request that `parts` describe: the same parts give the same UUID, on
    every machine.

    Google remembers identities for a while only, and a VM that was deleted may be wanted again: let
    the parts hold what sets one VM apart from every other (the cluster's own identity, the VM's
    name, which attempt it is).
    """
    return str(uuid.uuid5(_NAMESPACE, "\x1f".join(str(part) for part in parts)))


@dataclass(frozen=True)
class VmRequest:
    """One VM that is to exist.

    `termination_time` (aware of its zone) is enforced by Google itself, with deletion. The legacy
    model `preemptible` cannot carry one: its VMs end after 24 hours at most, whatever
    `termination_time` says, and are stopped rather than deleted, so prefer `spot`. `image` is a
    full or partial URL of an image or a family, or `NAME` or `family/NAME` of the project; empty
    means Debian 12, whose Python is 3.11. Without an `ssh_public_key` nobody can log in. A
    `disk_gb` of 0 is the size of the image. A `subnet` without a slash is a name in the zone's
    region. `service_account` (an address, or "default") is attached with all the rights that its
    roles give it; most VMs have none. `notice_seconds` (0 or 120, Spot only) lie between the
    preemption notice in the VM's metadata and the start of its shutdown; its metadata attribute
    `NOTICE_KEY` has them too, so that programs on the VM know their time.
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
    """One VM that exists. `id` is never used twice, unlike names and addresses; times are aware of
    their zone.
    """

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
    """The moment at which Compute Engine is to end it; None where none is set."""
    share: Share = WHOLE
    """What is left to it of its processors and its network, where it was deflated."""
    ssh_keys: str = ""
    """Who may log in: lines `USER:KEY`."""

    def made_by(self, request: VmRequest) -> bool:
        """Whether this is the VM that `request` asked for, as far as can be seen: its labels,
        machine and key.
        """
        key = request.ssh_public_key.strip()
        return (
            request.labels.items() <= self.labels.items()
            and self.machine_type == request.machine_type
            and self.preemptible == (request.provisioning_model != "standard")
            and (not key or f"{request.user}:{key}" in self.ssh_keys.splitlines())
        )


@dataclass(frozen=True)
class Life:
    """When one VM ran, by its `id`: from `started` until it was told to stop; None where nothing
    tells that.
    """

    id: str
    started: datetime
    stopping: datetime | None


# Between our values and the messages of Compute Engine's API.
#
# `instance_of` turns a `VmRequest` into the body of an insert request (as the dictionary that
# Google's message classes take), `vm_of` turns an instance that the API described into a `Vm`. Both
# are pure; nothing of Google's is imported.


def labelled(labels: Mapping[str, str]) -> str:
    """The filter of a list request for what has all of these labels."""
    return " AND ".join(f"(labels.{key} = {value})" for key, value in sorted(labels.items()))


def instance_of(request: VmRequest) -> dict[str, Any]:
    """The instance that `request` asks for."""
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
        # Its roles say what it may; a narrower scope could not be exchanged for tokens of other
        # VMs.
        body["service_accounts"] = [{"email": request.service_account, "scopes": [_SCOPE]}]
    return body


def properties_of(request: VmRequest) -> dict[str, Any]:
    """What many instances like this one have in common: the same, with plain names where one
    instance has paths.
    """
    body = instance_of(request)
    del body["name"]
    body["machine_type"] = request.machine_type
    for disk in body["disks"]:
        disk["initialize_params"]["disk_type"] = disk["initialize_params"]["disk_type"].rpartition(
            "/"
        )[2]
    for card in body.get("guest_accelerators", []):
        card["accelerator_type"] = request.accelerator
    return body


def vm_of(instance: compute_v1.Instance) -> Vm:
    """What we know about a VM from the API's description of it."""
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
    # We replace what is lost ourselves; a VM that Google restarts behind our back would be counted
    # twice.
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
    """Whether the VM has an accelerator, be it attached or part of its machine type (A2, A3, A4,
    G2, G4).
    """
    return bool(request.accelerator) or request.machine_type.startswith(
        ("a2-", "a3-", "a4-", "g2-", "g4-")
    )


def _metadata(request: VmRequest) -> dict[str, str]:
    key = request.ssh_public_key.strip()
    return {
        **request.metadata,
        **({NOTICE_KEY: str(request.notice_seconds)} if request.notice_seconds else {}),
        **({"ssh-keys": f"{request.user}:{key}"} if key else {}),
        "block-project-ssh-keys": "true",
        "enable-guest-attributes": "TRUE",  # the way on which the VM's host keys reach us
        "enable-oslogin": "FALSE",  # with it, Google ignores ssh-keys
    }


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
    """A time as the API writes it; None where there is none."""
    if text:
        return datetime.fromisoformat(text)
    return None


def moment_text(moment: datetime) -> str:
    """The same the other way round, to the second."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
