"""Files that a worker of a Dask cluster shares with its agent, and its memory limit."""

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
from ....protocol.outputs import MOST_PRINTED
from ..spec import DaskSpec

_LIMIT = "limit"
"""The file with the time (`time.monotonic`) at which the agent kills the worker."""
_SHARE = 0.9
TERMINATE_SHARE = 0.95
"""The share of the memory limit above which the agent kills the worker."""
OUTPUT_FILE = "output.log"
_MOST_BYTES = 16 * 2**20
_ENOUGH = 8 * MOST_PRINTED
"""Number of bytes that contain `MOST_PRINTED` characters and the rest of a line."""


def write_end(folder: Path, pid: int) -> None:
    """Record an orderly end of the process: an adopting agent does not get its exit code."""
    (folder / f"orderly-{pid}").touch()


def has_ended_well(folder: Path, pid: int) -> bool:
    """Return whether the process recorded an orderly end."""
    return (folder / f"orderly-{pid}").exists()


@contextmanager
def time_limit(folder: Path, seconds: float) -> Generator[None]:
    """Let the agent kill this process, a worker, if the block takes longer (0: no limit).

    A timer of this process would not do: tasks may set one themselves, and Python calls no handler
    while compiled code holds the interpreter.
    """
    limit = folder / _LIMIT
    if seconds:
        write_atomically(limit, str(time.monotonic() + seconds), durable=False)
    try:
        yield
    finally:
        limit.unlink(missing_ok=True)


def is_over_time(folder: Path) -> bool:
    """Return whether a worker is in a block of `time_limit` and has exceeded the limit."""
    try:
        return time.monotonic() > float((folder / _LIMIT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False


def clear_time_limit(folder: Path) -> None:
    """Remove the limit of a worker that has ended."""
    (folder / _LIMIT).unlink(missing_ok=True)


def write_address(folder: Path, pid: int, address: str) -> None:
    """Record the address of the worker in this process: the scheduler's name for it."""
    content = json.dumps({"pid": pid, "address": address})
    write_atomically(folder / "address.json", content, durable=False)


def read_address(folder: Path, pid: int) -> str:
    """Return the address of the worker in that process; empty if it had none."""
    try:
        content = json.loads((folder / "address.json").read_bytes())
        if content["pid"] == pid:
            return str(content["address"])
        return ""
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def memory_limit(spec: DaskSpec) -> int:
    """Return the memory limit of a worker in bytes: as declared, else nine tenths of its VM.

    Dask spills results to disk above 60 % of it.
    """
    if spec.memory_bytes:
        return spec.memory_bytes
    return int(_SHARE * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


def capture_output(folder: Path) -> None:
    """Write the output of this process and its children to a file, without Dask's own log.

    It has the output of a bag's jobs. The file outlives a crash, so that the next worker can report
    its end. The agent shortens it: a job may print more than the disk holds.
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
    """Empty the file before another attempt begins."""
    path = folder / OUTPUT_FILE
    if path.exists():
        os.truncate(path, 0)


def last_output(folder: Path) -> str:
    """Return the last `MOST_PRINTED` characters of the output, in whole lines if there are any."""
    try:
        end = _end(folder / OUTPUT_FILE, _ENOUGH)
    except OSError:
        return ""
    text = end.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n").strip("\n")
    if len(text) <= MOST_PRINTED:
        return text
    text = text[-MOST_PRINTED:]
    return text.partition("\n")[2] or text


def shorten_output(folder: Path) -> None:
    """Cut a large file to its end. Processes that have it open continue to append to it."""
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
