"""Incoming contents: a stream of bytes becomes a file with checksums, a part at a time."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterable
from pathlib import Path

from .digests import CHUNK, Digest


class Incoming:
    """A file that grows. Writing and summing run in a thread; at most one part waits in memory.

    Parameters
    ----------
    path
        The file, to which data is appended.
    digest
        The checksums of what it contains already.
    """

    def __init__(self, path: Path, digest: Digest | None = None) -> None:
        self.path = path
        self.digest = digest or Digest()
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.fdopen(os.open(path, flags, 0o600), "ab", buffering=0)

    async def take(self, stream: AsyncIterable[bytes], skip: int = 0) -> None:
        """Append all of `stream` except its first `skip` bytes.

        Data that arrived before a failure of the stream is kept.
        """
        parts: list[bytes] = []
        size = 0
        try:
            async for data in stream:
                if skip:
                    remaining = max(skip - len(data), 0)
                    data = data[skip:]
                    skip = remaining
                parts.append(data)
                size += len(data)
                if size >= CHUNK:
                    whole = b"".join(parts)
                    # Emptied before the write: if that is cancelled, the rest must not be written
                    # twice.
                    parts = []
                    size = 0
                    await self._write(whole)
        finally:
            if size:
                await self._write(b"".join(parts))

    async def close(self) -> None:
        """Close the file when its data is on the disk."""
        if not self._file.closed:
            await asyncio.to_thread(os.fsync, self._file.fileno())
            self._file.close()

    def discard(self) -> None:
        """Delete the file."""
        self._file.close()
        self.path.unlink(missing_ok=True)

    async def _write(self, data: bytes) -> None:
        def write() -> None:
            remaining = memoryview(data)
            while remaining:
                # An unbuffered file may write less than it gets.
                written = self._file.write(remaining) or 0
                remaining = remaining[written:]
            self.digest.update(data)

        writing = asyncio.ensure_future(asyncio.to_thread(write))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            # The thread cannot be stopped. No other write may start before it ends.
            await asyncio.wait([writing])
            raise
