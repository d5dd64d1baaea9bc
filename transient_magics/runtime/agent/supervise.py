"""The processes of roles on one VM: started, watched, adopted, restarted with a limit, ended.

Each role has a record with its assignment and its process (process_record.py). So an agent that
replaces a killed one finds the processes that run, and continues to watch them; a pidfd reports the
end of any process, also of another parent's child. The input are assignments. The output are
`process.started`, `process.exited` and, if a role is not restarted, `process.gave_up` (it ended too
often) or `process.unfit` (it cannot run on this VM).
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
from ..role import AGAIN, DONE, FAILED, UNFIT
from .starting import Adopted, ForkServer, Process, log_file, spawn

_PAUSES = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0)
_LONG_ENOUGH = 60.0
"""Seconds after which the pauses before restarts begin again with the shortest."""
_LASTING = 300.0
"""Seconds after which a fork server is worth its memory: it makes the next start faster."""
_KILL_AFTER = {"ps": 25.0, "worker": 5.0, "dispatcher": 2.0, "prep": 2.0, "input": 2.0}
"""Seconds between SIGTERM and SIGKILL.

The chief in ps/0 saves a last checkpoint, on all parameter servers. Its limit is longer than the
time for which it tries to save, and shorter than the time that the controller waits for an answer.
"""
_TAIL = 2000
"""Characters of a log's end that are reported."""
_REASON = 200
"""Characters of a log's last line that are reported."""

_NOISE = ("WARNING: All log messages before absl", "I0000 ", "W0000 ")
"""Beginnings of lines that TensorFlow logs at every start, whatever its settings."""

_NO_GPU = "cuda_platform.cc"

Report = Callable[[AgentLine], None]


