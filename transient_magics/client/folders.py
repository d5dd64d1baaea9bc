"""Folders of clusters on this machine: their identity, and the runs in their journals.

A folder is created under a temporary name, `.NAME-TOKEN.PID`, and renamed when it is complete. The
next declaration removes what a killed declaration left under such a name.
"""

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
    """The identity of one cluster of this machine: its name and its id.

    A later cluster may get the name of a deleted cluster; ids are unique. An empty `id` is unknown:
    then the name alone identifies the cluster.
    """

    name: str
    id: str

    @classmethod
    def of(cls, name: str) -> Self:
        """Return the identity of the cluster that has this name at present."""
        return cls(name, id_of(places.cluster(name)))

    @property
    def directory(self) -> Path:
        """The folder of the cluster.

        It has the cluster's name. Once another cluster has that name, it is among the folders of
        past clusters.
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
        """Whether this cluster still has the name."""
        return self.directory == places.cluster(self.name)


def id_of(directory: Path) -> str:
    """Return the id in the declaration of a cluster's folder; empty if there is none."""
    path = directory / layout.SPEC
    try:
        found = path.stat()
    except OSError:
        return ""
    return _read_id(path, found.st_ino, found.st_mtime_ns, found.st_size)


@lru_cache(maxsize=256)
def _read_id(path: Path, *_version: int) -> str:
    """Read the id, once for each version of the file, because handles need it at each access."""
    try:
        values = cast("object", json.loads(path.read_bytes()))
    except (OSError, ValueError):
        return ""
    if not isinstance(values, dict):
        return ""
    found = cast("dict[str, object]", values).get("id")
    if isinstance(found, str):
        return found
    return ""


@dataclass(frozen=True)
class KnownRun:
    """A run in the journal of its cluster, with its state at the time of the lookup."""

    cluster: Path
    state: RunState

    @property
    def identity(self) -> str:
        """An identifier that no other run of this machine has or had."""
        return f"{self.cluster.name}/{self.state.name}@{self.state.declared_at:.0f}"

    @property
    def directory(self) -> Path:
        """The folder with the run's cell, metrics and checkpoints."""
        return run_folder(self.cluster, self.state.name)

    def events(self) -> list[Event]:
        """Return all events of the run's cluster."""
        return read(self.cluster / layout.JOURNAL)


def readable() -> list[Path]:
    """Return the folders of clusters with a readable declaration or journal, oldest first.

    Deleted clusters are included.
    """
    return [folder for folder in _all() if not declared.unreadable(folder) or _read_journal(folder)]


def unreadable() -> list[str]:
    """Return a sentence for each unreadable folder of a cluster that is not deleted."""
    sentences: list[str] = []
    for folder in sorted(_all()):
        why = declared.unreadable(folder)
        if not why:
            continue
        state = _read_journal(folder)
        if state is None or not state.over:
            sentences.append(why)
    return sentences


def remove_abandoned(parent: Path) -> None:
    """Remove temporary folders in `parent` whose process ended before they were complete."""
    for path in parent.glob(".*"):
        found = _TEMPORARY.fullmatch(path.name)
        if found and path.is_dir() and not path.is_symlink() and not _is_alive(int(found[1])):
            shutil.rmtree(path, ignore_errors=True)  # another process may be removing it, too


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):  # a process of another user; an invalid number
        return True
    return True


def known_runs() -> list[KnownRun]:
    """Return all runs of this machine's clusters, in the order of declaration of the clusters."""
    return [
        KnownRun(folder, state)
        for folder in readable()
        for state in kept(folder / layout.JOURNAL).read().of(RunState).values()
    ]


def _all() -> list[Path]:
    found: list[tuple[float, Path]] = []
    for path in places.clusters().glob(f"[a-z]*/{layout.SPEC}"):
        # A new declaration may be moving the folder of a deleted cluster away.
        with contextlib.suppress(FileNotFoundError):
            found.append((path.stat().st_mtime, path.parent))
    return [folder for _, folder in sorted(found)]


def _read_journal(folder: Path) -> ClusterState | None:
    """Return the state in a cluster's journal; None if the journal has no declaration."""
    try:
        state = kept(folder / layout.JOURNAL).read()
    except OSError:
        return None
    if state.spec:
        return state
    return None
