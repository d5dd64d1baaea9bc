"""Requests for VMs: machine, image, labels and time limit of each VM of a cluster."""

from __future__ import annotations

import getpass
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ... import places
from ...catalog import CONTROLLER_DISK_GB, DISK_GB, DISK_TYPE, accelerator
from ...cloud import ComputeEngine, VmRequest, request_id, rules
from ...files import write_atomically
from ...journal import events
from ...spec import CONTROLLER, IAP_RANGE, ClusterSpec, price_kind
from ...spec.image import has_gpu, image_of
from ..decisions.core import RequestVm
from .startup import CONTROLLER_USER, USER, account_script, controller_script, startup_script

LABEL = "transient-magics-cluster"
ID_LABEL = "transient-magics-id"
"""Labels on every VM and disk: the cluster's name, and its id, by which the cluster is found."""
SEAT_LABEL = {"transient-magics-seat": "true"}
"""Label on the VM that a cluster's controller runs on."""
PROXY_LABEL = {"transient-magics-ssh": "proxy"}
"""Label on VMs that are reached through Identity-Aware Proxy despite an external address."""
ROLE_LABEL = "transient-magics-role"
_DESCRIBED = re.compile(r"transient_magics: cluster (\S+) \((\w+)\); owner (\w+), machine (\w+)")

OWNER_LABEL = "transient-magics-owner"
MACHINE_LABEL = "transient-magics-machine"
USER_LABEL = "transient-magics-user"
"""Owner labels: hash of the principal, number of the home directory, login name for display."""
MEASURE_LABEL = "transient-magics-measurement"
"""Label with the id of a measurement, on VMs requested only to measure availability."""
OWNER = "owner.json"
"""File in a cluster's folder with the labels of its VMs' owner."""


def labels(spec: ClusterSpec) -> dict[str, str]:
    """Return the labels by which the VMs of this cluster, and no others, are found."""
    if spec.id:
        return {ID_LABEL: spec.id}
    return {LABEL: spec.name, OWNER_LABEL: login_name()}


def tag(spec: ClusterSpec) -> str:
    """Return the network tag of this cluster's VMs for the firewall."""
    return f"transient-magics-{spec.id or spec.name}"


def controller_tag(spec: ClusterSpec) -> str:
    """Return the network tag of the controller's own VM; empty if it has none.

    That VM is not a member of the cluster's network.
    """
    if spec.controller_vm:
        return f"{tag(spec)}-seat"
    return ""


def account(role: str) -> str:
    """Return the account for logging in to VMs of this role."""
    return CONTROLLER_USER if role == CONTROLLER else USER


def firewall_rules(
    spec: ClusterSpec, whose: Mapping[str, str] = MappingProxyType({})
) -> list[dict[str, Any]]:
    """Return the firewall rules that close this cluster to all but its members and SSH.

    `whose` has the labels of its VMs' owner.
    """
    # Clusters of an earlier version have no `ssh_from`; their original rules stay.
    ssh_from = spec.ssh_from or (("0.0.0.0/0",) if spec.external_ip else (IAP_RANGE,))
    description = rule_description(spec.name, spec.id)
    if OWNER_LABEL in whose and MACHINE_LABEL in whose:
        description += f"; owner {whose[OWNER_LABEL]}, machine {whose[MACHINE_LABEL]}"
    return rules(tag(spec), spec.network or "", ssh_from, description, controller_tag(spec))


def rule_description(cluster: str, identity: str) -> str:
    """Return the description that marks a firewall rule as this cluster's."""
    return f"transient_magics: cluster {cluster} {f'({identity})' if identity else f'of {login_name()}'}"


def ruled_by(description: str) -> dict[str, str]:
    """Return the labels of the cluster's VMs that a firewall rule's description contains.

    Empty if the rule is not from this program or does not name its owner.
    """
    found = _DESCRIBED.fullmatch(description)
    if found:
        return dict(zip((LABEL, ID_LABEL, OWNER_LABEL, MACHINE_LABEL), found.groups(), strict=True))
    return {}


def instance_name(spec: ClusterSpec, vm: str) -> str:
    """Return the VM's name at Compute Engine: `k80x4-worker-0` for `worker-0`."""
    return f"{spec.name}-{vm}"


def vm_name(spec: ClusterSpec, instance: str) -> str:
    """Return the VM's name in the cluster: `worker-0` for `k80x4-worker-0`."""
    return instance.removeprefix(f"{spec.name}-")


def requested(spec: ClusterSpec, decision: RequestVm) -> events.VmRequested:
    """Return the event that records the decision, with the prices that determine its cost."""
    line = spec.price(price_kind(decision.role, decision.accelerator), decision.zone)
    standard = decision.provisioning_model == "standard"
    return events.VmRequested(
        **asdict(decision),
        machine_type=line.machine_type,
        hourly=line.on_demand_hourly if standard else line.hourly,
        on_demand_hourly=line.on_demand_hourly,
        ends=spec.ends_at,
    )


