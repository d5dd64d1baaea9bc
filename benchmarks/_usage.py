"""What the processes of a benchmark's home use, by what they are: processors and memory, as Linux counts them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def ours(*marks: str) -> Iterator[Path]:
    """Folders in /proc of the processes of this benchmark's home whose command lines have all of these marks."""
    home = os.environ["TRANSIENT_MAGICS_HOME"].encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                line = (entry / "cmdline").read_bytes()
                if home in line + (entry / "environ").read_bytes() and all(mark.encode() in line for mark in marks):
                    yield entry


def resident(*marks: str) -> float:
    """MiB of memory that such processes hold together."""
    total = 0
    for entry in ours(*marks):
        with suppress(OSError):
            total += int((entry / "statm").read_text(encoding="utf-8").split()[1]) * _PAGE
    return total / 2**20


def cpu(*marks: str) -> float:
    """Seconds of processors that such processes have used."""
    return sum(_used(entry / "stat") for entry in ours(*marks))


def main_thread_cpu(*marks: str) -> float:
    """The same of their first threads alone."""
    return sum(_used(entry / "task" / entry.name / "stat") for entry in ours(*marks))


def _used(stat: Path) -> float:
    try:
        fields = stat.read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:  # it has just ended
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS
