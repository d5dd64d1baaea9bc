"""Which VMs give how much where a provider wants some of its CPU back. Pure.

The policies of a server in the papers on deflation (EuroSys'19, HPDC'20): R vCPUs are to come from VMs of size M_i,
each of which keeps m_i at least.

- `proportional`: x_i = R (M_i - m_i) / sum_j (M_j - m_j)
- `priority`: the same with m_i = max(m_i, pi_i M_i), pi_i the VM's priority from 0 (low) to 1
- `deterministic`: in ascending order of priority, VM after VM gives what `priority` would let it give at most, until R
  is met; the last of them gives what is still missing
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from transient_magics.errors import DeclarationError


@dataclass(frozen=True)
class Deflatable:
    """A VM of `size` vCPUs that keeps `least` of them in any case; the higher its `priority` (0 to 1), the more."""

    name: str
    size: float
    least: float = 0.0
    priority: float = 0.0

    @property
    def kept(self) -> float:
        """What it keeps at least by its priority."""
        return max(self.least, self.priority * self.size)


def proportional(wanted: float, vms: Sequence[Deflatable]) -> dict[str, float]:
    """What each VM gives, in vCPUs."""
    return _in_proportion(wanted, {vm.name: vm.size - vm.least for vm in vms})


def by_priority(wanted: float, vms: Sequence[Deflatable]) -> dict[str, float]:
    """The same with what each keeps by its priority."""
    return _in_proportion(wanted, {vm.name: vm.size - vm.kept for vm in vms})


def deterministic(wanted: float, vms: Sequence[Deflatable]) -> dict[str, float]:
    """VM after VM gives all that it can, those of low priority first."""
    given = {vm.name: 0.0 for vm in vms}
    for vm in sorted(vms, key=lambda vm: vm.priority):
        given[vm.name] = min(vm.size - vm.kept, wanted - sum(given.values()))
    return given


POLICIES: Mapping[str, Callable[[float, Sequence[Deflatable]], dict[str, float]]] = {
    "proportional": proportional,
    "priority": by_priority,
    "deterministic": deterministic,
}


def reclaim(wanted: float, vms: Sequence[Deflatable], policy: str) -> dict[str, float]:
    """What each VM gives by a policy, in vCPUs. DeclarationError where all of them together have not as much."""
    most = sum(vm.size - (vm.least if policy == "proportional" else vm.kept) for vm in vms)
    if wanted > most + 1e-9:
        what = f"{wanted:g} vCPUs cannot be reclaimed by {policy}: {len(vms)} VMs can give {max(most, 0.0):.3g} at most"
        raise DeclarationError(what, fix="Reclaim less, or revoke a VM.")
    return POLICIES[policy](wanted, vms)


def _in_proportion(wanted: float, room: Mapping[str, float]) -> dict[str, float]:
    whole = sum(room.values())
    return {name: min(wanted * each / whole, each) if whole > 0 else 0.0 for name, each in room.items()}
