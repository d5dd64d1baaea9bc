"""What is on disk about the process of a role: that it is wanted, which one it is, and its exit
code.

The agent writes down what it starts before it does, and then which process that is. The process
writes the same into a file that it holds locked as long as it lives. So an agent may be killed at
any moment: the next one finds whatever runs, and a second process of the same role, should two have
been started, finds the lock held and ends. The exit code is written too, because an agent that was
started again is not the parent of the roles it finds and could not learn it otherwise.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from .. import files
from ..errors import TrainingError
from ..files import write_atomically
from ..protocol import layout
from ..protocol.agent_commands import Assignment


@dataclass(frozen=True)
class Record:
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
    def read(cls, path: Path) -> Record | None:
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


def recorded(root: Path) -> list[Record]:
    """The records below an agent's root: what an agent before had running, or was starting."""
    found = map(Record.read, sorted(root.glob(f"{layout.RUNS}/*/{layout.LOGS}/*.pid")))
    return [record for record in found if record is not None]


def claim(logs: Path, assignment: Assignment) -> None:
    """Be the process of this role until it ends. Raises TrainingError where another one is, or
    nobody wants any more.

    The latter is so where the agent that started it died, and the next one was told that the run is
    over.
    """
    lock = files.lock(lock_file(logs, assignment.name))
    if lock is None:
        raise TrainingError(f"another process is {assignment.name} of {assignment.run}")
    wanted = Record.read(pid_file(logs, assignment.name))
    if wanted is None or wanted.assignment != assignment:
        raise TrainingError(f"{assignment.name} of {assignment.run} is not wanted any more")
    os.register_at_fork(
        after_in_child=partial(_close, lock)
    )  # what it forks may live on, and is not the role
    os.ftruncate(lock, 0)
    os.write(lock, Record(assignment, os.getpid(), start_time(os.getpid())).text.encode())


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
