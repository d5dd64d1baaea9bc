"""Which prices a cluster is computed with.

ICAC'19's own (Li et al., "Speeding up Deep Learning with Transient Servers", table of unit prices;
whole servers, host included) serve clusters that contain a K80, which has no price today, so that a
bill can be laid beside the paper's. Everything else has the newest list prices of the zone it runs
in, with the VM's disk and external address (`extras`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from .accelerators import accelerator
from .machines import server_price, worker_machine_price
from .prices import (
    CONTROLLER_DISK_GB,
    DISK_GB,
    DISK_TYPE,
    VmPrice,
    controller_price,
    parameter_server_price,
    with_extras,
)
from .zones import default_zone


def _icac19(on_demand: float, transient: float) -> VmPrice:
    return VmPrice(on_demand, transient, "ICAC'19 prices (2019)", "2019", "2019", published=True)


_ICAC19_SERVERS = {
    "k80": _icac19(0.723, 0.256),
    "p100": _icac19(1.43, 0.551),
    "v100": _icac19(2.144, 0.861),
}
_ICAC19_PARAMETER_SERVER = _icac19(0.143, 0.041)  # 4 vCPUs, 16 GB


@dataclass(frozen=True, slots=True)
class PriceList:
    """Hourly prices of whole VMs in US dollars.

    `servers` and `parameter_server_4_vcpu` stand for themselves wherever a VM runs; what they lack
    has the list price of the zone that is asked for, else of `zone`, else of the GPU's default
    zone. `machines`: by GPU, of workers that have another machine than the catalog's. `disk_gb` and
    `disk_type`: what was declared of the disks of workers and parameter servers; 0: the usual.
    """

    zone: str = ""
    servers: Mapping[str, VmPrice] = field(default_factory=dict[str, VmPrice])
    parameter_server_4_vcpu: VmPrice | None = None
    external_ip: bool = True
    machines: Mapping[str, str] = field(default_factory=dict[str, str])
    disk_gb: int = 0
    disk_type: str = DISK_TYPE

    @property
    def source(self) -> str:
        """Whose prices of when."""
        return self.parameter_server_price(4).source

    def worker_price(self, gpu: str, zone: str = "") -> VmPrice:
        """The price of a worker VM with this GPU. Raises DeclarationError where none is known."""
        place = zone or self.zone or default_zone([gpu])
        machine = self.machines.get(gpu, "")
        if known := self.servers.get(gpu):
            return self._published(known, place, gpu, machine)
        return self._whole(worker_machine_price(gpu, machine, place), place, self.machine(gpu))

    def machine(self, gpu: str) -> str:
        """The machine type of workers with this GPU."""
        return self.machines.get(gpu) or accelerator(gpu).machine_type

    def parameter_server_price(self, cores: int, zone: str = "") -> VmPrice:
        """The price of a parameter server with `cores` vCPUs and 4 GB each."""
        place = self._place(zone)
        if four := self.parameter_server_4_vcpu:
            scaled = replace(
                four, on_demand=four.on_demand * cores / 4, transient=four.transient * cores / 4
            )
            return self._published(scaled, place)
        return self._whole(parameter_server_price(cores, place), place)

    def server_price(self, machine: str, zone: str = "") -> VmPrice:
        """The list price of a parameter server with this machine, which no published study had."""
        place = self._place(zone)
        return self._whole(server_price(machine, place), place)

    def controller_price(self, zone: str = "") -> VmPrice:
        """The list price of the VM that a controller has for itself; no published study had one."""
        place = self._place(zone)
        return with_extras(
            controller_price(place), place, gb=CONTROLLER_DISK_GB, external_ip=self.external_ip
        )

    def _place(self, zone: str) -> str:
        return zone or self.zone or default_zone(["cpu"])

    def _whole(self, price: VmPrice, place: str, machine: str = "") -> VmPrice:
        return with_extras(
            price,
            place,
            gb=self.disk_gb or DISK_GB,
            kind=self.disk_type,
            external_ip=self.external_ip,
            machine=machine,
        )

    def _published(self, price: VmPrice, place: str, gpu: str = "", machine: str = "") -> VmPrice:
        """A published price, with what another machine costs more, and with a disk that was
        declared.
        """
        if machine:
            other = worker_machine_price(gpu, machine, place)
            usual = worker_machine_price(gpu, "", place)
            price = replace(
                price,
                on_demand=price.on_demand + other.on_demand - usual.on_demand,
                transient=price.transient + other.transient - usual.transient,
                source=f"{price.source}, {machine} by {other.source}",
            )
        if self.disk_gb:
            whole = with_extras(
                price, place, gb=self.disk_gb, kind=self.disk_type, external_ip=False
            )
            price = replace(whole, source=f"{price.source}, disks by list prices")
        return price

    def worker(self, gpu: str, zone: str = "") -> tuple[float, float]:
        """(on demand, transient) dollars per hour of a worker VM with this GPU."""
        price = self.worker_price(gpu, zone)
        return price.on_demand, price.transient

    def parameter_server(self, cores: int, zone: str = "") -> float:
        """Dollars per hour of an on-demand parameter server with `cores` vCPUs and 4 GB each."""
        return self.parameter_server_price(cores, zone).on_demand


ICAC19 = PriceList("us-west1-b", _ICAC19_SERVERS, _ICAC19_PARAMETER_SERVER)


def price_list(
    accelerators: Iterable[str],
    zone: str = "",
    *,
    external_ip: bool = True,
    machines: Mapping[str, str] = MappingProxyType({}),
    disk_gb: int = 0,
    disk_type: str = DISK_TYPE,
) -> PriceList:
    """The prices for a cluster with these GPUs: ICAC'19's where a K80 is among them, else the list
    prices of `zone`.
    """
    if "k80" in set(accelerators):
        lines = ICAC19
    else:
        lines = PriceList(zone)
    return replace(
        lines, external_ip=external_ip, machines=machines, disk_gb=disk_gb, disk_type=disk_type
    )
