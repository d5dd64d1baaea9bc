"""Waiting for plain file descriptors in the event loop, and pipes on top of it.

Pipes and terminals are read and written here without asyncio's transports: those close a descriptor at moments of their
own choosing, and what is forwarded between a program and a client must end in an order that we choose.
"""

from __future__ import annotations

import asyncio
import contextlib
import os

CHUNK = 1 << 16


async def readable(descriptor: int) -> None:
    """Until there is something to read from it, or its other end is closed."""
    loop, event = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, event.set)
    try:
        await event.wait()
    finally:
        loop.remove_reader(descriptor)


async def writable(descriptor: int) -> None:
    """Until it takes something, or its other end is closed."""
    loop, event = asyncio.get_running_loop(), asyncio.Event()
    loop.add_writer(descriptor, event.set)
    try:
        await event.wait()
    finally:
        loop.remove_writer(descriptor)


class Pipe:
    """One end of a pipe or a terminal, owned: closed once, by `close` alone. One task reads or one writes."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor

    async def read(self) -> bytes:
        """What is there, or nothing at the end."""
        while True:
            try:
                return os.read(self.descriptor, CHUNK)
            except BlockingIOError:
                await readable(self.descriptor)
            except OSError:
                return b""  # EIO: so a terminal says that nobody holds its other end.

    async def write(self, data: bytes) -> None:
        """All of `data`. Raises BrokenPipeError (or OSError of a terminal) if nobody reads."""
        left = memoryview(data)
        while left:
            try:
                left = left[os.write(self.descriptor, left) :]
            except BlockingIOError:
                await writable(self.descriptor)

    def close(self) -> None:
        """No error if it is closed already."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(descriptor)
