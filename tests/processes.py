"""Processes of this machine, told by a mark that those who start them give on."""

from __future__ import annotations

import contextlib
import os
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
