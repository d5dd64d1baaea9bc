"""How busy the processes of the parameter servers are: each tells the chief, which runs in the
first one.

A load is a running total and its time on the server's own clock, so that whoever has two of them
knows the share in between exactly, however late they came.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from ...protocol import chief_messages as messages
from ...protocol.agent_commands import Assignment
from ..role import host_and_port

EVERY = 1.0
_PATIENCE = 5.0
"""Seconds for one word to the chief, which may be gone; the next word says more."""


@dataclass(frozen=True)
class Load:
    """What a parameter server's process has taken so far.

    `cpu_seconds` until `clock`, in seconds of any monotonic clock of its own, of the `cores` that
    it may use.
    """

    cpu_seconds: float
    clock: float
    cores: int

    def share_since(self, earlier: Load) -> float:
        """The part of its cores that it took since `earlier`; 0 where that is not known, or was of
        another process.
        """
        seconds = self.clock - earlier.clock
        taken = self.cpu_seconds - earlier.cpu_seconds
        if seconds > 0 and taken > 0:
            return taken / seconds / max(self.cores, 1)
        return 0.0


class Shares:
    """What parts of their cores the parameter servers took lately."""

    def __init__(self) -> None:
        self._since = dict[str, Load]()
        self._shares = dict[str, float]()

    def heard(self, name: str, load: Load) -> None:
        """What a parameter server has taken so far."""
        since = self._since.setdefault(name, load)
        if not 0 <= load.clock - since.clock < EVERY:
            self._shares[name], self._since[name] = load.share_since(since), load

    @property
    def largest(self) -> float | None:
        """That of the busiest, over about a second; None before it is known."""
        return max(self._shares.values(), default=None)


def own_load(threads: int) -> Load:
    """Of this process; `threads` is what it was told to take at most, 0 for all cores."""
    return Load(
        time.process_time(),
        time.monotonic(),
        min(len(os.sched_getaffinity(0)), threads or sys.maxsize),
    )


def most_memory() -> int:
    """The most memory that this process has had, in bytes; 0 where the kernel does not tell."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


async def report(assignment: Assignment, token: str, threads: int) -> None:
    """Tell the chief this process's load every second, for ever."""
    while True:
        with contextlib.suppress(OSError):
            async with asyncio.timeout(_PATIENCE):
                _, writer = await asyncio.open_connection(*host_and_port(assignment.chief))
                writer.write(
                    messages.Load(
                        token=token, name=assignment.name, **asdict(own_load(threads))
                    ).encoded
                )
                writer.close()
                await writer.wait_closed()
        await asyncio.sleep(EVERY)
