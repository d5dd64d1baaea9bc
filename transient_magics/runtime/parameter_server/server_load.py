"""The CPU load of parameter servers, which each reports to the chief in the first one.

A load is a running total with its time on the server's own clock. So two loads give the exact share
between them, however late they arrive.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from ...protocol import chief_messages as messages
from ...protocol.agent_commands import Assignment
from ..role import host_and_port

EVERY = 1.0
"""Seconds between two reports."""
_TIMEOUT = 5.0
"""Time limit of one report, in seconds; the next one has newer numbers."""


@dataclass(frozen=True)
class Load:
    """CPU time that a parameter server's process has used so far."""

    cpu_seconds: float
    clock: float
    """Time of the measurement, in seconds of the process's monotonic clock."""
    cores: int
    """Cores that it may use."""

    def share_since(self, earlier: Load) -> float:
        """Return the share of its cores that it used since `earlier`.

        0 if the two do not compare, because `earlier` is of another process.
        """
        seconds = self.clock - earlier.clock
        used = self.cpu_seconds - earlier.cpu_seconds
        if seconds > 0 and used > 0:
            return used / seconds / max(self.cores, 1)
        return 0.0


class Shares:
    """Shares of their cores that parameter servers used, each over about a second."""

    def __init__(self) -> None:
        self._since = dict[str, Load]()
        self._shares = dict[str, float]()

    def add(self, name: str, load: Load) -> None:
        """Add the load of a parameter server."""
        since = self._since.setdefault(name, load)
        if not 0 <= load.clock - since.clock < EVERY:
            self._shares[name] = load.share_since(since)
            self._since[name] = load

    @property
    def largest(self) -> float | None:
        """Share of the busiest server; None before the first report."""
        return max(self._shares.values(), default=None)


def own_load(threads: int) -> Load:
    """Return the load of this process, which may use `threads` cores; 0: all of them."""
    cores = len(os.sched_getaffinity(0))
    if threads:
        cores = min(cores, threads)
    return Load(time.process_time(), time.monotonic(), cores)


def most_memory() -> int:
    """Return the most memory that this process has used, in bytes; 0 if unknown."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


async def report(assignment: Assignment, token: str, threads: int) -> None:
    """Report the load of this process to the chief every second, until cancelled."""
    while True:
        with contextlib.suppress(OSError):  # the chief may be gone for a moment
            await _report_once(assignment, token, threads)
        await asyncio.sleep(EVERY)


async def _report_once(assignment: Assignment, token: str, threads: int) -> None:
    """Send one report on a connection of its own. Raises OSError."""
    async with asyncio.timeout(_TIMEOUT):
        _, writer = await asyncio.open_connection(*host_and_port(assignment.chief))
        load = messages.Load(token=token, name=assignment.name, **asdict(own_load(threads)))
        writer.write(load.encoded)
        writer.close()
        await writer.wait_closed()
