"""Signs of life for systemd, under which a controller runs on a VM: one that stands still is killed
and started again.

systemd says in the environment where it listens and for how long it waits (sd_notify(3),
sd_watchdog_enabled(3)). Elsewhere nobody listens, and nothing is sent.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Mapping

_PER_WAIT = 3
"""Signs of life within the time after which systemd gives the controller up."""


async def keep_telling(environment: Mapping[str, str]) -> None:
    """Tell systemd, until cancelled, that the event loop turns; at once nothing where nobody asks
    for it.
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
        except (
            OSError
        ) as error:  # systemd starts anew, or has too much to read: the next one comes in time
            logging.getLogger(__name__).warning("systemd's watchdog does not hear: %s", error)
        await asyncio.sleep(int(wait) / 1e6 / _PER_WAIT)
