"""The machine types that a parameter server may have, with what they cost: N1, N2 and E2, of which N1 is the oldest.

Prices are those of vCPUs and memory, of which those of custom machines cost more (prices.py).
"""

from __future__ import annotations

import re

from ..errors import DeclarationError
from .machines import MachineType, machine_type
from .prices import VmPrice, parts_price

_FAMILIES = "n1-standard, n1-highmem, n1-highcpu, n2-standard, n2-highmem, n2-highcpu, e2-standard"
_N2_SIZES = (2, 4, 8, 16, 32, 48, 64, 80)
_GB = {"n2-standard": 4, "n2-highmem": 8, "n2-highcpu": 1, "e2-standard": 4}
_SIZES = {"n2-standard": _N2_SIZES, "n2-highmem": _N2_SIZES, "n2-highcpu": _N2_SIZES, "e2-standard": (2, 4, 8, 16, 32)}
_N2_CUSTOM = re.compile(r"n2-custom-(\d{1,3})-(\d{1,7})")


def server_machine(name: str, whose: str = "A parameter server", where: str = "--ps-machine") -> MachineType:
    """The machine type of a parameter server, or of who else has none with a GPU: `whose`, and which option says so.

    Raises DeclarationError where there is none, or no price of it.
    """
    family, _, size = name.rpartition("-")
    if family in _GB and size.isdecimal() and int(size) in _SIZES[family]:
        return MachineType(name, int(size), int(size) * _GB[family])
    if found := _N2_CUSTOM.fullmatch(name):
        vcpus, megabytes = int(found[1]), int(found[2])
        if vcpus % 2 == 0 and 2 <= vcpus <= 80 and megabytes % 256 == 0 and 0.5 <= megabytes / 1024 / vcpus <= 8:
            return MachineType(name, vcpus, megabytes / 1024)
        what = f"{name}: a custom N2 machine has an even number of vCPUs up to 80, with 0.5 to 8 GB each by 256 MB"
        raise DeclarationError(what, where=where, fix=f"For example: n2-custom-{max(2, vcpus // 2 * 2)}-16384.")
    if name.startswith(("n1-", "custom-")):
        return machine_type(name)
    fix = (
        f"Those with a known price: {_FAMILIES} with their sizes (e2-standard-4), n1-custom-4-16384, n2-custom-4-16384."
    )
    raise DeclarationError(f"{whose} cannot have the machine '{name}'", where=where, fix=fix)


def server_price(name: str, place: str) -> VmPrice:
    """The newest list price of a parameter server with this machine in a zone or region. Raises DeclarationError."""
    machine = server_machine(name)
    family = name.partition("-")[0].replace("custom", "n1")
    return parts_price(family, machine.vcpus, machine.memory_gb, place, custom="custom-" in name)
