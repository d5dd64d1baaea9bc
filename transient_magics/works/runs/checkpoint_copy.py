"""Checkpoints of a run copied from its chief's VM to this machine, each of them whole or not at
all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ...errors import ForeignError, RoomError
from ...remote import MOST_FILES, Connection, room
from ...runtime.files.checkpoints import BEST, MOST_VOCABULARY_BYTES, VOCABULARY_PREFIX

_MOST_GROWTH = 2**20
"""Bytes by which the list of checkpoints may grow while it is fetched."""
_LISTED = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,254} [0-9]{1,15}")
_CHECKPOINT = re.compile(r"model\.ckpt-(\d{1,15})\.index")
_POINTERS = ("checkpoint", BEST)
"""Small files that name checkpoints: they change and keep their size."""
_PART = re.compile(r"model\.ckpt-(\d{1,15})\..+")


async def copy_checkpoints(connection: Connection, there: str, here: Path) -> None:
    """Make the folder `here` the same as the chief's, `there`, as far as its checkpoints are whole.

    A checkpoint is here if all of its files are, of the same sizes; else all of it comes anew: a
    part of it may be of another life of the parameter server, which made the same step once more.
    Nothing is dropped here while there is none as new on the chief's VM, and nothing comes where
    not all of it has room. Raises RemoteError or OSError.
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
    _look_for_room(sizes, new, here)
    for name in sorted(new, key=lambda name: (name in _POINTERS, name.endswith(".index"))):
        await connection.get(f"{there}/{name}", here / name, most=max(sizes[name], _MOST_GROWTH))
    if _newest(sizes) < _newest(path.name for path in here.iterdir()):
        return
    for path in here.iterdir():
        if path.name not in sizes:
            path.unlink()


def _look_for_room(sizes: Mapping[str, int], new: Sequence[str], here: Path) -> None:
    if len({*sizes, *(path.name for path in here.iterdir())}) > MOST_FILES:
        raise ForeignError(f"there are more than {MOST_FILES:,} files")
    if (size := sum(sizes[name] for name in new)) > room(here):
        what = f"this machine's disk has no room for {-(-size // 2**20):,} MiB more"
        raise RoomError(what, where=str(here), fix="Free some of it.")


def _safe(line: str) -> bool:
    """A VM's word about a file of its own: a plain name and a size, nothing that leads out of the
    folder.
    """
    return _LISTED.fullmatch(line) is not None and ".tmp" not in line


def _unit(name: str) -> str:
    """What comes home in one piece: a checkpoint (its step), or a file of another kind (its name)."""
    if found := _PART.fullmatch(name):
        return found[1]
    return name


def _whole(sizes: Mapping[str, int]) -> dict[str, int]:
    """The files without those of checkpoints that are being written just now, which have no index
    yet.
    """
    steps = {found[1] for name in sizes if (found := _CHECKPOINT.fullmatch(name))}
    return {
        name: size
        for name, size in sizes.items()
        if not _PART.fullmatch(name) or _unit(name) in steps
    }


def _newest(names: Iterable[str]) -> int:
    """The step of the newest checkpoint among files of these names, -1 if there is none."""
    return max(
        (int(found[1]) for name in names if (found := _CHECKPOINT.fullmatch(name))), default=-1
    )
