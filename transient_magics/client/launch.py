"""Declaration of clusters: create the folder, and start the controller, in some milliseconds.

The controller does everything that takes longer.
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
"""Number of automatic names to try if other processes take them."""
_END_SECONDS = 20.0
"""Time limit for a controller to exit after its cluster is deleted."""
_POLL_SECONDS = 0.02


@places.reporting()
def declare(declaration: Declaration) -> Cluster:
    """Declare a cluster and return immediately; its controller provisions it.

    Parameters
    ----------
    declaration
        The options of the cluster.

    Raises
    ------
    DeclarationError
        The declaration is invalid.
    NameTakenError
        Another cluster of this machine has the name.
    ClusterError
        The folder cannot be created.
    """
    directory = _create(declaration)
    commands.start_controller(directory)
    cluster = Cluster(directory.name)
    lookup.set_current(cluster)
    return cluster


def _create(declaration: Declaration, attempts: int = _ATTEMPTS) -> Path:
    """Create the folder; try the next automatic name if another process has just taken one."""
    spec = specify(declaration)
    refuse_unreachable(spec)
    try:
        return make(spec)
    except NameTakenError:
        if declaration.name or attempts == 1:
            raise
    return _create(declaration, attempts - 1)


def make(spec: ClusterSpec, fill: Callable[[Path], None] = lambda folder: None) -> Path:
    """Create the folder of a cluster atomically, without a controller.

    Parameters
    ----------
    spec
        The declaration.
    fill
        Writes further files into the folder that it is given.

    Raises
    ------
    NameTakenError
        Another cluster has the name.
    ClusterError
        The folder cannot be created.
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
            raise _name_error(spec.name) from None
        raise ClusterError(
            f"The folder of the cluster cannot be created: {reason_of(error)}", where=str(directory)
        ) from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)  # it does not exist after the rename
    return directory


def is_free(name: str) -> bool:
    """Return whether the name is free: no cluster has it, or that cluster is deleted."""
    directory = places.cluster(name)
    return not directory.exists() or replay(read(directory / layout.JOURNAL)).over


def _make_room(name: str) -> None:
    """Move the folder of a deleted cluster away, for a new cluster of the same name.

    First wait until the controller of the deleted cluster has exited: it would work on the folder
    of the new one.
    """
    directory = places.cluster(name)
    if not is_free(name):
        raise _name_error(name)
    with _locked(name):
        if not is_free(name):  # another process has declared its cluster in the meantime
            raise _name_error(name)
        target = places.private(places.past()) / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
        if target.exists():
            target = target.with_name(f"{target.name}-{secrets.token_hex(4)}")
        with contextlib.suppress(FileNotFoundError):  # another process has just moved it
            directory.rename(target)


@contextlib.contextmanager
def _locked(name: str) -> Iterator[None]:
    """Hold the lock of a cluster's controller. Raises ClusterError if a controller keeps it."""
    deadline = time.monotonic() + _END_SECONDS
    while (lock := _try_lock(name)) is None:
        if time.monotonic() > deadline:
            raise ClusterError(
                f"The controller of the deleted cluster {name} has not exited within "
                f"{_END_SECONDS:.0f} s",
                fix="Try again in a moment, or declare the new cluster with another --name.",
            )
        time.sleep(_POLL_SECONDS)
    try:
        yield
    finally:
        os.close(lock)


def _try_lock(name: str) -> int | None:
    try:
        return take(places.cluster(name))
    except FileNotFoundError:  # another process is just moving the folder
        return None


def _name_error(name: str) -> NameTakenError:
    return NameTakenError(
        f"The cluster {name} already exists",
        fix=f"Use it: %transient_cluster attach {name}. Or delete it: %transient_cluster delete "
        f"{name}.",
    )
