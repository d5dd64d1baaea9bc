"""Machine that this controller runs on: its VM, its command socket, and systemd's watchdog."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Mapping
from pathlib import Path

from .. import places

VM_VARIABLE = "TRANSIENT_MAGICS_SEAT"
"""Environment variable with the VM's name."""

_PER_WAIT = 3
"""Notifications within the time after which systemd restarts the controller."""


def controller_vm() -> str:
    """Return the VM on which this controller runs; empty on a user's machine."""
    return os.environ.get(VM_VARIABLE, "")


def command_socket(directory: Path) -> Path:
    """Return the command socket of the controller of the cluster in `directory`.

    On a VM the path is short enough inside the folder.
    """
    if controller_vm():
        return directory / "command.sock"
    return places.command_socket(directory.name)


# ---------------------------------------------------------------- watchdog
#
# On a VM, systemd restarts a controller that hangs. The environment has the socket and the time
# limit (sd_notify(3), sd_watchdog_enabled(3)). Without them nothing is sent.


async def notify_watchdog(environment: Mapping[str, str]) -> None:
    """Notify systemd, until cancelled, that the event loop runs.

    Return immediately if no watchdog is set.
    """
    place = environment.get("NOTIFY_SOCKET", "")
    wait = environment.get("WATCHDOG_USEC", "")
    if environment.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()) or not (
        place and wait.isdecimal()
    ):
        return
    if place.startswith("@"):
        address = f"\0{place[1:]}"
    else:
        address = place
    while True:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notes:
                notes.setblocking(False)
                notes.sendto(b"WATCHDOG=1", address)
        except OSError as error:
            # systemd restarts, or has too much to read: the next notification arrives in time.
            logging.getLogger(__name__).warning("systemd's watchdog does not hear: %s", error)
        await asyncio.sleep(int(wait) / 1e6 / _PER_WAIT)
