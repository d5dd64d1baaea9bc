"""ClusterSpec: everything that was declared about one cluster, frozen, and as JSON.

The catalog's answers that must not change while the cluster lives (machine types, zones, prices at the moment of
declaration) are part of it, so that whoever reads `spec.json` later needs no table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from .grammar import WorkerGroup, render_groups


@dataclass(frozen=True, slots=True)
class PriceLine:
    """What one kind of VM costs per hour (USD), as we rent it and on demand, and who says so."""

    machine_type: str
    hourly: float
    on_demand_hourly: float
    source: str


def home_zone(groups: Sequence[WorkerGroup], zones: Sequence[str]) -> str:
    """Where most workers are declared; groups without a zone count for the first of `zones`."""
    counts: dict[str, int] = {}
    for group in groups:
        zone = group.zone or zones[0]
        counts[zone] = counts.get(zone, 0) + group.count
    return max(counts, key=lambda zone: counts[zone])


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """A declared cluster. Times in seconds, money in US dollars, `declared_at` in seconds since 1970 (UTC)."""

    name: str
    groups: tuple[WorkerGroup, ...]
    zones: tuple[str, ...]
    prices: Mapping[str, PriceLine]
    """By accelerator, and under `parameter-server`; `GPU@ZONE` where it costs something else than elsewhere."""
    declared_at: float = 0.0
    parameter_servers: int = 1
    parameter_server_cores: int = 4
    provisioning_model: str = "spot"
    max_workers: int = 0
    replace: bool = True
    chief: str = "ps"
    max_seconds: float = 24 * 3600.0
    max_cost: float | None = None
    idle_seconds: float = 30 * 60.0
    project: str | None = None
    bucket: str | None = None
    image: str | None = None
    service_account: str | None = None
    network: str | None = None
    subnet: str | None = None
    external_ip: bool = True
    controller: str = "local"

    @property
    def spec(self) -> str:
        """The SPEC text of the declared groups."""
        return render_groups(self.groups)

    @property
    def worker_count(self) -> int:
        """Number of declared workers."""
        return sum(group.count for group in self.groups)

    @property
    def emulated(self) -> bool:
        """True where no project was named: everything runs on this machine and nothing is billed."""
        return self.project is None

    @property
    def home_zone(self) -> str:
        """Where most workers are declared; the parameter servers run there, so that traffic stays within one zone."""
        return home_zone(self.groups, self.zones)

    def price(self, accelerator: str, zone: str) -> PriceLine:
        """What a worker with this accelerator costs in this zone."""
        return self.prices.get(f"{accelerator}@{zone}") or self.prices[accelerator]

    @property
    def hourly(self) -> float:
        """What the declared cluster costs per hour, in US dollars."""
        workers = sum(group.count * self._line(group).hourly for group in self.groups)
        return workers + self.parameter_servers * self.prices["parameter-server"].on_demand_hourly

    @property
    def on_demand_hourly(self) -> float:
        """What the same cluster would cost per hour without transient servers, in US dollars."""
        workers = sum(group.count * self._line(group).on_demand_hourly for group in self.groups)
        return workers + self.parameter_servers * self.prices["parameter-server"].on_demand_hourly

    @property
    def ends_at(self) -> float:
        """The one moment (seconds since 1970) at which Compute Engine itself deletes every VM of this cluster."""
        seconds = self.max_seconds
        if self.max_cost is not None and self.hourly > 0:
            seconds = min(seconds, 3600 * self.max_cost / self.hourly)
        return self.declared_at + seconds

    def _line(self, group: WorkerGroup) -> PriceLine:
        return self.price(group.accelerator, group.zone or self.zones[0])

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `from_dict` reads them back as an equal spec."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read what `to_dict` wrote; fields of newer versions are ignored."""
        known = {field.name for field in fields(cls)}
        chosen = {key: value for key, value in values.items() if key in known}
        chosen["groups"] = tuple(WorkerGroup(**group) for group in chosen["groups"])
        chosen["zones"] = tuple(chosen["zones"])
        chosen["prices"] = {kind: PriceLine(**line) for kind, line in chosen["prices"].items()}
        return cls(**chosen)
