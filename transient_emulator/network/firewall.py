"""What firewall rules mean for the connections between emulated VMs, and seeing to it.

As on Compute Engine: of the rules of a VM's network that are about it, the one with the lowest number counts, a denying
one before an allowing one of the same number; what no rule allows is denied. Connections over TCP are judged, coming
in; EGRESS rules and other protocols are not. What comes from outside of the VMs' network (SSH through the relay) is not
judged either: nothing but this user's own programs can come from there.
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
_TCP = ("tcp", "6", "all")


class Firewall:
    """Keeps the packet filter as rules and VMs say. `stir` makes it look again."""

    def __init__(
        self, vms: Callable[[], Iterable[Record]], rules: Callable[[str], Iterable[dict[str, Any]]], own_network: bool
    ) -> None:
        """`rules` are those of a project; without `own_network` there is nothing to be kept."""
        self._vms, self._rules, self._own_network = vms, rules, own_network
        self._stirred = asyncio.Event()
        self._stirred.set()

    def stir(self) -> None:
        """A VM or a rule has come, gone or changed."""
        self._stirred.set()

    async def run(self) -> None:
        """Until cancelled, or until it is known that this machine's kernel has no such packet filter."""
        enforced: list[Rule] | None = None
        while self._own_network:
            await self._stirred.wait()
            self._stirred.clear()
            vms = list(self._vms())
            projects = dict.fromkeys(each.project for each in vms)
            wanted = [rule for project in projects for rule in meaning(vms, project, self._rules(project))]
            if wanted == enforced:
                continue
            try:
                await asyncio.to_thread(packet_filter.enforce, wanted)
            except OSError as error:
                _LOG.warning("firewall rules have no effect between VMs: %s", error)
                return
            enforced = wanted


def meaning(vms: Iterable[Record], project: str, rules: Iterable[dict[str, Any]]) -> list[Rule]:
    """The rules of a project as they are for its VMs now, in the order in which they count."""
    own = [vm for vm in vms if vm.project == project]
    found: list[Rule] = []
    for rule in sorted(rules, key=lambda rule: (rule["priority"], "denied" not in rule)):
        if rule["disabled"] or rule["direction"] != "INGRESS":
            continue
        here = [vm for vm in own if _network(vm) == rule["network"]]
        targets = frozenset(vm.address for vm in here if _is_target(vm, rule))
        ranges = (each for each in rule.get("sourceRanges", ()) if ":" not in each)  # VMs have no IPv6 here
        sources = {*ranges, *(vm.address for vm in here if _is_source(vm, rule))}
        for traffic in rule.get("denied") or rule.get("allowed") or ():
            if traffic["IPProtocol"].lower() in _TCP:
                ports = tuple(_span(each) for each in traffic.get("ports", ()))
                found.append(Rule("allowed" in rule, targets, frozenset(sources), ports))
    return found


def _network(vm: Record) -> str:
    return vm.resource["networkInterfaces"][0]["network"]


def _is_target(vm: Record, rule: dict[str, Any]) -> bool:
    tags, accounts = rule.get("targetTags"), rule.get("targetServiceAccounts")
    return not (tags or accounts) or _has(vm, tags, accounts)


def _is_source(vm: Record, rule: dict[str, Any]) -> bool:
    return _has(vm, rule.get("sourceTags"), rule.get("sourceServiceAccounts"))


def _has(vm: Record, tags: list[str] | None, accounts: list[str] | None) -> bool:
    own = {each["email"] for each in vm.resource["serviceAccounts"]}
    return not own.isdisjoint(accounts or ()) or not set(vm.resource["tags"].get("items", ())).isdisjoint(tags or ())


def _span(ports: str) -> tuple[int, int]:
    first, _, last = ports.partition("-")
    return int(first), int(last or first)
