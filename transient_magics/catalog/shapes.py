"""The machines in which workers may have a GPU, besides the catalog's own, and what they cost.

A worker has one GPU. It is attached to an N1 machine within Compute Engine's limits, or comes with one of its own
family; workers without one may have what parameter servers have.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import cache

from ..errors import DeclarationError
from .accelerators import Accelerator, accelerator
from .machines import MACHINE_TYPES, MachineType, check_machine, limits, machines_with
from .prices import VmPrice, priced
from .servers import server_machine

OPTION = "--machine-type"


def worker_entry(gpu: str, machine: str = "", zone: str = "") -> Accelerator:
    """The catalog's entry of a GPU, in this machine (empty: in its own).

    Raises DeclarationError where Compute Engine has no such machine, or it may not have one GPU of this kind in this
    zone (empty: in any).
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
    """The newest list price of a worker VM with this GPU in this machine, in a zone or region. DeclarationError."""
    return priced(worker_entry(gpu, machine), place)


def _checked(machine: str, gpu: str, zone: str) -> MachineType:
    try:
        return check_machine(machine, gpu, 1, zone)
    except DeclarationError as error:
        # More GPUs, which would allow it, are no remedy here.
        fix = f"Those that it may have: {', '.join(shapes(gpu))}." if machine in MACHINE_TYPES else error.fix
        raise DeclarationError(error.what, where=OPTION, fix=fix) from None


@cache
def shapes(gpu: str) -> tuple[str, ...]:
    """The predefined machines that a worker with this GPU may have, by their vCPUs and memory; the catalog's is one."""
    entry = accelerator(gpu)
    if entry.bundled:
        found = [each for each in machines_with(gpu) if each.gpu_count == 1]
    else:
        most = limits(gpu).get(1)
        n1 = [each for each in MACHINE_TYPES.values() if each.name.startswith("n1-")]
        found = [each for each in n1 if not most or (each.vcpus <= most.vcpus and each.memory_gb <= most.memory_gb)]
    return tuple(each.name for each in sorted(found, key=lambda each: (each.vcpus, each.memory_gb)))


def smaller_machine(gpu: str, rented: str, wanted: str) -> tuple[Accelerator, float]:
    """What a worker with this GPU is as a `wanted` machine, that was `rented` as another, and which part it has then of
    those vCPUs.

    Raises DeclarationError where it is larger, of another family, or may not have the GPU.
    """
    before, found = worker_entry(gpu, rented), worker_entry(gpu, wanted.strip().lower())
    fits = [each for each in shapes(gpu) if each != rented and _is_no_larger(worker_entry(gpu, each), before)]
    fix = f"Smaller ones: {', '.join(fits)}." if fits else f"There is no smaller one with {gpu.upper()}."
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
    """Those with more vCPUs than the catalog's machine and no less memory, of each number of vCPUs the one with the
    least."""
    entry, found = accelerator(gpu), dict[int, str]()
    for name in shapes(gpu):
        machine = MACHINE_TYPES[name]
        if machine.vcpus > entry.vcpus and machine.memory_gb >= entry.memory_gb:
            found.setdefault(machine.vcpus, name)
    return tuple(found.values())


def worker_machines(text: str, kinds: Collection[str]) -> dict[str, str]:
    """By GPU the machine of its workers, of those that are not the catalog's: `n1-standard-16`, of workers of all
    `kinds`, or `t4=n1-standard-16,v100=n1-standard-12`. Raises DeclarationError."""
    found: dict[str, str] = {}
    for part in filter(None, (each.strip().lower() for each in text.split(","))):
        before, equals, name = (each.strip() for each in part.rpartition("="))
        if equals and before not in kinds:
            what = f"No workers with {before.upper() or 'nothing'} are declared"
            raise DeclarationError(what, where=OPTION, fix=f"There are {', '.join(dict.fromkeys(kinds))}.")
        for gpu in [before] if equals else dict.fromkeys(kinds):
            if gpu in found:
                raise DeclarationError(f"Two machines are named for {gpu.upper()}", where=OPTION)
            found[gpu] = worker_entry(gpu, name).machine_type
    return {gpu: name for gpu, name in found.items() if name != accelerator(gpu).machine_type}
