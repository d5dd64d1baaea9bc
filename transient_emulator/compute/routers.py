"""Cloud Routers, as far as they tell whether VMs without an external address have a way out.

Every region has one with Cloud NAT, unless the project lacks it. Traffic does not pass through it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ..project import state
from ..rest import wire
from ..rest.operations import Operations
from .networks import Networks
from .resources import Resource, Resources

_WRITTEN = "2026-01-15T00:00:00.000-08:00"


class Routers(Resources):
    """`regions/R/routers`; they are told, not made."""

    kind, collection, noun, scopes = "compute#router", "routers", "router", ("regions",)

    def __init__(self, folder: Path, operations: Operations, networks: Networks, project: state.Project) -> None:
        super().__init__(folder, operations)
        self._networks, self._project = networks, project

    def standing(self, project: str, scope: str) -> Iterable[Resource]:
        if self._project.lacks(state.NAT):
            return []
        return [
            {
                "kind": self.kind, "id": wire.fixed_id("routers", project, scope, each["name"]),
                "name": f"{each['name']}-way-out", "creationTimestamp": _WRITTEN, "network": each["selfLink"],
                "region": wire.link(project, scope),
                "selfLink": wire.link(project, scope, "routers", f"{each['name']}-way-out"),
                "nats": [{"name": "nat", "natIpAllocateOption": "AUTO_ONLY", "type": "PUBLIC",
                          "sourceSubnetworkIpRangesToNat": "ALL_SUBNETWORKS_ALL_IP_RANGES"}],
            }
            for _, each in self._networks.everywhere(project)
        ]  # fmt: skip

    def new(self, project: str, scope: str, body: dict[str, object]) -> Resource:
        raise wire.ApiError(501, "notImplemented", "The emulator makes no routers.")
