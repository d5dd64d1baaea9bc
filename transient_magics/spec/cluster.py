"""ClusterSpec: everything that was declared about one cluster, frozen, and as JSON.

The catalog's answers that must not change while the cluster lives (machine types, zones, prices at
the moment of declaration) are part of it, so that whoever reads `spec.json` later needs no table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
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
from ..protocol.machines import CPU, MOST_PER_VM, parse_machines
from ..protocol.names import checked_name
from .grammar import WorkerGroup, render_groups

EMULATED_PROJECT = "emulated-project"
"""What the emulator calls the project of clusters that name none."""
MOST_SECONDS = 120 * 86400.0
"""The longest time limit that Compute Engine takes for a VM."""
IAP_RANGE = "35.235.240.0/20"
"""Where Identity-Aware Proxy's connections come from."""
PARAMETER_SERVER = "ps"
WORKER = "worker"
CONTROLLER = "controller"
PREPARATION = "prep"
"""What a VM of a cluster may be there for: its role. The last prepares mini-batches for the workers
of one run.
"""
PURPOSES = TRAINING, JOBS = "training", "jobs"
"""What a cluster, or an image, is for: all that VMs can do, or jobs, Dask and bags alone, without
TensorFlow.
"""

Source = Literal["own", "emulated", "published"]
"""Where something was measured: on the user's VMs on Compute Engine, on the emulator, or by a
publication. Seconds of different sources are never mixed: an emulated worker is a process of this
machine, as fast as that.
"""

_APART = 100_000
"""More than slots there are."""


def price_kind(role: str, accelerator: str) -> str:
    """Under which of a cluster's prices a VM is: a worker's by its accelerator, others' by what
    they are.
    """
    return accelerator or {PARAMETER_SERVER: "parameter-server"}.get(role, role)


