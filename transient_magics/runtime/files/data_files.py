"""Data files of a run: records and graphs, made once beside the chief and copied by every worker.

The chief fills `data/` through the problem's generate_data, and then writes a marker with each
file's size and SHA-256. Workers request that list from the chief's port and copy the files that
they do not have; a file counts only if its sum is right. Of large training files they receive only
the names, because their records come in blocks (blocks.py). The worker's side blocks (a thread
copies while TensorFlow is imported), and the chief's uses asyncio.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...errors import TrainingError
from ...files import write_atomically
from ...protocol.backoff import backoff
from ...protocol.checks import checked_file
from ...protocol.chief_messages import Fetch, Files, Grant, What
from ...protocol.messages import encode
from ..role import decode, host_and_port
from . import blocks

MARKER = ".complete"
_LOCK = ".lock"
_BLOCK = 1 << 18
_TRIES = 5


def listing(directory: Path) -> list[dict[str, Any]] | None:
    """Return name, size and sum of each file in a finished `directory`; else None."""
    try:
        return json.loads((directory / MARKER).read_text(encoding="utf-8"))["files"]
    except (OSError, ValueError, KeyError):
        return None


def make(directory: Path, generate: Callable[[Path, Path], None]) -> list[dict[str, Any]]:
    """Fill `directory` with `generate` unless it is finished, and return its files.

    A partly filled one is deleted first. `generate` gets the directory and a temporary folder.
    """
    files = listing(directory)
    if files is not None and all(_size(directory / file["name"]) == file["size"] for file in files):
        return files
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True, mode=0o700)
    temporary = directory.with_name("data.temporary")
    try:
        generate(directory, temporary)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    files = [described(path, directory) for path in sorted(directory.rglob("*")) if path.is_file()]
    write_atomically(directory / MARKER, json.dumps({"files": files}))
    return files


def described(path: Path, directory: Path) -> dict[str, Any]:
    """Return name, size and sum of a file below `directory`."""
    return {
        "name": str(path.relative_to(directory)),
        "size": path.stat().st_size,
        "sha256": _sum(path),
    }


async def serve(
    directory: Path, files: list[dict[str, Any]], name: str, writer: asyncio.StreamWriter
) -> None:
    """Send one of `files` as its bytes."""
    if name not in {file["name"] for file in files}:
        writer.write(encode({"ok": False, "error": f"no file {name!r}"}))
        return
    size = _size(directory / name)
    writer.write(encode({"ok": True, "size": size}))
    with (directory / name).open("rb") as file:
        while block := await asyncio.to_thread(file.read, _BLOCK):
            writer.write(block)
            await writer.drain()


def copy(
    chief: str, token: str, directory: Path, what: What = "records", tries: int = _TRIES
) -> None:
    """Fetch files from the chief into `directory`. Waits until the chief has made them.

    Parameters
    ----------
    chief, token
        Address of the chief's port, and the run's token.
    directory
        The target folder.
    what
        `records`; of records that only other VMs read, a worker then receives the names. `whole`
        for the records of any other reader, and `graphs` for the graphs that exist now.
    tries
        Number of attempts.

    Raises
    ------
    TrainingError
        If all attempts fail.
    """
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    for attempt in range(tries):
        try:
            _copy(chief, token, directory, what)
            return
        except (OSError, ValueError) as error:
            if attempt == tries - 1:
                raise TrainingError(
                    f"the {what} could not be copied from the chief: {error}", where=chief
                ) from error
            time.sleep(backoff(attempt + 1, first=1.0))  # the chief may be restarting


def copy_once(chief: str, token: str, directory: Path) -> None:
    """Fetch all records into a folder that several processes of this VM share.

    One process copies, and the others wait. If it is killed, the next one continues. Raises
    TrainingError.
    """
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    with open(directory / _LOCK, "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if listing(directory) is None:
            copy(chief, token, directory, "whole")


def _copy(chief: str, token: str, directory: Path, what: What) -> None:
    with (
        socket.create_connection(host_and_port(chief), timeout=10) as connection,
        connection.makefile("rwb") as stream,
    ):
        # The chief answers when the records are made, which may take long.
        connection.settimeout(None)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        answer = ask(stream, Files(token=token, what=what))
        files = answer["files"]
        connection.settimeout(60)
        for file in files:
            place = directory / file["name"]
            if _size(place) == file["size"] and _sum(place) == file["sha256"]:
                continue
            ask(stream, Fetch(name=file["name"]))
            _receive(stream, file, place)
        # Empty files, so that a search for record files finds their names.
        for name in answer.get("streamed") or ():
            (directory / checked_file(name)).touch(mode=0o600)
            write_atomically(directory / blocks.NAME, "")
        for name in answer.get("elsewhere") or ():
            (directory / checked_file(name)).touch(mode=0o600)
        write_atomically(directory / MARKER, json.dumps({"files": files}))


def ask(stream: Any, message: Files | Fetch | Grant) -> dict[str, Any]:
    """Send a message to the chief and return its answer.

    Raises OSError, or ValueError if the chief refuses.
    """
    stream.write(message.encoded)
    stream.flush()
    line = stream.readline()
    if not line:
        raise ConnectionError("the chief closed the connection")
    answer = decode(line)
    if not answer.get("ok"):
        raise ValueError(str(answer.get("error")))
    return answer


def _receive(stream: Any, file: dict[str, Any], place: Path) -> None:
    """Receive one file and replace `place` by it. Raises ConnectionError or ValueError."""
    place.parent.mkdir(parents=True, exist_ok=True)
    part = place.with_name(f".{place.name}.part")
    left = file["size"]
    digest = hashlib.sha256()
    with open(part, "wb") as target:
        while left:
            block = stream.read(min(_BLOCK, left))
            if not block:
                raise ConnectionError(
                    f"the chief closed the connection {left:,} bytes before the end of "
                    f"{file['name']}"
                )
            digest.update(block)
            target.write(block)
            left -= len(block)
    if digest.hexdigest() != file["sha256"]:
        raise ValueError(f"{file['name']} was damaged in transit")
    os.replace(part, place)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _sum(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
