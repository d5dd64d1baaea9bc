"""From a decision to a request: the machine, image, labels and time limit of each VM of a cluster."""

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
"""On every VM and disk: the name of its cluster, and the cluster's id, by which it is found."""
SEAT_LABEL = {"transient-magics-seat": "true"}
"""On the VM that a cluster's controller runs on."""
PROXY_LABEL = {"transient-magics-ssh": "proxy"}
"""On VMs that are reached through Identity-Aware Proxy, though they have an external address."""
ROLE_LABEL = "transient-magics-role"
_DESCRIBED = re.compile(r"transient_magics: cluster (\S+) \((\w+)\); owner (\w+), machine (\w+)")

OWNER_LABEL = "transient-magics-owner"
MACHINE_LABEL = "transient-magics-machine"
USER_LABEL = "transient-magics-user"
"""A hash of the principal, the number of the home directory, and for human eyes the login name."""
MEASURE_LABEL = "transient-magics-measurement"
"""On VMs that were asked for only to see whether there are any: the id of the measurement."""
OWNER = "owner.json"
"""In a cluster's folder: the labels that say whose its VMs are."""


def labels(spec: ClusterSpec) -> dict[str, str]:
    """The labels by which the VMs of this cluster, and no others, are found."""
    if spec.id:
        return {ID_LABEL: spec.id}
    return {LABEL: spec.name, OWNER_LABEL: login_name()}


def tag(spec: ClusterSpec) -> str:
    """The network tag of this cluster's VMs, by which the firewall knows them."""
    return f"transient-magics-{spec.id or spec.name}"


def controller_tag(spec: ClusterSpec) -> str:
    """The network tag of the VM that the controller has for itself, which is no member; empty where
    it has none.
    """
    if spec.controller_vm:
        return f"{tag(spec)}-seat"
    return ""


def account(role: str) -> str:
    """The account by which VMs of this role are entered."""
    return CONTROLLER_USER if role == CONTROLLER else USER


def firewall_rules(
    spec: ClusterSpec, whose: Mapping[str, str] = MappingProxyType({})
) -> list[dict[str, Any]]:
    """The rules that close this cluster to everyone but its members and SSH; `whose`: the labels of
    its VMs' owner.
    """
    # Without one an earlier version declared it: the rules that it was made with stay.
    ssh_from = spec.ssh_from or (("0.0.0.0/0",) if spec.external_ip else (IAP_RANGE,))
    description = rule_description(spec.name, spec.id)
    if OWNER_LABEL in whose and MACHINE_LABEL in whose:
        description += f"; owner {whose[OWNER_LABEL]}, machine {whose[MACHINE_LABEL]}"
    return rules(tag(spec), spec.network or "", ssh_from, description, controller_tag(spec))


def rule_description(cluster: str, identity: str) -> str:
    """What marks a firewall rule as this cluster's."""
    return f"transient_magics: cluster {cluster} {f'({identity})' if identity else f'of {login_name()}'}"


def ruled_by(description: str) -> dict[str, str]:
    """What a firewall rule's description says of the cluster that it is of, as the labels of that
    one's VMs would.

    Nothing of one that is not ours, or whose owner it does not say.
    """
    found = _DESCRIBED.fullmatch(description)
    if found:
        return dict(zip((LABEL, ID_LABEL, OWNER_LABEL, MACHINE_LABEL), found.groups(), strict=True))
    return {}


def instance_name(spec: ClusterSpec, vm: str) -> str:
    """The VM's name at Compute Engine: `k80x4-worker-0` for `worker-0`."""
    return f"{spec.name}-{vm}"


def vm_name(spec: ClusterSpec, instance: str) -> str:
    """The VM's name in the cluster: `worker-0` for `k80x4-worker-0`."""
    return instance.removeprefix(f"{spec.name}-")


def requested(spec: ClusterSpec, decision: RequestVm) -> events.VmRequested:
    """The event that records the decision, with the prices that its cost will follow from."""
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
    """What Compute Engine is asked for. The same event always makes the same request, with the same
    identity.
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
            **labels(spec),  # last of these: without an id they say otherwise who the owner is
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
        service_account=(spec.service_account or "default")
        if seat
        else "",  # the others run users' code
        notice_seconds=spec.notice_seconds if model == "spot" else 0,
        request_id=request_id(*filter(None, [spec.id]), spec.name, spec.declared_at, event.vm),
    )


def _disk_gb(spec: ClusterSpec, image: str, *, seat: bool) -> int:
    """The size of a VM's disk; 0: the image's."""
    if spec.disk_gb and not seat:
        return spec.disk_gb
    if image:
        return 0
    return CONTROLLER_DISK_GB if seat else DISK_GB


def _metadata(spec: ClusterSpec, role: str, with_gpu: bool, image: str) -> Mapping[str, str]:
    if spec.emulated:
        return {}  # such VMs have what they need, and nobody there is an administrator
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
    """The labels of what is made from here with these credentials. On the emulator the user is the
    principal.

    Raises CloudError where Google does not say whose credentials they are.
    """
    principal = await engine.principal() or f"emulator/{login_name()}"
    return {
        OWNER_LABEL: hashlib.sha256(principal.lower().encode()).hexdigest()[:16],
        MACHINE_LABEL: places.identity(),
        USER_LABEL: login_name(),
    }


async def save_owner(engine: ComputeEngine, directory: Path) -> None:
    """Have the labels of the cluster in `directory` written down there, once. Raises CloudError."""
    if not (directory / OWNER).exists():
        labels = json.dumps(await owner_labels(engine))
        write_atomically(
            directory / OWNER, labels, durable=False
        )  # no controller could begin with half of it


def saved_owner(directory: Path) -> Mapping[str, str]:
    """What was noted of the cluster in `directory`; without it, what can be said without asking
    anybody.
    """
    try:
        return json.loads((directory / OWNER).read_text(encoding="utf-8"))
    except FileNotFoundError:  # its controller began before there was such a note
        return {USER_LABEL: login_name()}


def login_name() -> str:
    """This user's login name, as a label may hold it."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):  # an account without a name
        return "unknown"
    return re.sub(r"[^a-z0-9_-]", "-", name.lower())[:63] or "unknown"
