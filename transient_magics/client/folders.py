"""The clusters' folders on this machine: which of them can be read, and which runs their journals
tell of.

Folders are made under a temporary name, `.NAME-TOKEN.PID`, and renamed when they are whole. What a
killed declaration left under such a name is removed by the next one.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from .. import places
from ..journal import ClusterState, Event, RunState, declared, kept, read
from ..journal.declared import run_folder
from ..protocol import layout

_TEMPORARY = re.compile(r"\..+?\.(\d+)(\.[\w-]+)?")
"""`.NAME.PID`, or `.NAME.PID.SUFFIX`."""


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
