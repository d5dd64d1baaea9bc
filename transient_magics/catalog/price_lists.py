"""Price lists of clusters.

The prices of ICAC'19 (Li et al., "Speeding up Deep Learning with Transient Servers", table of unit
prices; whole servers, host included) serve clusters with a K80, which has no price today. So their
bills are comparable with the paper's. All other clusters have the newest list prices of their
zones, with the VM's disk and external address (`extras`).
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

    `servers` and `parameter_server_4_vcpu` hold in all zones. Other VMs have the list price of the
    requested zone, else of `zone`, else of the GPU's default zone.

    Attributes
    ----------
    machines
        Machine types of workers by GPU, if they are not the catalog's.
    disk_gb, disk_type
        Declared disks of workers and parameter servers; 0 GB: the usual size.
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
        """Publisher and date of the prices."""
        return self.parameter_server_price(4).source

    def worker_price(self, gpu: str, zone: str = "") -> VmPrice:
        """Return the price of a worker with this GPU. Raises DeclarationError if it is unknown."""
        place = zone or self.zone or default_zone([gpu])
        machine = self.machines.get(gpu, "")
        if published := self.servers.get(gpu):
            return self._published(published, place, gpu, machine)
        return self._whole(worker_machine_price(gpu, machine, place), place, self.machine(gpu))

    def machine(self, gpu: str) -> str:
        """Return the machine type of workers with this GPU."""
        return self.machines.get(gpu) or accelerator(gpu).machine_type

    def parameter_server_price(self, cores: int, zone: str = "") -> VmPrice:
        """Return the price of a parameter server with `cores` vCPUs of 4 GB each."""
        place = self._place(zone)
        if four := self.parameter_server_4_vcpu:
            scaled = replace(
                four, on_demand=four.on_demand * cores / 4, transient=four.transient * cores / 4
            )
            return self._published(scaled, place)
        return self._whole(parameter_server_price(cores, place), place)

    def server_price(self, machine: str, zone: str = "") -> VmPrice:
        """Return the list price of a parameter server with this machine."""
        place = self._place(zone)
        return self._whole(server_price(machine, place), place)

    def controller_price(self, zone: str = "") -> VmPrice:
        """Return the list price of a controller's own VM."""
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
        """Return a published price, with the surcharges of another machine and a declared disk."""
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
        """Return (on demand, transient) dollars per hour of a worker VM with this GPU."""
        price = self.worker_price(gpu, zone)
        return price.on_demand, price.transient

    def parameter_server(self, cores: int, zone: str = "") -> float:
        """Return dollars per hour of an on-demand parameter server with `cores` vCPUs."""
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
    """Return the prices of a cluster: ICAC'19's if it has K80s, else the list prices of `zone`."""
    if "k80" in set(accelerators):
        lines = ICAC19
    else:
        lines = PriceList(zone)
    return replace(
        lines, external_ip=external_ip, machines=machines, disk_gb=disk_gb, disk_type=disk_type
    )
