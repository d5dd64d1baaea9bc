"""What a worker of a Dask cluster and its agent share on disk, and how much memory the worker may
have.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from ....files import write_atomically
from ....protocol.outputs import MOST_SAID
from ..spec import DaskSpec

_LIMIT = "limit"
"""The file with the moment (`time.monotonic`) at which the agent kills the worker."""

_SHARE = 0.9
TERMINATE_SHARE = 0.95

OUTPUT_FILE = "output.log"
_MOST_BYTES = 16 * 2**20
_ENOUGH = 8 * MOST_SAID
"""Bytes in which so many characters are, and a line that is cut."""


def write_end(folder: Path, pid: int) -> None:
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


def write_address(folder: Path, pid: int, address: str) -> None:
    """Say where the worker listens whose process this is: under that the scheduler knows what it
    computed.
    """
    write_atomically(
        folder / "address.json", json.dumps({"pid": pid, "address": address}), durable=False
    )


def read_address(folder: Path, pid: int) -> str:
    """Where the worker listened whose process that was; empty where it never did."""
    try:
        told = json.loads((folder / "address.json").read_bytes())
        if told["pid"] == pid:
            return str(told["address"])
        return ""
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def memory_limit(spec: DaskSpec) -> int:
    """Bytes: what was declared, or nine tenths of what the VM has. Results are spilled to disk from
    60 % of it on.
    """
    return spec.memory_bytes or int(
        _SHARE * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    )


# What the jobs of a bag print in a worker, and what they start does: the last of it, in a file.
#
# A file outlives a process that crashes, so its successor can say what the one before printed last. The worker's
# agent keeps it short meanwhile (`shorten`): a job may print more than a disk holds.


def capture_output(folder: Path) -> None:
    """From now on what this process and its children print goes into the folder's file; Dask's own
    log does not.
    """
    log = os.fdopen(os.dup(2), "w", buffering=1, encoding="utf-8")
    for handler in logging.getLogger("distributed").handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setStream(log)  # pyright: ignore[reportUnknownMemberType]
    file = os.open(
        folder / OUTPUT_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600
    )
    for number in (1, 2):
        os.dup2(file, number)
    os.close(file)
    sys.stdout = os.fdopen(1, "w", buffering=1, errors="replace", closefd=False, encoding="utf-8")
    sys.stderr = sys.stdout


def clear_output(folder: Path) -> None:
    """Another attempt begins: what was printed before is not its own."""
    path = folder / OUTPUT_FILE
    if path.exists():
        os.truncate(path, 0)


def last_output(folder: Path) -> str:
    """The last that was printed, whole lines where there are any; at most `MOST_SAID` characters."""
    try:
        end = _end(folder / OUTPUT_FILE, _ENOUGH)
    except OSError:
        return ""
    text = end.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n").strip("\n")
    if len(text) <= MOST_SAID:
        return text
    text = text[-MOST_SAID:]
    return text.partition("\n")[2] or text


def shorten_output(folder: Path) -> None:
    """Keep the end alone of a file that has become large. Those who append to it go on behind that."""
    path = folder / OUTPUT_FILE
    if path.exists() and path.stat().st_size > _MOST_BYTES:
        end = _end(path, _ENOUGH)
        with path.open("ab") as file:
            file.truncate(0)
            file.write(end)


def _end(path: Path, most: int) -> bytes:
    with path.open("rb") as file:
        file.seek(max(file.seek(0, os.SEEK_END) - most, 0))
        return file.read(most)
