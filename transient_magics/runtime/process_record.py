"""Records on disk of a VM's processes: which are requested, which run, and how they ended.

The agent records what it starts before it starts it, and each process holds a lock while it lives.
So either may be killed at any moment: the next agent finds what runs, and a second process of the
same work finds the lock held and ends.

The first part is about the processes of work of any kind but runs, and the second part about the
roles of runs.
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
"""Environment variable of all processes of a piece of work: its folder on this VM.

Processes that a killed process has left are found by it.
"""
_REQUEST = "request.json"
_LOCK = "process.lock"


class Running(NamedTuple):
    """The running process of a piece of work."""

    pid: int
    started: int
    """Start time by the kernel, which together with the pid identifies a process."""
    attempt: int


def requested(folder: Path) -> Begin | None:
    """Return the request in the folder of a piece of work; None if there is none to read."""
    try:
        command = agent_commands.read((folder / _REQUEST).read_bytes())
    except (OSError, ValueError):
        return None
    return command if isinstance(command, Begin) else None


def request(folder: Path, begin: Begin) -> None:
    """Record a request."""
    write_atomically(folder / _REQUEST, begin.encoded)


def requested_at(folder: Path) -> float:
    """Return when the request was recorded, in seconds since 1970; 0 if there is none."""
    with suppress(OSError):
        return (folder / _REQUEST).stat().st_mtime
    return 0.0


def all_requested(root: Path) -> list[tuple[Path, Begin]]:
    """Return the requests below an agent's root that have not ended here, with their folders."""
    requests: list[tuple[Path, Begin]] = []
    for kind in KINDS.values():
        for path in sorted((root / kind.folder).glob(f"*/{_REQUEST}")):
            begin = requested(path.parent)
            if begin and begin.kind == kind.name and not has_ended(path.parent, begin.attempt):
                requests.append((path.parent, begin))
    return requests


def warning_file(folder: Path, attempt: int) -> Path:
    """Return the file with the time, from the controller, at which another VM of the work ends."""
    return folder / f"warned-{attempt}"


def write_end(path: Path, seconds: float) -> None:
    """Write the time in `seconds` from now, in seconds since 1970, to a file. Raises OSError."""
    write_atomically(path, f"{time.time() + seconds:.3f}\n", durable=False)


def seconds_left(path: Path) -> float:
    """Return the seconds until the time in such a file; infinite if there is no file."""
    with suppress(OSError, ValueError):
        return float(path.read_text(encoding="utf-8")) - time.time()
    return math.inf


def claim(folder: Path, attempt: int) -> bool:
    """Become the process of this attempt; return False if another process is."""
    lock = files.lock(folder / _LOCK)
    if lock is None:
        return False
    os.ftruncate(lock, 0)
    record = {"pid": os.getpid(), "started": start_time(os.getpid()), "attempt": attempt}
    os.write(lock, json.dumps(record).encode())
    return True


def claim_requested(folder: Path) -> Begin | None:
    """Become the process of the requested attempt, and return its request.

    None: nothing is requested, the attempt has ended, or another process is its process.
    """
    begin = requested(folder)
    if begin is None or has_ended(folder, begin.attempt) or not claim(folder, begin.attempt):
        return None
    return begin


