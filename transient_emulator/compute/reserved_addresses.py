"""Addresses that a project has reserved: `regions/R/addresses` and `global/addresses`.

External ones come from the ranges for documentation (RFC 5737), so that they lead nowhere. Internal
ones come from the end of the VMs' network, behind the addresses that VMs get.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Any

from ..rest import wire
from .resources import Resource, Resources

_EXTERNAL = (
    ipaddress.IPv4Network("203.0.113.0/24"),
    ipaddress.IPv4Network("198.51.100.0/24"),
    ipaddress.IPv4Network("192.0.2.0/24"),
)
_INTERNAL = ipaddress.IPv4Network("10.128.15.192/26")


class Addresses(Resources):
    """All reserved addresses."""

    kind = "compute#address"
    collection = "addresses"
    noun = "address"
    scopes = ("regions", "global")
    labels = True

    def new(self, project: str, scope: str, body: dict[str, Any]) -> Resource:
        """Return the fields of a new reservation."""
        kind = body.get("addressType") or "EXTERNAL"
        if kind not in ("EXTERNAL", "INTERNAL"):
            raise wire.invalid("resource.addressType", kind, "Must be EXTERNAL or INTERNAL.")
        resource: Resource = {
            "addressType": kind,
            "status": "RESERVED",
            "address": self._choose(kind, body.get("address") or "", project),
            "ipVersion": "IPV4",
        }
        if kind == "EXTERNAL":
            tier = body.get("networkTier") or "PREMIUM"
            if tier not in ("PREMIUM", "STANDARD"):
                raise wire.invalid("resource.networkTier", tier, "Must be PREMIUM or STANDARD.")
            resource["networkTier"] = tier
        else:
            resource["purpose"] = body.get("purpose") or "GCE_ENDPOINT"
            resource["subnetwork"] = _subnetwork(project, scope, body.get("subnetwork"))
        return resource

    def _choose(self, kind: str, requested: str, project: str) -> str:
        """Return the requested address, or a free one. Raises ApiError."""
        reserved = {address["address"] for _, address in self.everywhere(project)}
        if requested:
            field = "resource.address"
            try:
                ipaddress.IPv4Address(requested)
            except ValueError:
                raise wire.invalid(field, requested, "Must be a valid IP address.") from None
            if kind == "EXTERNAL":
                raise wire.invalid(field, requested, "External IP addresses cannot be chosen.")
            if requested in reserved:
                message = f"Specified IP address '{requested}' is already reserved."
                raise wire.ApiError(409, "alreadyExists", message)
            return requested
        for address in _candidates(kind):
            if str(address) not in reserved:
                return str(address)
        limit = f"Limit: {len(reserved)}.0 on this machine."
        raise wire.ApiError(403, "quotaExceeded", f"Quota 'STATIC_ADDRESSES' exceeded. {limit}")


def _subnetwork(project: str, scope: str, given: object) -> str:
    """Return the full URL of the subnetwork of a request (default: `default`)."""
    if not given:
        return wire.link(project, scope, "subnetworks", "default")
    url = str(given)
    if "projects/" in url:
        return wire.link(*wire.path_of(url).removeprefix("projects/").split("/"))
    return wire.link(project, *url.split("/"))


def _candidates(kind: str) -> Iterator[ipaddress.IPv4Address]:
    if kind == "INTERNAL":
        yield from _INTERNAL.hosts()
    else:
        for network in _EXTERNAL:
            yield from network.hosts()
