"""Plain file descriptors in the event loop, and pipes based on them.

Pipes and terminals are not read and written through asyncio's transports. Those close a descriptor
when they choose to, but the forwarding between a program and a client must end in a defined order.
"""

from __future__ import annotations

import asyncio
import contextlib
import os

CHUNK = 1 << 16


async def readable(descriptor: int) -> None:
    """Wait until there is something to read, or the other end is closed."""
    loop = asyncio.get_running_loop()
    event = asyncio.Event()
    loop.add_reader(descriptor, event.set)
    try:
        await event.wait()
    finally:
        loop.remove_reader(descriptor)


async def writable(descriptor: int) -> None:
    """Wait until data can be written, or the other end is closed."""
    loop = asyncio.get_running_loop()
    event = asyncio.Event()
    loop.add_writer(descriptor, event.set)
    try:
        await event.wait()
    finally:
        loop.remove_writer(descriptor)


class Pipe:
    """One end of a pipe or a terminal.

    It owns the descriptor, which only `close` closes. One task uses it.
    """

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor

    async def read(self) -> bytes:
        """Return what is there, or nothing at the end."""
        while True:
            try:
                return os.read(self.descriptor, CHUNK)
            except BlockingIOError:
                await readable(self.descriptor)
            except OSError:
                # EIO: a terminal whose other end no process holds any more.
                return b""

    async def write(self, data: bytes) -> None:
        """Write all of `data`.

        Raises BrokenPipeError (for a terminal: OSError) if no process reads.
        """
        remaining = memoryview(data)
        while remaining:
            try:
                written = os.write(self.descriptor, remaining)
                remaining = remaining[written:]
            except BlockingIOError:
                await writable(self.descriptor)

    def close(self) -> None:
        """Close the descriptor. Does nothing if it is closed already."""
        descriptor = self.descriptor
        # The number may soon belong to another file.
        self.descriptor = -1
        if descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(descriptor)
