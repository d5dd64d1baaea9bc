"""What a worker of a Dask cluster and its agent share on disk, and how much memory the worker may
have.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from ....files import write_atomically
from ....protocol.dask.spec import DaskSpec

_LIMIT = "limit"
"""The file with the moment (`time.monotonic`) at which the agent kills the worker."""

_SHARE = 0.9
TERMINATE_SHARE = 0.95


def tell_end(folder: Path, pid: int) -> None:
    """Say that the process has ended in an orderly way: who is not its parent does not hear its
    exit code.
    """
    (folder / f"orderly-{pid}").touch()


def has_ended_well(folder: Path, pid: int) -> bool:
    """Whether it said so."""
    return (folder / f"orderly-{pid}").exists()


@contextmanager
def time_limit(folder: Path, seconds: float) -> Generator[None]:
    """Have the agent kill this process, the worker of the folder, where this takes longer (0: as
    long as it likes).

    Timers of this process would be no limit: tasks may set them for themselves, and a handler in
    Python is not called while compiled code holds the interpreter.
    """
    limit = folder / _LIMIT
    if seconds:
        write_atomically(limit, str(time.monotonic() + seconds), durable=False)
    try:
        yield
    finally:
        limit.unlink(missing_ok=True)


def is_over_time(folder: Path) -> bool:
    """Whether the limit of `time_limit` is over, of a worker that is still in it."""
    try:
        return time.monotonic() > float((folder / _LIMIT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False


def clear_time_limit(folder: Path) -> None:
    """Remove the limit of a worker that has ended."""
    (folder / _LIMIT).unlink(missing_ok=True)


def tell_address(folder: Path, pid: int, address: str) -> None:
    """Say where the worker listens whose process this is: under that the scheduler knows what it
    computed.
    """
    write_atomically(
        folder / "address.json", json.dumps({"pid": pid, "address": address}), durable=False
    )


def address(folder: Path, pid: int) -> str:
    """Where the worker listened whose process that was; empty where it never did."""
    try:
        told = json.loads((folder / "address.json").read_bytes())
        if told["pid"] == pid:
            return str(told["address"])
        return ""
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def limit(spec: DaskSpec) -> int:
    """Bytes: what was declared, or nine tenths of what the VM has. Results are spilled to disk from
    60 % of it on.
    """
    return spec.memory_bytes or int(
        _SHARE * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    )
