"""Which files of a run go to its VMs: its declaration and code, and for the chief all that the run
has made so far.

A chief that stands by while the run goes on elsewhere has all that long before the end there; what
the run has made since then follows by itself, and is little.
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


def files_of(folder: Path, *, with_results: bool) -> Mapping[str, bytes | Path]:
    """Those in the `folder` of a run, by their place below the run's folder on a VM."""
    files: dict[str, bytes | Path] = {
        layout.RUN: folder / layout.RUN,
        layout.CELL: folder / layout.CELL,
    }
    files |= files_below(folder, (layout.INCLUDE, layout.WHEELS))
    if with_results:  # on a VM that replaces a lost one everything goes on behind what is here
        files |= files_below(folder, (layout.CHECKPOINTS,))
        files |= {
            name: folder / name
            for name in (layout.EVENTS, layout.METRICS)
            if is_plain(folder / name)
        }
    return files


async def send_newest(connection: Connection, here: Path, there: str) -> None:
    """Have the newest checkpoint of the folder `here`, the best one and what names them in `there`,
    on a VM, too.

    Raises RemoteError or OSError.
    """
    kept = Checkpoints(here)
    best = kept.best()
    newest = kept.steps()[:1]
    parts = {
        file.name: file
        for step in {*newest, *([best.step] if best else [])}
        for file in kept.files(step)
    }
    names = {name: path for name in ("checkpoint", BEST) if is_plain(path := here / name)}
    missing = {
        name: path
        for name, path in parts.items()
        if is_plain(path) and not await _is_whole(connection, path, there)
    }
    await connection.put_files({**missing, **names}, below=there)


async def send_rest(connection: Connection, here: Path, there: str) -> None:
    """Have all of the file `here` in `there` too, on a VM that had it when it was shorter.

    Raises RemoteError or OSError.
    """
    if not is_plain(here):
        return
    known = await _size(connection, there)
    if not 0 < known <= here.stat().st_size:
        await connection.put_files({there: here})
    elif rest := await asyncio.to_thread(_read, here, known):
        name = shlex.quote(there)
        await connection.run(f"truncate -s {known} {name} && cat >> {name}", input=rest)


async def _is_whole(connection: Connection, path: Path, there: str) -> bool:
    return await _size(connection, f"{there}/{path.name}") == path.stat().st_size


async def _size(connection: Connection, path: str) -> int:
    """Of a file on a VM, as that says; 0 where there is none."""
    told = await connection.run(f"stat -c %s {shlex.quote(path)} 2>/dev/null || echo 0")
    if told.strip().isdecimal():
        return int(told)
    return 0


def _read(path: Path, offset: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read()
