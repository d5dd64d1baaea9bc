"""Addresses that a project has reserved: `regions/R/addresses` and `global/addresses`.

External ones come from the ranges that are set apart for documentation (RFC 5737), so that they lead nowhere; internal
ones from the end of the VMs' network, beyond the addresses that VMs get.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Any

from ..rest import wire
from .resources import Resource, Resources

_EXTERNAL = [ipaddress.IPv4Network(each) for each in ("203.0.113.0/24", "198.51.100.0/24", "192.0.2.0/24")]
_INTERNAL = ipaddress.IPv4Network("10.128.15.192/26")


class Addresses(Resources):
    """All reserved addresses."""

    kind, collection, noun, scopes = "compute#address", "addresses", "address", ("regions", "global")
    labels = True

    def new(self, project: str, scope: str, body: dict[str, Any]) -> Resource:
        kind = body.get("addressType") or "EXTERNAL"
        if kind not in ("EXTERNAL", "INTERNAL"):
            raise wire.invalid("resource.addressType", kind, "Must be EXTERNAL or INTERNAL.")
        resource: Resource = {
            "addressType": kind, "status": "RESERVED", "address": self._free(kind, body.get("address") or "", project),
            "ipVersion": "IPV4",
        }  # fmt: skip
        if kind == "EXTERNAL":
            tier = body.get("networkTier") or "PREMIUM"
            if tier not in ("PREMIUM", "STANDARD"):
                raise wire.invalid("resource.networkTier", tier, "Must be PREMIUM or STANDARD.")
            return {**resource, "networkTier": tier}
        purpose = body.get("purpose") or "GCE_ENDPOINT"
        subnetwork = str(body.get("subnetwork") or wire.link(project, scope, "subnetworks", "default"))
        own = wire.link(*wire.path_of(subnetwork).removeprefix("projects/").split("/"))
        return {**resource, "purpose": purpose, "subnetwork": own if "projects/" in subnetwork else
                wire.link(project, *subnetwork.split("/"))}  # fmt: skip

    def _free(self, kind: str, wanted: str, project: str) -> str:
        taken = {each["address"] for _, each in self.everywhere(project)}
        if wanted:
            try:
                ipaddress.IPv4Address(wanted)
            except ValueError:
                raise wire.invalid("resource.address", wanted, "Must be a valid IP address.") from None
            if kind == "EXTERNAL":
                why = "External IP addresses cannot be chosen."
                raise wire.invalid("resource.address", wanted, why)
            if wanted in taken:
                raise wire.ApiError(409, "alreadyExists", f"Specified IP address '{wanted}' is already reserved.")
            return wanted
        for address in _candidates(kind):
            if str(address) not in taken:
                return str(address)
        quota = "STATIC_ADDRESSES"
        raise wire.ApiError(403, "quotaExceeded", f"Quota '{quota}' exceeded. Limit: {len(taken)}.0 on this machine.")


def _candidates(kind: str) -> Iterator[ipaddress.IPv4Address]:
    if kind == "INTERNAL":
        yield from _INTERNAL.hosts()
    else:
        for network in _EXTERNAL:
            yield from network.hosts()
