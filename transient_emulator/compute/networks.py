"""Networks, their subnetworks, their firewall rules and their Cloud Routers.

Every project starts with the network `default` and its four rules. All emulated VMs share one link
with the addresses 10.128.0.0/20, whatever network and region they are declared in, so all automatic
subnetworks have that range.

Firewall rules are stored, checked and shown here; `network.firewall` enforces them between VMs.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ..project import state as project_state
from ..project.state import Project
from ..rest import tables, wire
from ..rest.operations import Operations
from .resources import Resource, Resources

_RANGE = "10.128.0.0/20"
_GATEWAY = "10.128.0.1"
# The range that Compute Engine reserves for the automatic subnetworks of all regions.
_INTERNAL = "10.128.0.0/9"
_ANYWHERE = "0.0.0.0/0"
_DEFAULT = "global/networks/default"
_PORTS = re.compile(r"\d{1,5}(-\d{1,5})?")
_LAST_PORT = 65535
# When the routers were created, as they show it.
_WRITTEN = "2026-01-15T00:00:00.000-08:00"


class Networks(Resources):
    """`global/networks`."""

    kind = "compute#network"
    collection = "networks"
    noun = "network"
    mutable = frozenset({"routingConfig", "networkFirewallPolicyEnforcementOrder"})

    def __init__(self, state: Path, operations: Operations, project: Project) -> None:
        super().__init__(state, operations)
        self._project = project
        self.subnetworks = Subnetworks(state, operations, self)
        self.firewalls = Firewalls(state, operations, self)
        self.instances: Callable[[str], Iterable[Resource]] = lambda project: ()
        """Returns the VMs of a project."""

    @property
    def google_access(self) -> bool:
        """Whether automatic subnetworks have Private Google Access."""
        return not self._project.lacks(project_state.GOOGLE_ACCESS)

    def initial(self, project: str) -> Iterable[tuple[str, dict[str, Any]]]:
        """Return the network `default`."""
        default = {
            "name": "default",
            "description": "Default network for the project",
            "autoCreateSubnetworks": True,
        }
        return [("global", default)]

    def new(self, project: str, scope: str, body: dict[str, Any]) -> Resource:
        """Return the fields of a new network."""
        routing = (body.get("routingConfig") or {}).get("routingMode") or "REGIONAL"
        if routing not in ("REGIONAL", "GLOBAL"):
            field = "resource.routingConfig.routingMode"
            raise wire.invalid(field, routing, "Must be REGIONAL or GLOBAL.")
        order = body.get("networkFirewallPolicyEnforcementOrder") or "AFTER_CLASSIC_FIREWALL"
        return {
            "autoCreateSubnetworks": bool(body.get("autoCreateSubnetworks", False)),
            "mtu": int(body.get("mtu") or 1460),
            "routingConfig": {"routingMode": routing},
            "networkFirewallPolicyEnforcementOrder": order,
        }

    def public(self, project: str, resource: Resource) -> Resource:
        """Return the network as clients see it, with its subnetworks."""
        shown = super().public(project, resource)
        shown["selfLinkWithId"] = wire.link(project, "global", "networks", resource["id"])
        subnetworks = [
            subnetwork["selfLink"]
            for region in tables.REGIONS
            for subnetwork in self.subnetworks.within(project, f"regions/{region}")
            if subnetwork["network"] == resource["selfLink"]
        ]
        if subnetworks:
            shown["subnetworks"] = subnetworks
        return shown

    def users(self, project: str, resource: Resource) -> list[str]:
        """Return the URLs of the rules, subnetworks and VMs that use the network."""
        link = resource["selfLink"]
        # Automatic subnetworks are not stored, and do not keep a network from being deleted.
        dependants = [rule for _, rule in self.firewalls.everywhere(project)]
        dependants += [subnetwork for _, subnetwork in self.subnetworks.everywhere(project)]
        users = [user["selfLink"] for user in dependants if user["network"] == link]
        for vm in self.instances(project):
            if any(interface["network"] == link for interface in vm["networkInterfaces"]):
                users.append(vm["selfLink"])
        return users

    def check_interfaces(
        self, project: str, zone: str, interfaces: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Resolve the networks of a new VM.

        Parameters
        ----------
        project, zone
            Where the VM will be.
        interfaces
            The interfaces in the request.

        Returns
        -------
        list
            The interfaces with the URLs of their networks and subnetworks.

        Raises
        ------
        ApiError
            400 if a network or subnetwork does not exist, or a subnetwork is missing.
        """
        region = f"regions/{zone.rpartition('-')[0]}"
        checked: list[dict[str, Any]] = []
        for index, interface in enumerate(interfaces):
            field = f"resource.networkInterfaces[{index}]"
            url = interface.get("subnetwork")
            if url:
                subnetwork = self.subnetworks.resolve(url, f"{field}.subnetwork", project, region)
                network_link = subnetwork["network"]
            else:
                named = interface.get("network") or _DEFAULT
                network = self.resolve(named, f"{field}.network", project, "global")
                if not network["autoCreateSubnetworks"]:
                    why = "Subnetwork should be specified for custom subnetmode network"
                    raise wire.invalid(f"{field}.subnetwork", "", why)
                subnetwork = _automatic(project, region, network)
                network_link = network["selfLink"]
            links = {"network": network_link, "subnetwork": subnetwork["selfLink"]}
            checked.append({**interface, **links})
        return checked