@dataclass(frozen=True, slots=True)
class PriceLine:
    """What one kind of VM costs per hour (USD), as we rent it and on demand, and who says so."""

    machine_type: str
    hourly: float
    on_demand_hourly: float
    source: str
    extras: float = 0.0
    """What of `hourly` is for its disk and external address."""


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """A declared cluster. Times in seconds, money in US dollars, `declared_at` in seconds since
    1970 (UTC).
    """

    name: str
    groups: tuple[WorkerGroup, ...]
    zones: tuple[str, ...]
    prices: Mapping[str, PriceLine]
    """By accelerator, `parameter-server` and `controller`; as `kind@zone` where a zone has a price
    of its own.
    """
    candidates: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """By accelerator: the zones in which groups without one of their own may be, best first (else
    `zones`).
    """
    transfer_prices: Mapping[str, float] = field(default_factory=dict[str, float])
    """By zone: US dollars per GiB, in each direction, of traffic with the parameter servers' zone,
    where it costs.
    """
    id: str = ""
    """Eight hexadecimal digits, drawn when it was declared: what tells it from every other cluster
    of its name in the project. Empty in what was declared before there were any.
    """
    declared_at: float = 0.0
    parameter_servers: int = 1
    parameter_server_cores: int = 4
    parameter_server_machine: str = ""
    """Their machine type; empty: N1 with so many vCPUs and 4 GB each."""
    parameter_server_zone: str = ""
    """Where they are; empty: where most workers are declared."""
    worker_machines: Mapping[str, str] = field(default_factory=dict[str, str])
    """By accelerator: the machine type of its workers, where it is not the catalog's."""
    disk_gb: int = 0
    """Of the boot disks of workers and parameter servers; 0: the image's size, else the catalog's.
    """
    disk_type: str = DISK_TYPE
    preparation: int = 0
    """How many VMs its runs may have prepare mini-batches at once; the limit on money is computed
    with all of them.
    """
    provisioning_model: str = "spot"
    notice_seconds: Annotated[int, checks.within(0, 120)] = 0
    """The seconds that Spot VMs request between the preemption notice and the start of their
    shutdown.
    """
    max_workers: int = 0
    replace: bool = True
    give_up: Literal["slowest", "youngest", "riskiest", "dearest", "ask"] | None = None
    """Which workers go where there are to be fewer; None: those with the highest places, or, where
    a provider wants some back, the slowest.
    """
    fallback_seconds: float | None = None
    chief: str = "ps"
    max_seconds: float = 24 * 3600.0
    max_cost: float | None = None
    reserved_workers: int = 0
    """With how many workers the limit on money is computed, where a resize may bring more than were
    declared.
    """
    end_hourly: float = 0.0
    """US dollars per hour with which the moment was computed at which the money is spent; it stays
    where a resize changes what the cluster costs, for Compute Engine moves no end of a VM that
    runs. 0: as it costs now.
    """
    idle_seconds: float = 30 * 60.0
    project: str | None = None
    bucket: str | None = None
    """`name` or `name/path`; None: checkpoints and results come to this machine."""
    image: str | None = None
    image_for_gpus: bool = True
    """Whether VMs with GPUs boot from `image`, too; else they install their driver and the rest by
    themselves.
    """
    service_account: str | None = None
    network: str | None = None
    subnet: str | None = None
    external_ip: bool = True
    firewall: bool = True
    ssh_from: tuple[str, ...] = ()
    """The address ranges that SSH is let in from; empty in what was declared before there was a
    default: from all.
    """
    controller: str = "local"
    purpose: Literal["training", "jobs"] = TRAINING
    """With `jobs` there is no TensorFlow on its VMs, and of parameter servers the VM alone:
    schedulers run there.
    """

    @property
    def spec(self) -> str:
        """The SPEC text of the declared groups."""
        return render_groups(self.groups)

    @property
    def worker_count(self) -> int:
        """Number of declared workers."""
        return sum(group.count for group in self.groups)

    def holds(self, machines: str) -> bool:
        """Whether so many workers of each GPU are declared, as `k80x2+p100x1` says."""
        declared: Counter[str] = Counter()
        for group in self.groups:
            declared[group.accelerator] += group.count
        return all(declared[gpu] >= count for gpu, count in parse_machines(machines).items())

    @property
    def home_zone(self) -> str:
        """Where the parameter servers are: in a zone of their own, else where most workers are
        declared, so that their traffic stays within it.
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
        own += [self.parameter_server_zone] if self.parameter_server_zone else []
        others = [zone for zones in self.candidates.values() for zone in zones]
        return tuple(dict.fromkeys([*own, *self.zones, *others]))

    def zones_for(self, accelerator: str) -> tuple[str, ...]:
        """The zones in which workers with this GPU may be, best first, if their group names none."""
        return self.candidates.get(accelerator) or self.zones

    def price(self, kind: str, zone: str) -> PriceLine:
        """What a VM of this kind (`price_kind`) costs in this zone."""
        return self.known_price(kind, zone) or self.prices[kind]

    def known_price(self, kind: str, zone: str) -> PriceLine | None:
        """The same; None where the declaration has none."""
        return self.prices.get(f"{kind}@{zone}") or self.prices.get(kind)

    @property
    def controller_vm(self) -> bool:
        """Whether the controller has a VM of its own. Those of the first versions moved to a
        parameter server's.
        """
        return self.controller == "cluster" and CONTROLLER in self.prices

    @property
    def emulated(self) -> bool:
        """True where no project was named: everything runs on this machine and nothing is billed."""
        return self.project is None

    @property
    def source(self) -> Source:
        """The source of what is measured on the cluster."""
        return "emulated" if self.emulated else "own"

    @property
    def through_proxy(self) -> bool:
        """Whether this machine comes in through Identity-Aware Proxy rather than from its own
        address.
        """
        return not self.emulated and (
            not self.external_ip or (self.firewall and self.ssh_from == (IAP_RANGE,))
        )

    @property
    def hourly(self) -> float:
        """What the declared cluster costs per hour, in US dollars."""
        return (
            sum(group.count * self._line(group).hourly for group in self.groups)
            + self._servers_hourly
        )

    @property
    def on_demand_hourly(self) -> float:
        """What the same cluster would cost per hour without transient servers, in US dollars."""
        return (
            sum(group.count * self._line(group).on_demand_hourly for group in self.groups)
            + self._servers_hourly
        )

    @property
    def extras_hourly(self) -> float:
        """What of `hourly` is for disks and external addresses."""
        servers = self.parameter_servers * self.price("parameter-server", self.home_zone).extras
        if self.controller_vm:
            controller = self.price(CONTROLLER, self.home_zone).extras
        else:
            controller = 0.0
        return (
            sum(group.count * self._line(group).extras for group in self.groups)
            + servers
            + controller
        )

    @property
    def most_hourly(self) -> float:
        """What it costs per hour at most: each VM may come to be in the dearest of its zones, where
        others are sold out, with a fallback every worker may come to cost the price on demand, and
        runs may have all of their preparation VMs.
        """
        workers = sum(group.count * self._most(group) for group in self.groups)
        if self.preparation:
            prepared = self.preparation * self._rate(CPU, self.home_zone)
        else:
            prepared = 0.0
        return workers + prepared + self._servers_most_hourly

    def with_end(self) -> Self:
        """The same, with the end that follows from its prices. For before the first VM: later it
        stays.
        """
        dearest = max(self._most(group) for group in self.groups)
        more = max(self.reserved_workers - self.worker_count, 0)
        return replace(self, end_hourly=self.most_hourly + more * dearest)

    @property
    def idle_end_seconds(self) -> float:
        """Without a run for so long the whole cluster is deleted; its workers go after
        `idle_seconds`.
        """
        return 2 * self.idle_seconds

    @property
    def ends_at(self) -> float:
        """The one moment (seconds since 1970) at which Compute Engine itself deletes every VM of
        this cluster.
        """
        seconds = self.max_seconds
        hourly = self.end_hourly or self.most_hourly
        if self.max_cost is not None and hourly > 0:
            seconds = min(seconds, 3600 * self.max_cost / hourly)
        return self.declared_at + seconds

    @property
    def _servers_hourly(self) -> float:
        """Of the VMs on demand that are no workers."""
        hourly = (
            self.parameter_servers * self.price("parameter-server", self.home_zone).on_demand_hourly
        )
        return hourly + (
            self.price(CONTROLLER, self.home_zone).on_demand_hourly if self.controller_vm else 0.0
        )

    @property
    def _servers_most_hourly(self) -> float:
        """The same in the dearest zones where they may be."""
        if self.parameter_server_zone:
            zones = (self.parameter_server_zone,)
        else:
            zones = self.all_zones
        hourly = self.parameter_servers * max(
            self.price("parameter-server", zone).on_demand_hourly for zone in zones
        )
        seats = (self.price(CONTROLLER, all_zone).on_demand_hourly for all_zone in self.all_zones)
        return hourly + (max(seats) if self.controller_vm else 0.0)

    def _most(self, group: WorkerGroup) -> float:
        """What a worker of the group costs per hour in the dearest zone where it may be."""
        if group.zone:
            zones = (group.zone,)
        else:
            zones = self.zones_for(group.accelerator)
        return max(self._rate(group.accelerator, zone) for zone in zones)

    def _rate(self, kind: str, zone: str) -> float:
        """What a VM of this kind may come to cost per hour in this zone."""
        line = self.price(kind, zone)
        if self.fallback_seconds is None:
            return line.hourly
        return line.on_demand_hourly

    def _line(self, group: WorkerGroup) -> PriceLine:
        return self.price(group.accelerator, group.zone or self.zones_for(group.accelerator)[0])

    def to_dict(self) -> dict[str, object]:
        """Plain JSON values; `from_dict` reads them back as an equal spec."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Self:
        """Read what `to_dict` wrote; fields of newer versions are ignored.

        Raises DeclarationError where it is no whole declaration: VMs and buckets hold copies of it.
        """
        try:
            spec = checks.built(cls, values)
            checked_name(spec.name)
            if not spec.zones:
                raise ValueError("it has no zones")
            _ = spec.home_zone, spec.ends_at
        except LookupError as error:
            raise DeclarationError(
                f"The cluster's declaration cannot be read: it lacks a zone or a price ({error})"
            ) from None
        except ValueError as error:
            raise DeclarationError(f"The cluster's declaration cannot be read: {error}") from None
        return spec


