"""Machine types of workers and parameter servers: which may have which GPU, and what they cost.

N1 machines are predefined or custom and have GPUs attached within limits; A2, A3 and G2 machines
come with theirs. Limits per N1 VM: Compute Engine's documentation as kept by SkyPilot (read in
2026).

A parameter server has a machine type of N1, N2 or E2, of which N1 is the oldest. Prices are those
of vCPUs and memory, of which those of custom machines cost more (prices.py).

A worker has one GPU. It is attached to an N1 machine within Compute Engine's limits, or comes with
one of its own family; workers without one may have what parameter servers have.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import cache

from ..errors import DeclarationError, unknown
from .accelerators import ACCELERATORS, Accelerator, accelerator
from .prices import CONTROLLER_MACHINE, VmPrice, parts_price, priced
from .regions import region
from .zones import has_gpu, zones_with


@dataclass(frozen=True, slots=True)
class MachineType:
    """A machine type: its vCPUs, its memory in GB, and the GPUs built into it (a name of the
    catalog, and how many).
    """

    name: str
    vcpus: int
    memory_gb: float
    gpu: str = ""
    gpu_count: int = 0


@dataclass(frozen=True, slots=True)
class Limit:
    """The most vCPUs and GB of memory that an N1 VM may have with a certain number of GPUs."""

    vcpus: int
    memory_gb: float


_N1_SIZES = (1, 2, 4, 8, 16, 32, 64, 96)
_N1_GB = {"n1-standard": 3.75, "n1-highmem": 6.5, "n1-highcpu": 0.9}
_CUSTOM = re.compile(r"(?:n1-)?custom-(?P<vcpus>\d+)-(?P<megabytes>\d+)")
_LIMITS: dict[str, dict[int, Limit]] = {
    "k80": {1: Limit(8, 52), 2: Limit(16, 104), 4: Limit(32, 208), 8: Limit(64, 208)},
    "p100": {1: Limit(16, 104), 2: Limit(32, 208), 4: Limit(96, 624)},
    "v100": {1: Limit(12, 78), 2: Limit(24, 156), 4: Limit(48, 312), 8: Limit(96, 624)},
    "p4": {1: Limit(24, 156), 2: Limit(48, 312), 4: Limit(96, 624)},
    "t4": {1: Limit(48, 312), 2: Limit(48, 312), 4: Limit(96, 624)},
}
# Where a zone's hosts are larger or smaller than elsewhere.
_ZONE_LIMITS: dict[tuple[str, int], dict[str, Limit]] = {
    ("k80", 8): dict.fromkeys(("asia-east1-a", "us-east1-d"), Limit(64, 416)),
    ("p100", 4): dict.fromkeys(("us-east1-c", "europe-west1-b", "europe-west1-d"), Limit(64, 208)),
}
_FIXED = [
    *(
        MachineType(f"{family}-{size}", size, size * gb)
        for family, gb in _N1_GB.items()
        for size in _N1_SIZES
        if size > 1 or family == "n1-standard"
    ),
    *(
        MachineType(f"g2-standard-{size}", size, size * 4, "l4", count)
        for size, count in {4: 1, 8: 1, 12: 1, 16: 1, 24: 2, 32: 1, 48: 4, 96: 8}.items()
    ),
    *(
        MachineType(f"a2-highgpu-{count}g", 12 * count, 85 * count, "a100", count)
        for count in (1, 2, 4, 8)
    ),
    MachineType("a2-megagpu-16g", 96, 1360, "a100", 16),
    MachineType(CONTROLLER_MACHINE, 2, 2),
    *(
        MachineType(f"a2-ultragpu-{count}g", 12 * count, 170 * count, "a100-80gb", count)
        for count in (1, 2, 4, 8)
    ),
    *(
        MachineType(f"a3-highgpu-{count}g", 26 * count, 234 * count, "h100", count)
        for count in (1, 2, 4, 8)
    ),
]
MACHINE_TYPES: dict[str, MachineType] = {each.name: each for each in _FIXED}
"""The predefined machine types by name; custom N1 machines besides."""


def machine_type(name: str) -> MachineType:
    """The machine type called `name`, predefined or custom (`n1-custom-6-20480`). Raises
    DeclarationError.
    """
    if found := MACHINE_TYPES.get(name):
        return found
    if not (match := _CUSTOM.fullmatch(name)):
        raise unknown(
            "machine type",
            name,
            MACHINE_TYPES,
            otherwise="For example: n1-standard-8, n1-custom-6-20480.",
        )
    vcpus = int(match["vcpus"])
    gigabytes = int(match["megabytes"]) / 1024
    if vcpus > 96 or (vcpus != 1 and vcpus % 2) or vcpus < 1:
        raise DeclarationError(
            f"{name}: a custom N1 machine has 1 vCPU or an even number up to 96, not {vcpus}",
            fix=f"Take {min(96, vcpus + 1)}.",
        )
    if int(match["megabytes"]) % 256 or not 0.9 * vcpus <= gigabytes <= 6.5 * vcpus:
        raise DeclarationError(
            f"{name}: a custom N1 machine has 0.9 to 6.5 GB of memory per vCPU, in steps of 256 MB",
            fix=f"For example: n1-custom-{vcpus}-{vcpus * 4096}.",
        )
    return MachineType(name, vcpus, gigabytes)


def parameter_server_machine(cores: int) -> str:
    """The machine type of a parameter server: `cores` vCPUs with 4 GB of memory each (3.75 GB for a
    single one).
    """
    if cores > 1:
        return f"n1-custom-{cores}-{cores * 4096}"
    return "n1-standard-1"


def limits(gpu: str, zone: str = "") -> dict[int, Limit]:
    """What an N1 VM may have at most, by the number of these GPUs; nothing for GPUs that come with
    their machines.
    """
    general = _LIMITS.get(gpu, {})
    return {
        count: _ZONE_LIMITS.get((gpu, count), {}).get(zone, limit)
        for count, limit in general.items()
    }


def machines_with(gpu: str) -> tuple[MachineType, ...]:
    """The machine types that come with this GPU, smallest first; none where it is attached to N1
    machines.
    """
    return tuple(each for each in MACHINE_TYPES.values() if each.gpu == gpu)


def check_machine(name: str, gpu: str = "cpu", count: int = 1, zone: str = "") -> MachineType:
    """The machine type, if it may have `count` GPUs of this kind (`cpu`: none) in this zone (empty:
    in any).

    Raises DeclarationError that says in one sentence which limit is exceeded, and what fits.
    """
    machine = machine_type(name)
    entry = accelerator(gpu)
    if zone:
        check_zone(zone, gpu)
    if gpu == "cpu":
        if machine.gpu:
            raise DeclarationError(
                f"{name} comes with {machine.gpu_count} {machine.gpu.upper()}, but none was asked for",
                fix=f"Take {entry.machine_type}, or declare {machine.gpu}.",
            )
    elif entry.bundled:
        _check_built_in(machine, gpu, count)
    else:
        _check_attached(machine, gpu, count, zone)
    return machine


def check_zone(zone: str, gpu: str) -> None:
    """Raises DeclarationError unless the zone has this GPU (`cpu`: N1 machines, on which parameter
    servers run).
    """
    if has_gpu(zone, gpu):
        return
    near = [each for each in zones_with(gpu) if region(each) == region(zone)] or zones_with(gpu)
    if gpu == "cpu":
        what = "N1 machines"
    else:
        what = gpu.upper()
    raise DeclarationError(f"{zone} has no known {what}", fix=f"Take {_either(near[:3])}.")


def _check_built_in(machine: MachineType, gpu: str, count: int) -> None:
    if machine.gpu == gpu and machine.gpu_count == count:
        return
    fitting = [each.name for each in machines_with(gpu) if each.gpu_count == count]
    counts = sorted({each.gpu_count for each in machines_with(gpu)})
    if fitting:
        fix = f"Take {fitting[0]}."
    else:
        fix = f"A VM has {_either(counts)} {gpu.upper()}."
    if machine.gpu == gpu:
        raise DeclarationError(
            f"{machine.name} has {machine.gpu_count} {gpu.upper()}, not {count}", fix=fix
        )
    raise DeclarationError(
        f"The {gpu.upper()} comes with machines of its own, not with {machine.name}", fix=fix
    )


def _check_attached(machine: MachineType, gpu: str, count: int, zone: str) -> None:
    usual = ACCELERATORS[gpu].machine_type
    if machine.gpu:
        what = f"{machine.name} comes with the {machine.gpu.upper()}; the {gpu.upper()} is attached to N1 machines"
        raise DeclarationError(what, fix=f"Take {usual}.")
    allowed = limits(gpu, zone)
    if count not in allowed:
        enough = next((each for each in allowed if each > count), max(allowed))
        raise DeclarationError(
            f"A VM has {_either(allowed)} {gpu.upper()}, not {count}", fix=f"Ask for {enough}."
        )
    if _fits(machine, allowed[count]):
        return
    limit = allowed[count]
    if zone:
        where = f" in {zone}"
    else:
        where = ""
    enough = next(
        (each for each, most in allowed.items() if each > count and _fits(machine, most)), 0
    )
    raise DeclarationError(
        f"{machine.name} has {machine.vcpus} vCPUs and {machine.memory_gb:g} GB, but a VM with {count} {gpu.upper()} "
        f"has {limit.vcpus} and {limit.memory_gb:g} at most{where}",
        fix=f"Take {usual}{f', or {enough} {gpu.upper()}' if enough else ''}.",
    )


def _fits(machine: MachineType, limit: Limit) -> bool:
    return machine.vcpus <= limit.vcpus and machine.memory_gb <= limit.memory_gb


def _either(choices: Iterable[object]) -> str:
    *some, last = map(str, choices)
    if some:
        return f"{', '.join(some)} or {last}"
    return last


_FAMILIES = "n1-standard, n1-highmem, n1-highcpu, n2-standard, n2-highmem, n2-highcpu, e2-standard"
_N2_SIZES = (2, 4, 8, 16, 32, 48, 64, 80)
_GB = {"n2-standard": 4, "n2-highmem": 8, "n2-highcpu": 1, "e2-standard": 4}
_SIZES = {
    "n2-standard": _N2_SIZES,
    "n2-highmem": _N2_SIZES,
    "n2-highcpu": _N2_SIZES,
    "e2-standard": (2, 4, 8, 16, 32),
}
_N2_CUSTOM = re.compile(r"n2-custom-(\d{1,3})-(\d{1,7})")


def server_machine(
    name: str, whose: str = "A parameter server", where: str = "--ps-machine"
) -> MachineType:
    """The machine type of a parameter server, or of who else has none with a GPU: `whose`, and
    which option says so.

    Raises DeclarationError where there is none, or no price of it.
    """
    family, _, size = name.rpartition("-")
    if family in _GB and size.isdecimal() and int(size) in _SIZES[family]:
        return MachineType(name, int(size), int(size) * _GB[family])
    if found := _N2_CUSTOM.fullmatch(name):
        vcpus = int(found[1])
        megabytes = int(found[2])
        if (
            vcpus % 2 == 0
            and 2 <= vcpus <= 80
            and megabytes % 256 == 0
            and 0.5 <= megabytes / 1024 / vcpus <= 8
        ):
            return MachineType(name, vcpus, megabytes / 1024)
        what = f"{name}: a custom N2 machine has an even number of vCPUs up to 80, with 0.5 to 8 GB each by 256 MB"
        raise DeclarationError(
            what, where=where, fix=f"For example: n2-custom-{max(2, vcpus // 2 * 2)}-16384."
        )
    if name.startswith(("n1-", "custom-")):
        return machine_type(name)
    fix = f"Those with a known price: {_FAMILIES} with their sizes (e2-standard-4), n1-custom-4-16384, n2-custom-4-16384."
    raise DeclarationError(f"{whose} cannot have the machine '{name}'", where=where, fix=fix)


def server_price(name: str, place: str) -> VmPrice:
    """The newest list price of a parameter server with this machine in a zone or region. Raises
    DeclarationError.
    """
    machine = server_machine(name)
    family = name.partition("-")[0].replace("custom", "n1")
    return parts_price(family, machine.vcpus, machine.memory_gb, place, custom="custom-" in name)


OPTION = "--machine-type"


def worker_entry(gpu: str, machine: str = "", zone: str = "") -> Accelerator:
    """The catalog's entry of a GPU, in this machine (empty: in its own).

    Raises DeclarationError where Compute Engine has no such machine, or it may not have one GPU of
    this kind in this zone (empty: in any).
    """
    entry = accelerator(gpu)
    if not machine or machine == entry.machine_type:
        return entry
    if gpu == "cpu" and not machine.startswith(("n1-", "custom-")):
        found = server_machine(machine, whose="A worker without a GPU", where=OPTION)
    else:
        found = _checked(machine, gpu, zone)
    return replace(entry, machine_type=found.name, vcpus=found.vcpus, memory_gb=found.memory_gb)


def worker_machine_price(gpu: str, machine: str, place: str) -> VmPrice:
    """The newest list price of a worker VM with this GPU in this machine, in a zone or region.
    DeclarationError.
    """
    return priced(worker_entry(gpu, machine), place)


def _checked(machine: str, gpu: str, zone: str) -> MachineType:
    try:
        return check_machine(machine, gpu, 1, zone)
    except DeclarationError as error:
        # More GPUs, which would allow it, are no remedy here.
        if machine in MACHINE_TYPES:
            fix = f"Those that it may have: {', '.join(shapes(gpu))}."
        else:
            fix = error.fix
        raise DeclarationError(error.what, where=OPTION, fix=fix) from None


@cache
def shapes(gpu: str) -> tuple[str, ...]:
    """The predefined machines that a worker with this GPU may have, by their vCPUs and memory; the
    catalog's is one.
    """
    entry = accelerator(gpu)
    if entry.bundled:
        found = [each for each in machines_with(gpu) if each.gpu_count == 1]
    else:
        most = limits(gpu).get(1)
        n1 = [each for each in MACHINE_TYPES.values() if each.name.startswith("n1-")]
        found = [
            each
            for each in n1
            if not most or (each.vcpus <= most.vcpus and each.memory_gb <= most.memory_gb)
        ]
    return tuple(each.name for each in sorted(found, key=lambda each: (each.vcpus, each.memory_gb)))


def smaller_machine(gpu: str, rented: str, wanted: str) -> tuple[Accelerator, float]:
    """What a worker with this GPU is as a `wanted` machine, that was `rented` as another, and which
    part it has then of those vCPUs.

    Raises DeclarationError where it is larger, of another family, or may not have the GPU.
    """
    before = worker_entry(gpu, rented)
    found = worker_entry(gpu, wanted.strip().lower())
    fits = [
        shape
        for shape in shapes(gpu)
        if shape != rented and _is_no_larger(worker_entry(gpu, shape), before)
    ]
    if fits:
        fix = f"Smaller ones: {', '.join(fits)}."
    else:
        fix = f"There is no smaller one with {gpu.upper()}."
    if _family(found.machine_type) != _family(before.machine_type):
        what = f"{found.machine_type} is of another family than {rented}, as which the worker was rented"
        raise DeclarationError(what, where=OPTION, fix=fix)
    if not _is_no_larger(found, before):
        what = f"{found.machine_type} is larger than {rented}, as which the worker was rented"
        raise DeclarationError(what, where=OPTION, fix=fix)
    return found, found.vcpus / before.vcpus


def _is_no_larger(machine: Accelerator, than: Accelerator) -> bool:
    family = _family(machine.machine_type) == _family(than.machine_type)
    return family and machine.vcpus <= than.vcpus and machine.memory_gb <= than.memory_gb


def _family(name: str) -> str:
    return name.partition("-")[0].replace("custom", "n1")


def larger_shapes(gpu: str) -> tuple[str, ...]:
    """Those with more vCPUs than the catalog's machine and no less memory, of each number of vCPUs
    the one with the least.
    """
    entry = accelerator(gpu)
    found = dict[int, str]()
    for name in shapes(gpu):
        machine = MACHINE_TYPES[name]
        if machine.vcpus > entry.vcpus and machine.memory_gb >= entry.memory_gb:
            found.setdefault(machine.vcpus, name)
    return tuple(found.values())


def worker_machines(text: str, kinds: Collection[str]) -> dict[str, str]:
    """By GPU the machine of its workers, of those that are not the catalog's: `n1-standard-16`, of
    workers of all `kinds`, or `t4=n1-standard-16,v100=n1-standard-12`. Raises DeclarationError.
    """
    found: dict[str, str] = {}
    for part in filter(None, (each.strip().lower() for each in text.split(","))):
        before, equals, name = (each.strip() for each in part.rpartition("="))
        if equals and before not in kinds:
            what = f"No workers with {before.upper() or 'nothing'} are declared"
            raise DeclarationError(
                what, where=OPTION, fix=f"There are {', '.join(dict.fromkeys(kinds))}."
            )
        for gpu in [before] if equals else dict.fromkeys(kinds):
            if gpu in found:
                raise DeclarationError(f"Two machines are named for {gpu.upper()}", where=OPTION)
            found[gpu] = worker_entry(gpu, name).machine_type
    return {gpu: name for gpu, name in found.items() if name != accelerator(gpu).machine_type}
