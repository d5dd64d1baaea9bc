"""Folders of clusters on this machine: their identity, which ones are readable, and the runs in their journals."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, Self, cast

from .. import places
from ..journal import ClusterState, Event, RunState, declared, kept, read
from ..journal.declared import run_folder
from ..protocol import layout

_TEMPORARY = re.compile(r"\..+?\.(\d+)(\.[\w-]+)?")
"""`.NAME.PID`, or `.NAME.PID.SUFFIX`."""


class Identity(NamedTuple):
    """One cluster of this machine. An empty `id` is unknown: then the name alone says which cluster
    is meant.
    """

    name: str
    id: str

    @classmethod
    def of(cls, name: str) -> Self:
        """Return the identity of the cluster that has the name now."""
        return cls(name, id_of(places.cluster(name)))

    @property
    def directory(self) -> Path:
        """The folder of the cluster: under its name or, once another cluster took that, among those
        of past ones.
        """
        here = places.cluster(self.name)
        if not self.id or id_of(here) in ("", self.id):
            return here
        for folder in places.past().glob(f"{self.name}-*"):
            if id_of(folder) == self.id:
                return folder
        return places.past() / self.name

    @property
    def is_current(self) -> bool:
        """Whether the name still stands for this cluster."""
        return self.directory == places.cluster(self.name)


def id_of(directory: Path) -> str:
    """Return the id of the cluster in a folder; empty where its declaration is missing or
    unreadable, or has none.
    """
    path = directory / layout.SPEC
    try:
        found = path.stat()
    except OSError:
        return ""
    return _read_id(path, found.st_ino, found.st_mtime_ns, found.st_size)


@lru_cache(maxsize=256)
def _read_id(path: Path, *_version: int) -> str:
    """Read the id once for each version of the file: handles ask for it at every turn."""
    try:
        values = cast("object", json.loads(path.read_bytes()))
    except (OSError, ValueError):
        return ""
    if not isinstance(values, dict):
        return ""
    found = cast("dict[str, object]", values).get("id")
    return found if isinstance(found, str) else ""


@dataclass(frozen=True)
class KnownRun:
    """A run as the journal in its cluster's folder told it when it was looked up."""

    cluster: Path
    state: RunState

    @property
    def identity(self) -> str:
        """What no other run of this machine is called, whatever became of it."""
        return f"{self.cluster.name}/{self.state.name}@{self.state.declared_at:.0f}"

    @property
    def directory(self) -> Path:
        """The folder with the run's cell, metrics and checkpoints."""
        return run_folder(self.cluster, self.state.name)

    def events(self) -> list[Event]:
        """All events of its cluster."""
        return read(self.cluster / layout.JOURNAL)


def readable() -> list[Path]:
    """Of clusters whose declaration or journal can be read, deleted ones too, in the order of their
    declaration.
    """
    return [folder for folder in _all() if not declared.unreadable(folder) or _told(folder)]


def unreadable() -> list[str]:
    """A sentence for each cluster's folder on this machine that cannot be read, unless its journal
    says it is over.
    """
    found = {folder: declared.unreadable(folder) for folder in sorted(_all())}
    return [
        why
        for folder, why in found.items()
        if why and not ((state := _told(folder)) and state.over)
    ]


def remove_abandoned(parent: Path) -> None:
    """Remove temporary folders in `parent` whose process has ended before they were whole."""
    for path in parent.glob(".*"):
        found = _TEMPORARY.fullmatch(path.name)
        if found and path.is_dir() and not path.is_symlink() and not _is_alive(int(found[1])):
            shutil.rmtree(path, ignore_errors=True)  # another process may be removing it, too


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):  # of another user; no number of a process
        return True
    return True


def known_runs() -> list[KnownRun]:
    """All runs of this machine's clusters, in the order in which clusters, and their runs, were
    declared.
    """
    return [
        KnownRun(folder, state)
        for folder in readable()
        for state in kept(folder / layout.JOURNAL).read().of(RunState).values()
    ]


def _all() -> list[Path]:
    found: list[tuple[float, Path]] = []
    for path in places.clusters().glob(f"[a-z]*/{layout.SPEC}"):
        with contextlib.suppress(
            FileNotFoundError
        ):  # the folder of a deleted cluster, whose name is just taken again
            found.append((path.stat().st_mtime, path.parent))
    return [folder for _, folder in sorted(found)]


def _told(folder: Path) -> ClusterState | None:
    """What the journal says of a cluster, if it says what that is."""
    try:
        state = kept(folder / layout.JOURNAL).read()
    except OSError:
        return None
    return state if state.spec else None