class Subnetworks(Resources):
    """`regions/R/subnetworks`: automatic ones, and those that clients create."""

    kind = "compute#subnetwork"
    collection = "subnetworks"
    noun = "subnetwork"
    scopes = ("regions",)
    mutable = frozenset({"privateIpGoogleAccess", "description"})

    def __init__(self, state: Path, operations: Operations, networks: Networks) -> None:
        super().__init__(state, operations)
        self._networks = networks

    def permanent(self, project: str, scope: str) -> Iterable[Resource]:
        """Return the automatic subnetworks of a region."""
        google_access = {"privateIpGoogleAccess": self._networks.google_access}
        return [
            _automatic(project, scope, network) | google_access
            for _, network in self._networks.everywhere(project)
            if network["autoCreateSubnetworks"]
        ]

    def new(self, project: str, scope: str, body: dict[str, Any]) -> Resource:
        """Return the fields of a new subnetwork."""
        named = body.get("network")
        network = self._networks.resolve(named, "resource.network", project, "global")
        if network["autoCreateSubnetworks"]:
            why = "It makes its subnetworks itself."
            raise wire.invalid("resource.network", named, why)
        field = "resource.ipCidrRange"
        text = body.get("ipCidrRange") or ""
        try:
            addresses = ipaddress.IPv4Network(text)
        except ValueError:
            raise wire.invalid(field, text, "Must be a CIDR address range.") from None
        for _, other in self.everywhere(project):
            # A change of a subnetwork comes here, too, and finds itself.
            if other["name"] == body["name"] or other["network"] != network["selfLink"]:
                continue
            if addresses.overlaps(ipaddress.IPv4Network(other["ipCidrRange"])):
                path = wire.path_of(other["selfLink"])
                why = f"Invalid IPCidrRange: conflicts with '{path}'."
                raise wire.invalid(field, text, why)
        fingerprint = wire.fingerprint((body["name"], sorted(map(str, body.items()))))
        return {
            "network": network["selfLink"],
            "ipCidrRange": text,
            "gatewayAddress": str(addresses[1]),
            "privateIpGoogleAccess": bool(body.get("privateIpGoogleAccess", False)),
            "purpose": "PRIVATE",
            "stackType": "IPV4_ONLY",
            "fingerprint": fingerprint,
        }


class Firewalls(Resources):
    """`global/firewalls`."""

    kind = "compute#firewall"
    collection = "firewalls"
    noun = "firewall"
    mutable = frozenset(
        {
            "allowed",
            "denied",
            "description",
            "destinationRanges",
            "disabled",
            "logConfig",
            "priority",
            "sourceRanges",
            "sourceServiceAccounts",
            "sourceTags",
            "targetServiceAccounts",
            "targetTags",
        }
    )
    replaceable = True

    def __init__(self, state: Path, operations: Operations, networks: Networks) -> None:
        super().__init__(state, operations)
        self._networks = networks
        self.on_change: Callable[[], None] = lambda: None
        """Called when a rule was added, removed or changed."""

    def save(self, project: str, scope: str, resource: Resource) -> None:
        """Store a rule, and report the change."""
        super().save(project, scope, resource)
        self.on_change()

    def on_removed(self, project: str, scope: str, resource: Resource) -> None:
        """Report the change."""
        self.on_change()

    def initial(self, project: str) -> Iterable[tuple[str, dict[str, Any]]]:
        """Return the four rules that Compute Engine gives to the network `default`."""
        tcp = {"IPProtocol": "tcp", "ports": ["0-65535"]}
        udp = {"IPProtocol": "udp", "ports": ["0-65535"]}
        icmp = {"IPProtocol": "icmp"}
        ssh = {"IPProtocol": "tcp", "ports": ["22"]}
        rdp = {"IPProtocol": "tcp", "ports": ["3389"]}
        internal = "Allow internal traffic on the default network"
        return [
            _initial_rule("internal", _INTERNAL, [tcp, udp, icmp], internal),
            _initial_rule("ssh", _ANYWHERE, [ssh], "Allow SSH from anywhere"),
            _initial_rule("rdp", _ANYWHERE, [rdp], "Allow RDP from anywhere"),
            _initial_rule("icmp", _ANYWHERE, [icmp], "Allow ICMP from anywhere"),
        ]

    def new(self, project: str, scope: str, body: dict[str, Any]) -> Resource:
        """Return the fields of a new rule."""
        named = body.get("network") or _DEFAULT
        network = self._networks.resolve(named, "resource.network", project, "global")
        direction = body.get("direction") or "INGRESS"
        if direction not in ("INGRESS", "EGRESS"):
            raise wire.invalid("resource.direction", direction, "Must be INGRESS or EGRESS.")
        if bool(body.get("allowed")) == bool(body.get("denied")):
            why = "Exactly one of allowed and denied must be specified."
            raise wire.invalid("resource.allowed", body.get("allowed"), why)
        priority = body.get("priority", 1000)
        if not isinstance(priority, int) or not 0 <= priority <= 65535:
            raise wire.invalid("resource.priority", priority, "Must be between 0 and 65535.")
        rule: Resource = {
            "network": network["selfLink"],
            "direction": direction,
            "priority": priority,
            "disabled": bool(body.get("disabled", False)),
            "logConfig": body.get("logConfig") or {"enable": False},
        }
        for action in ("allowed", "denied"):
            if body.get(action):
                rule[action] = [
                    _traffic(f"resource.{action}[{index}]", given)
                    for index, given in enumerate(body[action])
                ]
        ranges = "sourceRanges" if direction == "INGRESS" else "destinationRanges"
        if not any(body.get(name) for name in (ranges, "sourceTags", "sourceServiceAccounts")):
            # A rule that limits nothing applies to every address.
            rule[ranges] = [_ANYWHERE]
        for name in self.mutable - rule.keys():
            if body.get(name):
                rule[name] = body[name]
        for text in rule.get(ranges, ()):
            try:
                ipaddress.ip_network(text)
            except ValueError:
                why = "Must be a CIDR address range."
                raise wire.invalid(f"resource.{ranges}", text, why) from None
        return rule


