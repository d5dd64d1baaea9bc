"""Whose a name is in a project: VMs are called after their cluster, and two clusters must not share
a name there.

What tells clusters apart is their id, so nothing of another's would be touched; but the second
one's VMs would be refused one by one, and nobody could tell whose are whose.
"""

from __future__ import annotations

from ...cloud import ComputeEngine, Vm
from ...spec import CONTROLLER, PARAMETER_SERVER, PREPARATION, WORKER, ClusterSpec
from .machines import ID_LABEL, LABEL, instance_name
from .owner import USER_LABEL

_ROLES = f"({PARAMETER_SERVER}|{WORKER}|{CONTROLLER}|{PREPARATION})-[0-9]+"


async def taken(spec: ClusterSpec, engine: ComputeEngine) -> str:
    """Why a new cluster cannot have its name in its project (a sentence with what to do), or
    nothing.

    The names of VMs are asked for, too: they may be those of VMs that this program did not make.
    Raises CloudError.
    """
    if not spec.id:
        return ""
    labelled = await engine.list({LABEL: spec.name}, within=spec.all_zones)
    named = await engine.named(instance_name(spec, _ROLES), within=spec.all_zones)
    # What is just being deleted, a cluster of before perhaps, holds its name for some seconds only.
    others = [
        vm
        for vm in (*labelled, *named)
        if vm.labels.get(ID_LABEL) != spec.id and vm.status != "STOPPING"
    ]
    if not others:
        return ""
    if spec.project:
        where = f"project {spec.project}"
    else:
        where = "the emulator"
    return f"{_whose(spec, others[0])} ({where}). Declare this one with another --name"


def _whose(spec: ClusterSpec, vm: Vm) -> str:
    place = f"{vm.name} in {vm.zone}"
    if vm.labels.get(LABEL) != spec.name:
        return f"The name {spec.name} is taken by a VM that is not ours, {place}"
    marks = {"id": vm.labels.get(ID_LABEL), "user": vm.labels.get(USER_LABEL)}
    said = ", ".join(f"{key} {value}" for key, value in marks.items() if value)
    return (
        f"There is another cluster {spec.name}, with the VM {place}{f' ({said})' if said else ''}"
    )
