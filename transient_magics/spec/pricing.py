"""What the VMs of a cluster cost in each of the zones where they may be, and the traffic between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from ..catalog import CONTROLLER_MACHINE, PriceList, VmPrice, parameter_server_machine, price_list, transfer_price
from .cluster import CONTROLLER, PARAMETER_SERVER, ClusterSpec, PriceLine, price_kind
from .grammar import WorkerGroup


def lines_of(spec: ClusterSpec, kinds: Iterable[str]) -> PriceList:
    """The prices for a cluster that is declared, or was: with these GPUs, on its machines, disks and addresses."""
    return price_list(
        kinds, external_ip=spec.external_ip, machines=spec.worker_machines, disk_gb=spec.disk_gb,
        disk_type=spec.disk_type,
    )  # fmt: skip


def worker_prices(
    lines: PriceList, groups: tuple[WorkerGroup, ...], candidates: Mapping[str, tuple[str, ...]], model: str
) -> dict[str, PriceLine]:
    """Of workers: by GPU, and by `GPU@ZONE` for those of its zones in which it costs something else than in its
    first."""
    prices: dict[str, PriceLine] = {}
    for group in groups:
        kind = group.accelerator
        for zone in (group.zone,) if group.zone else candidates[kind]:
            price = lines.worker_price(kind, zone)
            hourly = price.on_demand if model == "standard" else price.transient
            extras = price.on_demand_extras if model == "standard" else price.transient_extras
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
    places = [(group.accelerator, group.zone or spec.zones_for(group.accelerator)[0]) for group in spec.groups]
    return " ".join(dict.fromkeys(filter(None, [lines.worker_price(*place).age_words for place in places])))


def with_home(spec: ClusterSpec, lines: PriceList) -> ClusterSpec:
    """`spec` with what depends on where its parameter servers are: their prices and the controller's, and those of
    traffic with them."""
    traffic = {zone: transfer_price(zone, spec.home_zone).dollars_per_gib for zone in spec.all_zones}
    prices = {**spec.prices, **_server_prices(lines, spec)}
    return replace(spec, prices=prices, transfer_prices={zone: price for zone, price in traffic.items() if price})


def _server_prices(lines: PriceList, spec: ClusterSpec) -> dict[str, PriceLine]:
    """Of the VMs on demand: in the cluster's home zone, and where they cost something else."""
    cores, named = spec.parameter_server_cores, spec.parameter_server_machine
    kinds: dict[str, tuple[str, Callable[[str], VmPrice]]] = {
        PARAMETER_SERVER: (named, lambda zone: lines.server_price(named, zone))
        if named
        else (parameter_server_machine(cores), lambda zone: lines.parameter_server_price(cores, zone)),
    }
    known = spec.prices
    # Where servers had a price and it none, the first versions made the cluster: its controller is on a server's VM.
    if spec.controller == "cluster" and (CONTROLLER in known or price_kind(PARAMETER_SERVER, "") not in known):
        kinds[CONTROLLER] = (CONTROLLER_MACHINE, lines.controller_price)
    prices: dict[str, PriceLine] = {}
    for role, (machine, price_in) in kinds.items():
        kind = price_kind(role, "")
        for zone in dict.fromkeys([spec.home_zone, *spec.all_zones]):
            price = price_in(zone)
            line = PriceLine(machine, price.on_demand, price.on_demand, price.source, price.on_demand_extras)
            if prices.setdefault(kind, line) != line:
                prices[f"{kind}@{zone}"] = line
    return prices
