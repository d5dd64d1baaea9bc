"""Shrinking the VMs of a cluster, and restoring them: `%transient_deflate`.

The emulator stands in for a provider that shrinks VMs under pressure instead of revoking them.
Compute Engine shrinks no VM that runs, so a cluster in a project is refused. There and on the
emulator the cluster's controller can stop a VM, change its machine type and start it again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...errors import ClusterError, DeclarationError, TransientError, combined, unknown
from ...journal import VmState
from ...protocol.cluster_commands import ChangeMachine
from ...protocol.machines import WHOLE, Share
from ...spec import PARAMETER_SERVER, WORKER
from .. import commands, text
from .emulator_api import ask, emulator_of

if TYPE_CHECKING:
    from ..following.cluster import BaseCluster

_PATH = "/emulator/v1/shares"
_NO_DEFLATION = "Compute Engine shrinks no VM that runs: it changes the machine type of VMs that are stopped alone"
_INSTEAD = "its emulator shrinks VMs; or have a worker stopped, changed and started: --machine-type n1-standard-2"
_DEAREST = 0.5
"""The priority of the cluster's dearest worker, which keeps so much of its CPU; others in
proportion to their price.
"""


@dataclass(frozen=True, repr=False)
class Deflated:
    """What a VM has after a change.

    Attributes
    ----------
    vm : str
        The VM's name.
    share : Share
        The parts of its CPU and network that it has now.
    machine_type : str
        The machine type with which it starts again; empty if it continues to run.
    """

    vm: str
    share: Share = WHOLE
    machine_type: str = ""

    def __str__(self) -> str:
        if self.machine_type:
            return f"{self.vm} leaves what it does, is stopped, made {self.machine_type} and started again."
        sentence = f"{self.vm} has {text.share_words(self.share)}."
        if self.vm.startswith(f"{PARAMETER_SERVER}-") and not self.share.whole:
            return f"{sentence} Every worker waits for {self.vm}, so shrinking a worker costs less time."
        return sentence

    def __repr__(self) -> str:
        return str(self)


def check(values: Mapping[str, Any]) -> None:
    """Raise DeclarationError if these options of a change contradict each other. Absent ones are
    not among them.
    """
    parts = {"cpu", "network", "machine_type"} & values.keys()
    ways = [name for name in ("reclaim", "restore") if name in values]
    if (
        len(ways) + bool(parts) != 1
        or (parts and "worker" not in values)
        or ("reclaim" in ways and "worker" in values)
    ):
        raise DeclarationError(
            "A change takes a VM with --cpu, --network or --machine-type; or --reclaim alone; or --restore",
            fix="For example: k80x4 worker-1 --cpu 50%, or k80x4 --reclaim 1.5cpu, or k80x4 --restore",
        )
    if "machine_type" in parts and len(parts) > 1:
        what = "--machine-type cannot be used with --cpu or --network"
        raise DeclarationError(what, fix="Shrink it further when it is ready.")
    if "policy" in values and "reclaim" not in values:
        raise DeclarationError(
            "--policy says how --reclaim is shared out", fix="Add --reclaim 1.5cpu."
        )


def deflate(cluster: BaseCluster, **values: Any) -> Iterator[Deflated]:
    """Make the change that these options of `Cluster.deflate` describe, and return what each VM
    has.

    Raises DeclarationError and ClusterError; with `restore`, once all VMs were tried.
    """
    check(values)
    if "restore" in values:
        return _restore(cluster, values.get("worker", ""))
    if "reclaim" in values:
        return iter(_reclaim(cluster, values["reclaim"], values.get("policy", "proportional")))
    worker = values["worker"]
    if machine_type := values.get("machine_type"):
        _restart(cluster, worker, machine_type)
        return iter([Deflated(worker, machine_type=machine_type)])
    vm = _running(cluster, worker)
    parts = {name: values[name] for name in ("cpu", "network") if name in values}
    return iter(_change(cluster, [vm], {vm.vm_id: 0.0}, parts))


def _reclaim(cluster: BaseCluster, cpus: float, policy: str) -> list[Deflated]:
    """Take this number of vCPUs from the cluster's workers, by a policy of the provider's."""
    workers = [vm for vm in _all_running(cluster) if vm.role == WORKER and vm.state != "leaving"]
    dearest = max((vm.hourly for vm in workers), default=0.0)
    priorities = {vm.vm_id: _DEAREST * (vm.hourly / dearest if dearest else 1.0) for vm in workers}
    return _change(cluster, workers, priorities, {"reclaim": cpus, "policy": policy})


def _restore(cluster: BaseCluster, worker: str) -> Iterator[Deflated]:
    """Restore one VM or all. One that is refused keeps no other from it; errors are raised at the
    end.
    """
    if worker:
        vms = [_running(cluster, worker)]
    else:
        vms = _all_running(cluster)
    smaller = [vm for vm in vms if vm.machine_type != vm.rented_as]
    if not smaller or cluster.state.spec is None or cluster.state.spec.emulated:
        names = {vm.name for vm in smaller}
        restored = _change(
            cluster, vms, {vm.vm_id: 0.0 for vm in vms}, {"cpu": 1.0, "network": 1.0}
        )
        yield from (change for change in restored if change.vm not in names)
    refused: list[TransientError] = []
    for vm in smaller:
        try:
            _restart(cluster, vm.name, "")
        except TransientError as error:
            refused.append(error)
        else:
            yield Deflated(vm.name, machine_type=vm.rented_as)
    if refused:
        raise combined(refused)


def _restart(cluster: BaseCluster, worker: str, machine_type: str) -> None:
    """Have a VM stopped, made this machine type (empty: what it was rented as), and started again."""
    commands.send(cluster.directory, ChangeMachine(vm=worker, machine_type=machine_type))


def _change(
    cluster: BaseCluster, vms: list[VmState], priorities: dict[str, float], wanted: dict[str, Any]
) -> list[Deflated]:
    url = emulator_of(cluster, _NO_DEFLATION, _INSTEAD)
    shares = ask(url, "POST", _PATH, {"vms": priorities, **wanted})["shares"]
    return [Deflated(vm.name, Share(*shares.get(vm.vm_id, (1.0, 1.0)))) for vm in vms]


def _all_running(cluster: BaseCluster) -> list[VmState]:
    """But for those that are stopped and started again, which have nothing meanwhile."""
    return [vm for vm in cluster.state.living if vm.vm_id and not vm.change]


def _running(cluster: BaseCluster, name: str) -> VmState:
    vm = cluster.state.vms.get(name)
    if vm is None or not vm.living or not vm.vm_id:
        running = [each.name for each in cluster.state.living if each.vm_id]
        raise unknown(
            "running VM", name, running, where=cluster.name, numbered=True, error=ClusterError
        )
    if vm.change:
        raise ClusterError(
            f"{name} is just becoming {vm.change.machine_type}", fix="Try again when it is ready."
        )
    return vm
