"""The way from the host into the VM network: a Unix socket that only its owner can open.

A client sends `CONNECT 10.128.0.5 22` and reads `OK`, or `ERROR` with a sentence. After `OK`, the
connection leads to that port.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

from transient_magics.files import private_sockets

Reach = Callable[[str, int], tuple[str, int] | None]
"""Maps an address and a port of a VM to the address and port that this process can connect to."""
_CONNECT_SECONDS = 10.0
_CHUNK = 1 << 16


class Relay:
    """The server of the socket at `path`.

    `reach` returns None for addresses without a running VM.
    """

    def __init__(self, path: Path, reach: Reach) -> None:
        self._path = path
        self._reach = reach
        self._server: asyncio.Server | None = None
        self._connections: dict[str, set[asyncio.Task[None]]] = {}

    async def start(self) -> None:
        """Start to serve, and replace a socket that a dead emulator left."""
        self._path.unlink(missing_ok=True)
        with private_sockets():
            self._server = await asyncio.start_unix_server(self._serve, self._path, backlog=512)

    def stop(self) -> None:
        """Stop to serve, and drop all connections."""
        if self._server:
            self._server.close()
        self._path.unlink(missing_ok=True)
        for address in list(self._connections):
            self.drop(address)

    def drop(self, address: str) -> None:
        """Drop all connections to a VM that is gone and can no longer close them."""
        for task in self._connections.pop(address, ()):
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            match (await reader.readline()).decode(errors="replace").split():
                case ["CONNECT", address, port] if port.isdigit():
                    await self._connect(reader, writer, address, int(port))
                case _:
                    writer.write(b"ERROR expected CONNECT, an address and a port\n")
        except (ConnectionError, ValueError):
            # One side is gone, or sent a line that is too long: there is no client to answer.
            pass
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
        # The task is kept here. The event loop has only weak references, so an idle connection
        # could be collected.
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
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    far_reader: asyncio.StreamReader,
    far_writer: asyncio.StreamWriter,
) -> None:
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_pump(reader, far_writer))
            group.create_task(_pump(far_reader, writer))
    except* OSError:
        # Either side broke the connection. Both are closed, below and by the caller.
        pass
    finally:
        far_writer.close()


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(_CHUNK):
        target.write(data)
        await target.drain()
    # Only this direction has ended. The other side may still send.
    with contextlib.suppress(OSError):
        target.write_eof()