class RoleProcess:
    """One role of one run on this VM.

    Parameters
    ----------
    root
        Root directory of the agent.
    assignment
        The role.
    report
        Called with each event.
    server
        Called at every start; returns the fork server to use, if any.
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
        self.requested = True
        """Whether the role is restarted when its process ends."""
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
        """Process id of the role; None while it has no process."""
        return self._process.pid if self._process else None

    @property
    def has_ended(self) -> bool:
        """Whether the role has ended and is not restarted."""
        return self._supervision is not None and self._supervision.done()

    @property
    def has_lasted(self) -> bool:
        """Whether its process has run for several minutes."""
        return self._process is not None and time.monotonic() - self._since > _LASTING

    @property
    def pid_file(self) -> Path:
        """File with the record of the role."""
        return pid_file(self.folder.logs, self.assignment.name)

    @property
    def log(self) -> Path:
        """File with the role's output."""
        return log_file(self.folder, self.assignment.name)

    def describe(self) -> dict[str, Any]:
        """Return the description that a ping gets."""
        return {**self._names, "pid": self.pid}

    @property
    def _names(self) -> dict[str, Any]:
        assignment = self.assignment
        return {"run": assignment.run, "role": assignment.role, "name": assignment.name}

    @property
    def prepared(self) -> bool:
        """Whether its process stands by, with everything prepared."""
        return self.folder.prepared.exists()

    def start(self, adopt: RoleRecord | None = None) -> None:
        """Start the process, or adopt the one of the record `adopt`."""
        if adopt and adopt.pid is not None and adopt.lives:
            self._process = Adopted(adopt.pid)
        self._supervision = asyncio.create_task(self._supervise(adopt))

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it runs."""
        if self.pid is not None and not self._ended.is_set():
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                self._ended.set()

    async def end(self, *, at_once: bool = False) -> None:
        """End the process with SIGTERM, or SIGKILL if that takes too long, and do not restart it.

        `at_once` sends only SIGKILL: there is nothing left that the process could save.
        """
        self.requested = False
        if at_once:
            self.signal(signal.SIGKILL)
            await self._wait_for_supervision()
            self._delete_record()
            return
        if self.assignment.role == "worker":
            self.signal(signal.SIGUSR1)  # SIGTERM alone means that the VM is under notice
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)  # a stopped process does not end by SIGTERM
        try:
            async with asyncio.timeout(_KILL_AFTER[self.assignment.role]):
                await self._wait_for_supervision()
        except TimeoutError:
            self.signal(signal.SIGKILL)
            await self._wait_for_supervision()
        self._delete_record()

    def detach(self) -> None:
        """Stop watching; the next agent adopts the process."""
        if self._supervision is not None:
            self._supervision.cancel()

    async def _wait_for_supervision(self) -> None:
        """Wait until the supervision has ended."""
        if self._supervision is not None:
            if self._process is None and not self._forking:
                self._supervision.cancel()  # it waits between two starts
            await asyncio.wait([self._supervision])

    async def _supervise(self, adopt: RoleRecord | None) -> None:
        """Run the role's process, restarted with growing pauses, until the role ends."""
        while self.requested:
            self._since = time.monotonic()
            self._ended = asyncio.Event()
            code, tail = await self._run_once(adopt)
            adopt = None
            self._process = None
            if code == AGAIN and self.requested:
                continue
            self._report(ProcessExited(**self._names, code=code, tail=tail))
            if code in (DONE, FAILED) or not self.requested:
                self._delete_record()
                return
            if code == UNFIT:
                self._report(ProcessUnfit(**self._names, reason=_last_line(tail)))
                self._delete_record()
                return
            if time.monotonic() - self._since > _LONG_ENOUGH:
                self._failures = 0
            if self._failures >= len(_PAUSES):
                reason = _last_line(tail)[:_REASON]
                self._report(ProcessGaveUp(**self._names, said=reason))
                self._delete_record()
                return
            pause = _PAUSES[self._failures]
            self._failures += 1
            await asyncio.sleep(pause)

    async def _run_once(self, adopt: RoleRecord | None) -> tuple[int | None, str]:
        """Run one process to its end, or adopt one; return its exit code and the end of its log."""
        try:
            if adopt is not None and adopt.pid is not None:
                process: Process = Adopted(adopt.pid)
                started = adopt.started
            else:
                process = await self._start()
                self._process = process
                started = start_time(process.pid)
                RoleRecord(self.assignment, process.pid, started).write(self.folder.logs)
                self._report(ProcessStarted(**self.describe()))
                if not self.requested:  # `end` was called during the start
                    self.signal(signal.SIGKILL)
            await wait_for_end(process.pid, started)
            self._ended.set()
            return await self._code(process), _tail(self.log)
        except OSError as error:  # a full disk, or no memory for another process
            await self._kill_unrecorded()
            return None, f"it could not be started: {error}"

    async def _start(self) -> Process:
        """Start a process; or return one that runs and is not recorded.

        An agent or a fork server may have died after it started the process.
        """
        assignment = self.assignment
        logs = self.folder.logs
        if running := await self._find_running():
            return running
        logs.mkdir(exist_ok=True, mode=0o700)
        exit_file(logs, assignment.name).unlink(missing_ok=True)
        if assignment.role != DISPATCHER:  # it runs beside a chief that may be prepared
            self.folder.prepared.unlink(missing_ok=True)
        RoleRecord(assignment).write(logs)
        arguments = [*assignment.arguments(), "--requested", str(time.time())]
        server = self._server(assignment)
        if server and await server.ready():
            self._forking = True  # from now on there may be a process that is not recorded
            try:
                role = assignment.role
                forked = await server.fork(role, assignment.name, self.folder, arguments)
                process = forked or await self._find_running()
            finally:
                self._forking = False
            if process:
                return process
        return spawn(assignment.role, assignment.name, self.folder, arguments)

    async def _find_running(self) -> Process | None:
        """Return a running process with this assignment; kill one with another assignment."""
        record = RoleRecord.read(lock_file(self.folder.logs, self.assignment.name))
        if record is None or record.pid is None or not record.lives:
            return None
        if record.assignment == self.assignment:
            return Adopted(record.pid)
        with suppress(ProcessLookupError):
            os.kill(record.pid, signal.SIGKILL)
        await wait_for_end(record.pid, record.started)
        return None

    async def _kill_unrecorded(self) -> None:
        """Kill a process that the next agent would not find: it would block the role."""
        if self._process is not None:
            self.signal(signal.SIGKILL)
            with suppress(OSError):
                await wait_for_end(self._process.pid, start_time(self._process.pid))
                await self._process.code()

    async def _code(self, process: Process) -> int | None:
        if (code := await process.code()) is not None:
            return code
        path = exit_file(self.folder.logs, self.assignment.name)
        try:
            return int(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    def _delete_record(self) -> None:
        with suppress(OSError):
            self.pid_file.unlink()


async def wait_for_end(pid: int, started: int | None) -> None:
    """Wait for the end of a process.

    `started` is its start time: another process may have its pid by now.
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
    """Return the last line that is not empty."""
    lines = (line.strip() for line in reversed(text.splitlines()))
    return next(filter(None, lines), "without any output")


def _tail(log: Path) -> str:
    """Return the end of a log, without TensorFlow's usual lines."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, log.stat().st_size - 4 * _TAIL))
            lines = file.read().decode(errors="replace").splitlines(keepends=True)
    except OSError:
        return ""
    useful = [line for line in lines if not line.startswith(_NOISE) and _NO_GPU not in line]
    return "".join(useful)[-_TAIL:]
