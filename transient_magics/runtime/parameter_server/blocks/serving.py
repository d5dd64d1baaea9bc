"""Blocks on their way from the chief's disk to a worker: by sendfile, so that the parameter server's process, which
serves variables as well, does not touch their bytes. And the token for those who read them in their bucket."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from ....protocol.chief_messages import read_fetch
from ....protocol.messages import encode
from ...files.blocks import Index


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


def granted(path: Path) -> dict[str, Any]:
    """The answer to who asks for the token that opens the records in their bucket: it lies at `path`, if at all."""
    try:
        brought = json.loads(path.read_bytes())
        return {"ok": True, "access": str(brought["token"]), "expires": float(brought["expires"])}
    except (OSError, ValueError, KeyError, TypeError):
        return {"ok": False, "error": "no token for the records has been brought to ps-0"}
