"""The two ways to start the process of a role: as a program, or forked from a fork server.

TensorFlow and Tensor2Tensor take seconds to import. A fork server (fork_server.py) has imported
them once, so each later start of a role takes milliseconds, also in the next run. Without a fork
server a role is started as a program.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from ...protocol.messages import encode
from ..folder import RunFolder
from ..process_record import is_stopped
from ..role import decode, environment, program

_IMPORT_SECONDS = 120.0
_FORK_SECONDS = 10.0
"""Time limits of a fork server, on a VM on which many processes import TensorFlow."""
_POLL_SECONDS = 0.5
_CODE_SECONDS = 1.0
_ROOM = 256
"""Bytes that the command line of a forked process may be longer than the fork server's."""

ZYGOTES = "TRANSIENT_ZYGOTES"
"""Environment variable of emulated VMs: the folder with the zygotes' sockets, by kind of model.

Fork servers are forked from zygotes (`transient_emulator/vms/zygote.py`).
"""
_CODE = Path(__file__).parents[3]


class Process(Protocol):
    """The process of a role."""

    pid: int

    async def code(self) -> int | None:
        """Return its exit code once it has ended; None if only another parent has it."""
        ...


class Program:
    """A program that this agent started."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.pid = process.pid
        self._process = process

    async def code(self) -> int | None:
        """Return its exit code."""
        return self._process.wait()


class Adopted:
    """A process that an earlier agent started."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    async def code(self) -> int | None:
        """Return None: this agent is not its parent."""
        return None


class Forked:
    """A child of a fork server, which reports the exit code while it lives."""

    def __init__(self, pid: int, code: asyncio.Future[int | None]) -> None:
        self.pid = pid
        self._code = code

    async def code(self) -> int | None:
        """Return its exit code; None if the server has died or is stopped."""
        await asyncio.wait([self._code], timeout=_CODE_SECONDS)
        if self._code.done():
            return self._code.result()
        return None


def log_file(folder: RunFolder, name: str) -> Path:
    """Return the file with the output of the role `name`."""
    return folder.logs / f"{name}.log"


def spawn(role: str, name: str, folder: RunFolder, arguments: Sequence[str]) -> Program:
    """Start the program of a role in its run's folder, with output to the role's log."""
    with open(log_file(folder, name), "ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", program(role), "--run-folder", str(folder.path), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd=folder.path,
            env=environment(os.environ),
        )
    return Program(process)


class _Started:
    """The process of a fork server that this agent started as a program."""

    def __init__(
        self, arguments: Sequence[str], root: Path, agent: socket.socket, log: int
    ) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.fork_server", *arguments],
            stdin=agent.fileno(),
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd=root,
            env=environment(os.environ),
        )
        self.pid: int | None = self._process.pid

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.wait()


class _FromZygote:
    """The process of a fork server that a zygote forks for this agent.

    `pid` is set once it has imported everything. Until then it exits when its agent is gone. Raises
    OSError if there is no zygote.
    """

    def __init__(
        self, kind: str, arguments: Sequence[str], root: Path, agent: socket.socket, log: int
    ) -> None:
        self.pid: int | None = None
        request = {
            "code": str(_CODE),
            "arguments": arguments,
            "environment": environment(os.environ),
            "folder": str(root),
        }
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as zygote:
            zygote.settimeout(_CODE_SECONDS)
            zygote.connect(f"{os.environ[ZYGOTES]}/{kind}.sock")
            socket.send_fds(zygote, [encode(request)], [agent.fileno(), log])

    def kill(self) -> None:
        """Kill the process."""
        if self.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


def has_zygote() -> bool:
    """Return whether a zygote can fork fork servers here.

    This is an emulated VM, and its Python programs use the same code as the zygote.
    """
    return ZYGOTES in os.environ and os.environ.get("PYTHONPATH", "") in ("", str(_CODE))


