"""A VM cut off from the network, or from this machine alone: what is sent either way vanishes, and nobody is told."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.conftest import Patient
from transient_emulator.vms.machine import BRIDGE, BRIDGE_ADDRESS
from transient_magics import emulator

# A VM hangs on the emulator's bridge by a virtual cable, whose end there is switched off and on (SIOCSIFFLAGS).
_SWITCH = """
import fcntl, socket, struct, sys
name, on = sys.argv[1].encode(), sys.argv[2] == "on"
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", name, 0x1 if on else 0))
"""

# What is sent to a neighbour that is known under a hardware address of nobody is lost (SIOCSARP, SIOCDARP).
_MISLEAD = """
import fcntl, socket, struct, sys
address, device, on = sys.argv[1], sys.argv[2].encode(), sys.argv[3] == "on"
place = struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(address))
nobody = struct.pack("H6s8x", 1, bytes([2, 0, 0, 0, 0, 1]))
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
    fcntl.ioctl(any_socket, 0x8955 if on else 0x8953, place + nobody + struct.pack("i16x16s", 6, device))
"""


@contextlib.contextmanager
def cut_off(patient: Patient, *vms: str) -> Iterator[None]:
    """As long as it lasts, nothing passes between these VMs and anybody else, and that is the emulated network's fault.

    A VM's metadata server and Compute Engine's API, which VMs find there, go on answering.
    """
    _need_a_network()
    cables = [f"vm{patient.home(vm).name.rpartition('-')[2]}" for vm in vms]
    for cable in cables:
        _switch(patient, cable, "off")
    try:
        yield
    finally:
        for cable in cables:
            with contextlib.suppress(subprocess.CalledProcessError):  # the VM is gone, and its cable with it
                _switch(patient, cable, "on")


@contextlib.contextmanager
def cut_off_from_here(patient: Patient, vm: str, process: int) -> Iterator[None]:
    """As long as it lasts, nothing passes between this machine and the VM in which `process` runs.

    VMs reach each other, and Compute Engine's API.
    """
    _need_a_network()
    ends = ((patient.emulator(), patient.cluster.state.vms[vm].address, BRIDGE), (process, BRIDGE_ADDRESS, "eth0"))
    for inside, address, device in ends:
        _within(inside, _MISLEAD, address, device, "on")
    try:
        yield
    finally:
        for inside, address, device in ends:
            if Path(f"/proc/{inside}").exists():
                with contextlib.suppress(subprocess.CalledProcessError):  # the VM has gone just now
                    _within(inside, _MISLEAD, address, device, "off")


def _need_a_network() -> None:
    if not emulator.about(emulator.running())["isolated"]:
        pytest.skip("emulated VMs have no network of their own here")


def _switch(patient: Patient, cable: str, to: str) -> None:
    _within(patient.emulator(), _SWITCH, cable, to)


def _within(process: int, code: str, *words: str) -> None:
    """Run a program in the network in which a process runs."""
    enter = ["nsenter", "--preserve-credentials", "--user", "--net", "-t", str(process), "--"]
    subprocess.run([*enter, sys.executable, "-c", code, *words], check=True, capture_output=True)
