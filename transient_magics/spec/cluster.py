"""ClusterSpec: the declaration of one cluster, frozen, and as JSON.

It contains the catalog's answers that must not change while the cluster lives: machine types, zones
and prices at the moment of declaration. So `spec.json` can be read later without the catalog.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Annotated, Literal, Self

from ..catalog import (
    CONTROLLER_MACHINE,
    DISK_TYPE,
    PriceList,
    VmPrice,
    parameter_server_machine,
    price_list,
    transfer_price,
)
from ..errors import DeclarationError
from ..protocol import checks
from ..protocol.checks import checked_name
from ..protocol.machines import CPU, MOST_PER_VM, parse_machines
from .grammar import WorkerGroup, render_groups

EMULATED_PROJECT = "emulated-project"
"""The emulator's name for the project of clusters that name none."""
MOST_SECONDS = 120 * 86400.0
"""The longest time limit that Compute Engine accepts for a VM."""
IAP_RANGE = "35.235.240.0/20"
"""The addresses from which Identity-Aware Proxy connects."""
PARAMETER_SERVER = "ps"
WORKER = "worker"
CONTROLLER = "controller"
PREPARATION = "prep"
"""The roles of VMs. The last prepares mini-batches for the workers of one run."""
TRAINING = "training"
JOBS = "jobs"
PURPOSES = TRAINING, JOBS
"""Purposes of clusters and images: everything, or jobs, Dask and bags without TensorFlow."""

Source = Literal["own", "emulated", "published"]
"""Where something was measured: on the user's VMs, on the emulator, or by a publication.

Seconds of different sources are never mixed: an emulated worker is a process of this machine, and
only as fast as that.
"""

_APART = 100_000
"""More than the number of slots."""


def price_kind(role: str, accelerator: str) -> str:
    """Return the key of a VM in a cluster's prices: a worker's accelerator, else its role."""
    return accelerator or {PARAMETER_SERVER: "parameter-server"}.get(role, role)