class ForkServer:
    """A fork server for runs with models of their `own`, or with registered models.

    Its process ends with this agent.
    """

    def __init__(self, root: Path, *, own: bool) -> None:
        self.own = own
        self.alive = True
        self._imported = asyncio.Event()
        self._requests: deque[asyncio.Future[Forked | None]] = deque()
        self._codes: dict[int, asyncio.Future[int | None]] = {}
        self._socket, other_end = socket.socketpair()
        self._socket.setblocking(False)
        kind = "own" if own else "registered"
        arguments = ["--root", str(root), "--kind", kind, "--room", " " * _ROOM]
        with other_end, open(root / "fork-server.log", "ab") as log:
            self._process = _start_server(kind, arguments, root, other_end, log.fileno())
        self._receiving = asyncio.create_task(self._receive())

    @property
    def has_imported(self) -> bool:
        """Whether it runs and has imported everything."""
        return self.alive and self._imported.is_set()

    async def ready(self) -> bool:
        """Wait until it has imported everything; return False if it has ended instead."""
        imported = await self._within(self._imported.wait(), _IMPORT_SECONDS)
        return imported is True and self.alive

    async def fork(
        self, role: str, name: str, folder: RunFolder, arguments: Sequence[str]
    ) -> Forked | None:
        """Fork a process that becomes a role; None if the server cannot.

        If it has forked a process in spite of that, the process has recorded itself by then
        (process_record.py), or exits.
        """
        return await self._fork(
            role=role,
            folder=str(folder.path),
            log=str(log_file(folder, name)),
            arguments=list(arguments),
        )

    async def fork_program(
        self, name: str, folder: RunFolder, arguments: Sequence[str], caller: int
    ) -> Forked | None:
        """Fork a program beside a run, which ends with the process `caller`; None as in `fork`."""
        return await self._fork(
            program=name,
            folder=str(folder.path),
            log=str(log_file(folder, name)),
            arguments=list(arguments),
            caller=caller,
        )

    async def _fork(self, **request: object) -> Forked | None:
        if not self.alive:
            return None
        answer: asyncio.Future[Forked | None] = asyncio.get_running_loop().create_future()
        self._requests.append(answer)
        try:
            line = encode(request)
            await asyncio.get_running_loop().sock_sendall(self._socket, line)
        except OSError:
            self.end()
        return await self._within(answer, _FORK_SECONDS)

    def end(self) -> None:
        """End the server. Processes that were forked from it continue."""
        self._receiving.cancel()
        self._die()

    async def _within(self, answer: Awaitable[Any], seconds: float) -> Any:
        """Return its answer; end the server and return None if it is stopped or takes too long."""
        waiting = asyncio.ensure_future(answer)
        try:
            while not waiting.done() and seconds > 0:
                await asyncio.wait([waiting], timeout=_POLL_SECONDS)
                pid = self._process.pid
                seconds -= _POLL_SECONDS
                if pid is not None and is_stopped(pid):
                    break
            if not waiting.done():
                self.end()
                return None
            return waiting.result()
        finally:
            waiting.cancel()

    async def _receive(self) -> None:
        loop = asyncio.get_running_loop()
        unread = b""
        try:
            while block := await loop.sock_recv(self._socket, 1 << 16):
                *lines, unread = (unread + block).split(b"\n")
                for line in lines:
                    self._handle(decode(line))
        except OSError:
            pass  # it died with unread messages
        self._die()

    def _handle(self, message: dict[str, Any]) -> None:
        match message:
            case {"imported": pid}:
                self._process.pid = pid
                self._imported.set()
            case {"forked": None}:
                self._requests.popleft().set_result(None)
            case {"forked": pid}:
                exit_code: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
                self._codes[pid] = exit_code
                self._requests.popleft().set_result(Forked(pid, exit_code))
            case {"ended": pid, "code": code}:
                self._codes.pop(pid).set_result(code)
            case _:
                raise ValueError(f"the fork server sent an invalid answer: {json.dumps(message)}")

    def _die(self) -> None:
        """Close the socket, then kill the process.

        In this order, because a process that was just forked exits if the socket is closed.
        """
        if not self.alive:
            return
        self.alive = False
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._socket)  # before another file gets its descriptor
        loop.remove_writer(self._socket)
        self._socket.close()
        self._process.kill()
        self._imported.set()
        for future in (*self._requests, *self._codes.values()):
            if not future.done():
                future.set_result(None)


def _start_server(
    kind: str, arguments: Sequence[str], root: Path, agent: socket.socket, log: int
) -> _FromZygote | _Started:
    """Start a fork server: from the emulator's zygote if there is one, else as a program."""
    if has_zygote():
        with suppress(OSError):
            return _FromZygote(kind, arguments, root, agent, log)
    return _Started(arguments, root, agent, log)