# What the VMs of a cluster cost in each of the zones where they may be, and the traffic between
# them.


def lines_of(spec: ClusterSpec, kinds: Iterable[str]) -> PriceList:
    """The prices for a cluster that is declared, or was: with these GPUs, on its machines, disks
    and addresses.
    """
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
    """Of workers: by GPU, and by `GPU@ZONE` for those of its zones in which it costs something else
    than in its first.
    """
    prices: dict[str, PriceLine] = {}
    for group in groups:
        kind = group.accelerator
        for zone in (group.zone,) if group.zone else candidates[kind]:
            price = lines.worker_price(kind, zone)
            hourly = price.on_demand if model == "standard" else price.transient
            if model == "standard":
                extras = price.on_demand_extras
            else:
                extras = price.transient_extras
            line = PriceLine(lines.machine(kind), hourly, price.on_demand, price.source, extras)
            if prices.setdefault(kind, line) != line:
                prices[f"{kind}@{zone}"] = line
    return prices


def age_words(spec: ClusterSpec) -> str:
    """Return how old the Spot prices are that a declaration rests on, in sentences.

    Empty where nothing is transient, or prices are a publication's own.
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
    """`spec` with what depends on where its parameter servers are: their prices and the
    controller's, and those of traffic with them.
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
    """Of the VMs on demand: in the cluster's home zone, and where they cost something else."""
    cores = spec.parameter_server_cores
    named = spec.parameter_server_machine
    kinds: dict[str, tuple[str, Callable[[str], VmPrice]]] = {
        PARAMETER_SERVER: (named, lambda zone: lines.server_price(named, zone))
        if named
        else (
            parameter_server_machine(cores),
            lambda zone: lines.parameter_server_price(cores, zone),
        ),
    }
    known = spec.prices
    # Where servers had a price and it none, the first versions made the cluster: its controller is
    # on a server's VM.
    if spec.controller == "cluster" and (
        CONTROLLER in known or price_kind(PARAMETER_SERVER, "") not in known
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


# Places for workers: one on the VM of each slot, or several on one that trials of a study share
# (`--per-vm`).
#
# A place is a number. The first one of a slot has the slot's own, and each further one lies
# `_APART` higher, so that who knows of no shared VMs reads the first places as the slots that they
# are.


def place(slot: int, number: int) -> int:
    """The `number`-th place, from 0 on, on the VM in a slot."""
    return slot + number * _APART


def places(slot: int) -> list[int]:
    """All that there can be on it."""
    return [place(slot, number) for number in range(MOST_PER_VM)]


def slot_of(place: int) -> int:
    """The slot in whose VM a place is."""
    return place % _APART
