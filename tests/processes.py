"""Processes of this machine: told by a mark that those who start them give on, and waited for."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path


def bearing(mark: str) -> dict[int, str]:
    """The command lines, by number, of processes that bear a mark there or in their environment, without this one."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):  # one that has just ended
                line = (entry / "cmdline").read_bytes()
                if mark.encode() in line + (entry / "environ").read_bytes():
                    found[int(entry.name)] = line.replace(b"\0", b" ").decode(errors="replace")
    return found


async def until(reached: Callable[[], object], seconds: float = 120.0) -> None:
    """Wait for what another process does: no event comes from there. Raises TimeoutError after so many seconds."""
    async with asyncio.timeout(seconds):
        while not reached():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
