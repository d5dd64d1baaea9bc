"""A checkpoint that a worker wrote (`--chief worker`), brought to the chief over the run's port.

A message names the files with their sums, then come their bytes. What does not arrive whole counts for nothing: the
chief puts the files where checkpoints lie once it has them all, and from there they go where all checkpoints go.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from ...protocol.chief_messages import Checkpoint, File
from ..protocol import decode, host_and_port
from .checkpoints import Checkpoints, Saved
from .data_files import described

_BLOCK = 1 << 18
_SILENT_SECONDS = 30.0


def deliver(chief: str, token: str, number: int, saved: Saved, folder: Path) -> None:
    """Send the checkpoint `saved` of the worker with this number. Raises OSError or ValueError if it was not taken."""
    paths = Checkpoints(folder).files(saved.step)
    files = tuple(File(**described(path, folder)) for path in paths)
    told = Checkpoint(token=token, number=number, step=saved.step, seconds=saved.seconds, files=files)
    connection = socket.create_connection(host_and_port(chief), _SILENT_SECONDS)
    with connection, connection.makefile("rwb") as stream:
        stream.write(told.encoded)
        for path in paths:
            with path.open("rb") as file:
                shutil.copyfileobj(file, stream, _BLOCK)
        stream.flush()
        answer = decode(stream.readline() or b"{}")
    if not answer.get("ok"):
        raise ValueError(str(answer.get("error", "the chief said nothing")))


@asynccontextmanager
async def received(reader: asyncio.StreamReader, told: Checkpoint, run: Path) -> AsyncIterator[list[Path]]:
    """The files that a worker sends, below the run's folder; inside they may be moved, afterwards they are gone.

    Each delivery has a folder of its own: who has lost the duty may still be sending when the next one begins, perhaps
    files of the same names. Raises OSError or ValueError for anything less than all of them.
    """
    with tempfile.TemporaryDirectory(prefix="delivered-", dir=run) as place:
        paths = [await _receive(reader, file, told.step, Path(place)) for file in told.files]
        if not any(path.suffix == ".index" for path in paths):
            raise ValueError("it is no checkpoint without its index")
        yield paths


def forget(run: Path) -> None:
    """Drop the deliveries that a chief was receiving when it was killed."""
    for place in run.glob("delivered-*"):
        shutil.rmtree(place, ignore_errors=True)


async def _receive(reader: asyncio.StreamReader, file: File, step: int, folder: Path) -> Path:
    if not re.fullmatch(rf"model\.ckpt-{step}\.[\w.-]+", file.name):
        raise ValueError(f"{file.name!r} is no file of that checkpoint")
    path, left, digest = folder / file.name, file.size, hashlib.sha256()
    with path.open("wb") as target:
        while left:
            async with asyncio.timeout(_SILENT_SECONDS):
                block = await reader.read(min(_BLOCK, left))
            if not block:
                raise ConnectionError(f"{path.name} ended {left} bytes too early")
            digest.update(block)
            await asyncio.to_thread(target.write, block)
            left -= len(block)
    if digest.hexdigest() != file.sha256:
        raise ValueError(f"{path.name} arrived damaged")
    return path
