"""Shrinking VMs, and giving back what was taken, from the cluster that they are of.

The emulator stands in for a provider that shrinks VMs under pressure in the place of revoking them. Google's Compute
Engine shrinks no VM that runs, so that a cluster in a project is refused; what it does is to make a VM that is stopped
another machine, which is done by the cluster's controller, on the emulator too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ...errors import ClusterError, TransientError, joined, unknown
from ...journal import VmState
from ...protocol.cluster_commands import ChangeMachine
from ...protocol.share import WHOLE, Share
from ...spec import PARAMETER_SERVER, WORKER
from .. import commands
from .emulated import ask, emulator_of

if TYPE_CHECKING:
    from ..handles import Cluster

_PATH = "/emulator/v1/shares"
_NO_DEFLATION = "Compute Engine shrinks no VM that runs: it changes the machine type of VMs that are stopped alone"
_INSTEAD = "its emulator shrinks VMs; or have a worker stopped, changed and started: --machine-type n1-standard-2"
_DEAREST = 0.5
"""The priority of the cluster's dearest worker, which keeps so much of its CPU; others in proportion to their price."""


def deflate(cluster: Cluster, worker: str, **parts: float) -> Share:
    """Leave `worker` (a VM's name) with these `parts` of `cpu` and `network`; return what it has then."""
    vm = _running(cluster, worker)
    return _change(cluster, [vm], {vm.vm_id: 0.0}, parts)[vm.name]


def reclaim(cluster: Cluster, cpus: float, policy: str) -> dict[str, Share]:
    """Take so many vCPUs from the cluster's workers, by a policy of the provider's; return what each has then."""
    workers = [vm for vm in _all_running(cluster) if vm.role == WORKER and vm.state != "leaving"]
    dearest = max((vm.hourly for vm in workers), default=0.0)
    priorities = {vm.vm_id: _DEAREST * (vm.hourly / dearest if dearest else 1.0) for vm in workers}
    return _change(cluster, workers, priorities, {"reclaim": cpus, "policy": policy})


def inflate(cluster: Cluster, worker: str | None) -> Iterator[tuple[VmState, Share | None]]:
    """Give `worker` back what was taken from it, or all VMs, and yield what each has then; None: it is stopped, and
    started again as what it was rented as.

    One that is refused keeps none of the others: what was said of it is raised when all were tried.
    """
    vms = [_running(cluster, worker)] if worker else _all_running(cluster)
    smaller = [vm for vm in vms if vm.machine_type != vm.rented_as]
    if not smaller or cluster.state.spec is None or cluster.state.spec.emulated:
        shares = _change(cluster, vms, {vm.vm_id: 0.0 for vm in vms}, {"cpu": 1.0, "network": 1.0})
        yield from ((vm, shares[vm.name]) for vm in vms if vm not in smaller)
    refused: list[TransientError] = []
    for vm in smaller:
        try:
            restart(cluster, vm.name, "")
        except TransientError as error:
            refused.append(error)
        else:
            yield vm, None
    if refused:
        raise joined(refused)


def restart(cluster: Cluster, worker: str, machine_type: str) -> None:
    """Have `worker` (a VM's name) stopped, made this machine type (empty: what it was rented as), and started again."""
    commands.send(cluster.directory, ChangeMachine(vm=worker, machine_type=machine_type))


def warning(worker: str) -> str:
    """What is to be said of deflating this VM, or nothing."""
    if not worker.startswith(f"{PARAMETER_SERVER}-"):
        return ""
    return f"Every worker waits for {worker}, so all of them become slower: a worker would have cost less."


def _change(
    cluster: Cluster, vms: list[VmState], priorities: dict[str, float], wanted: dict[str, Any]
) -> dict[str, Share]:
    url = emulator_of(cluster, _NO_DEFLATION, _INSTEAD)
    shares = ask(url, "POST", _PATH, {"vms": priorities, **wanted})["shares"]
    return {vm.name: Share(*shares[vm.vm_id]) if vm.vm_id in shares else WHOLE for vm in vms}


def _all_running(cluster: Cluster) -> list[VmState]:
    """But for those that are stopped and started again, which have nothing meanwhile."""
    return [vm for vm in cluster.state.living if vm.vm_id and not vm.change]


def _running(cluster: Cluster, name: str) -> VmState:
    vm = cluster.state.vms.get(name)
    if vm is None or not vm.living or not vm.vm_id:
        running = [each.name for each in cluster.state.living if each.vm_id]
        raise unknown("running VM", name, running, where=cluster.name, numbered=True, error=ClusterError)
    if vm.change:
        raise ClusterError(f"{name} is just becoming {vm.change.machine_type}", fix="Try again when it is ready.")
    return vm
