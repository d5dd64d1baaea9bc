"""Command socket of a controller: JSON lines over a Unix socket that only its user can open.

A client keeps its connection open while it watches the cluster. When the controller dies, the
broken connection is the first sign.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from .. import errors
from ..errors import ClusterError, TransientError, reason_of
from ..files import private_sockets
from ..protocol.cluster_commands import Command, read

log = logging.getLogger(__name__)

Handler = Callable[[Command], Awaitable[dict[str, Any]]]
PATIENCE = 10.0
"""Seconds that a command waits for a controller that is starting."""


@asynccontextmanager
async def serve(path: Path, handle: Handler) -> AsyncGenerator[None]:
    """Answer commands at `path` while the context lasts.

    A TransientError becomes `{"ok": false}` and its parts, and an OSError a ClusterError. After a
    ConnectionAbortedError the connection is closed without an answer: the client connects again.
    """
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

    # A killed controller left it. The cluster's lock proves that no other controller has it.
    path.unlink(missing_ok=True)
    with private_sockets():
        server = await asyncio.start_unix_server(converse, path, limit=2**20)
    try:
        yield
    finally:
        server.close()
        for writer in list(open_connections):
            writer.close()
        path.unlink(missing_ok=True)


def still_looking(cluster: str) -> ClusterError:
    """Return the error for a command that waited until its timeout."""
    what = f"The controller of {cluster} is still connecting to Compute Engine"
    return ClusterError(what, fix="Try again in a moment.")


async def _answer(handle: Handler, line: bytes) -> dict[str, Any]:
    try:
        return {"ok": True, **await handle(_read(line))}
    except TransientError as error:
        return {"ok": False, **errors.to_message(error)}
    except ConnectionAbortedError:
        raise
    except OSError as error:
        # For example a full disk. Without an answer the client would send the command again.
        log.warning("a command failed: %s", error)
        what = f"The command failed in the controller: {reason_of(error)}"
        return {
            "ok": False,
            **errors.to_message(ClusterError(what, where=str(error.filename or ""))),
        }


def _read(line: bytes) -> Command:
    try:
        return read(line)
    except ValueError as error:
        what = f"The controller does not support this command: {error}"
        raise ClusterError(
            what, fix="Its version may differ from the kernel's: restart the kernel."
        ) from None
