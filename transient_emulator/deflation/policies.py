"""Policies that divide reclaimed CPU among VMs. Pure.

They are the server-level policies of the papers on deflation (EuroSys'19, HPDC'20). R vCPUs are
reclaimed from VMs of size M_i, each of which keeps at least m_i.

- `proportional`: x_i = R (M_i - m_i) / sum_j (M_j - m_j)
- `priority`: the same with m_i = max(m_i, pi_i M_i), where pi_i is the VM's priority from 0 (low)
  to 1
- `deterministic`: VMs give in ascending order of priority, each as much as `priority` allows, until
  R is reached; the last VM gives the remainder
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from transient_magics.errors import DeclarationError


@dataclass(frozen=True)
class Deflatable:
    """A VM that can shrink.

    Attributes
    ----------
    name
        The VM's name.
    size
        Its vCPUs.
    least
        vCPUs that it keeps in any case.
    priority
        From 0 to 1. VMs of higher priority keep more.
    """

    name: str
    size: float
    least: float = 0.0
    priority: float = 0.0

    @property
    def kept(self) -> float:
        """The vCPUs that it keeps under policies that respect priorities."""
        return max(self.least, self.priority * self.size)


def proportional(vcpus: float, vms: Sequence[Deflatable]) -> dict[str, float]:
    """Divide `vcpus` in proportion to what each VM can give.

    Returns
    -------
    dict
        The vCPUs that each VM gives, by name.
    """
    return _in_proportion(vcpus, {vm.name: vm.size - vm.least for vm in vms})


def by_priority(vcpus: float, vms: Sequence[Deflatable]) -> dict[str, float]:
    """Divide `vcpus` in proportion to what each VM can give by its priority.

    Returns
    -------
    dict
        The vCPUs that each VM gives, by name.
    """
    return _in_proportion(vcpus, {vm.name: vm.size - vm.kept for vm in vms})


def deterministic(vcpus: float, vms: Sequence[Deflatable]) -> dict[str, float]:
    """Reclaim `vcpus` from VMs of low priority first, as much as each can give.

    Returns
    -------
    dict
        The vCPUs that each VM gives, by name.
    """
    given = {vm.name: 0.0 for vm in vms}
    for vm in sorted(vms, key=lambda vm: vm.priority):
        given[vm.name] = min(vm.size - vm.kept, vcpus - sum(given.values()))
    return given


POLICIES: Mapping[str, Callable[[float, Sequence[Deflatable]], dict[str, float]]] = {
    "proportional": proportional,
    "priority": by_priority,
    "deterministic": deterministic,
}
"""The policies by name."""


def reclaim(vcpus: float, vms: Sequence[Deflatable], policy: str) -> dict[str, float]:
    """Divide reclaimed vCPUs by a policy.

    Parameters
    ----------
    vcpus
        vCPUs to reclaim in total.
    vms
        The VMs that may give some.
    policy
        A key of `POLICIES`.

    Returns
    -------
    dict
        The vCPUs that each VM gives, by name.

    Raises
    ------
    DeclarationError
        If the VMs together cannot give as much.
    """
    if policy == "proportional":
        most = sum(vm.size - vm.least for vm in vms)
    else:
        most = sum(vm.size - vm.kept for vm in vms)
    # The tolerance covers the rounding of the sum.
    if vcpus > most + 1e-9:
        raise DeclarationError(
            f"{vcpus:g} vCPUs cannot be reclaimed by {policy}: "
            f"{len(vms)} VMs can give {max(most, 0.0):.3g} at most",
            fix="Reclaim less, or revoke a VM.",
        )
    return POLICIES[policy](vcpus, vms)


def _in_proportion(vcpus: float, available: Mapping[str, float]) -> dict[str, float]:
    total = sum(available.values())
    if total <= 0:
        return dict.fromkeys(available, 0.0)
    return {name: min(vcpus * amount / total, amount) for name, amount in available.items()}