def _initial_rule(
    name: str, source: str, allowed: list[dict[str, Any]], description: str
) -> tuple[str, dict[str, Any]]:
    rule = {
        "name": f"default-allow-{name}",
        "network": _DEFAULT,
        "priority": 65534,
        "sourceRanges": [source],
        "allowed": allowed,
        "description": description,
    }
    return "global", rule


def _traffic(field: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return a protocol with its ports, as a rule has them. Raises ApiError 400."""
    if not given.get("IPProtocol"):
        raise wire.required(f"{field}.IPProtocol")
    traffic: dict[str, Any] = {"IPProtocol": str(given["IPProtocol"])}
    ports = [str(port) for port in given.get("ports") or ()]
    for port in ports:
        if not _PORTS.fullmatch(port) or max(map(int, port.split("-"))) > _LAST_PORT:
            raise wire.invalid(f"{field}.ports", port, "Must be a port or a range of ports.")
    if ports:
        traffic["ports"] = ports
    return traffic


def _automatic(project: str, scope: str, network: Resource) -> Resource:
    """Return the automatic subnetwork of a network in a region."""
    name = network["name"]
    return {
        "kind": "compute#subnetwork",
        "id": wire.fixed_id("subnetworks", project, scope, name),
        "name": name,
        "creationTimestamp": network["creationTimestamp"],
        "ipCidrRange": _RANGE,
        "gatewayAddress": _GATEWAY,
        "network": network["selfLink"],
        "region": wire.link(project, scope),
        "privateIpGoogleAccess": True,
        "purpose": "PRIVATE",
        "stackType": "IPV4_ONLY",
        "fingerprint": wire.fingerprint(scope),
        "selfLink": wire.link(project, scope, "subnetworks", name),
    }


class Routers(Resources):
    """`regions/R/routers`: the Cloud Routers that give VMs without an external address a way out.

    Every region has one with Cloud NAT for each network, unless the project lacks it. They are only
    shown: no traffic passes through them, and clients cannot create any.
    """

    kind = "compute#router"
    collection = "routers"
    noun = "router"
    scopes = ("regions",)

    def __init__(
        self, state: Path, operations: Operations, networks: Networks, project: Project
    ) -> None:
        super().__init__(state, operations)
        self._networks = networks
        self._project = project

    def permanent(self, project: str, scope: str) -> Iterable[Resource]:
        """Return the routers of a region."""
        if self._project.lacks(project_state.NAT):
            return []
        networks = [network for _, network in self._networks.everywhere(project)]
        return [_router(project, scope, network) for network in networks]

    def new(self, project: str, scope: str, body: dict[str, object]) -> Resource:
        """Refuse to create a router."""
        raise wire.ApiError(501, "notImplemented", "The emulator does not support routers.")


def _router(project: str, scope: str, network: Resource) -> Resource:
    name = f"{network['name']}-way-out"
    nat = {
        "name": "nat",
        "natIpAllocateOption": "AUTO_ONLY",
        "type": "PUBLIC",
        "sourceSubnetworkIpRangesToNat": "ALL_SUBNETWORKS_ALL_IP_RANGES",
    }
    return {
        "kind": "compute#router",
        "id": wire.fixed_id("routers", project, scope, network["name"]),
        "name": name,
        "creationTimestamp": _WRITTEN,
        "network": network["selfLink"],
        "region": wire.link(project, scope),
        "selfLink": wire.link(project, scope, "routers", name),
        "nats": [nat],
    }
