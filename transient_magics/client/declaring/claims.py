"""Folders of new work: each gets a name that no other work of the cluster has.

The folder is filled under a temporary name that no other thread or process uses. Then, under a lock
on all names of the cluster, the name is chosen or checked, the declaration is written, and the
folder is renamed. The kernel releases the lock when its process ends, so a killed declaration
reserves no name. The next declaration removes its temporary folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ... import files, places
from ...errors import ClusterError, NameTakenError, reason_of
from ...kinds import KINDS
from ...protocol.checks import is_name
from ...protocol.cluster_commands import Declare
from ...spec.namespace import refusal
from .. import commands
from ..folders import remove_abandoned

if TYPE_CHECKING:
    from ..following.cluster import BaseCluster

LOCK = "names.lock"
"""The file in a cluster's folder that is locked while one of its names is claimed."""
_LOCK_SECONDS = 20.0
_LOCK_PAUSE_SECONDS = 0.01
_FIX = "Choose another --name."


def refuse_taken(cluster: BaseCluster, kind: str, name: str) -> None:
    """Raise NameTakenError if other work of the cluster has the name, or reserves it."""
    if why := refusal(cluster.name, kind, name, _names(cluster)):
        raise NameTakenError(why, fix=_FIX)


def free_name(cluster: BaseCluster, kind: str, stem: str, *, first: int = 1) -> str:
    """Return the first free name of `stem-1`, `stem-2`, ...; `first` is the first number to try."""
    used = _names(cluster)
    number = first
    while refusal(cluster.name, kind, f"{stem}-{number}", used):
        number += 1
    return f"{stem}-{number}"


def declare(
    cluster: BaseCluster,
    kind: str,
    name: str | None,
    *,
    stem: str = "",
    record: Callable[[str], Mapping[str, Any]],
    fill: Callable[[Path], None],
) -> str:
    """Create the folder of new work atomically, and return the name of the work.

    Parameters
    ----------
    cluster
        The cluster.
    kind
        The kind of the work.
    name
        The name chosen by the user. None: the next free name that begins with `stem`.
    stem
        The first part of an automatic name.
    record
        Returns the declaration for a name.
    fill
        Writes everything else into the folder that it is given.

    Raises
    ------
    NameTakenError
        Other work of the cluster has the chosen name, or reserves it.
    ClusterError
        The folder cannot be created.
    """
    parent = cluster.directory / KINDS[kind].folder
    remove_abandoned(parent)
    # The token is for threads, which share a process ID. A name that begins with a dot is not a
    # valid name of work.
    fresh = parent / f".{name or stem}-{secrets.token_hex(4)}.{os.getpid()}"
    try:
        with places.reporting():
            places.private(fresh)
        fill(fresh)
        with _names_locked(parent.parent):
            if name is None:
                chosen = free_name(cluster, kind, stem)
            else:
                refuse_taken(cluster, kind, name)
                chosen = name
            write_record(fresh / KINDS[kind].file, record(chosen))
            fresh.rename(parent / chosen)
    except OSError as error:
        what = f"The folder of a {KINDS[kind]} cannot be created: {reason_of(error)}"
        raise ClusterError(what, where=str(parent / (name or stem))) from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)  # it does not exist after the rename
    return chosen


def announce(cluster: BaseCluster, kind: str, name: str) -> None:
    """Send the command that starts declared work.

    Raises
    ------
    NameTakenError
        Another machine has declared work of this name. This declaration is removed, because it
        would wait forever.
    TransientError
        As `commands.send`.
    """
    try:
        commands.send(cluster.directory, Declare(kind=kind, name=name))
    except NameTakenError:
        shutil.rmtree(cluster.directory / KINDS[kind].folder / name, ignore_errors=True)
        raise


def write_record(path: Path, declaration: Mapping[str, Any]) -> None:
    """Write a declaration to a file that only this user can read. Raises OSError."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump(declaration, file, indent=1)


def _names(cluster: BaseCluster) -> dict[str, str]:
    """Return the kind of each work of the cluster by name, from its journal and its folder.

    New work has only a folder. Work that another machine declared may be only in the journal.
    """
    used = cluster.state.kind_by_name
    for kind in KINDS.values():
        with contextlib.suppress(FileNotFoundError):
            names = os.listdir(cluster.directory / kind.folder)
            used |= dict.fromkeys(filter(is_name, names), kind.name)
    return used


@contextlib.contextmanager
def _names_locked(directory: Path) -> Iterator[None]:
    """Hold the lock on the names of a cluster. Raises ClusterError if another process keeps it."""
    deadline = time.monotonic() + _LOCK_SECONDS
    while (lock := files.lock(directory / LOCK)) is None:
        if time.monotonic() > deadline:
            what = (
                f"Another declaration on {directory.name} has not finished within "
                f"{_LOCK_SECONDS:.0f} s"
            )
            raise ClusterError(what, where=str(directory / LOCK), fix="Try again in a moment.")
        time.sleep(_LOCK_PAUSE_SECONDS)
    try:
        yield
    finally:
        os.close(lock)
