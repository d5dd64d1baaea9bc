"""Networks, their subnetworks and their firewall rules.

Every project begins with the network `default` and its four rules. All emulated VMs share one link with the addresses
10.128.0.0/20, whatever network and region they are declared in, so the automatic subnetworks all have that range.

Firewall rules are kept, checked and shown here; `firewall` sees to it that they hold between VMs.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ..project import state as lacking
from ..project.state import Project
from ..rest import tables, wire
from ..rest.operations import Operations
from .resources import Resource, Resources

_RANGE, _GATEWAY = "10.128.0.0/20", "10.128.0.1"
_INTERNAL = "10.128.0.0/9"
_PORTS = re.compile(r"\d{1,5}(-\d{1,5})?")


class Networks(Resources):
    """`global/networks`."""

    kind, collection, noun = "compute#network", "networks", "network"
    mutable = frozenset({"routingConfig", "networkFirewallPolicyEnforcementOrder"})

    def __init__(self, state: Path, operations: Operations, project: Project) -> None:
        super().__init__(state, operations)
        self.google_access = lambda: not project.lacks(lacking.GOOGLE_ACCESS)
        """Whether automatic subnetworks have Private Google Access."""
        self.subnetworks = Subnetworks(state, operations, self)
        self.firewalls = Firewalls(state, operations, self)
        self.instances: Callable[[str], Iterable[Resource]] = lambda project: ()
        """The VMs of a project."""

    def first(self, project: str) -> Iterable[tuple[str, dict[str, Any]]]:
        default = {"name": "default", "description": "Default network for the project", "autoCreateSubnetworks": True}
        return [("global", default)]

    def new(self, project: str, scope: str, body: dict[str, Any]) -> Resource:
        routing = (body.get("routingConfig") or {}).get("routingMode") or "REGIONAL"
        if routing not in ("REGIONAL", "GLOBAL"):
            raise wire.invalid("resource.routingConfig.routingMode", routing, "Must be REGIONAL or GLOBAL.")
        order = body.get("networkFirewallPolicyEnforcementOrder") or "AFTER_CLASSIC_FIREWALL"
        return {
            "autoCreateSubnetworks": bool(body.get("autoCreateSubnetworks", False)),
            "mtu": int(body.get("mtu") or 1460), "routingConfig": {"routingMode": routing},
            "networkFirewallPolicyEnforcementOrder": order,
        }  # fmt: skip

    def shown(self, project: str, resource: Resource) -> Resource:
        found = [
            each["selfLink"]
            for region in tables.REGIONS
            for each in self.subnetworks.within(project, f"regions/{region}")
            if each["network"] == resource["selfLink"]
        ]
        with_id = wire.link(project, "global", "networks", resource["id"])
        return {**super().shown(project, resource), "selfLinkWithId": with_id} | (
            {"subnetworks": found} if found else {}
        )

    def users(self, project: str, resource: Resource) -> list[str]:
        own = resource["selfLink"]
        held = [each for _, each in self.firewalls.everywhere(project)]
        held += [each for _, each in self.subnetworks.everywhere(project)]
        return [each["selfLink"] for each in held if each["network"] == own] + [
            each["selfLink"]
            for each in self.instances(project)
            if any(interface["network"] == own for interface in each["networkInterfaces"])
        ]

    def check_interfaces(self, project: str, zone: str, interfaces: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The interfaces of a VM to be made, each with the URLs of its network and subnetwork.

        ApiError 400 where there is no such network or subnetwork, or one is needed.
        """
        region = f"regions/{zone.rpartition('-')[0]}"
        checked: list[dict[str, Any]] = []
        for index, interface in enumerate(interfaces):
            field = f"resource.networkInterfaces[{index}]"
            if url := interface.get("subnetwork"):
                subnetwork = self.subnetworks.referred(url, f"{field}.subnetwork", project, region)
                network = {"selfLink": subnetwork["network"]}
            else:
                named = interface.get("network") or "global/networks/default"
                network = self.referred(named, f"{field}.network", project, "global")
                if not network["autoCreateSubnetworks"]:
                    why = "Subnetwork should be specified for custom subnetmode network"
                    raise wire.invalid(f"{field}.subnetwork", "", why)
                subnetwork = {"selfLink": _automatic(project, region, network)["selfLink"]}
            checked.append({**interface, "network": network["selfLink"], "subnetwork": subnetwork["selfLink"]})
        return checked


class Subnetworks(Resources):
    """`regions/R/subnetworks`: one in every region for a network that makes them itself, others as asked for."""

    kind, collection, noun, scopes = "compute#subnetwork", "subnetworks", "subnetwork", ("regions",)
    mutable = frozenset({"privateIpGoogleAccess", "description"})

    def __init__(self, state: Path, operations: Operations, networks: Networks) -> None:
        super().__init__(state, operations)
        self._networks = networks

    def standing(self, project: str, scope: str) -> Iterable[Resource]:
        return [
            _automatic(project, scope, each) | {"privateIpGoogleAccess": self._networks.google_access()}
            for _, each in self._networks.everywhere(project)
            if each["autoCreateSubnetworks"]
        ]

    def new(self, project: str, scope: str, body: dict[str, Any]) -> Resource:
        network = self._networks.referred(body.get("network"), "resource.network", project, "global")
        if network["autoCreateSubnetworks"]:
            raise wire.invalid("resource.network", body["network"], "It makes its subnetworks itself.")
        text = body.get("ipCidrRange") or ""
        try:
            addresses = ipaddress.IPv4Network(text)
        except ValueError:
            raise wire.invalid("resource.ipCidrRange", text, "Must be a CIDR address range.") from None
        for _, each in self.everywhere(project):
            other = each["name"] != body["name"] and each["network"] == network["selfLink"]
            if other and addresses.overlaps(ipaddress.IPv4Network(each["ipCidrRange"])):
                path = wire.path_of(each["selfLink"])
                raise wire.invalid("resource.ipCidrRange", text, f"Invalid IPCidrRange: conflicts with '{path}'.")
        return {
            "network": network["selfLink"], "ipCidrRange": text, "gatewayAddress": str(addresses[1]),
            "privateIpGoogleAccess": bool(body.get("privateIpGoogleAccess", False)), "purpose": "PRIVATE",
            "stackType": "IPV4_ONLY", "fingerprint": wire.fingerprint((body["name"], sorted(map(str, body.items())))),
        }  # fmt: skip


