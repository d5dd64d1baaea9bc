"""Declaring clusters: a folder with what was specified, and a controller that is started, all in
some milliseconds.

Everything slow happens in the controller.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from .. import places
from ..errors import ClusterError, NameTakenError, reason_of
from ..journal import read, replay
from ..journal.lock import take
from ..protocol import layout
from ..spec import ClusterSpec
from . import commands, lookup
from .cluster_handle import Cluster
from .declaring import Declaration, refuse_unreachable, specify
from .folders import remove_abandoned

_ATTEMPTS = 20
"""Automatic names tried, where other processes take one after the other."""
_END_SECONDS = 20.0
_LOOK_SECONDS = 0.02
"""How long a controller may take to end after its cluster is deleted, and how often it is looked
at.
"""


@places.reporting()
def declare(declaration: Declaration) -> Cluster:
    """Declare a cluster and return at once; its controller provisions it. Raises DeclarationError
    or ClusterError.
    """
    directory = _made(declaration)
    commands.start_controller(directory)
    cluster = Cluster(directory.name)
    lookup.set_current(cluster)
    return cluster


def _made(declaration: Declaration, attempts: int = _ATTEMPTS) -> Path:
    """Make the cluster's folder, under the next free name where another process has just taken an
    automatic one.
    """
    spec = specify(declaration)
    refuse_unreachable(spec)
    try:
        return make(spec)
    except NameTakenError:
        if declaration.name or attempts == 1:
            raise
    return _made(declaration, attempts - 1)


def make(spec: ClusterSpec, fill: Callable[[Path], None] = lambda folder: None) -> Path:
    """Make the folder of a cluster, whole or not at all, with what `fill` writes into it; nobody is
    in charge yet.

    Raises ClusterError.
    """
    directory = places.cluster(spec.name)
    if directory.exists():
        _make_room(spec.name)
    remove_abandoned(places.clusters())
    # Two threads have the same process id.
    fresh = places.clusters() / f".{spec.name}-{secrets.token_hex(4)}.{os.getpid()}"
    try:
        with places.reporting():
            places.private(fresh / layout.RUNS)
        (fresh / layout.SPEC).write_text(json.dumps(spec.to_dict(), indent=1), encoding="utf-8")
        fill(fresh)
        fresh.rename(directory)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
            raise _taken(spec.name) from None
        raise ClusterError(
            f"The cluster's folder cannot be made: {reason_of(error)}", where=str(directory)
        ) from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)  # after the rename there is none
    return directory


def is_free(name: str) -> bool:
    """Whether a cluster may be called so: none is, or it is deleted."""
    directory = places.cluster(name)
    return not directory.exists() or replay(read(directory / layout.JOURNAL)).over


def _make_room(name: str) -> None:
    """A deleted cluster's folder makes way for a new one of the same name; nothing of it is thrown
    away.

    Its controller, which ends within a moment of the deletion, is waited for: it would take the new
    one for its own.
    """
    directory = places.cluster(name)
    if not is_free(name):
        raise _taken(name)
    with _locked(name):
        if not is_free(name):  # another process has made room, and declared its cluster there
            raise _taken(name)
        target = places.private(places.past()) / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
        if target.exists():
            target = target.with_name(f"{target.name}-{secrets.token_hex(4)}")
        with contextlib.suppress(FileNotFoundError):  # another process has just made room
            directory.rename(target)


@contextlib.contextmanager
def _locked(name: str) -> Iterator[None]:
    """Nobody is in charge of the cluster's folder meanwhile. Raises ClusterError where somebody
    stays so.
    """
    deadline = time.monotonic() + _END_SECONDS
    while (lock := _try_lock(name)) is None:
        if time.monotonic() > deadline:
            what = f"The controller of the deleted cluster {name} has not ended within {_END_SECONDS:.0f} s"
            raise ClusterError(
                what, fix="Try again in a moment, or declare the new cluster with another --name."
            )
        time.sleep(_LOOK_SECONDS)
    try:
        yield
    finally:
        os.close(lock)


def _try_lock(name: str) -> int | None:
    try:
        return take(places.cluster(name))
    except FileNotFoundError:  # another process is just making room
        return None


def _taken(name: str) -> NameTakenError:
    return NameTakenError(
        f"There is a cluster {name} already",
        fix=f"Take it: %transient_cluster attach {name}. Or end it: %transient_cluster delete {name}.",
    )
