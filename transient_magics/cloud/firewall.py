"""The rules that close a cluster's VMs to everyone but each other: TensorFlow's ports know no password.

The default network lets every VM of the project reach every other. So each cluster has a network tag and three rules
on it: members reach each other, SSH comes in from where it may, and everything else is denied before the network's own
rules are asked (a lower number is asked first).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from ..errors import AlreadyExistsError, GoneError
from .calls import PLAIN, Calls

IAP_RANGE = "35.235.240.0/20"
"""Where Identity-Aware Proxy's connections come from."""
_MEMBERS, _DENY = 900, 950


def rules(tag: str, network: str, ssh_from: Sequence[str], description: str) -> list[dict[str, Any]]:
    """The three rules of the cluster with this tag. `network`: a name or a partial URL; `ssh_from`: address ranges."""
    whole = network if "/" in network else f"global/networks/{network or 'default'}"
    common = {"network": whole, "direction": "INGRESS", "target_tags": [tag], "description": description}
    return [
        common
        | {"name": f"{tag}-members", "priority": _MEMBERS, "source_tags": [tag], "allowed": [{"I_p_protocol": "all"}]},
        common
        | {
            "name": f"{tag}-ssh",
            "priority": _MEMBERS,
            "source_ranges": list(ssh_from),
            "allowed": [{"I_p_protocol": "tcp", "ports": ["22"]}],
        },
        common
        | {
            "name": f"{tag}-deny",
            "priority": _DENY,
            "source_ranges": ["0.0.0.0/0"],
            "denied": [{"I_p_protocol": "all"}],
        },
    ]


class Firewall:
    """The rules of one project."""

    def __init__(self, calls: Calls, project: str) -> None:
        self._calls, self._project = calls, project

    async def ensure(self, wanted: Sequence[dict[str, Any]]) -> None:
        """See that these rules are there; one of the same name is taken for the same rule. Raises CloudError."""
        await _all([self._insert(rule) for rule in wanted])

    async def remove(self, names: Sequence[str]) -> None:
        """See that no rule of these names is there."""
        await _all([self._delete(name) for name in names])

    async def find(self, description: str) -> list[str]:
        """The names of all rules with this description."""
        from google.cloud import compute_v1

        firewalls = self._calls.clients.firewalls
        message = compute_v1.ListFirewallsRequest(project=self._project, max_results=500)
        found = await self._calls.call(f"project {self._project}", lambda: list(firewalls.list(message, **PLAIN)))
        return [rule.name for rule in found if rule.description == description]

    async def _insert(self, rule: dict[str, Any]) -> None:
        from google.cloud import compute_v1

        where, firewalls = f"firewall rule {rule['name']}", self._calls.clients.firewalls
        resource = compute_v1.Firewall(rule)
        try:
            operation = await self._calls.call(
                where, lambda: firewalls.insert_unary(project=self._project, firewall_resource=resource, **PLAIN)
            )
        except AlreadyExistsError:
            return
        await self._finish(where, operation)

    async def _delete(self, name: str) -> None:
        where, firewalls = f"firewall rule {name}", self._calls.clients.firewalls
        try:
            operation = await self._calls.call(
                where, lambda: firewalls.delete_unary(project=self._project, firewall=name, **PLAIN)
            )
            await self._finish(where, operation)
        except GoneError:
            return

    async def _finish(self, where: str, operation: Any) -> None:
        done = await self._calls.finished(None, where, operation)
        if error := self._calls.failure(done, where):
            raise error


async def _all(work: Sequence[Coroutine[Any, Any, None]]) -> None:
    """All at once; the first of their errors ends the others."""
    try:
        async with asyncio.TaskGroup() as tasks:
            for each in work:
                tasks.create_task(each)
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
