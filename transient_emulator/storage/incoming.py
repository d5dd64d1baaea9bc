"""Contents on their way in: a stream of bytes becomes a file, with its checksums, a part at a time."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterable
from pathlib import Path

from .digests import CHUNK, Digest


class Incoming:
    """A file that grows. Writing and summing go on in a thread; at most one part waits in memory."""

    def __init__(self, path: Path, digest: Digest | None = None) -> None:
        self.path, self.digest = path, digest or Digest()
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.fdopen(os.open(path, flags, 0o600), "ab", buffering=0)

    async def take(self, stream: AsyncIterable[bytes], skip: int = 0) -> None:
        """All of `stream` but its first `skip` bytes. What came before a failure of the stream is kept."""
        parts: list[bytes] = []
        size = 0
        try:
            async for data in stream:
                if skip:
                    data, skip = data[skip:], max(skip - len(data), 0)
                parts.append(data)
                size += len(data)
                if size >= CHUNK:
                    whole, parts, size = b"".join(parts), [], 0
                    await self._write(whole)
        finally:
            if size:
                await self._write(b"".join(parts))

    async def close(self) -> None:
        """What was taken is on the disk."""
        if not self._file.closed:
            await asyncio.to_thread(os.fsync, self._file.fileno())
            self._file.close()

    def discard(self) -> None:
        """Nothing of it is wanted."""
        self._file.close()
        self.path.unlink(missing_ok=True)

    async def _write(self, data: bytes) -> None:
        def write() -> None:
            left = memoryview(data)
            while left:
                left = left[self._file.write(left) or 0 :]
            self.digest.update(data)

        writing = asyncio.ensure_future(asyncio.to_thread(write))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            # The thread cannot be stopped; nobody else may write before it is through.
            await asyncio.wait([writing])
            raise
