"""How bytes get to a VM's SSH port: directly, through a program, or through the emulator's relay.

A dialler hands out a connected socket and nothing else; who is at its other end is proved by the SSH host key, so a
dialler need not be trusted. Leaving the context ends whatever carried the bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import asyncssh

from ..errors import RemoteError

_REPLY_LIMIT = 4096


class Dialler(Protocol):
    """A way to a port of a VM."""

    def dial(self, address: str, port: int) -> AbstractAsyncContextManager[socket.socket]:
        """A connected, non-blocking stream socket; raises OSError if there is no way now."""
        ...


@dataclass(frozen=True)
class Direct:
    """Over the network, as it is."""

    @asynccontextmanager
    async def dial(self, address: str, port: int) -> AsyncGenerator[socket.socket]:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(address, port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, target = found[0]
        with socket.socket(family, kind, protocol) as line:
            line.setblocking(False)
            await loop.sock_connect(line, target)
            yield line


@dataclass(frozen=True)
class Relay:
    """Through a relay that listens on a Unix socket, which is how the emulator's network is entered."""

    path: Path

    @asynccontextmanager
    async def dial(self, address: str, port: int) -> AsyncGenerator[socket.socket]:
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_UNIX) as line:
            line.setblocking(False)
            await loop.sock_connect(line, str(self.path))
            await loop.sock_sendall(line, f"CONNECT {address} {port}\n".encode())
            reply = await _reply(line)
            if reply != "OK":
                raise ConnectionRefusedError(f"the relay says: {reply.removeprefix('ERROR ')}")
            yield line


@dataclass(frozen=True)
class ProxyCommand:
    """Through a program that speaks for the VM on its standard input and output, such as an IAP tunnel.

    `{address}` and `{port}` in `argv` stand for what is dialled.
    """

    argv: Sequence[str]

    @asynccontextmanager
    async def dial(self, address: str, port: int) -> AsyncGenerator[socket.socket]:
        argv = [part.format(address=address, port=port) for part in self.argv]
        ours, its = socket.socketpair()
        with ours:
            with its:
                ours.setblocking(False)
                try:
                    program = await asyncio.create_subprocess_exec(
                        *argv, stdin=its.fileno(), stdout=its.fileno(), stderr=subprocess.PIPE, start_new_session=True
                    )
                except OSError as error:
                    what = f"The program {argv[0]} could not be started: {error.strerror}"
                    raise RemoteError(what, where=address, fix=f"Install {argv[0]}, or connect without it.") from error
            assert program.stderr is not None
            complaints = asyncio.create_task(_tail(program.stderr))
            try:
                yield ours
            except (OSError, asyncssh.ConnectionLost) as error:
                words = await _last_words(complaints)
                raise ConnectionRefusedError(f"{error}; {argv[0]} says: {words}") from error
            finally:
                ours.close()
                if program.returncode is None:  # it usually ends by itself, with its input
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(program.pid, signal.SIGKILL)
                await program.wait()
                complaints.cancel()


async def _reply(line: socket.socket) -> str:
    """One line, byte by byte: what follows it already belongs to SSH."""
    loop, reply = asyncio.get_running_loop(), bytearray()
    while not reply.endswith(b"\n"):
        byte = await loop.sock_recv(line, 1)
        if not byte or len(reply) > _REPLY_LIMIT:
            raise ConnectionResetError("the relay closed the connection")
        reply += byte
    return reply.decode(errors="replace").strip()


async def _tail(stream: asyncio.StreamReader) -> str:
    """What a program complained of last. Read all the time, or the program would stop when the pipe is full."""
    kept = b""
    while chunk := await stream.read(4096):
        kept = (kept + chunk)[-400:]
    return kept.decode(errors="replace").strip()


async def _last_words(complaints: asyncio.Task[str]) -> str:
    try:
        async with asyncio.timeout(1):
            return await asyncio.shield(complaints) or "nothing"
    except TimeoutError:
        return "nothing"
