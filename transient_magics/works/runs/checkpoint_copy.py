"""Copies of a run's checkpoints from its chief's VM, each complete or not at all."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ...errors import ForeignError, RoomError
from ...remote import MOST_FILES, Connection, room
from ...runtime.files.checkpoints import BEST, MOST_VOCABULARY_BYTES, VOCABULARY_PREFIX

_MOST_GROWTH = 2**20
"""The bytes by which the list of checkpoints may grow while it is copied."""
_LISTED = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,254} [0-9]{1,15}")
_CHECKPOINT = re.compile(r"model\.ckpt-(\d{1,15})\.index")
_POINTERS = ("checkpoint", BEST)
"""Small files that name checkpoints; they change and keep their size."""
_PART = re.compile(r"model\.ckpt-(\d{1,15})\..+")


async def copy_checkpoints(connection: Connection, there: str, here: Path) -> None:
    """Make the folder `here` equal to the chief's folder `there`, for complete checkpoints.

    A checkpoint is here if all of its files are, with the same sizes. Else all of it is copied
    again: a part may be of an earlier parameter server that made the same step. Nothing here is
    deleted while the chief's VM has nothing as new, and nothing is copied unless there is room for
    all of it. Raises RemoteError or OSError.
    """
    here.mkdir(exist_ok=True, mode=0o700)
    listed = await connection.run(
        f"mkdir -p {there} && find {there} -maxdepth 1 -type f -printf '%f %s\\n'"
    )
    listing = [line.split() for line in listed.splitlines() if _safe(line)]
    found = ((name, int(size)) for name, size in listing)
    sizes = _whole(
        {
            name: size
            for name, size in found
            if not name.startswith(VOCABULARY_PREFIX) or size <= MOST_VOCABULARY_BYTES
        }
    )
    other = {
        _unit(name)
        for name, size in sizes.items()
        if name in _POINTERS or not (path := here / name).exists() or path.stat().st_size != size
    }
    new = [name for name in sizes if _unit(name) in other]
    _check_room(sizes, new, here)
    for name in sorted(new, key=lambda name: (name in _POINTERS, name.endswith(".index"))):
        await connection.get(f"{there}/{name}", here / name, most=max(sizes[name], _MOST_GROWTH))
    if _newest(sizes) < _newest(path.name for path in here.iterdir()):
        return
    for path in here.iterdir():
        if path.name not in sizes:
            path.unlink()


def _check_room(sizes: Mapping[str, int], new: Sequence[str], here: Path) -> None:
    if len({*sizes, *(path.name for path in here.iterdir())}) > MOST_FILES:
        raise ForeignError(f"the folder has more than {MOST_FILES:,} files")
    if (size := sum(sizes[name] for name in new)) > room(here):
        what = f"this machine's disk has no room for another {-(-size // 2**20):,} MiB"
        raise RoomError(what, where=str(here), fix="Free some space; then the copy is retried.")


def _safe(line: str) -> bool:
    """Return whether a line names a file of the folder itself and its size, as a VM must."""
    return _LISTED.fullmatch(line) is not None and ".tmp" not in line


def _unit(name: str) -> str:
    """Return what is copied as one piece: a checkpoint (its step), or another file (its name)."""
    if found := _PART.fullmatch(name):
        return found[1]
    return name


def _whole(sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the files without checkpoints that are being written, which have no index yet."""
    steps = {found[1] for name in sizes if (found := _CHECKPOINT.fullmatch(name))}
    return {
        name: size
        for name, size in sizes.items()
        if not _PART.fullmatch(name) or _unit(name) in steps
    }


def _newest(names: Iterable[str]) -> int:
    """Return the step of the newest checkpoint among these files, -1 if there is none."""
    return max(
        (int(found[1]) for name in names if (found := _CHECKPOINT.fullmatch(name))), default=-1
    )
