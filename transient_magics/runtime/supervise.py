"""Role processes of one VM: started, watched, adopted, restarted with a limit, ended.

Each role has a pid file with its assignment, its pid and the kernel's start time of that pid, so that an agent
started after the old one was killed finds the processes that still run and goes on watching them (a pidfd tells when
any process ends, ours or not). What goes in are assignments, what comes out are `process.started`, `process.exited`
and, when a role is not started again, `process.gave_up` (it has ended too often) or `process.unfit` (not on this VM).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..protocol.vm_events import AgentLine, ProcessExited, ProcessGaveUp, ProcessStarted, ProcessUnfit
from .folder import RunFolder, write_atomically
from .protocol import DONE, FAILED, UNFIT, Assignment
from .role import exit_file
from .standby import Standby, log_file, spawn

_PAUSES = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_LONG_ENOUGH = 60.0
"""A role that ran so long starts with a short pause again."""
_KILL_AFTER = {"ps": 25.0, "worker": 5.0}
"""Seconds between TERM and KILL: the chief in ps/0 saves a last checkpoint, on all parameter servers. That is more than
its own patience with a save, and less than the controller's with an answer.
"""
_TAIL, _SAID = 2000, 200

_NOISE = ("WARNING: All log messages before absl", "I0000 ", "W0000 ")
"""What TensorFlow says at every start, whatever it is told."""

_NO_GPU = "cuda_platform.cc"

Report = Callable[[AgentLine], None]


class RoleProcess:
    """One role of one run on this VM."""

    def __init__(self, root: Path, assignment: Assignment, report: Report, standby: Standby | None = None) -> None:
        self.assignment = assignment
        self._standby = standby
        self.folder = RunFolder(root / "runs" / assignment.run)
        self.pid: int | None = None
        self.wanted = True
        self._report = report
        self._child: subprocess.Popen[bytes] | None = None
        self._ended = asyncio.Event()
        self._failures = 0
        self._supervision: asyncio.Task[None] | None = None

    @property
    def pid_file(self) -> Path:
        """Where the running process is recorded."""
        return self.folder.logs / f"{self.assignment.name}.pid"

    @property
    def log(self) -> Path:
        """The role's output."""
        return log_file(self.folder, self.assignment.name)

    def describe(self) -> dict[str, Any]:
        """What a ping says about it."""
        given = self.assignment
        return {"run": given.run, "role": given.role, "name": given.name, "pid": self.pid}

    def start(self, adopt: Mapping[str, Any] | None = None) -> None:
        """Start the process, or go on with the one that `adopt` (a pid file) describes."""
        self._supervision = asyncio.create_task(self._supervise(adopt))

    def signal(self, number: signal.Signals) -> None:
        """Send the process a signal, if it runs."""
        if self.pid is not None and not self._ended.is_set():
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                self._ended.set()

    async def end(self, *, at_once: bool = False) -> None:
        """TERM, CONT (a stopped process does not die of TERM), KILL when that takes too long; and no restart.

        With `at_once` KILL alone: where there is nothing that it could still do.
        """
        self.wanted = False
        if at_once:
            self.signal(signal.SIGKILL)
            await self._over()
            self._forget()
            return
        if self.assignment.role == "worker":
            self.signal(signal.SIGUSR1)  # of SIGTERM alone it makes that its VM is under notice
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)
        try:
            async with asyncio.timeout(_KILL_AFTER[self.assignment.role]):
                await self._over()
        except TimeoutError:
            self.signal(signal.SIGKILL)
            await self._over()
        self._forget()

    def let_go(self) -> None:
        """Stop watching, leave the process alone: a successor will adopt it."""
        if self._supervision is not None:
            self._supervision.cancel()

    async def _over(self) -> None:
        """Until the supervision has seen the end."""
        if self._supervision is not None:
            if self.pid is None:
                self._supervision.cancel()  # between two starts
            await asyncio.wait([self._supervision])

    async def _supervise(self, adopt: Mapping[str, Any] | None) -> None:
        while self.wanted:
            started = time.monotonic()
            try:
                if adopt is not None:
                    self.pid = int(adopt["pid"])
                else:
                    self._spawn()
                await self._until_it_ends(adopt)
                code, tail = self._code(), _tail(self.log)
            except OSError as error:  # a full disk, or no memory for another process
                self._kill_child()
                code, tail = None, f"it could not be started: {error}"
            adopt = None
            self.pid, self._child = None, None
            given = self.assignment
            described: dict[str, Any] = {"run": given.run, "role": given.role, "name": given.name}
            self._report(ProcessExited(**described, code=code, tail=tail))
            if code in (DONE, FAILED) or not self.wanted:
                self._forget()
                return
            if code == UNFIT:
                self._report(ProcessUnfit(**described, reason=_last_line(tail)))
                self._forget()
                return
            if time.monotonic() - started > _LONG_ENOUGH:
                self._failures = 0
            if self._failures >= len(_PAUSES):
                self._report(ProcessGaveUp(**described, said=_last_line(tail)[:_SAID]))
                self._forget()
                return
            pause = _PAUSES[self._failures]
            self._failures += 1
            await asyncio.sleep(pause)

    def _spawn(self) -> None:
        given = self.assignment
        exit_file(self.folder.logs, given.name).unlink(missing_ok=True)
        arguments = [*given.arguments(), "--asked", str(time.time())]
        standby, self._standby = self._standby, None
        self._child = standby.take(arguments) if standby else None
        if self._child is None:
            self._child = spawn(given.role, given.name, self.folder, arguments, subprocess.DEVNULL)
        self.pid = self._child.pid
        record = {"pid": self.pid, "started": start_time(self.pid), "assignment": given.to_dict()}
        write_atomically(self.pid_file, json.dumps(record))
        self._report(ProcessStarted(**self.describe()))

    async def _until_it_ends(self, adopt: Mapping[str, Any] | None) -> None:
        self._ended = asyncio.Event()
        assert self.pid is not None
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        try:
            if adopt is not None and start_time(self.pid) != adopt.get("started"):
                return  # another process has this number by now
            loop = asyncio.get_running_loop()
            loop.add_reader(handle, self._ended.set)
            try:
                await self._ended.wait()
            finally:
                loop.remove_reader(handle)
        finally:
            os.close(handle)

    def _code(self) -> int | None:
        if self._child is not None:
            return self._child.wait()
        try:
            return int(exit_file(self.folder.logs, self.assignment.name).read_text())
        except (OSError, ValueError):
            return None

    def _kill_child(self) -> None:
        """A process that an agent after us would not find stands in the way of the next one."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()

    def _forget(self) -> None:
        with suppress(OSError):
            self.pid_file.unlink()


def recorded(root: Path) -> list[dict[str, Any]]:
    """The pid files below `root`: what an agent before us had running."""
    found = []
    for path in sorted(root.glob("runs/*/logs/*.pid")):
        try:
            record = json.loads(path.read_text())
            Assignment.from_message(record["assignment"])
        except (OSError, ValueError, KeyError):
            continue
        found.append(record)
    return found


def start_time(pid: int) -> int | None:
    """The kernel's start time of a process: with it a pid means one process for ever."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "without a word")


def _tail(log: Path) -> str:
    try:
        with open(log, "rb") as file:
            file.seek(max(0, log.stat().st_size - 4 * _TAIL))
            lines = file.read().decode(errors="replace").splitlines(keepends=True)
    except OSError:
        return ""
    return "".join(line for line in lines if not line.startswith(_NOISE) and _NO_GPU not in line)[-_TAIL:]
