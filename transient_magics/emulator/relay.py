"""The way into the VM network from the host: a Unix socket that only its owner can open.

A client sends `CONNECT 10.128.0.5 22`, reads `OK` (or `ERROR` and a sentence), and from then on talks to that port.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path

Reach = Callable[[str, int], tuple[str, int] | None]
_CONNECT_SECONDS = 10.0
_CHUNK = 1 << 16


class Relay:
    """Serves the socket at `path`; `reach` turns an address and port of a VM into where they really are."""

    def __init__(self, path: Path, reach: Reach) -> None:
        self._path, self._reach = path, reach
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Serve; a socket that a dead emulator left is replaced."""
        self._path.unlink(missing_ok=True)
        mask = os.umask(0o177)
        try:
            self._server = await asyncio.start_unix_server(self._serve, self._path, backlog=512)
        finally:
            os.umask(mask)

    def stop(self) -> None:
        """Serve no more."""
        if self._server:
            self._server.close()
        self._path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answer, way = await self._open(await reader.readline())
            writer.write(answer.encode() + b"\n")
            if way:
                await _splice(reader, writer, *way)
        except (ConnectionError, ValueError):
            pass  # One side is gone (or never spoke our language): there is nobody to tell.
        finally:
            writer.close()

    async def _open(self, line: bytes) -> tuple[str, tuple[asyncio.StreamReader, asyncio.StreamWriter] | None]:
        match line.decode(errors="replace").split():
            case ["CONNECT", address, port] if port.isdigit():
                place = self._reach(address, int(port))
            case _:
                return "ERROR say CONNECT, an address and a port", None
        if place is None:
            return f"ERROR no running VM has the address {address}", None
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                return "OK", await asyncio.open_connection(*place)
        except TimeoutError:
            return f"ERROR {address} port {port} does not answer", None
        except OSError as error:
            return f"ERROR {address} port {port}: {error.strerror or error}", None


async def _splice(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter,
    far_reader: asyncio.StreamReader, far_writer: asyncio.StreamWriter,
) -> None:  # fmt: skip
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_pump(reader, far_writer))
            group.create_task(_pump(far_reader, writer))
    except* ConnectionError:
        pass  # Either side broke off; both are closed below and by the caller.
    finally:
        far_writer.close()


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(_CHUNK):
        target.write(data)
        await target.drain()
    with contextlib.suppress(OSError):
        target.write_eof()
