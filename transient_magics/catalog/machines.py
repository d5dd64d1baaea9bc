"""Machine types of workers and parameter servers, their GPUs, and their prices.

N1 machines are predefined or custom, and GPUs are attached to them within limits; A2, A3 and G2
machines have built-in GPUs. Limits per N1 VM: Compute Engine's documentation as kept by SkyPilot
(read in 2026).

A parameter server has a machine type of N1, N2 or E2; N1 is the oldest. Prices follow from vCPUs
and memory, which cost more in custom machines (prices.py).

A worker has one GPU. It is attached to an N1 machine within Compute Engine's limits, or built into
a machine of its own family. Workers without GPU may have the machines of parameter servers.
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
    """A machine type: vCPUs, memory in GB, and its built-in GPUs (name in the catalog, number)."""

    name: str
    vcpus: int
    memory_gb: float
    gpu: str = ""
    gpu_count: int = 0


@dataclass(frozen=True, slots=True)
class Limit:
    """The most vCPUs and GB of memory of an N1 VM with a certain number of GPUs."""

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
# Zones whose hosts are larger or smaller than elsewhere.
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
MACHINE_TYPES: dict[str, MachineType] = {machine.name: machine for machine in _FIXED}
"""The predefined machine types by name; custom N1 machines are not among them."""


def machine_type(name: str) -> MachineType:
    """Return the machine type called `name`, predefined or custom (`n1-custom-6-20480`).

    Raises DeclarationError if it is unknown.
    """
    if found := MACHINE_TYPES.get(name):
        return found
    match = _CUSTOM.fullmatch(name)
    if not match:
        example = "For example: n1-standard-8, n1-custom-6-20480."
        raise unknown("machine type", name, MACHINE_TYPES, otherwise=example)
    vcpus = int(match["vcpus"])
    gigabytes = int(match["megabytes"]) / 1024
    if vcpus > 96 or (vcpus != 1 and vcpus % 2) or vcpus < 1:
        raise DeclarationError(
            f"{name}: a custom N1 machine must have 1 vCPU or an even number up to 96, not {vcpus}",
            fix=f"Use {min(96, vcpus + 1)}.",
        )
    if int(match["megabytes"]) % 256 or not 0.9 * vcpus <= gigabytes <= 6.5 * vcpus:
        raise DeclarationError(
            f"{name}: a custom N1 machine must have 0.9 to 6.5 GB per vCPU, in steps of 256 MB",
            fix=f"For example: n1-custom-{vcpus}-{vcpus * 4096}.",
        )
    return MachineType(name, vcpus, gigabytes)


def parameter_server_machine(cores: int) -> str:
    """Return the machine type of a parameter server with `cores` vCPUs of 4 GB each.

    A single vCPU has 3.75 GB.
    """
    if cores > 1:
        return f"n1-custom-{cores}-{cores * 4096}"
    return "n1-standard-1"


def limits(gpu: str, zone: str = "") -> dict[int, Limit]:
    """Return the limits of an N1 VM by the number of these GPUs; empty for built-in GPUs."""
    general = _LIMITS.get(gpu, {})
    return {
        count: _ZONE_LIMITS.get((gpu, count), {}).get(zone, limit)
        for count, limit in general.items()
    }


def machines_with(gpu: str) -> tuple[MachineType, ...]:
    """Return the machine types with this built-in GPU, smallest first."""
    return tuple(machine for machine in MACHINE_TYPES.values() if machine.gpu == gpu)


def check_machine(name: str, gpu: str = "cpu", count: int = 1, zone: str = "") -> MachineType:
    """Return the machine type if it may have `count` GPUs of this kind in this zone.

    `cpu` means without a GPU; an empty zone means any.

    Raises
    ------
    DeclarationError
        Names the exceeded limit and what fits.
    """
    machine = machine_type(name)
    entry = accelerator(gpu)
    if zone:
        check_zone(zone, gpu)
    if gpu == "cpu":
        if machine.gpu:
            raise DeclarationError(
                f"{name} has {machine.gpu_count} {machine.gpu.upper()}, but no GPU is declared",
                fix=f"Use {entry.machine_type}, or declare {machine.gpu}.",
            )
    elif entry.bundled:
        _check_built_in(machine, gpu, count)
    else:
        _check_attached(machine, gpu, count, zone)
    return machine


def check_zone(zone: str, gpu: str) -> None:
    """Raise DeclarationError unless the zone has this GPU.

    `cpu` stands for N1 machines, on which parameter servers run.
    """
    if has_gpu(zone, gpu):
        return
    same = [zone_ for zone_ in zones_with(gpu) if region(zone_) == region(zone)]
    near = same or zones_with(gpu)
    what = "N1 machines"
    if gpu != "cpu":
        what = f"{gpu.upper()}s"
    raise DeclarationError(
        f"{what} are not available in {zone}, according to the catalog",
        fix=f"Use {either(near[:3])}.",
    )


def _check_built_in(machine: MachineType, gpu: str, count: int) -> None:
    if machine.gpu == gpu and machine.gpu_count == count:
        return
    fitting = [other.name for other in machines_with(gpu) if other.gpu_count == count]
    counts = sorted({other.gpu_count for other in machines_with(gpu)})
    fix = f"A VM has {either(counts)} {gpu.upper()}."
    if fitting:
        fix = f"Use {fitting[0]}."
    if machine.gpu == gpu:
        raise DeclarationError(
            f"{machine.name} always has {machine.gpu_count} {gpu.upper()}, not {count}", fix=fix
        )
    raise DeclarationError(
        f"The {gpu.upper()} has separate machine types and cannot be attached to {machine.name}",
        fix=fix,
    )


def _check_attached(machine: MachineType, gpu: str, count: int, zone: str) -> None:
    usual = ACCELERATORS[gpu].machine_type
    if machine.gpu:
        what = (
            f"{machine.name} has built-in {machine.gpu.upper()}s; the {gpu.upper()} is "
            "attached to N1 machines"
        )
        raise DeclarationError(what, fix=f"Use {usual}.")
    allowed = limits(gpu, zone)
    if count not in allowed:
        enough = next((number for number in allowed if number > count), max(allowed))
        raise DeclarationError(
            f"A VM can have {either(allowed)} {gpu.upper()}, not {count}", fix=f"Use {enough}."
        )
    if _fits(machine, allowed[count]):
        return
    limit = allowed[count]
    where = f" in {zone}" if zone else ""
    fix = f"Use {usual}."
    for number, most in allowed.items():
        if number > count and _fits(machine, most):
            fix = f"Use {usual}, or {number} {gpu.upper()}."
            break
    raise DeclarationError(
        f"{machine.name} has {machine.vcpus} vCPUs and {machine.memory_gb:g} GB, but a VM with "
        f"{count} {gpu.upper()} "
        f"can have at most {limit.vcpus} and {limit.memory_gb:g} GB{where}",
        fix=fix,
    )


def _fits(machine: MachineType, limit: Limit) -> bool:
    return machine.vcpus <= limit.vcpus and machine.memory_gb <= limit.memory_gb


def either(choices: Iterable[object]) -> str:
    """Return `a, b or c`."""
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
    """Return the machine type of a parameter server, or of another VM without a GPU.

    `whose` names the VM and `where` the option in the error. Raises DeclarationError for an
    unknown machine, and for one without a price.
    """
    family, _, size = name.rpartition("-")
    if family in _GB and size.isdecimal() and int(size) in _SIZES[family]:
        return MachineType(name, int(size), int(size) * _GB[family])
    if found := _N2_CUSTOM.fullmatch(name):
        vcpus = int(found[1])
        megabytes = int(found[2])
        valid_size = vcpus % 2 == 0 and 2 <= vcpus <= 80 and megabytes % 256 == 0
        if valid_size and 0.5 <= megabytes / 1024 / vcpus <= 8:
            return MachineType(name, vcpus, megabytes / 1024)
        what = (
            f"{name}: a custom N2 machine must have an even number of vCPUs up to 80, with 0.5 "
            "to 8 GB per vCPU in steps of 256 MB"
        )
        raise DeclarationError(
            what, where=where, fix=f"For example: n2-custom-{max(2, vcpus // 2 * 2)}-16384."
        )
    if name.startswith(("n1-", "custom-")):
        return machine_type(name)
    fix = (
        f"Machines with a known price: {_FAMILIES} with their sizes (e2-standard-4), "
        "n1-custom-4-16384, n2-custom-4-16384."
    )
    raise DeclarationError(f"{whose} cannot have the machine type '{name}'", where=where, fix=fix)


def server_price(name: str, place: str) -> VmPrice:
    """Return the newest list price of a parameter server with this machine in a zone or region.

    Raises DeclarationError.
    """
    machine = server_machine(name)
    family = name.partition("-")[0].replace("custom", "n1")
    return parts_price(family, machine.vcpus, machine.memory_gb, place, custom="custom-" in name)


OPTION = "--machine-type"


def worker_entry(gpu: str, machine: str = "", zone: str = "") -> Accelerator:
    """Return the catalog's entry of a GPU, in this machine (empty: in its own).

    Raises DeclarationError for an unknown machine, and for one that may not have one such GPU in
    this zone (empty: in any).
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
    """Return the newest list price of a worker with this GPU and machine in a zone or region.

    Raises DeclarationError.
    """
    return priced(worker_entry(gpu, machine), place)


