"""What Google would charge for what existed: its published rules, and nothing of this project.

The rules are those of Google's pages, named where they are used:

- "VM instance pricing" (sections "Billing model", "Instance uptime", "Resource-based pricing")
- "Spot VMs" (sections "Preemption process", "Pricing", "GPUs on Spot VMs")
- "Disk and image pricing"
- "Virtual Private Cloud pricing" ("VM-VM data transfer pricing within Google Cloud", "External IP address pricing")
- "General-purpose machine family" (sizes of predefined machine types, custom machine types)

What existed is a plain record; what it costs is a table that is given, in USD. Times are seconds on any one clock. No
discount for sustained or committed use is reckoned (Spot VMs have neither; GPUs by the hour have no sustained one).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Literal

GIB = 2**30
HOUR_S = 3600.0
MINUTE_S = 60
CUSTOM_PREMIUM = 1.05  # "General-purpose machine family": N1 and N2 custom types cost 5% more than predefined ones

# GiB per vCPU of predefined types, by "General-purpose machine family".
GIB_PER_VCPU = {
    "n1": {"standard": 3.75, "highmem": 6.5, "highcpu": 0.9},
    "n2": {"standard": 4.0, "highmem": 8.0, "highcpu": 1.0},
}


@dataclass(frozen=True)
class Run:
    """One stretch from a start to a stop. Staging before it is free: nothing runs yet ("VM instance lifecycle")."""

    running: float  # entered RUNNING
    stopping: float | None = None  # left RUNNING for STOPPING; None: it still runs
    terminated: float | None = None  # entered TERMINATED, or was gone
    preempted: bool = False  # Compute Engine took it, not the user


@dataclass(frozen=True)
class Disk:
    kind: str  # pd-standard, pd-balanced, pd-ssd
    gib: float
    created: float
    deleted: float | None = None


@dataclass(frozen=True)
class Vm:
    name: str
    zone: str
    machine_type: str
    spot: bool = False
    accelerators: tuple[tuple[str, int], ...] = ()  # type and count, beside the machine type
    runs: tuple[Run, ...] = ()
    disks: tuple[Disk, ...] = ()
    external_address: bool = False  # an ephemeral one, which it has while it is not stopped
    sent: Mapping[str, float] = field(default_factory=dict)  # bytes to internal addresses, by the receiver's zone


@dataclass(frozen=True)
class Prices:
    """A table of list prices, USD. `hourly` is by item, region and whether it is Spot; an item is an accelerator type,
    a whole machine type (its host alone), or `n1-vcpu` and `n1-gib` of a series that is billed by resources."""

    hourly: Mapping[tuple[str, str, bool], float]
    disk_month: Mapping[tuple[str, str], float] = field(default_factory=dict)  # per GiB, by kind and region
    month_s: float = 730 * HOUR_S  # Google's calculator; a bill's own month has 28 to 31 days
    address_hour: Mapping[bool, float] = field(default_factory=lambda: {False: 0.005, True: 0.0025})  # by Spot
    between_zones: float = 0.01  # per GiB
    between_regions: Mapping[tuple[str, str], float] = field(default_factory=dict)  # per GiB, by continents
    # "Instance uptime" ends with TERMINATED in older copies of that page, and with STOPPING in one of about 2026.
    uptime_ends: Literal["STOPPING", "TERMINATED"] = "STOPPING"


@dataclass(frozen=True)
class Charges:
    """USD by kind of resource."""

    machine: float = 0.0  # vCPUs and memory
    accelerators: float = 0.0
    disks: float = 0.0
    address: float = 0.0
    transfer: float = 0.0

    @property
    def total(self) -> float:
        return sum(getattr(self, line.name) for line in fields(self))

    def __add__(self, other: Charges) -> Charges:
        return Charges(*(getattr(self, line.name) + getattr(other, line.name) for line in fields(self)))


def region_of(zone: str) -> str:
    return zone.rpartition("-")[0]


def continent_of(zone: str) -> str:
    """As the table of data transfer has them: both Americas apart, Australia as Oceania."""
    first = zone.partition("-")[0]
    return {"us": "northamerica", "australia": "oceania"}.get(first, first)


def uptime_s(run: Run, at: float, prices: Prices) -> float:
    """ "Instance uptime": from when an instance is started until it is stopped, as far as that has happened `at`."""
    end = run.stopping if prices.uptime_ends == "STOPPING" else run.terminated
    return max(0.0, min(at, math.inf if end is None else end) - run.running)


def billed_s(run: Run, spot: bool, at: float, prices: Prices) -> int:
    """ "Billing model": each start is charged a minute at least, then by increments of a second.

    "Spot VMs", "Preemption process": what is preempted within its first minute is not billed.
    """
    if run.running > at:
        return 0
    uptime = uptime_s(run, at, prices)
    taken = run.preempted and run.stopping is not None and run.stopping <= at
    if spot and taken and uptime < MINUTE_S:
        return 0
    return max(MINUTE_S, math.ceil(uptime - 1e-6))


def machine_hour(vm: Vm, prices: Prices) -> float:
    """ "Resource-based pricing": each vCPU and each GiB is billed apart, whatever machine type has them."""
    region = region_of(vm.zone)
    whole = prices.hourly.get((vm.machine_type, region, vm.spot))
    if whole is not None:
        return whole
    if custom := re.fullmatch(r"(?:(n[12])-)?custom-(\d+)-(\d+)", vm.machine_type):
        series, vcpus, gib, premium = custom[1] or "n1", int(custom[2]), int(custom[3]) / 1024, CUSTOM_PREMIUM
    elif named := re.fullmatch(r"(n[12])-(standard|highmem|highcpu)-(\d+)", vm.machine_type):
        series, vcpus, premium = named[1], int(named[3]), 1.0
        gib = vcpus * GIB_PER_VCPU[series][named[2]]
    else:
        raise KeyError(f"no price of {vm.machine_type} in {region}, and no rule for its resources")
    return premium * (
        vcpus * prices.hourly[f"{series}-vcpu", region, vm.spot] + gib * prices.hourly[f"{series}-gib", region, vm.spot]
    )


def accelerators_hour(vm: Vm, prices: Prices) -> float:
    """ "GPU pricing": per GPU and hour, beside the machine, on the same clock as its vCPUs."""
    return sum(count * prices.hourly[kind, region_of(vm.zone), vm.spot] for kind, count in vm.accelerators)


def disk_charge(disk: Disk, zone: str, at: float, prices: Prices) -> float:
    """ "Disk and image pricing": provisioned GiB per month, prorated by seconds, until deleted, come what may."""
    seconds = max(0.0, min(at, math.inf if disk.deleted is None else disk.deleted) - disk.created)
    return disk.gib * prices.disk_month[disk.kind, region_of(zone)] * seconds / prices.month_s


def address_charge(vm: Vm, at: float, prices: Prices) -> float:
    """ "External IP address pricing": while in use by a VM, less on Spot; a stopped VM has no ephemeral one.

    No minimum is named there, and no exception for VMs preempted early.
    """
    if not vm.external_address:
        return 0.0
    ends = ((run.running, math.inf if run.terminated is None else run.terminated) for run in vm.runs)
    return prices.address_hour[vm.spot] * sum(max(0.0, min(at, end) - start) for start, end in ends) / HOUR_S


def transfer_charge(vm: Vm, prices: Prices) -> float:
    """ "VM-VM data transfer pricing within Google Cloud": charged where it leaves, by internal address.

    Nothing within a zone, a price per GiB between zones of a region, another by continents between regions. What comes
    in is free: the sender has paid it.
    """
    total = 0.0
    for zone, size in vm.sent.items():
        if zone == vm.zone:
            continue
        if region_of(zone) == region_of(vm.zone):
            price = prices.between_zones
        else:
            price = prices.between_regions[continent_of(vm.zone), continent_of(zone)]
        total += price * size / GIB
    return total


def charges(vm: Vm, at: float, prices: Prices) -> Charges:
    """All that one VM has cost until `at`; bytes are those sent until then."""
    hours = sum(billed_s(run, vm.spot, at, prices) for run in vm.runs) / HOUR_S
    return Charges(
        machine=hours * machine_hour(vm, prices) if hours else 0.0,
        accelerators=hours * accelerators_hour(vm, prices) if hours else 0.0,
        disks=sum(disk_charge(disk, vm.zone, at, prices) for disk in vm.disks),
        address=address_charge(vm, at, prices),
        transfer=transfer_charge(vm, prices),
    )


def reckon(vms: Iterable[Vm], at: float, prices: Prices) -> dict[str, Charges]:
    """By VM's name. A name that was used again, as Compute Engine allows, has the charges of all that bore it."""
    bill: dict[str, Charges] = {}
    for vm in vms:
        bill[vm.name] = bill.get(vm.name, Charges()) + charges(vm, at, prices)
    return bill
