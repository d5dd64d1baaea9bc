"""The files of a run for its VMs: declaration and code, and for the chief all that it has made.

A chief that stands by while the run continues elsewhere has these long before the end there. What
the run has made since then follows and is little.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Mapping
from pathlib import Path

from ...controller.on_vm import files_below, is_plain
from ...protocol import layout
from ...remote import Connection
from ...runtime.files.checkpoints import BEST, Checkpoints
from ...runtime.phases import phase_files


def files_of(folder: Path, *, with_results: bool) -> Mapping[str, bytes | Path]:
    """Return the files in the folder of a run, by their place in the run's folder on a VM."""
    files: dict[str, bytes | Path] = {
        layout.RUN: folder / layout.RUN,
        layout.CELL: folder / layout.CELL,
    }
    files |= files_below(folder, (layout.INCLUDE, layout.WHEELS))
    if with_results:
        # A VM that replaces a lost one continues from what is here.
        files |= files_below(folder, (layout.CHECKPOINTS,))
        files |= {
            name: folder / name
            for name in (layout.EVENTS, layout.METRICS)
            if is_plain(folder / name)
        }
    return files


async def send_newest(connection: Connection, here: Path, there: str) -> None:
    """Send the newest and the best checkpoint of the folder `here` to the folder `there` on a VM.

    The files about phases of the run are sent with them.

    Raises RemoteError or OSError.
    """
    checkpoints = Checkpoints(here)
    best = checkpoints.best()
    newest = checkpoints.steps()[:1]
    parts = {
        file.name: file
        for step in {*newest, *([best.step] if best else [])}
        for file in checkpoints.files(step)
    }
    beside = [here / "checkpoint", here / BEST, *phase_files(here)]
    names = {path.name: path for path in beside if is_plain(path)}
    missing = {
        name: path
        for name, path in parts.items()
        if is_plain(path) and not await _is_whole(connection, path, there)
    }
    await connection.put_files({**missing, **names}, below=there)


async def send_rest(connection: Connection, here: Path, there: str) -> None:
    """Append the rest of the file `here` to its shorter copy `there` on a VM.

    Raises RemoteError or OSError.
    """
    if not is_plain(here):
        return
    size = await _size(connection, there)
    if not 0 < size <= here.stat().st_size:
        await connection.put_files({there: here})
    elif rest := await asyncio.to_thread(_read, here, size):
        name = shlex.quote(there)
        await connection.run(f"truncate -s {size} {name} && cat >> {name}", input=rest)


async def _is_whole(connection: Connection, path: Path, there: str) -> bool:
    return await _size(connection, f"{there}/{path.name}") == path.stat().st_size


async def _size(connection: Connection, path: str) -> int:
    """Return the size of a file on a VM; 0 if there is none."""
    size = await connection.run(f"stat -c %s {shlex.quote(path)} 2>/dev/null || echo 0")
    if size.strip().isdecimal():
        return int(size)
    return 0


def _read(path: Path, offset: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read()
