"""Firewall rules of the API, translated for the packet filter between VMs and enforced there.

As on Compute Engine, the rule with the lowest priority number decides among the rules of a VM's
network that apply to it. A denying rule precedes an allowing one of the same number. Connections
that no rule allows are denied. Only incoming TCP connections are filtered; EGRESS rules and other
protocols have no effect. Connections from outside of the VMs' network (SSH through the relay) are
not filtered either: only this user's own programs can open them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any

from ..instances import Record
from . import packet_filter
from .packet_filter import Rule

_LOG = logging.getLogger(__name__)
# Rules name a protocol by its name, by its number, or all protocols together.
_TCP = ("tcp", "6", "all")


class Firewall:
    """The packet filter, kept up to date with rules and VMs.

    Parameters
    ----------
    vms
        Returns all VMs.
    rules
        Returns the firewall rules of a project.
    own_network
        Whether VMs have a network of their own. Without one there is nothing to filter.
    """

    def __init__(
        self,
        vms: Callable[[], Iterable[Record]],
        rules: Callable[[str], Iterable[dict[str, Any]]],
        own_network: bool,
    ) -> None:
        self._vms = vms
        self._rules = rules
        self._own_network = own_network
        self._changed = asyncio.Event()
        # The first pass runs without a change: VMs may have outlived an earlier emulator.
        self._changed.set()

    def wake(self) -> None:
        """Start a pass: a VM or a rule was added, removed or changed."""
        self._changed.set()

    async def run(self) -> None:
        """Enforce the rules until cancelled.

        Ends early if the kernel turns out to have no packet filter for bridges.
        """
        enforced: list[Rule] | None = None
        while self._own_network:
            await self._changed.wait()
            self._changed.clear()
            vms = list(self._vms())
            projects = dict.fromkeys(vm.project for vm in vms)
            rules: list[Rule] = []
            for project in projects:
                rules += translate(vms, project, self._rules(project))
            if rules == enforced:
                continue
            try:
                await asyncio.to_thread(packet_filter.enforce, rules)
            except OSError as error:
                _LOG.warning("firewall rules have no effect between VMs: %s", error)
                return
            enforced = rules


def translate(vms: Iterable[Record], project: str, rules: Iterable[dict[str, Any]]) -> list[Rule]:
    """Translate the rules of a project for the VMs that it has now.

    Parameters
    ----------
    vms
        All VMs of the emulator.
    project
        The project whose VMs and rules count.
    rules
        Firewall resources of the API.

    Returns
    -------
    list
        Rules for the packet filter, the deciding one first.
    """
    project_vms = [vm for vm in vms if vm.project == project]
    translated: list[Rule] = []
    for rule in sorted(rules, key=lambda rule: (rule["priority"], "denied" not in rule)):
        if rule["disabled"] or rule["direction"] != "INGRESS":
            continue
        network_vms = [vm for vm in project_vms if _network(vm) == rule["network"]]
        targets = frozenset(vm.address for vm in network_vms if _is_target(vm, rule))
        # Emulated VMs have no IPv6 addresses.
        sources = {block for block in rule.get("sourceRanges", ()) if ":" not in block}
        sources.update(vm.address for vm in network_vms if _is_source(vm, rule))
        for traffic in rule.get("denied") or rule.get("allowed") or ():
            if traffic["IPProtocol"].lower() in _TCP:
                ports = tuple(_port_range(text) for text in traffic.get("ports", ()))
                translated.append(Rule("allowed" in rule, targets, frozenset(sources), ports))
    return translated


def _network(vm: Record) -> str:
    return vm.resource["networkInterfaces"][0]["network"]


def _is_target(vm: Record, rule: dict[str, Any]) -> bool:
    tags = rule.get("targetTags")
    accounts = rule.get("targetServiceAccounts")
    if not tags and not accounts:
        # A rule without targets applies to all VMs of its network.
        return True
    return _has_any(vm, tags, accounts)


def _is_source(vm: Record, rule: dict[str, Any]) -> bool:
    return _has_any(vm, rule.get("sourceTags"), rule.get("sourceServiceAccounts"))


def _has_any(vm: Record, tags: list[str] | None, accounts: list[str] | None) -> bool:
    """Return whether the VM has one of the tags or of the service accounts."""
    vm_accounts = {account["email"] for account in vm.resource["serviceAccounts"]}
    vm_tags = set(vm.resource["tags"].get("items", ()))
    return not vm_accounts.isdisjoint(accounts or ()) or not vm_tags.isdisjoint(tags or ())


def _port_range(ports: str) -> tuple[int, int]:
    first, _, last = ports.partition("-")
    return int(first), int(last or first)
