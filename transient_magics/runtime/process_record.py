"""What is on disk about the process that a VM runs for a piece of work: that it is wanted, and
which process it is.

The agent writes down what it starts before it does, and the process holds a lock as long as it
lives. So either may be killed at any moment: the next agent finds what runs, and what a process
that was killed has left is found by the mark that all processes of the work have in their
environment.
"""

from __future__ import annotations

import json
import math
import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from .. import files
from ..errors import TrainingError
from ..files import write_atomically
from ..kinds import KINDS
from ..protocol import agent_commands, layout
from ..protocol.agent_commands import Assignment, Begin

MARK = "TRANSIENT_WORK_FOLDER"
"""The variable with which all processes of a piece of work are started; its value is the work's
folder on this VM.
"""
_WANTED = "wanted.json"
_LOCK = "process.lock"


class Running(NamedTuple):
    """The process of a piece of work that lives."""

    pid: int
    started: int
    """Its start time, by the kernel: with it a pid means one process."""
    attempt: int


def wanted(folder: Path) -> Begin | None:
    """Return what is wanted in the folder of a piece of work; None where nothing is, or it cannot
    be read.
    """
    try:
        command = agent_commands.read((folder / _WANTED).read_bytes())
    except (OSError, ValueError):
        return None
    return command if isinstance(command, Begin) else None


def want(folder: Path, begin: Begin) -> None:
    """Write down what is wanted from now on."""
    write_atomically(folder / _WANTED, begin.encoded)


def wanted_at(folder: Path) -> float:
    """Return when that was written down, in seconds since 1970; 0 where nothing is wanted."""
    with suppress(OSError):
        return (folder / _WANTED).stat().st_mtime
    return 0.0


def all_wanted(root: Path) -> list[tuple[Path, Begin]]:
    """Return the folders below an agent's root whose work is not over on this VM, each with what is
    wanted.
    """
    found: list[tuple[Path, Begin]] = []
    for kind in KINDS.values():
        for path in sorted((root / kind.folder).glob(f"*/{_WANTED}")):
            begin = wanted(path.parent)
            if begin and begin.kind == kind.name and not has_ended(path.parent, begin.attempt):
                found.append((path.parent, begin))
    return found


def warning_file(folder: Path, attempt: int) -> Path:
    """Return the file with the moment at which another VM of the work ends, as the controller has
    warned of it.
    """
    return folder / f"warned-{attempt}"


def write_end(path: Path, seconds: float) -> None:
    """Write the moment `seconds` from now, in seconds since 1970, to such a file. Raises OSError."""
    write_atomically(path, f"{time.time() + seconds:.3f}\n", durable=False)


def seconds_left(path: Path) -> float:
    """Return the seconds to the moment in such a file; infinite where there is no such file."""
    with suppress(OSError, ValueError):
        return float(path.read_text(encoding="utf-8")) - time.time()
    return math.inf


def claim(folder: Path, attempt: int) -> bool:
    """Be the process of this attempt until this process ends; False where another one is."""
    lock = files.lock(folder / _LOCK)
    if lock is None:
        return False
    os.ftruncate(lock, 0)
    told = {"pid": os.getpid(), "started": start_time(os.getpid()), "attempt": attempt}
    os.write(lock, json.dumps(told).encode())
    return True