def running(folder: Path) -> Running | None:
    """Return the process of the work; None if none lives."""
    try:
        record = json.loads((folder / _LOCK).read_bytes())
        process = Running(int(record["pid"]), int(record["started"]), int(record["attempt"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return process if start_time(process.pid) == process.started else None


def has_ended(folder: Path, attempt: int) -> bool:
    """Return whether an attempt has ended on this VM."""
    return (folder / f"ended-{attempt}").exists()


def mark_ended(folder: Path, attempt: int) -> None:
    """Record that an attempt has ended on this VM."""
    (folder / f"ended-{attempt}").touch()


def find_marked(folder: Path) -> list[int]:
    """Return the pids of all processes that have the mark of the work."""
    mark = f"{MARK}={folder}".encode()
    pids = list[int]()
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            with suppress(OSError):
                if mark in (path / "environ").read_bytes().split(b"\0"):
                    pids.append(int(path.name))
    return pids


def kill_marked(folder: Path) -> None:
    """Kill all processes with the mark of the work, and any that these start before they end."""
    for _ in range(10):
        pids = find_marked(folder)
        if not pids:
            return
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def resident_bytes(pid: int) -> int:
    """Return the bytes that a process has in memory; 0 if it has ended."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


# --- roles of runs -------------------------------------------------------------------------------
#
# A restarted agent is not the parent of the roles that it finds, and the kernel has exit codes only
# for parents. So roles write their exit codes to disk.


@dataclass(frozen=True)
class RoleRecord:
    """A role that is requested on this VM, and its process once that was started."""

    assignment: Assignment
    pid: int | None = None
    started: int | None = None
    """Start time of the process by the kernel."""

    @property
    def lives(self) -> bool:
        """Whether the process runs."""
        if self.pid is None:
            return False
        state, started = _state(self.pid)
        return state not in ("", "Z", "X") and started == self.started

    def write(self, logs: Path) -> None:
        """Replace the record of the role."""
        write_atomically(pid_file(logs, self.assignment.name), self.text)

    @property
    def text(self) -> str:
        """Text of the record."""
        return json.dumps(
            {"pid": self.pid, "started": self.started, "assignment": self.assignment.to_dict()}
        )

    @classmethod
    def read(cls, path: Path) -> RoleRecord | None:
        """Return the record in a file; None if there is none to read."""
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            return cls(
                Assignment.from_dict(record["assignment"]),
                _number(record, "pid"),
                _number(record, "started"),
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None


def pid_file(logs: Path, name: str) -> Path:
    """Return the file with the agent's record of a role."""
    return logs / f"{name}.pid"


def lock_file(logs: Path, name: str) -> Path:
    """Return the file that the role's process locks, with its own record."""
    return logs / f"{name}.lock"


def exit_file(logs: Path, name: str) -> Path:
    """Return the file with the exit code of a role."""
    return logs / f"{name}.exit"


def role_records(root: Path) -> list[RoleRecord]:
    """Return the records below an agent's root: roles that an earlier agent ran or was starting."""
    paths = sorted(root.glob(f"{layout.RUNS}/*/{layout.LOGS}/*.pid"))
    return [record for record in map(RoleRecord.read, paths) if record is not None]


def claim_role(logs: Path, assignment: Assignment) -> None:
    """Become the process of this role until this process ends.

    Raises
    ------
    TrainingError
        Another process is the role, or the role is not requested any more: the agent that started
        this process died, and the next one has ended the run.
    """
    lock = files.lock(lock_file(logs, assignment.name))
    if lock is None:
        raise TrainingError(
            f"another process already runs as {assignment.name} of {assignment.run}"
        )
    record = RoleRecord.read(pid_file(logs, assignment.name))
    if record is None or record.assignment != assignment:
        raise TrainingError(f"{assignment.name} of {assignment.run} is no longer requested")
    # Processes that this one forks may outlive it, and must not hold the lock.
    os.register_at_fork(after_in_child=partial(_close, lock))
    os.ftruncate(lock, 0)
    os.write(lock, RoleRecord(assignment, os.getpid(), start_time(os.getpid())).text.encode())


def start_time(pid: int) -> int | None:
    """Return the start time of a process by the kernel, which with the pid identifies it."""
    return _state(pid)[1]


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped, by SIGSTOP or a debugger."""
    return _state(pid)[0] in ("T", "t")


def _state(pid: int) -> tuple[str, int | None]:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return fields[0], int(fields[19])
    except (OSError, IndexError, ValueError):
        return "", None


def _number(record: Mapping[str, Any], name: str) -> int | None:
    if record.get(name) is None:
        return None
    return int(record[name])


def _close(handle: int) -> None:
    with suppress(OSError):
        os.close(handle)
