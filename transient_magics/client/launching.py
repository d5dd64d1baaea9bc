"""Declaring clusters: a folder with what was specified, and a controller that is started, all in some milliseconds.

Everything slow happens in the controller.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from .. import places
from ..errors import ClusterError, TransientError
from ..journal import read, replay
from ..journal.lock import take
from ..protocol import layout
from ..spec import ClusterSpec
from . import commands
from .declaring import Declaration, refuse_unreachable, specify
from .folders import remove_abandoned
from .handles import Cluster

_END_SECONDS, _LOOK_SECONDS = 20.0, 0.02
"""How long a controller may take to end after its cluster is deleted, and how often it is looked at."""


def declare(declaration: Declaration) -> Cluster:
    """Declare a cluster and return at once; its controller provisions it. Raises DeclarationError or ClusterError."""
    spec = specify(declaration)
    refuse_unreachable(spec)
    commands.start_controller(make(spec))
    return Cluster(spec.name)


def make(spec: ClusterSpec, fill: Callable[[Path], None] = lambda folder: None) -> Path:
    """Make the folder of a cluster, whole or not at all, with what `fill` writes into it; nobody is in charge yet.

    Raises ClusterError.
    """
    directory = places.cluster(spec.name)
    if directory.exists():
        _make_room(spec.name)
    remove_abandoned(places.clusters())
    fresh = places.private(places.clusters()) / f".{spec.name}.{os.getpid()}"
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        places.private(fresh / layout.RUNS)
        fresh.chmod(0o700)
        (fresh / layout.SPEC).write_text(json.dumps(spec.to_dict(), indent=1))
        fill(fresh)
        fresh.rename(directory)
    except TransientError:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    except OSError as error:
        shutil.rmtree(fresh, ignore_errors=True)
        if directory.exists():
            raise _taken(spec.name) from None
        raise ClusterError(f"The cluster's folder cannot be made: {error.strerror}", where=str(directory)) from error
    return directory


def is_free(name: str) -> bool:
    """Whether a cluster may be called so: none is, or it is deleted."""
    directory = places.cluster(name)
    return not directory.exists() or replay(read(directory / layout.JOURNAL)).over


def _make_room(name: str) -> None:
    """A deleted cluster's folder makes way for a new one of the same name; nothing of it is thrown away.

    Its controller, which ends within a moment of the deletion, is waited for: it would take the new one for its own.
    """
    directory = places.cluster(name)
    if not is_free(name):
        raise _taken(name)
    with _locked(name):
        target = places.private(places.past()) / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
        directory.rename(target if not target.exists() else target.with_name(f"{target.name}-{os.getpid()}"))


@contextlib.contextmanager
def _locked(name: str) -> Iterator[None]:
    """Nobody is in charge of the cluster's folder meanwhile. Raises ClusterError where somebody stays so."""
    deadline = time.monotonic() + _END_SECONDS
    while (lock := take(places.cluster(name))) is None:
        if time.monotonic() > deadline:
            what = f"The controller of the deleted cluster {name} has not ended within {_END_SECONDS:.0f} s"
            raise ClusterError(what, fix="Try again in a moment, or declare the new cluster with another --name.")
        time.sleep(_LOOK_SECONDS)
    try:
        yield
    finally:
        os.close(lock)


def _taken(name: str) -> ClusterError:
    return ClusterError(
        f"There is a cluster {name} already",
        fix=f"Take it: %transient_cluster attach {name}. Or end it: %transient_cluster delete {name}.",
    )
