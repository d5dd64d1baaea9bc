"""VMs that a bag gives up as worth no job any more: which are to go, and which of their places stay
empty. Pure.

What a driver says is a VM's word: the fold of its events bounds how often it is said
(`fold`), and here it counts for workers alone that are the bag's own.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ...journal import ClusterState
from ...spec import WORKER
from .state import DeclaredBag


def released_vms(state: ClusterState) -> Mapping[str, str]:
    """VMs that are there and are to go, each with the reason, a clause."""
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
    """Workers' places whose last VM was given up and that need none now: but for as many as jobs
    wait for one, or all, once something else is to be done on the cluster.
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
