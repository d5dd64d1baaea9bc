"""The command socket of a controller: a JSON line in, a JSON line out, on a Unix socket that only its user can open.

A client keeps its connection open while it watches the cluster: when the controller dies, the broken connection is the
first thing anybody sees.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from .. import errors
from ..errors import TransientError
from ..files import private_sockets

log = logging.getLogger(__name__)

Handler = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


@asynccontextmanager
async def serve(path: Path, handle: Handler) -> AsyncIterator[None]:
    """Answer commands at `path` while the context lasts. A TransientError becomes `{"ok": false}` and its parts."""
    open_connections: set[asyncio.StreamWriter] = set()

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_connections.add(writer)
        try:
            while line := await reader.readline():
                writer.write(json.dumps(await _answer(handle, line)).encode() + b"\n")
                await writer.drain()
        except (ConnectionError, asyncio.LimitOverrunError, ValueError) as error:
            log.info("a client went away: %s", error)
        finally:
            open_connections.discard(writer)
            writer.close()

    path.unlink(missing_ok=True)  # left by a controller that was killed; the cluster's lock says that it is ours now
    with private_sockets():
        server = await asyncio.start_unix_server(converse, path, limit=2**20)
    try:
        yield
    finally:
        server.close()
        for writer in list(open_connections):
            writer.close()
        path.unlink(missing_ok=True)


async def _answer(handle: Handler, line: bytes) -> dict[str, Any]:
    try:
        request = json.loads(line)
        if not isinstance(request, dict):
            return {"ok": False, "error": "A command is a JSON object."}
        return {"ok": True, **await handle(request)}
    except ValueError:
        return {"ok": False, "error": "A command is one line of JSON."}
    except TransientError as error:
        return {"ok": False, **errors.told(error)}
