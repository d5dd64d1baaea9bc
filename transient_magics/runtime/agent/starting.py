"""The agent's two ways to start the process of a role: as a program of its own, or forked with
everything imported.

TensorFlow and Tensor2Tensor take seconds to import. A fork server (fork_server.py) has done that
once, and every start of a role after that, and the next run's too, takes milliseconds. Where none
lives, a role is started the plain way.
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
"""What a fork server may take, on a machine on which everybody imports TensorFlow, before it counts
as hanging.
"""
_LOOK_SECONDS = 0.5
_CODE_SECONDS = 1.0
_ROOM = 256
"""Bytes that a process forked from a server has for its own command line, more than the server's
own.
"""


ZYGOTES = "TRANSIENT_ZYGOTES"
"""In the environment of an emulated VM: the folder of the sockets of zygotes, one for each kind of
model. Fork servers are forked from them (`transient_emulator/vms/zygote.py`).
"""
_CODE = Path(__file__).parents[3]


class Process(Protocol):
    """A role's process."""

    pid: int

    async def code(self) -> int | None:
        """How it ended, once it has; None where only its parent knows."""
        ...


class Program:
    """Started by this agent."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.pid = process.pid
        self._process = process

    async def code(self) -> int | None:
        """Its exit code."""
        return self._process.wait()


class Adopted:
    """Found by this agent."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    async def code(self) -> int | None:
        """Nobody here knows."""
        return None


class Forked:
    """A child of a fork server, which tells how it ended if it is still there."""

    def __init__(self, pid: int, code: asyncio.Future[int | None]) -> None:
        self.pid = pid
        self._code = code

    async def code(self) -> int | None:
        """Its exit code; None where the server has died or stands still."""
        await asyncio.wait([self._code], timeout=_CODE_SECONDS)
        if self._code.done():
            return self._code.result()
        return None


def log_file(folder: RunFolder, name: str) -> Path:
    """Where the output of the role called `name` goes."""
    return folder.logs / f"{name}.log"


def spawn(role: str, name: str, folder: RunFolder, arguments: Sequence[str]) -> Program:
    """Start the program of a role in its run's folder, its output going to the role's log."""
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
    """The process of a fork server that this agent has started."""

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
        """End it."""
        self._process.kill()
        self._process.wait()


class _FromZygote:
    """The process of a fork server that a zygote forks for this agent. Raises OSError where there
    is no zygote.

    Its `pid` is known once it has imported everything. Until then it ends as it finds that its
    agent has gone.
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
        """End it."""
        if self.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


def has_zygote() -> bool:
    """Whether a fork server takes no time: this VM is emulated, and starts Python programs as all
    its VMs do.
    """
    return ZYGOTES in os.environ and os.environ.get("PYTHONPATH", "") in ("", str(_CODE))


class ForkServer:
    """A fork server for runs of models of their `own`, or of registered ones. It ends with this
    agent.
    """

    def __init__(self, root: Path, *, own: bool) -> None:
        self.own = own
        self.alive = True
        self._imported = asyncio.Event()
        self._asked: deque[asyncio.Future[Forked | None]] = deque()
        self._codes: dict[int, asyncio.Future[int | None]] = {}
        self._socket, theirs = socket.socketpair()
        self._socket.setblocking(False)
        kind = "own" if own else "registered"
        arguments = ["--root", str(root), "--kind", kind, "--room", " " * _ROOM]
        with theirs, open(root / "fork-server.log", "ab") as log:
            self._process = _begin(kind, arguments, root, theirs, log.fileno())
        self._hearing = asyncio.create_task(self._hear())

    @property
    def has_imported(self) -> bool:
        """Whether it lives and has imported everything."""
        return self.alive and self._imported.is_set()

    async def ready(self) -> bool:
        """Wait until it has imported everything; False if it never will have."""
        return await self._within(self._imported.wait(), _IMPORT_SECONDS) is True and self.alive

    async def fork(
        self, role: str, name: str, folder: RunFolder, arguments: Sequence[str]
    ) -> Forked | None:
        """Have it become a role. None where it cannot, now or any more.

        A process that it may have forked all the same has recorded itself by then (process_record.py),
        or ends.
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
        """Have it become a program beside a run, which ends with the process `caller`. None as
        above.
        """
        return await self._fork(
            program=name,
            folder=str(folder.path),
            log=str(log_file(folder, name)),
            arguments=list(arguments),
            caller=caller,
        )

    async def _fork(self, **asked: object) -> Forked | None:
        if not self.alive:
            return None
        answer: asyncio.Future[Forked | None] = asyncio.get_running_loop().create_future()
        self._asked.append(answer)
        try:
            line = encode(asked)
            await asyncio.get_running_loop().sock_sendall(self._socket, line)
        except OSError:
            self.end()
        return await self._within(answer, _FORK_SECONDS)

    def end(self) -> None:
        """It is not needed any more. What was forked from it lives on."""
        self._hearing.cancel()
        self._die()

    async def _within(self, answer: Awaitable[Any], seconds: float) -> Any:
        """What it answers; None, and its end, where it stands still or takes longer."""
        waiting = asyncio.ensure_future(answer)
        try:
            while not waiting.done() and seconds > 0:
                await asyncio.wait([waiting], timeout=_LOOK_SECONDS)
                pid = self._process.pid
                stands_still = pid is not None and is_stopped(pid)
                if stands_still:
                    seconds = 0.0
                else:
                    seconds = seconds - _LOOK_SECONDS
            if not waiting.done():
                self.end()
                return None
            return waiting.result()
        finally:
            waiting.cancel()

    async def _hear(self) -> None:
        loop = asyncio.get_running_loop()
        unread = b""
        try:
            while block := await loop.sock_recv(self._socket, 1 << 16):
                *lines, unread = (unread + block).split(b"\n")
                for line in lines:
                    self._heard(decode(line))
        except OSError:
            pass  # it died with something unread
        self._die()

    def _heard(self, message: dict[str, Any]) -> None:
        match message:
            case {"imported": pid}:
                self._process.pid = pid
                self._imported.set()
            case {"forked": None}:
                self._asked.popleft().set_result(None)
            case {"forked": pid}:
                code = self._codes[pid] = asyncio.get_running_loop().create_future()
                self._asked.popleft().set_result(Forked(pid, code))
            case {"ended": pid, "code": code}:
                self._codes.pop(pid).set_result(code)
            case _:
                raise ValueError(f"not an answer of a fork server: {json.dumps(message)}")

    def _die(self) -> None:
        """The socket is closed first: what has just been forked sees that nobody waits for it."""
        if not self.alive:
            return
        self.alive = False
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._socket)  # before its number is another file's
        loop.remove_writer(self._socket)
        self._socket.close()
        self._process.kill()
        self._imported.set()
        for future in (*self._asked, *self._codes.values()):
            if not future.done():
                future.set_result(None)


def _begin(
    kind: str, arguments: Sequence[str], root: Path, agent: socket.socket, log: int
) -> _FromZygote | _Started:
    """Have a process that is forked from the emulator's zygote, or started by this agent where
    there is none.
    """
    if has_zygote():
        with suppress(OSError):
            return _FromZygote(kind, arguments, root, agent, log)
    return _Started(arguments, root, agent, log)
