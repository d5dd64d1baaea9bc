"""The way into the VM network from the host: a Unix socket that only its owner can open.

A client sends `CONNECT 10.128.0.5 22`, reads `OK` (or `ERROR` and a sentence), and from then on talks to that port.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

from transient_magics.files import private_sockets

Reach = Callable[[str, int], tuple[str, int] | None]
_CONNECT_SECONDS = 10.0
_CHUNK = 1 << 16


class Relay:
    """Serves the socket at `path`; `reach` turns an address and port of a VM into where they really are."""

    def __init__(self, path: Path, reach: Reach) -> None:
        self._path, self._reach = path, reach
        self._server: asyncio.Server | None = None
        self._connections: dict[str, set[asyncio.Task[None]]] = {}

    async def start(self) -> None:
        """Serve; a socket that a dead emulator left is replaced."""
        self._path.unlink(missing_ok=True)
        with private_sockets():
            self._server = await asyncio.start_unix_server(self._serve, self._path, backlog=512)

    def stop(self) -> None:
        """Serve no more."""
        if self._server:
            self._server.close()
        self._path.unlink(missing_ok=True)
        for address in list(self._connections):
            self.drop(address)

    def drop(self, address: str) -> None:
        """Break off all connections to a VM that is no more: from there, nobody would."""
        for task in self._connections.pop(address, ()):
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            match (await reader.readline()).decode(errors="replace").split():
                case ["CONNECT", address, port] if port.isdigit():
                    await self._connect(reader, writer, address, int(port))
                case _:
                    writer.write(b"ERROR say CONNECT, an address and a port\n")
        except (ConnectionError, ValueError):
            pass  # One side is gone (or never spoke our language): there is nobody to tell.
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            writer.close()

    async def _connect(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str, port: int
    ) -> None:
        place = self._reach(address, port)
        if place is None:
            writer.write(f"ERROR no running VM has the address {address}\n".encode())
            return
        task = asyncio.current_task()
        assert task
        # Kept here, because the event loop alone would let a connection that rests be collected.
        connections = self._connections.setdefault(address, set())
        connections.add(task)
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                far = await asyncio.open_connection(*place)
            writer.write(b"OK\n")
            await _splice(reader, writer, *far)
        except TimeoutError:
            writer.write(f"ERROR {address} port {port} does not answer\n".encode())
        except OSError as error:
            writer.write(f"ERROR {address} port {port}: {error.strerror or error}\n".encode())
        finally:
            connections.discard(task)


async def _splice(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter,
    far_reader: asyncio.StreamReader, far_writer: asyncio.StreamWriter,
) -> None:  # fmt: skip
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_pump(reader, far_writer))
            group.create_task(_pump(far_reader, writer))
    except* OSError:
        pass  # Either side broke off; both are closed below and by the caller.
    finally:
        far_writer.close()


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(_CHUNK):
        target.write(data)
        await target.drain()
    with contextlib.suppress(OSError):
        target.write_eof()