def _checked(machine: str, gpu: str, zone: str) -> MachineType:
    try:
        return check_machine(machine, gpu, 1, zone)
    except DeclarationError as error:
        # More GPUs, which would permit it, are not a remedy here.
        fix = error.fix
        if machine in MACHINE_TYPES:
            fix = f"Possible machines: {', '.join(shapes(gpu))}."
        raise DeclarationError(error.what, where=OPTION, fix=fix) from None


@cache
def shapes(gpu: str) -> tuple[str, ...]:
    """Return the predefined machines of a worker with this GPU, by vCPUs and memory."""
    entry = accelerator(gpu)
    if entry.bundled:
        found = [machine for machine in machines_with(gpu) if machine.gpu_count == 1]
    else:
        most = limits(gpu).get(1)
        n1 = [machine for machine in MACHINE_TYPES.values() if machine.name.startswith("n1-")]
        found = [machine for machine in n1 if not most or _fits(machine, most)]
    return tuple(
        machine.name
        for machine in sorted(found, key=lambda machine: (machine.vcpus, machine.memory_gb))
    )


def smaller_machine(gpu: str, rented: str, requested: str) -> tuple[Accelerator, float]:
    """Return a worker's entry in a `requested` machine, and the remaining share of its vCPUs.

    The worker was `rented` with another machine. Raises DeclarationError if the requested one is
    larger, of another family, or cannot have the GPU.
    """
    before = worker_entry(gpu, rented)
    found = worker_entry(gpu, requested.strip().lower())
    fits = [
        shape
        for shape in shapes(gpu)
        if shape != rented and _is_no_larger(worker_entry(gpu, shape), before)
    ]
    fix = f"There is no smaller machine type with a {gpu.upper()}."
    if fits:
        fix = f"Use a smaller one: {', '.join(fits)}."
    if _family(found.machine_type) != _family(before.machine_type):
        what = (
            f"{found.machine_type} is not of the same family as {rented}, the worker's machine type"
        )
        raise DeclarationError(what, where=OPTION, fix=fix)
    if not _is_no_larger(found, before):
        what = f"{found.machine_type} is larger than {rented}, the worker's machine type"
        raise DeclarationError(what, where=OPTION, fix=fix)
    return found, found.vcpus / before.vcpus