def running(folder: Path) -> Running | None:
    """Return the process of the work, if one lives."""
    try:
        told = json.loads((folder / _LOCK).read_bytes())
        found = Running(int(told["pid"]), int(told["started"]), int(told["attempt"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if start_time(found.pid) == found.started else None


def has_ended(folder: Path, attempt: int) -> bool:
    """Return whether an attempt has ended on this VM for good."""
    return (folder / f"ended-{attempt}").exists()


def mark_ended(folder: Path, attempt: int) -> None:
    """Note that an attempt has ended on this VM for good."""
    (folder / f"ended-{attempt}").touch()


def marked(folder: Path) -> list[int]:
    """Return the numbers of all processes that have the mark of the work."""
    mark = f"{MARK}={folder}".encode()
    found = list[int]()
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            with suppress(OSError):
                if mark in (path / "environ").read_bytes().split(b"\0"):
                    found.append(int(path.name))
    return found


def kill_marked(folder: Path) -> None:
    """Kill all processes that have the mark of the work, and what they start at that time."""
    for _ in range(10):
        found = marked(folder)
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if not found:
            return


def resident(pid: int) -> int:
    """Return the bytes that a process has in memory; 0 where it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1]) * os.sysconf(
            "SC_PAGE_SIZE"
        )
    except (OSError, IndexError, ValueError):
        return 0


# What is on disk about the process of a role: that it is wanted, which one it is, and its exit code.
#
# The agent writes down what it starts before it does, and then which process that is. The process writes the same
# into a file that it holds locked as long as it lives. So an agent may be killed at any moment: the next one finds
# whatever runs, and a second process of the same role, should two have been started, finds the lock held and ends.
# The exit code is written too, because an agent that was started again is not the parent of the roles it finds and
# could not learn it otherwise.


@dataclass(frozen=True)
class RoleRecord:
    """A role that is wanted on this VM; with `pid` and the kernel's `started`, which process is or
    was it.
    """

    assignment: Assignment
    pid: int | None = None
    started: int | None = None

    @property
    def lives(self) -> bool:
        """Whether that process runs."""
        if self.pid is None:
            return False
        state, started = _state(self.pid)
        return state not in ("", "Z", "X") and started == self.started

    def write(self, logs: Path) -> None:
        """Put it in the place of what was there about the role."""
        write_atomically(pid_file(logs, self.assignment.name), self.text)

    @property
    def text(self) -> str:
        """What is written."""
        return json.dumps(
            {"pid": self.pid, "started": self.started, "assignment": self.assignment.to_dict()}
        )

    @classmethod
    def read(cls, path: Path) -> RoleRecord | None:
        """None where there is none that can be read."""
        try:
            told = json.loads(path.read_text(encoding="utf-8"))
            return cls(
                Assignment.from_dict(told["assignment"]),
                _number(told, "pid"),
                _number(told, "started"),
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None


def pid_file(logs: Path, name: str) -> Path:
    """Where the agent's record of a role is."""
    return logs / f"{name}.pid"


def lock_file(logs: Path, name: str) -> Path:
    """Where the process's own is, which holds it locked."""
    return logs / f"{name}.lock"


def exit_file(logs: Path, name: str) -> Path:
    """Where a role leaves its exit code."""
    return logs / f"{name}.exit"


def role_records(root: Path) -> list[RoleRecord]:
    """The records below an agent's root: what an agent before had running, or was starting."""
    found = map(RoleRecord.read, sorted(root.glob(f"{layout.RUNS}/*/{layout.LOGS}/*.pid")))
    return [record for record in found if record is not None]


def claim_role(logs: Path, assignment: Assignment) -> None:
    """Be the process of this role until it ends. Raises TrainingError where another one is, or
    nobody wants any more.

    The latter is so where the agent that started it died, and the next one was told that the run is
    over.
    """
    lock = files.lock(lock_file(logs, assignment.name))
    if lock is None:
        raise TrainingError(f"another process is {assignment.name} of {assignment.run}")
    wanted = RoleRecord.read(pid_file(logs, assignment.name))
    if wanted is None or wanted.assignment != assignment:
        raise TrainingError(f"{assignment.name} of {assignment.run} is not wanted any more")
    os.register_at_fork(
        after_in_child=partial(_close, lock)
    )  # what it forks may live on, and is not the role
    os.ftruncate(lock, 0)
    os.write(lock, RoleRecord(assignment, os.getpid(), start_time(os.getpid())).text.encode())


def start_time(pid: int) -> int | None:
    """The kernel's start time of a process: with it a pid means one process for ever."""
    return _state(pid)[1]


def is_stopped(pid: int) -> bool:
    """Whether the process stands still (SIGSTOP, a debugger)."""
    return _state(pid)[0] in ("T", "t")


def _state(pid: int) -> tuple[str, int | None]:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return fields[0], int(fields[19])
    except (OSError, IndexError, ValueError):
        return "", None


def _number(told: Mapping[str, Any], name: str) -> int | None:
    if told.get(name) is None:
        return None
    return int(told[name])


def _close(handle: int) -> None:
    with suppress(OSError):
        os.close(handle)
