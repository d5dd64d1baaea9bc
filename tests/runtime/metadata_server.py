"""A small real metadata server: one value, its etag, and long polls, as a VM sees them."""

from __future__ import annotations

import asyncio
import contextlib
from urllib.parse import parse_qs, urlsplit

from transient_magics.protocol.layout import NOTICE_KEY


class MetadataServer:
    """Serves `instance/preempted`, and the pace as an attribute. `busy` makes it answer 503 so many times first."""

    def __init__(self, busy: int = 0) -> None:
        self.value, self.pace = "FALSE", ""
        self.notice = ""
        self.version = 1
        self.busy = busy
        self.polls = 0
        self.port = 0
        self._changed = asyncio.Condition()
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(self._talk, "127.0.0.1", port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Die as a killed process would: every connection breaks."""
        if self._server is not None:
            self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()

    async def preempt(self) -> None:
        self.value = "TRUE"
        await self._change()

    async def change_pace(self, pace: str) -> None:
        """As the emulator's weather does: seconds of a step, and what the declared ones are multiplied by."""
        self.pace = pace
        await self._change()

    async def _change(self) -> None:
        async with self._changed:
            self.version += 1
            self._changed.notify_all()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        # Cancelled is how one ends that still waits when the loop does; asyncio would print it as an error.
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.polls += 1
            asked = urlsplit(head.split()[1])
            query = parse_qs(asked.query)
            assert "Metadata-Flavor: Google" in head
            if asked.path.endswith("/emulator-gpu"):  # as on Google: the GPU is to be a real one
                writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nMetadata-Flavor: Google\r\n\r\n")
            elif asked.path.endswith(f"/{NOTICE_KEY}"):
                status = "200 OK" if self.notice else "404 Not Found"
                top = f"HTTP/1.1 {status}\r\nContent-Length: {len(self.notice)}\r\nMetadata-Flavor: Google\r\n\r\n"
                writer.write(f"{top}{self.notice}".encode())
            elif self.busy:
                self.busy -= 1
                writer.write(
                    b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nMetadata-Flavor: Google\r\n\r\n"
                )
            else:
                async with self._changed:
                    if query["last_etag"] == [f"e{self.version}"]:
                        known = self.version
                        await self._changed.wait_for(lambda: self.version != known)
                pace = self.pace if asked.path.endswith("/emulator-pace") else ""
                body = (pace or self.value).encode()
                head_lines = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nETag: e{self.version}\r\n"
                writer.write(head_lines.encode() + b"Metadata-Flavor: Google\r\n\r\n" + body)
            await writer.drain()
        self._writers.discard(writer)
        writer.close()