def _is_no_larger(machine: Accelerator, than: Accelerator) -> bool:
    family = _family(machine.machine_type) == _family(than.machine_type)
    return family and machine.vcpus <= than.vcpus and machine.memory_gb <= than.memory_gb


def _family(name: str) -> str:
    return name.partition("-")[0].replace("custom", "n1")


def larger_shapes(gpu: str) -> tuple[str, ...]:
    """Return larger machines than the catalog's, by vCPUs, with no less memory.

    Of each number of vCPUs it is the one with the least memory.
    """
    entry = accelerator(gpu)
    found = dict[int, str]()
    for name in shapes(gpu):
        machine = MACHINE_TYPES[name]
        if machine.vcpus > entry.vcpus and machine.memory_gb >= entry.memory_gb:
            found.setdefault(machine.vcpus, name)
    return tuple(found.values())


def worker_machines(text: str, kinds: Collection[str]) -> dict[str, str]:
    """Return the machine of workers by GPU, without those of the catalog.

    `n1-standard-16` is for workers of all `kinds`; `t4=n1-standard-16,v100=n1-standard-12` names
    them one by one. Raises DeclarationError.
    """
    found: dict[str, str] = {}
    for part in filter(None, (word.strip().lower() for word in text.split(","))):
        before, equals, name = (word.strip() for word in part.rpartition("="))
        if equals and before not in kinds:
            what = f"No declared workers have the GPU '{before}'"
            raise DeclarationError(
                what, where=OPTION, fix=f"Declared are: {', '.join(dict.fromkeys(kinds))}."
            )
        for gpu in [before] if equals else dict.fromkeys(kinds):
            if gpu in found:
                raise DeclarationError(
                    f"{gpu.upper()} has two machine types", where=OPTION, fix="Name one of them."
                )
            found[gpu] = worker_entry(gpu, name).machine_type
    return {gpu: name for gpu, name in found.items() if name != accelerator(gpu).machine_type}
