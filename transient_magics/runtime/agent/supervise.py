"""Role processes of one VM: started, watched, adopted, restarted with a limit, ended.

Each role has a record with its assignment and its process (process_record.py), so that an agent
started after the old one was killed finds the processes that still run and goes on watching them (a
pidfd tells when any process ends, ours or not). What goes in are assignments, what comes out are
`process.started`, `process.exited` and, when a role is not started again, `process.gave_up` (it has
ended too often) or `process.unfit` (not on this VM).
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...protocol import layout
from ...protocol.agent_commands import DISPATCHER, Assignment
from ...protocol.vm_events import (
    AgentLine,
    ProcessExited,
    ProcessGaveUp,
    ProcessStarted,
    ProcessUnfit,
)
from ..folder import RunFolder
from ..process_record import RoleRecord, exit_file, lock_file, pid_file, start_time
from ..role import DONE, FAILED, UNFIT
from .starting import Adopted, ForkServer, Process, log_file, spawn

_PAUSES = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0)
_LONG_ENOUGH = 60.0
"""A role that ran so long starts with a short pause again."""
_LASTING = 300.0
"""Seconds after which it is worth a second import of TensorFlow that its next start takes none."""
_KILL_AFTER = {"ps": 25.0, "worker": 5.0, "dispatcher": 2.0, "prep": 2.0, "input": 2.0}
"""Seconds between TERM and KILL: the chief in ps/0 saves a last checkpoint, on all parameter
servers. That is more than its own patience with a save, and less than the controller's with an
answer.
"""
_TAIL = 2000
_SAID = 200

_NOISE = ("WARNING: All log messages before absl", "I0000 ", "W0000 ")
"""What TensorFlow says at every start, whatever it is told."""

_NO_GPU = "cuda_platform.cc"

Report = Callable[[AgentLine], None]


class RoleProcess:
    """One role of one run on this VM. `server`, asked at every start, gives a fork server for it,
    if there is any.
    """

    def __init__(
        self,
        root: Path,
        assignment: Assignment,
        report: Report,
        server: Callable[[Assignment], ForkServer | None] = lambda _: None,
    ) -> None:
        self.assignment = assignment
        self.folder = RunFolder(root / layout.RUNS / assignment.run)
        self.wanted = True
        self._report = report
        self._server = server
        self._process: Process | None = None
        self._since = time.monotonic()
        self._forking = False
        self._ended = asyncio.Event()
        self._failures = 0
        self._supervision: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """The process that is this role now."""
        return self._process.pid if self._process else None

    @property
    def over(self) -> bool:
        """Whether it has ended and is not started again."""
        return self._supervision is not None and self._supervision.done()

    @property
    def has_lasted(self) -> bool:
        """Whether its process has run for long."""
        return self._process is not None and time.monotonic() - self._since > _LASTING

    @property
    def pid_file(self) -> Path:
        """Where the running process is recorded."""
        return pid_file(self.folder.logs, self.assignment.name)

    @property
    def log(self) -> Path:
        """The role's output."""
        return log_file(self.folder, self.assignment.name)

    def describe(self) -> dict[str, Any]:
        """What a ping says about it."""
        given = self.assignment
        return {"run": given.run, "role": given.role, "name": given.name, "pid": self.pid}

    @property
    def prepared(self) -> bool:
        """Whether its process stands by and has everything ready."""
        return self.folder.prepared.exists()

    def start(self, adopt: RoleRecord | None = None) -> None:
        """Start the process, or go on with the one that `adopt` names, if it names any."""
        if adopt and adopt.pid is not None and adopt.lives:
            self._process = Adopted(adopt.pid)
        self._supervision = asyncio.create_task(self._supervise(adopt))

    def signal(self, number: signal.Signals) -> None:
        """Send the process a signal, if it runs."""
        if self.pid is not None and not self._ended.is_set():
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                self._ended.set()

    async def end(self, *, at_once: bool = False) -> None:
        """TERM, CONT (a stopped process does not die of TERM), KILL when that takes too long; and
        no restart.

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
            if self._process is None and not self._forking:
                self._supervision.cancel()  # between two starts
            await asyncio.wait([self._supervision])

    async def _supervise(self, adopt: RoleRecord | None) -> None:
        while self.wanted:
            self._since = time.monotonic()
            self._ended = asyncio.Event()
            try:
                if adopt is not None and adopt.pid is not None:
                    process = Adopted(adopt.pid)
                    started = adopt.started
                else:
                    self._process = process = await self._start()
                    started = start_time(process.pid)
                    RoleRecord(self.assignment, process.pid, started).write(self.folder.logs)
                    self._report(ProcessStarted(**self.describe()))
                    if not self.wanted:  # it was told to end before it was there
                        self.signal(signal.SIGKILL)
                await until_it_ends(process.pid, started)
                self._ended.set()
                code = await self._code(process)
                tail = _tail(self.log)
            except OSError as error:  # a full disk, or no memory for another process
                await self._kill_unrecorded()
                code = None
                tail = f"it could not be started: {error}"
            adopt = None
            self._process = None
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
            if time.monotonic() - self._since > _LONG_ENOUGH:
                self._failures = 0
            if self._failures >= len(_PAUSES):
                self._report(ProcessGaveUp(**described, said=_last_line(tail)[:_SAID]))
                self._forget()
                return
            pause = _PAUSES[self._failures]
            self._failures += 1
            await asyncio.sleep(pause)

    async def _start(self) -> Process:
        """A new process; or the one that is there, when an agent died, or a fork server, before it
        could say so.
        """
        given = self.assignment
        logs = self.folder.logs
        if known := await self._there():
            return known
        logs.mkdir(exist_ok=True, mode=0o700)
        exit_file(logs, given.name).unlink(missing_ok=True)
        if given.role != DISPATCHER:  # beside one that may have all ready
            self.folder.prepared.unlink(missing_ok=True)
        RoleRecord(given).write(logs)
        arguments = [*given.arguments(), "--asked", str(time.time())]
        server = self._server(given)
        if server and await server.ready():
            self._forking = True  # from now on there may be a process that nobody knows
            try:
                if (
                    process := await server.fork(given.role, given.name, self.folder, arguments)
                    or await self._there()
                ):
                    return process
            finally:
                self._forking = False
        return spawn(given.role, given.name, self.folder, arguments)

    async def _there(self) -> Process | None:
        """The process that lives and says that it is this role; one with another assignment ends
        here.
        """
        known = RoleRecord.read(lock_file(self.folder.logs, self.assignment.name))
        if known is None or known.pid is None or not known.lives:
            return None
        if known.assignment == self.assignment:
            return Adopted(known.pid)
        with suppress(ProcessLookupError):
            os.kill(known.pid, signal.SIGKILL)
        await until_it_ends(known.pid, known.started)
        return None

    async def _kill_unrecorded(self) -> None:
        """A process that an agent after us would not find stands in the way of the next one."""
        if self._process is not None:
            self.signal(signal.SIGKILL)
            with suppress(OSError):
                await until_it_ends(self._process.pid, start_time(self._process.pid))
                await self._process.code()

    async def _code(self, process: Process) -> int | None:
        if (code := await process.code()) is not None:
            return code
        try:
            return int(
                exit_file(self.folder.logs, self.assignment.name).read_text(encoding="utf-8")
            )
        except (OSError, ValueError):
            return None

    def _forget(self) -> None:
        with suppress(OSError):
            self.pid_file.unlink()


async def until_it_ends(pid: int, started: int | None) -> None:
    """Wait for the end of a process; `started` is when the process did; another one may have its
    number by now.
    """
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if start_time(pid) != started:
            return
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        loop.add_reader(handle, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(handle)
    finally:
        os.close(handle)


def _last_line(text: str) -> str:
    return next(
        (line.strip() for line in reversed(text.splitlines()) if line.strip()), "without a word"
    )


def _tail(log: Path) -> str:
    try:
        with open(log, "rb") as file:
            file.seek(max(0, log.stat().st_size - 4 * _TAIL))
            lines = file.read().decode(errors="replace").splitlines(keepends=True)
    except OSError:
        return ""
    return "".join(line for line in lines if not line.startswith(_NOISE) and _NO_GPU not in line)[
        -_TAIL:
    ]
