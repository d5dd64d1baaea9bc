"""Blocks on their way from the chief's disk to a worker: by sendfile, so that the parameter server's process, which
serves variables as well, does not touch their bytes."""

from __future__ import annotations

import asyncio
from pathlib import Path

from ....protocol.chief_messages import read_fetch
from ...files.blocks import Index
from ...protocol import encode


async def serve(directory: Path, index: Index, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send the blocks that are asked for on this connection. Raises OSError and ValueError, which end it."""
    writer.write(encode({"ok": True, "files": []}))
    loop = asyncio.get_running_loop()
    while line := await reader.readline():
        name = read_fetch(line).name
        if not (name.isascii() and name.isdigit()) or len(name) > 12 or int(name) >= len(index.blocks):
            writer.write(encode({"ok": False, "error": f"no block {name:.20}"}))
            continue
        block = index.blocks[int(name)]
        writer.write(encode({"ok": True, "size": block.size}))
        await writer.drain()
        with (directory / block.file).open("rb") as file:
            sent = await loop.sendfile(writer.transport, file, block.offset, block.size)
        if sent < block.size:
            raise ConnectionError(f"{block.file} is shorter than it was")
