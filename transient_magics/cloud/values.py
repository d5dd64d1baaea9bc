"""What goes into Compute Engine and what comes out, as plain values of our own.

A `VmRequest` says everything about a VM that is to be made; a `Vm` is what we need to know about one that exists.
`request_id` makes the identity of a request from what it is for, so that a second attempt, even by another process,
is the same request to Google and never makes a second VM.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from ..catalog import DISK_TYPE
from ..protocol.share import WHOLE, Share

STOPPED = ("STOPPED", "TERMINATED")
LEAVING = ("STOPPING", "STOPPED", "TERMINATED", "SUSPENDING", "SUSPENDED")
"""States of a VM that runs no more, or soon will not."""
ProvisioningModel = Literal["spot", "preemptible", "standard"]

_NAMESPACE = uuid.UUID("5c0f3c2e-6d0b-5b6a-9a53-4f1a7c1d7e10")


def request_id(*parts: object) -> str:
    """The identity of the request that `parts` describe: the same parts give the same UUID, on every machine.

    Google remembers identities for a while only, and a VM that was deleted may be wanted again: let the parts hold
    what sets one VM apart from every other (the cluster's own identity, the VM's name, which attempt it is).
    """
    return str(uuid.uuid5(_NAMESPACE, "\x1f".join(str(part) for part in parts)))


@dataclass(frozen=True)
class VmRequest:
    """One VM that is to exist.

    `termination_time` (aware of its zone) is enforced by Google itself, with deletion. The legacy model `preemptible`
    cannot carry one: its VMs end after 24 hours at most, whatever `termination_time` says, and are stopped rather than
    deleted, so prefer `spot`. `image` is a full or partial URL of an image or a family, or `NAME` or `family/NAME` of
    the project; empty means Debian 12, whose Python is 3.11. Without an `ssh_public_key` nobody can log in.
    A `disk_gb` of 0 is the size of the image.
    A `subnet` without a slash is a name in the zone's region. `service_account` (an address, or "default") is attached
    with all the rights that its roles give it; most VMs have none.
    `notice_seconds` (0 or 120, Spot only) lie between the preemption notice in the VM's metadata and the start of its
    shutdown; its metadata attribute `NOTICE_KEY` has them too, so that programs on the VM know their time.
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
    """One VM that exists. `id` is never used twice, unlike names and addresses; times are aware of their zone."""

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
        """Whether this is the VM that `request` asked for, as far as can be seen: its labels, machine and key."""
        key = request.ssh_public_key.strip()
        return (
            request.labels.items() <= self.labels.items()
            and self.machine_type == request.machine_type
            and self.preemptible == (request.provisioning_model != "standard")
            and (not key or f"{request.user}:{key}" in self.ssh_keys.splitlines())
        )


@dataclass(frozen=True)
class Life:
    """When one VM ran, by its `id`: from `started` until it was told to stop; None where nothing tells that."""

    id: str
    started: datetime
    stopping: datetime | None
