"""The rules that close a cluster's VMs to everyone but each other: TensorFlow's ports know no
password.

The default network lets every VM of the project reach every other. So each cluster has a network
tag and three rules on it: members reach each other, SSH comes in from where it may, and everything
else is denied before the network's own rules are asked (a lower number is asked first). The VM that
a controller has for itself is no member: it has a tag of its own, and a fourth rule lets it reach
the members by SSH; they do not reach it.

A rule that is there already is looked at: it may be an earlier one of this cluster's, changed by
hand since, or not ours at all. Rules have no labels: whose one is says its description up to the
first semicolon, and what is behind it decides nothing here.
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
    """The rules of the cluster with this tag. `network`: a name or a partial URL; `ssh_from`:
    address ranges; `controller_tag`: of the VM that its controller has for itself, if there is one.
    """
    if "/" in network:
        whole = network
    else:
        whole = f"global/networks/{network or 'default'}"
    common = {
        "network": whole,
        "direction": "INGRESS",
        "target_tags": [tag],
        "description": description,
    }
    if controller_tag:
        everyone = {"target_tags": [tag, controller_tag]}
    else:
        everyone = {}
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

    async def ensure(self, wanted: Sequence[dict[str, Any]]) -> None:
        """See that these rules are there and say what they should; our own that say otherwise are
        mended.

        Raises AlreadyExistsError where one of the name is not ours or cannot be mended, and
        CloudError.
        """
        await _all([self._ensure(rule) for rule in wanted])

    async def remove(self, wanted: Sequence[dict[str, Any]]) -> None:
        """See that none of these rules is there; one of the name with another description is not
        ours, and stays.
        """
        await _all([self._remove(rule["name"], rule["description"]) for rule in wanted])

    async def find(self, chosen: Callable[[str], bool]) -> list[dict[str, Any]]:
        """Name, description and time of creation of all rules whose description is chosen, as
        `remove` takes them.
        """
        from google.cloud import compute_v1

        firewalls = self._calls.clients.firewalls
        message = compute_v1.ListFirewallsRequest(project=self._project, max_results=500)
        found = await self._calls.call(
            f"project {self._project}", lambda: list(firewalls.list(message, **PLAIN))
        )
        return [
            {
                "name": each.name,
                "description": each.description,
                "created": _moment(each.creation_timestamp),
            }
            for each in found
            if chosen(each.description)
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

    async def _mend(self, wanted: compute_v1.Firewall) -> None:
        where = _place(wanted.name)
        firewalls = self._calls.clients.firewalls
        whole = {"project": self._project, "firewall": wanted.name, **PLAIN}
        found = await self._calls.call(where, lambda: firewalls.get(**whole))
        if not self._is_ours(found, wanted):
            what = f"There is a firewall rule {wanted.name} that is not this cluster's, or is on another network"
            fix = f"Look at it (`gcloud compute firewall-rules describe {wanted.name}`), and delete it if it may go."
            raise AlreadyExistsError(what, where=f"project {self._project}", fix=fix)
        if _said(found) == _said(wanted):
            return
        _log.warning("%s was changed, and is made anew as it was", where)
        # Not patched: a patch leaves what it does not name, as a source that was added.
        operation = await self._calls.call(
            where, lambda: firewalls.update_unary(firewall_resource=wanted, **whole)
        )
        await self._finish(where, operation)
        found = await self._calls.call(where, lambda: firewalls.get(**whole))
        if _said(found) != _said(wanted):
            what = f"The firewall rule {wanted.name} does not say what it should, and cannot be changed"
            raise AlreadyExistsError(what, where=f"project {self._project}", fix="Delete it.")

    def _is_ours(self, found: compute_v1.Firewall, wanted: compute_v1.Firewall) -> bool:
        """What no update can change has to be as it should be."""
        return (
            same_owner(found.description, wanted.description)
            and found.direction == wanted.direction
            and bool(found.denied) == bool(wanted.denied)
            and self._same_network(found.network, wanted.network)
        )

    def _same_network(self, found: str, wanted: str) -> bool:
        """Whether a rule of this project that is on `found` is on `wanted`.

        A rule's network is in its own project, whether its URL says the project's name or its
        number; so the question is which one is wanted. A number there is the user's own word.
        """
        place = wanted.split("/")
        if "projects" in place:
            project = place[place.index("projects") + 1]
        else:
            project = self._project
        return (project == self._project or project.isdigit()) and found.rpartition("/")[
            2
        ] == place[-1]

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
    """Whether two descriptions are of rules of the same cluster."""
    return one.partition(";")[0] == other.partition(";")[0]


def _moment(text: str) -> datetime | None:
    if text:
        return datetime.fromisoformat(text)
    return None


def _said(rule: compute_v1.Firewall) -> tuple[Any, ...]:
    """All that decides which connections the rule is about, in a form that can be compared."""
    traffic = {
        (each.I_p_protocol.lower(), tuple(sorted(each.ports)))
        for each in (*rule.allowed, *rule.denied)
    }
    sources = (rule.source_ranges, rule.source_tags, rule.source_service_accounts)
    targets = (rule.target_tags, rule.target_service_accounts, rule.destination_ranges)
    return (
        rule.priority,
        rule.disabled,
        traffic,
        *(frozenset(each) for each in (*sources, *targets)),
    )


def _place(name: str) -> str:
    return f"firewall rule {name}"


async def _all(work: Sequence[Coroutine[Any, Any, None]]) -> None:
    """All at once; of their errors the first in order is raised, so that the same trouble is told
    in the same words.
    """
    for error in await asyncio.gather(*work, return_exceptions=True):
        if error is not None:
            raise error
