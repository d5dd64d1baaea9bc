"""Firewall rules that protect a cluster's VMs: TensorFlow's ports have no passwords.

On the default network every VM of the project can reach every other. So each cluster has a network
tag and three rules: members reach each other, SSH is allowed from the declared addresses, and
everything else is denied before the network's own rules apply (lower numbers apply first). The VM
of a controller is not a member. It has a tag of its own, and a fourth rule lets it reach the
members by SSH; they cannot reach it.

An existing rule of the same name may be an earlier one of this cluster, changed by hand, or not
ours. Rules have no labels: the description up to the first semicolon names the owner. The rest of
it decides nothing here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ..errors import AlreadyExistsError, GoneError
from .calling.calls import PLAIN, Calls

if TYPE_CHECKING:
    from google.cloud import compute_v1

_MEMBERS = 900
_DENY = 950
_log = logging.getLogger(__name__)


def rules(
    tag: str, network: str, ssh_from: Sequence[str], description: str, controller_tag: str = ""
) -> list[dict[str, Any]]:
    """Return the rules of the cluster with this tag.

    Parameters
    ----------
    tag
        The network tag of the cluster's VMs.
    network
        A name or a partial URL; '' for the default network.
    ssh_from
        Address ranges from which SSH is allowed.
    description
        The owner.
    controller_tag
        The tag of the controller's own VM; '' for none.
    """
    whole = network
    if "/" not in network:
        whole = f"global/networks/{network or 'default'}"
    common = {
        "network": whole,
        "direction": "INGRESS",
        "target_tags": [tag],
        "description": description,
    }
    everyone = {}
    if controller_tag:
        everyone = {"target_tags": [tag, controller_tag]}
    ssh = {"allowed": [{"I_p_protocol": "tcp", "ports": ["22"]}]}
    found: list[dict[str, Any]] = [
        common
        | {
            "name": f"{tag}-members",
            "priority": _MEMBERS,
            "source_tags": [tag],
            "allowed": [{"I_p_protocol": "all"}],
        },
        common
        | everyone
        | ssh
        | {"name": f"{tag}-ssh", "priority": _MEMBERS, "source_ranges": list(ssh_from)},
        common
        | everyone
        | {
            "name": f"{tag}-deny",
            "priority": _DENY,
            "source_ranges": ["0.0.0.0/0"],
            "denied": [{"I_p_protocol": "all"}],
        },
    ]
    if controller_tag:
        found.append(
            common
            | ssh
            | {"name": controller_tag, "priority": _MEMBERS, "source_tags": [controller_tag]}
        )
    return found


class Firewall:
    """The rules of one project."""

    def __init__(self, calls: Calls, project: str) -> None:
        self._calls = calls
        self._project = project

    async def ensure(self, rules: Sequence[dict[str, Any]]) -> None:
        """Create these rules, and repair our own rules that differ.

        Raises AlreadyExistsError for a rule of the same name that is not ours or cannot be
        repaired, and CloudError.
        """
        await _all([self._ensure(rule) for rule in rules])

    async def remove(self, rules: Sequence[dict[str, Any]]) -> None:
        """Delete these rules. A rule of the same name with another owner is not ours, and stays."""
        await _all([self._remove(rule["name"], rule["description"]) for rule in rules])

    async def find(self, chosen: Callable[[str], bool]) -> list[dict[str, Any]]:
        """Return name, description and creation time of all rules with a chosen description.

        `remove` accepts the result.
        """
        from google.cloud import compute_v1

        firewalls = self._calls.clients.firewalls
        message = compute_v1.ListFirewallsRequest(project=self._project, max_results=500)
        found = await self._calls.call(
            f"project {self._project}", lambda: list(firewalls.list(message, **PLAIN))
        )
        return [
            {
                "name": rule.name,
                "description": rule.description,
                "created": _moment(rule.creation_timestamp),
            }
            for rule in found
            if chosen(rule.description)
        ]

    async def _ensure(self, rule: dict[str, Any]) -> None:
        from google.cloud import compute_v1

        where = _place(rule["name"])
        firewalls = self._calls.clients.firewalls
        resource = compute_v1.Firewall(rule)

        async def insert() -> None:
            operation = await self._calls.call(
                where,
                lambda: firewalls.insert_unary(
                    project=self._project, firewall_resource=resource, **PLAIN
                ),
            )
            await self._finish(where, operation)

        try:
            await self._calls.settled(insert)
        except AlreadyExistsError:
            await self._mend(resource)

    async def _mend(self, required: compute_v1.Firewall) -> None:
        where = _place(required.name)
        firewalls = self._calls.clients.firewalls
        whole = {"project": self._project, "firewall": required.name, **PLAIN}
        found = await self._calls.call(where, lambda: firewalls.get(**whole))
        if not self._is_ours(found, required):
            what = (
                f"There is a firewall rule {required.name} of another owner, or on another network"
            )
            fix = f"Check it (`gcloud compute firewall-rules describe {required.name}`), and delete it if it is unused."
            raise AlreadyExistsError(what, where=f"project {self._project}", fix=fix)
        if _effect(found) == _effect(required):
            return
        _log.warning("%s was changed; restoring it", where)
        # Not patched: a patch keeps fields that it does not name, such as an added source.
        operation = await self._calls.call(
            where, lambda: firewalls.update_unary(firewall_resource=required, **whole)
        )
        await self._finish(where, operation)
        found = await self._calls.call(where, lambda: firewalls.get(**whole))
        if _effect(found) != _effect(required):
            what = f"The firewall rule {required.name} differs from what the cluster needs, and cannot be changed"
            raise AlreadyExistsError(what, where=f"project {self._project}", fix="Delete it.")

    def _is_ours(self, found: compute_v1.Firewall, required: compute_v1.Firewall) -> bool:
        """Return whether a rule is ours and correct in all that no update can change."""
        return (
            same_owner(found.description, required.description)
            and found.direction == required.direction
            and bool(found.denied) == bool(required.denied)
            and self._same_network(found.network, required.network)
        )

    def _same_network(self, found: str, required: str) -> bool:
        """Return whether two networks of rules in this project are the same.

        A rule's network is in its own project, whether its URL has the project's name or number. So
        only the project of `required` is in question. Its number can only come from the user.
        """
        place = required.split("/")
        project = self._project
        if "projects" in place:
            project = place[place.index("projects") + 1]
        same_project = project == self._project or project.isdigit()
        return same_project and found.rpartition("/")[2] == place[-1]

    async def _remove(self, name: str, description: str) -> None:
        where = _place(name)
        firewalls = self._calls.clients.firewalls
        whole = {"project": self._project, "firewall": name, **PLAIN}

        async def delete() -> None:
            await self._finish(
                where, await self._calls.call(where, lambda: firewalls.delete_unary(**whole))
            )

        try:
            found = await self._calls.call(where, lambda: firewalls.get(**whole))
            if not same_owner(found.description, description):
                _log.warning("%s is not deleted: it is not this cluster's", where)
                return
            await self._calls.settled(delete)
        except GoneError:
            return

    async def _finish(self, where: str, operation: compute_v1.Operation) -> None:
        done = await self._calls.finished(None, where, operation)
        if error := self._calls.failure(done, where):
            raise error


def same_owner(one: str, other: str) -> bool:
    """Return whether two descriptions name the same owner."""
    return one.partition(";")[0] == other.partition(";")[0]


def _moment(text: str) -> datetime | None:
    if text:
        return datetime.fromisoformat(text)
    return None


def _effect(rule: compute_v1.Firewall) -> tuple[Any, ...]:
    """Return all that determines which connections the rule affects, in a comparable form."""
    traffic = {
        (protocol.I_p_protocol.lower(), tuple(sorted(protocol.ports)))
        for protocol in (*rule.allowed, *rule.denied)
    }
    sources = (rule.source_ranges, rule.source_tags, rule.source_service_accounts)
    targets = (rule.target_tags, rule.target_service_accounts, rule.destination_ranges)
    return (
        rule.priority,
        rule.disabled,
        traffic,
        *(frozenset(values) for values in (*sources, *targets)),
    )


def _place(name: str) -> str:
    return f"firewall rule {name}"


async def _all(work: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run all simultaneously, then raise the first error in their order.

    So the same trouble always has the same message.
    """
    for error in await asyncio.gather(*work, return_exceptions=True):
        if error is not None:
            raise error
