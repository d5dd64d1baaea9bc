"""Both ends of a Unix socket on a VM, as seen from here.

Thin: asyncssh's streams with our errors, so that callers never meet asyncssh's own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncssh

from .failures import explained


class Reader:
    """What the other side says. End of file means that it closed; a lost connection is an error."""

    def __init__(self, source: asyncssh.SSHReader[bytes], name: str) -> None:
        self._source, self._name = source, name

    async def readline(self) -> bytes:
        """One line with its newline; at the end what is left, then b""."""
        with explained(self._name, "reading from a socket"):
            return await self._source.readline()

    async def read(self, most: int = 65536) -> bytes:
        """What has arrived, `most` bytes at most; b"" at the end."""
        with explained(self._name, "reading from a socket"):
            return await self._source.read(most)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while line := await self.readline():
            yield line


class Writer:
    """What we say to the other side."""

    def __init__(self, target: asyncssh.SSHWriter[bytes], name: str) -> None:
        self._target, self._name = target, name

    def write(self, data: bytes) -> None:
        """Send `data`; does not wait."""
        with explained(self._name, "writing to a socket"):
            self._target.write(data)

    async def drain(self) -> None:
        """Wait until the other side has taken enough of what was written."""
        with explained(self._name, "writing to a socket"):
            await self._target.drain()

    def close(self) -> None:
        """Close both directions."""
        self._target.channel.close()