@dataclass(frozen=True, slots=True)
class PriceLine:
    """Hourly prices (USD) of one kind of VM, as rented and on demand, and their source."""

    machine_type: str
    hourly: float
    on_demand_hourly: float
    source: str
    extras: float = 0.0
    """The part of `hourly` for its disk and external address."""


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """A declared cluster.

    Times are in seconds, money in US dollars, `declared_at` in seconds since 1970 (UTC).
    """

    name: str
    groups: tuple[WorkerGroup, ...]
    zones: tuple[str, ...]
    prices: Mapping[str, PriceLine]
    """Prices by accelerator, `parameter-server` and `controller`; by `kind@zone` for zones with another
    price.
    """
    candidates: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """The zones of groups that name none, by accelerator, best first (else `zones`)."""
    transfer_prices: Mapping[str, float] = field(default_factory=dict[str, float])
    """US dollars per GiB of traffic with the parameter servers, by zone, in each direction.

    Zones with free traffic are missing.
    """
    id: str = ""
    """Eight random hexadecimal digits, which distinguish it from clusters of the same name in the
    project. Empty in the oldest declarations.
    """
    declared_at: float = 0.0
    parameter_servers: int = 1
    parameter_server_cores: int = 4
    parameter_server_machine: str = ""
    """Their machine type; empty: N1 with `parameter_server_cores` vCPUs and 4 GB each."""
    parameter_server_zone: str = ""
    """Their zone; empty: the zone in which most workers are declared."""
    worker_machines: Mapping[str, str] = field(default_factory=dict[str, str])
    """Machine types of workers by accelerator, if they are not the catalog's."""
    disk_gb: int = 0
    """Size of the boot disks of workers and parameter servers; 0: the image's, else the catalog's."""
    disk_type: str = DISK_TYPE
    preparation: int = 0
    """The most VMs that prepare mini-batches simultaneously. The limit on money includes them all.
    """
    provisioning_model: str = "spot"
    notice_seconds: Annotated[int, checks.within(0, 120)] = 0
    """The seconds between preemption notice and shutdown that Spot VMs request."""
    max_workers: int = 0
    replace: bool = True
    give_up: Literal["slowest", "youngest", "riskiest", "costliest", "ask"] | None = None
    """The rule by which workers leave a cluster that shrinks.

    None: those with the highest places, or the slowest if a provider wants some back.
    """
    fallback_seconds: float | None = None
    chief: str = "ps"
    max_seconds: float = 24 * 3600.0
    max_cost: float | None = None
    reserved_workers: int = 0
    """The workers in the limit on money, if resizes may exceed the declared number."""
    end_hourly: float = 0.0
    """US dollars per hour that determine when the money is spent; 0: the present price.

    A resize does not change it, because Compute Engine cannot move the end of a running VM.
    """
    idle_seconds: float = 30 * 60.0
    project: str | None = None
    bucket: str | None = None
    """`name` or `name/path`; None: checkpoints and results are stored on this machine."""
    image: str | None = None
    image_for_gpus: bool = True
    """Whether VMs with GPUs boot from `image`, too; otherwise they install their software."""
    service_account: str | None = None
    network: str | None = None
    subnet: str | None = None
    external_ip: bool = True
    firewall: bool = True
    ssh_from: tuple[str, ...] = ()
    """The address ranges from which SSH is allowed; empty (only in the oldest declarations): all."""
    controller: str = "local"
    purpose: Literal["training", "jobs"] = TRAINING
    """With `jobs` VMs have no TensorFlow, and schedulers run on the parameter servers' VMs."""

    @property
    def spec(self) -> str:
        """The SPEC text of the declared groups."""
        return render_groups(self.groups)

    @property
    def worker_count(self) -> int:
        """Number of declared workers."""
        return sum(group.count for group in self.groups)

    def holds(self, machines: str) -> bool:
        """Return whether the declaration has at least these workers, such as `k80x2+p100x1`."""
        declared: Counter[str] = Counter()
        for group in self.groups:
            declared[group.accelerator] += group.count
        return all(declared[gpu] >= count for gpu, count in parse_machines(machines).items())

    @property
    def home_zone(self) -> str:
        """The parameter servers' zone: the declared one, else that of most workers.

        There their traffic with the workers is free.
        """
        if self.parameter_server_zone:
            return self.parameter_server_zone
        counts: dict[str, int] = {}
        for group in self.groups:
            zone = group.zone or self.zones_for(group.accelerator)[0]
            counts[zone] = counts.get(zone, 0) + group.count
        return max(counts, key=lambda zone: counts[zone], default=self.zones[0])

    @property
    def all_zones(self) -> tuple[str, ...]:
        """Every zone in which a VM of this cluster may be."""
        own = [group.zone for group in self.groups if group.zone]
        if self.parameter_server_zone:
            own.append(self.parameter_server_zone)
        others = [zone for zones in self.candidates.values() for zone in zones]
        return tuple(dict.fromkeys([*own, *self.zones, *others]))

    def zones_for(self, accelerator: str) -> tuple[str, ...]:
        """Return the zones of workers with this GPU whose group names none, best first."""
        return self.candidates.get(accelerator) or self.zones

    def price(self, kind: str, zone: str) -> PriceLine:
        """Return the price of a VM of this kind (`price_kind`) in this zone."""
        return self.find_price(kind, zone) or self.prices[kind]

    def find_price(self, kind: str, zone: str) -> PriceLine | None:
        """Return the price of a VM of this kind in this zone; None if the declaration has none."""
        return self.prices.get(f"{kind}@{zone}") or self.prices.get(kind)

    @property
    def controller_vm(self) -> bool:
        """Whether the controller has a VM of its own.

        The oldest clusters moved it to a parameter server's VM.
        """
        return self.controller == "cluster" and CONTROLLER in self.prices

    @property
    def emulated(self) -> bool:
        """Whether no project is named: everything runs on this machine and costs nothing."""
        return self.project is None

    @property
    def source(self) -> Source:
        """The source of measurements on the cluster."""
        return "emulated" if self.emulated else "own"

    @property
    def through_proxy(self) -> bool:
        """Whether this machine connects through Identity-Aware Proxy."""
        return not self.emulated and (
            not self.external_ip or (self.firewall and self.ssh_from == (IAP_RANGE,))
        )

    @property
    def hourly(self) -> float:
        """The price of the declared cluster per hour, in US dollars."""
        return (
            sum(group.count * self._line(group).hourly for group in self.groups)
            + self._servers_hourly
        )

    @property
    def on_demand_hourly(self) -> float:
        """The price of the same cluster without transient servers per hour, in US dollars."""
        return (
            sum(group.count * self._line(group).on_demand_hourly for group in self.groups)
            + self._servers_hourly
        )

    @property
    def extras_hourly(self) -> float:
        """The part of `hourly` for disks and external addresses."""
        extras = sum(group.count * self._line(group).extras for group in self.groups)
        extras += self.parameter_servers * self.price("parameter-server", self.home_zone).extras
        if self.controller_vm:
            extras += self.price(CONTROLLER, self.home_zone).extras
        return extras

    @property
    def most_hourly(self) -> float:
        """The highest price per hour, in US dollars.

        A VM may be in the dearest of its zones if others are sold out. With a fallback, every
        worker may cost its on-demand price. Runs may use all preparation VMs.
        """
        workers = sum(group.count * self._most(group) for group in self.groups)
        prepared = 0.0
        if self.preparation:
            prepared = self.preparation * self._rate(CPU, self.home_zone)
        return workers + prepared + self._servers_most_hourly

    def with_end(self) -> Self:
        """Return the spec with the end that follows from its prices.

        Call it before the first VM exists; the end never changes afterwards.
        """
        dearest = max(self._most(group) for group in self.groups)
        more = max(self.reserved_workers - self.worker_count, 0)
        return replace(self, end_hourly=self.most_hourly + more * dearest)

    @property
    def idle_end_seconds(self) -> float:
        """Idle time in seconds after which the cluster is deleted; workers go at `idle_seconds`."""
        return 2 * self.idle_seconds

    @property
    def ends_at(self) -> float:
        """When Compute Engine itself deletes every VM of this cluster, in seconds since 1970."""
        seconds = self.max_seconds
        hourly = self.end_hourly or self.most_hourly
        if self.max_cost is not None and hourly > 0:
            seconds = min(seconds, 3600 * self.max_cost / hourly)
        return self.declared_at + seconds

    @property
    def _servers_hourly(self) -> float:
        """The price per hour of the on-demand VMs that are not workers."""
        servers = self.price("parameter-server", self.home_zone)
        hourly = self.parameter_servers * servers.on_demand_hourly
        if self.controller_vm:
            hourly += self.price(CONTROLLER, self.home_zone).on_demand_hourly
        return hourly

    @property
    def _servers_most_hourly(self) -> float:
        """The price per hour of these VMs in their dearest zones."""
        zones = self.all_zones
        if self.parameter_server_zone:
            zones = (self.parameter_server_zone,)
        hourly = self.parameter_servers * max(
            self.price("parameter-server", zone).on_demand_hourly for zone in zones
        )
        if self.controller_vm:
            hourly += max(self.price(CONTROLLER, zone).on_demand_hourly for zone in self.all_zones)
        return hourly

    def _most(self, group: WorkerGroup) -> float:
        """Return the price per hour of a worker of the group in its dearest zone."""
        if group.zone:
            zones = (group.zone,)
        else:
            zones = self.zones_for(group.accelerator)
        return max(self._rate(group.accelerator, zone) for zone in zones)

    def _rate(self, kind: str, zone: str) -> float:
        """Return the highest price per hour of a VM of this kind in this zone."""
        line = self.price(kind, zone)
        if self.fallback_seconds is None:
            return line.hourly
        return line.on_demand_hourly

    def _line(self, group: WorkerGroup) -> PriceLine:
        return self.price(group.accelerator, group.zone or self.zones_for(group.accelerator)[0])

    def to_dict(self) -> dict[str, object]:
        """Return plain JSON values; `from_dict` reads them as an equal spec."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Self:
        """Read what `to_dict` wrote; fields of newer versions are ignored.

        Raises DeclarationError for an incomplete declaration: VMs and buckets hold copies of it.
        """
        try:
            spec = checks.built(cls, values)
            checked_name(spec.name)
            if not spec.zones:
                raise ValueError("zones: must have at least 1 entry, not 0")
            _ = spec.home_zone, spec.ends_at
        except LookupError as error:
            raise _invalid(f"it has no zone or price for {error}") from None
        except ValueError as error:
            raise _invalid(str(error)) from None
        return spec


def _invalid(why: str) -> DeclarationError:
    what = f"The cluster's declaration is invalid: {why}"
    return DeclarationError(what, fix="Declare the cluster again.")


# Prices of a cluster's VMs in each of their possible zones, and of the traffic between them.


def lines_of(spec: ClusterSpec, kinds: Iterable[str]) -> PriceList:
    """Return the price list for a declared cluster: its machines, disks and addresses."""
    return price_list(
        kinds,
        external_ip=spec.external_ip,
        machines=spec.worker_machines,
        disk_gb=spec.disk_gb,
        disk_type=spec.disk_type,
    )


def worker_prices(
    lines: PriceList,
    groups: tuple[WorkerGroup, ...],
    candidates: Mapping[str, tuple[str, ...]],
    model: str,
) -> dict[str, PriceLine]:
    """Return the prices of workers, by GPU.

    A zone of a GPU with another price than its first zone has an entry `GPU@ZONE`.
    """
    prices: dict[str, PriceLine] = {}
    for group in groups:
        kind = group.accelerator
        for zone in (group.zone,) if group.zone else candidates[kind]:
            price = lines.worker_price(kind, zone)
            hourly = price.transient
            extras = price.transient_extras
            if model == "standard":
                hourly = price.on_demand
                extras = price.on_demand_extras
            line = PriceLine(lines.machine(kind), hourly, price.on_demand, price.source, extras)
            if prices.setdefault(kind, line) != line:
                prices[f"{kind}@{zone}"] = line
    return prices


def age_words(spec: ClusterSpec) -> str:
    """Return the age of the Spot prices of a declaration, in sentences.

    Empty without transient VMs, and for prices that a publication used.
    """
    if spec.provisioning_model == "standard":
        return ""
    lines = lines_of(spec, [group.accelerator for group in spec.groups])
    places = [
        (group.accelerator, group.zone or spec.zones_for(group.accelerator)[0])
        for group in spec.groups
    ]
    return " ".join(
        dict.fromkeys(filter(None, [lines.worker_price(*place).age_words for place in places]))
    )


def with_home(spec: ClusterSpec, lines: PriceList) -> ClusterSpec:
    """Return `spec` with all that depends on the parameter servers' zone.

    That are their prices, the controller's, and those of traffic with them.
    """
    traffic = {
        zone: transfer_price(zone, spec.home_zone).dollars_per_gib for zone in spec.all_zones
    }
    prices = {**spec.prices, **_server_prices(lines, spec)}
    return replace(
        spec,
        prices=prices,
        transfer_prices={zone: price for zone, price in traffic.items() if price},
    )


def _server_prices(lines: PriceList, spec: ClusterSpec) -> dict[str, PriceLine]:
    """Return the prices of on-demand VMs: in the home zone, and `KIND@ZONE` where they differ."""
    cores = spec.parameter_server_cores
    named = spec.parameter_server_machine
    kinds: dict[str, tuple[str, Callable[[str], VmPrice]]] = {}
    if named:
        kinds[PARAMETER_SERVER] = (named, partial(lines.server_price, named))
    else:
        machine = parameter_server_machine(cores)
        kinds[PARAMETER_SERVER] = (machine, partial(lines.parameter_server_price, cores))
    declared = spec.prices
    # A cluster whose servers have a price but its controller none is of the first versions: its
    # controller is on a server's VM.
    if spec.controller == "cluster" and (
        CONTROLLER in declared or price_kind(PARAMETER_SERVER, "") not in declared
    ):
        kinds[CONTROLLER] = (CONTROLLER_MACHINE, lines.controller_price)
    prices: dict[str, PriceLine] = {}
    for role, (machine, price_in) in kinds.items():
        kind = price_kind(role, "")
        for zone in dict.fromkeys([spec.home_zone, *spec.all_zones]):
            price = price_in(zone)
            line = PriceLine(
                machine, price.on_demand, price.on_demand, price.source, price.on_demand_extras
            )
            if prices.setdefault(kind, line) != line:
                prices[f"{kind}@{zone}"] = line
    return prices


# Places for workers: one on the VM of each slot, or several if trials of a study share it
# (`--per-vm`).
#
# A place is a number. The first place of a slot has the slot's number, each further one is `_APART`
# higher. So code without shared VMs reads first places as slots.


def place(slot: int, number: int) -> int:
    """Return the `number`-th place (from 0) on the VM in a slot."""
    return slot + number * _APART


def places(slot: int) -> list[int]:
    """Return all possible places on the VM in a slot."""
    return [place(slot, number) for number in range(MOST_PER_VM)]


def slot_of(place: int) -> int:
    """Return the slot whose VM has a place."""
    return place % _APART
