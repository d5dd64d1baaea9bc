"""Shrinking of VMs, and restoring them: `%transient_deflate`.

The emulator behaves like a provider that shrinks VMs under pressure instead of revoking them.
Compute Engine does not shrink running VMs, so a cluster in a project is refused. There and on the
emulator, the cluster's controller can stop a VM, change its machine type and start it again.
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
_NO_DEFLATION = (
    "Compute Engine does not shrink running VMs, and changes the machine type of stopped VMs only"
)
_INSTEAD = (
    "its emulator shrinks VMs. Or stop a worker, change it and start it again: "
    "--machine-type n1-standard-2"
)
_DEAREST = 0.5
"""The share of its CPU that the most expensive worker keeps; others keep less, by their price."""


@dataclass(frozen=True, repr=False)
class Deflated:
    """The size of a VM after a change.

    Attributes
    ----------
    vm : str
        The name of the VM.
    share : Share
        The shares of its CPU and network that it has.
    machine_type : str
        The machine type with which it restarts; empty if it continues to run.
    """

    vm: str
    share: Share = WHOLE
    machine_type: str = ""

    def __str__(self) -> str:
        if self.machine_type:
            return f"{self.vm} is being restarted as {self.machine_type}."
        sentence = f"{self.vm} has {text.share_words(self.share)}."
        if self.vm.startswith(f"{PARAMETER_SERVER}-") and not self.share.whole:
            return (
                f"{sentence} All workers wait for {self.vm}, so shrinking a worker costs less time."
            )
        return sentence

    def __repr__(self) -> str:
        return str(self)


def check(values: Mapping[str, Any]) -> None:
    """Check that the options of a change do not contradict each other.

    Parameters
    ----------
    values
        The given options, without those that are absent.

    Raises
    ------
    DeclarationError
        They do.
    """
    parts = {"cpu", "network", "machine_type"} & values.keys()
    ways = [name for name in ("reclaim", "restore") if name in values]
    if (
        len(ways) + bool(parts) != 1
        or (parts and "worker" not in values)
        or ("reclaim" in ways and "worker" in values)
    ):
        raise DeclarationError(
            "A change needs a VM with --cpu, --network or --machine-type, or else --reclaim or "
            "--restore",
            fix="For example: k80x4 worker-1 --cpu 50%, or k80x4 --reclaim 1.5cpu, or k80x4 "
            "--restore",
        )
    if "machine_type" in parts and len(parts) > 1:
        what = "--machine-type cannot be used with --cpu or --network"
        raise DeclarationError(what, fix="Shrink the VM further when it is ready.")
    if "policy" in values and "reclaim" not in values:
        raise DeclarationError("--policy needs --reclaim", fix="Add --reclaim 1.5cpu.")


def deflate(cluster: BaseCluster, **values: Any) -> Iterator[Deflated]:
    """Shrink or restore VMs by the options of `Cluster.deflate`.

    Raises
    ------
    DeclarationError or ClusterError
        The change is not possible. With `restore`, all other VMs are restored first.
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
    """Take this number of vCPUs from the cluster's workers, by a policy."""
    workers = [vm for vm in _all_running(cluster) if vm.role == WORKER and vm.state != "leaving"]
    dearest = max((vm.hourly for vm in workers), default=0.0)
    priorities = {vm.vm_id: _DEAREST * (vm.hourly / dearest if dearest else 1.0) for vm in workers}
    return _change(cluster, workers, priorities, {"reclaim": cpus, "policy": policy})


def _restore(cluster: BaseCluster, worker: str) -> Iterator[Deflated]:
    """Restore one VM or all. Errors are raised after all VMs were tried."""
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
    """Restart a VM with this machine type (empty: the rented one)."""
    commands.send(cluster.directory, ChangeMachine(vm=worker, machine_type=machine_type))


def _change(
    cluster: BaseCluster, vms: list[VmState], priorities: dict[str, float], change: dict[str, Any]
) -> list[Deflated]:
    url = emulator_of(cluster, _NO_DEFLATION, _INSTEAD)
    shares = ask(url, "POST", _PATH, {"vms": priorities, **change})["shares"]
    return [Deflated(vm.name, Share(*shares.get(vm.vm_id, (1.0, 1.0)))) for vm in vms]


def _all_running(cluster: BaseCluster) -> list[VmState]:
    """Return the running VMs, without those that are being restarted."""
    return [vm for vm in cluster.state.living if vm.vm_id and not vm.change]


def _running(cluster: BaseCluster, name: str) -> VmState:
    vm = cluster.state.vms.get(name)
    if vm is None or not vm.living or not vm.vm_id:
        running = [other.name for other in cluster.state.living if other.vm_id]
        raise unknown(
            "running VM", name, running, where=cluster.name, numbered=True, error=ClusterError
        )
    if vm.change:
        raise ClusterError(
            f"{name} is being restarted as {vm.change.machine_type}",
            fix="Try again when it is ready.",
        )
    return vm
