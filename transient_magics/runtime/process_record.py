"""What is on disk about a job on a VM: what is wanted, which process looks after it, and which processes are its own.

An agent writes down what it was told before it does it, and the process that looks after the job (`runtime.jobs`) holds
a lock as long as it lives. So either may be killed at any moment: the next agent finds what runs, and what a runner
that was killed has left is found by the mark that all processes of a job have in their environment.
"""

from __future__ import annotations

import json
import math
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from .. import files
from ..files import write_atomically
from ..protocol import agent_commands, layout
from ..protocol.agent_commands import BeginJob
from .role_record import start_time

MARK = "TRANSIENT_JOB_FOLDER"
"""The variable with which all processes of a job are started; its value is the job's folder on this VM."""
_RIGHT_SECONDS = 30.0


def wanted(folder: Path) -> BeginJob | None:
    """What is to be done in the folder of a job; None where nothing is, or that cannot be read."""
    try:
        command = agent_commands.read((folder / "wanted.json").read_bytes())
    except (OSError, ValueError):
        return None
    return command if isinstance(command, BeginJob) else None


def want(folder: Path, begin: BeginJob) -> None:
    """Have it wanted from now on."""
    write_atomically(folder / "wanted.json", begin.encoded)


def clock_behind(folder: Path, begin: BeginJob) -> float:
    """Seconds by which the clock of this VM is behind the controller's; 0 where it is right, as far as can be told.

    The command may have waited on its way, so only a clock that is wrong by more than that counts.
    """
    with suppress(OSError):
        behind = begin.at - (folder / "wanted.json").stat().st_mtime
        return behind if begin.at and abs(behind) > _RIGHT_SECONDS else 0.0
    return 0.0


def notice_file(folder: Path, attempt: int) -> Path:
    """The file in which the command reads when a VM of its job ends."""
    return folder / f"notice-{attempt}"


def warning_file(folder: Path, attempt: int) -> Path:
    """The file with the same moment, as the controller has warned of it."""
    return folder / f"warned-{attempt}"


def write_end(path: Path, seconds: float) -> None:
    """Write the moment `seconds` from now, in seconds since 1970, to one of these two files. Raises OSError."""
    write_atomically(path, f"{time.time() + seconds:.3f}\n", durable=False)


def seconds_left(path: Path) -> float:
    """Seconds to the moment in one of these two files; infinite where there is no such file."""
    with suppress(OSError, ValueError):
        return float(path.read_text(encoding="utf-8")) - time.time()
    return math.inf


def all_wanted(root: Path) -> Iterator[tuple[Path, BeginJob]]:
    """The jobs below an agent's root of which an attempt was begun and has not ended."""
    for path in sorted((root / layout.JOBS).glob("*/wanted.json")):
        if (begin := wanted(path.parent)) and not has_exited(path.parent, begin.attempt):
            yield path.parent, begin


def claim(folder: Path, attempt: int) -> bool:
    """Be the process that looks after this attempt, until it ends; False where another one is."""
    lock = files.lock(folder / "runner.lock")
    if lock is None:
        return False
    os.ftruncate(lock, 0)
    told = {"pid": os.getpid(), "started": start_time(os.getpid()), "attempt": attempt}
    os.write(lock, json.dumps(told).encode())
    return True


def runner(folder: Path) -> tuple[int, int | None, int] | None:
    """The number, start time and attempt of the process that looks after the job, if one lives."""
    try:
        told = json.loads((folder / "runner.lock").read_bytes())
        pid, started, attempt = int(told["pid"]), told["started"], int(told["attempt"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return (pid, started, attempt) if started is not None and start_time(pid) == started else None


def has_exited(folder: Path, attempt: int) -> bool:
    """Whether the end of this attempt was told."""
    return (folder / f"exited-{attempt}").exists()


def mark_exited(folder: Path, attempt: int) -> None:
    """Note that it was."""
    (folder / f"exited-{attempt}").touch()


def marked(folder: Path) -> list[int]:
    """The numbers of all processes that bear the mark of the job."""
    mark, found = f"{MARK}={folder}".encode(), list[int]()
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            with suppress(OSError):
                if mark in (path / "environ").read_bytes().split(b"\0"):
                    found.append(int(path.name))
    return found


def kill_marked(folder: Path) -> None:
    """Kill all of them, and what they have started meanwhile."""
    for _ in range(10):
        found = marked(folder)
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not found:
            return