def vm_request(
    spec: ClusterSpec,
    event: events.VmRequested,
    public_key: str,
    whose: Mapping[str, str] = MappingProxyType({}),
) -> VmRequest:
    """Return the request to Compute Engine.

    The same event always makes the same request, with the same identity.
    """
    model = event.provisioning_model
    assert model in ("spot", "preemptible", "standard")
    if event.accelerator:
        gpu = accelerator(event.accelerator)
    else:
        gpu = None
    with_gpu = has_gpu(event.accelerator)
    image = image_of(spec, event.accelerator)
    attached = gpu.compute_engine_name if gpu and not gpu.bundled else ""
    seat = event.role == CONTROLLER

    return VmRequest(
        name=instance_name(spec, event.vm),
        zone=event.zone,
        machine_type=event.machine_type,
        accelerator=attached,
        accelerator_count=1 if attached else 0,
        provisioning_model=model,
        labels={
            LABEL: spec.name,
            **whose,
            # After `whose`, because the labels of a cluster without an id name another owner.
            **labels(spec),
            ROLE_LABEL: event.role,
            **(SEAT_LABEL if seat else {}),
            **(PROXY_LABEL if spec.through_proxy else {}),
        },
        ssh_public_key=public_key,
        user=account(event.role),
        tags=(controller_tag(spec) if seat else tag(spec),),
        metadata=_metadata(spec, event.role, with_gpu, image),
        termination_time=datetime.fromtimestamp(spec.ends_at, UTC),
        image=image,
        disk_gb=_disk_gb(spec, image, seat=seat),
        disk_type=DISK_TYPE if seat else spec.disk_type,
        network=spec.network or "",
        subnet=spec.subnet or "",
        external_ip=spec.external_ip,
        # Other VMs run users' code.
        service_account=(spec.service_account or "default") if seat else "",
        notice_seconds=spec.notice_seconds if model == "spot" else 0,
        request_id=request_id(*filter(None, [spec.id]), spec.name, spec.declared_at, event.vm),
    )


def _disk_gb(spec: ClusterSpec, image: str, *, seat: bool) -> int:
    """Return the size of a VM's disk; 0 for the size of its image."""
    if spec.disk_gb and not seat:
        return spec.disk_gb
    if image:
        return 0
    return CONTROLLER_DISK_GB if seat else DISK_GB


def _metadata(spec: ClusterSpec, role: str, with_gpu: bool, image: str) -> Mapping[str, str]:
    if spec.emulated:
        # These VMs have what they need, and their accounts are not administrators.
        return {}
    if role == CONTROLLER:
        return {"startup-script": controller_script()}
    if image:
        script = account_script(with_gpu=with_gpu)
    else:
        script = startup_script(with_gpu=with_gpu, purpose=spec.purpose)
    return {"startup-script": script}


# ---------------------------------------------------------------- owners
#
# By these labels a sweep finds this user's VMs, and those of this machine. A login name does not
# identify a user (in containers it is `root` or `jovyan`), so the owner is the principal of the
# credentials, and the machine is a random number of the home directory. A cluster keeps the labels
# that it began with.


async def owner_labels(engine: ComputeEngine) -> dict[str, str]:
    """Return the labels for resources made from here with these credentials.

    On the emulator the user is the principal. Raises CloudError if Google does not report the owner
    of the credentials.
    """
    principal = await engine.principal() or f"emulator/{login_name()}"
    return {
        OWNER_LABEL: hashlib.sha256(principal.lower().encode()).hexdigest()[:16],
        MACHINE_LABEL: places.identity(),
        USER_LABEL: login_name(),
    }


async def save_owner(engine: ComputeEngine, directory: Path) -> None:
    """Save the owner labels of the cluster in `directory` there, once. Raises CloudError."""
    if not (directory / OWNER).exists():
        labels = json.dumps(await owner_labels(engine))
        # A controller could not begin with half of the file.
        write_atomically(directory / OWNER, labels, durable=False)


def saved_owner(directory: Path) -> Mapping[str, str]:
    """Return the saved owner labels of the cluster in `directory`.

    Without them, return what is known without a request.
    """
    try:
        return json.loads((directory / OWNER).read_text(encoding="utf-8"))
    except FileNotFoundError:
        # Its controller began before there was such a file.
        return {USER_LABEL: login_name()}


def login_name() -> str:
    """Return this user's login name in the form of a label."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):
        # The account has no name.
        return "unknown"
    return re.sub(r"[^a-z0-9_-]", "-", name.lower())[:63] or "unknown"
