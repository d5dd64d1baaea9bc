"""Declaring clusters: a folder with what was specified, and a controller that is started, all in some milliseconds.

Everything slow happens in the controller.
"""

from __future__ import annotations

import json
import os
import shutil
import time

from .. import places
from ..errors import ClusterError
from ..journal import read, replay
from ..protocol import layout
from . import commands
from .declaring import Declaration, refuse_unreachable, specify
from .handles import Cluster


def declare(declaration: Declaration) -> Cluster:
    """Declare a cluster and return at once; its controller provisions it. Raises DeclarationError or ClusterError."""
    spec = specify(declaration)
    refuse_unreachable(spec)
    directory = places.cluster(spec.name)
    if directory.exists():
        _make_room(spec.name)
    fresh = places.private(places.clusters()) / f".{spec.name}.{os.getpid()}"
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        places.private(fresh / layout.RUNS)
        fresh.chmod(0o700)
        (fresh / layout.SPEC).write_text(json.dumps(spec.to_dict(), indent=1))
        fresh.rename(directory)
    except OSError as error:
        shutil.rmtree(fresh, ignore_errors=True)
        if directory.exists():
            raise _taken(spec.name) from None
        raise ClusterError(f"The cluster's folder cannot be made: {error.strerror}", where=str(directory)) from error
    commands.start_controller(directory)
    return Cluster(spec.name)


def _make_room(name: str) -> None:
    """A deleted cluster's folder makes way for a new one of the same name; nothing of it is thrown away."""
    directory = places.cluster(name)
    if not replay(read(directory / layout.JOURNAL)).over:
        raise _taken(name)
    target = places.private(places.past()) / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    directory.rename(target if not target.exists() else target.with_name(f"{target.name}-{os.getpid()}"))


def _taken(name: str) -> ClusterError:
    return ClusterError(
        f"There is a cluster {name} already",
        fix=f"Take it: %transient_cluster attach {name}. Or end it: %transient_cluster delete {name}.",
    )
