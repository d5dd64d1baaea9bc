"""VMs that bags release: which ones are deleted, and which of their slots stay vacant. Pure.

A driver releases a VM that is not worth another job. Its report comes from a VM and is not trusted:
`fold` limits the number of such reports, and they count for workers of the bag alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ...journal import ClusterState
from ...spec import WORKER
from .state import DeclaredBag


def released_vms(state: ClusterState) -> Mapping[str, str]:
    """Return ready VMs that bags have released, each with the reason, a clause."""
    return {
        name: f"{bag.name} gave it up"
        for bag in state.active(DeclaredBag)
        for name in bag.state.given_up
        if (vm := state.vms.get(name))
        and vm.role == WORKER
        and vm.state == "ready"
        and vm.slot in _places(bag, state)
    }


def vacant_slots(state: ClusterState) -> Collection[int]:
    """Return workers' slots that stay vacant after their VMs were released.

    As many are filled as jobs wait for a VM; all are filled once the cluster has other work.
    """
    found = set[int]()
    for bag in state.of(DeclaredBag).values():
        if bag.over and not state.idle_since:
            continue
        last = {vm.slot: vm for vm in state.vms.values() if vm.role == WORKER}
        vacant = sorted(
            slot for slot, vm in last.items() if not vm.living and vm.name in bag.state.given_up
        )
        coming = sum(
            last[slot].state not in ("ready", "leaving")
            for slot in _places(bag, state)
            if slot in last and last[slot].living
        )
        if bag.over:
            needed = 0
        else:
            needed = max(len(bag.state.waiting) - coming, 0)
        found.update(vacant[needed:])
    return found


def _places(bag: DeclaredBag, state: ClusterState) -> Collection[int]:
    return {slot for slot, name in state.leases.items() if name in bag.dasks}
