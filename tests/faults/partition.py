"""A VM cut off from the network: what is sent either way vanishes, and nobody is told."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.faults.conftest import Patient
from transient_magics import emulator

# A VM hangs on the emulator's bridge by a virtual cable, whose end there is switched off and on (SIOCSIFFLAGS).
_SWITCH = """
import fcntl, socket, struct, sys
name, on = sys.argv[1].encode(), sys.argv[2] == "on"
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", name, 0x1 if on else 0))
"""


@contextlib.contextmanager
def cut_off(patient: Patient, *vms: str) -> Iterator[None]:
    """As long as it lasts, nothing passes between these VMs and anybody else, and that is the emulated network's fault.

    A VM's metadata server and Compute Engine's API, which VMs find there, go on answering.
    """
    about = emulator.about(emulator.running())
    if not about["isolated"]:
        pytest.skip("emulated VMs have no network of their own here")
    cables = [f"vm{patient.home(vm).name.rpartition('-')[2]}" for vm in vms]
    for cable in cables:
        _switch(patient, cable, "off")
    try:
        yield
    finally:
        for cable in cables:
            with contextlib.suppress(subprocess.CalledProcessError):  # the VM is gone, and its cable with it
                _switch(patient, cable, "on")


def _switch(patient: Patient, cable: str, to: str) -> None:
    enter = ["nsenter", "--preserve-credentials", "--user", "--net", "-t", str(patient.emulator()), "--"]
    subprocess.run([*enter, sys.executable, "-c", _SWITCH, cable, to], check=True, capture_output=True)