class Firewalls(Resources):
    """`global/firewalls`."""

    kind, collection, noun = "compute#firewall", "firewalls", "firewall"
    mutable = frozenset({
        "allowed", "denied", "description", "destinationRanges", "disabled", "logConfig", "priority", "sourceRanges",
        "sourceServiceAccounts", "sourceTags", "targetServiceAccounts", "targetTags",
    })  # fmt: skip
    replaceable = True

    def __init__(self, state: Path, operations: Operations, networks: Networks) -> None:
        super().__init__(state, operations)
        self._networks = networks
        self.on_change: Callable[[], None] = lambda: None
        """Called when a rule has come, gone or changed."""

    def keep(self, project: str, scope: str, resource: Resource) -> None:
        super().keep(project, scope, resource)
        self.on_change()

    def forgotten(self, project: str, scope: str, resource: Resource) -> None:
        self.on_change()

    def first(self, project: str) -> Iterable[tuple[str, dict[str, Any]]]:
        every = [{"IPProtocol": "tcp", "ports": ["0-65535"]}, {"IPProtocol": "udp", "ports": ["0-65535"]}]
        icmp = {"IPProtocol": "icmp"}
        rules = {
            "internal": (_INTERNAL, [*every, icmp], "Allow internal traffic on the default network"),
            "ssh": ("0.0.0.0/0", [{"IPProtocol": "tcp", "ports": ["22"]}], "Allow SSH from anywhere"),
            "rdp": ("0.0.0.0/0", [{"IPProtocol": "tcp", "ports": ["3389"]}], "Allow RDP from anywhere"),
            "icmp": ("0.0.0.0/0", [icmp], "Allow ICMP from anywhere"),
        }
        return [
            ("global", {"name": f"default-allow-{name}", "network": "global/networks/default", "priority": 65534,
                        "sourceRanges": [source], "allowed": allowed, "description": description})
            for name, (source, allowed, description) in rules.items()
        ]  # fmt: skip

    def new(self, project: str, scope: str, body: dict[str, Any]) -> Resource:
        named = body.get("network") or "global/networks/default"
        network = self._networks.referred(named, "resource.network", project, "global")
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
            "network": network["selfLink"], "direction": direction, "priority": priority,
            "disabled": bool(body.get("disabled", False)), "logConfig": {"enable": False},
        }  # fmt: skip
        for action in ("allowed", "denied"):
            if body.get(action):
                rule[action] = [_traffic(f"resource.{action}[{at}]", each) for at, each in enumerate(body[action])]
        ranges = "sourceRanges" if direction == "INGRESS" else "destinationRanges"
        if not any(body.get(name) for name in (ranges, "sourceTags", "sourceServiceAccounts")):
            rule[ranges] = ["0.0.0.0/0"]
        rule |= {name: body[name] for name in self.mutable - rule.keys() if body.get(name)}
        for text in rule.get(ranges, ()):
            try:
                ipaddress.ip_network(text)
            except ValueError:
                raise wire.invalid(f"resource.{ranges}", text, "Must be a CIDR address range.") from None
        return rule | ({"logConfig": body["logConfig"]} if body.get("logConfig") else {})


def _traffic(field: str, given: dict[str, Any]) -> dict[str, Any]:
    if not given.get("IPProtocol"):
        raise wire.required(f"{field}.IPProtocol")
    ports = [str(port) for port in given.get("ports") or ()]
    for port in ports:
        if not _PORTS.fullmatch(port) or max(map(int, port.split("-"))) > 65535:
            raise wire.invalid(f"{field}.ports", port, "Must be a port or a range of ports.")
    return {"IPProtocol": str(given["IPProtocol"])} | ({"ports": ports} if ports else {})


def _automatic(project: str, scope: str, network: Resource) -> Resource:
    """The subnetwork that a network has by itself in a region."""
    name = network["name"]
    return {
        "kind": "compute#subnetwork", "id": wire.fixed_id("subnetworks", project, scope, name), "name": name,
        "creationTimestamp": network["creationTimestamp"], "ipCidrRange": _RANGE, "gatewayAddress": _GATEWAY,
        "network": network["selfLink"], "region": wire.link(project, scope), "privateIpGoogleAccess": True,
        "purpose": "PRIVATE", "stackType": "IPV4_ONLY", "fingerprint": wire.fingerprint(scope),
        "selfLink": wire.link(project, scope, "subnetworks", name),
    }  # fmt: skip
