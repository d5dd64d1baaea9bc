"""Declaring clusters and finding them again.

`declare` writes what was specified into the cluster's own folder and starts the controller, all in some milliseconds;
everything slow happens there.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

from .. import emulator, places
from ..errors import ClusterError
from ..journal import read, replay
from ..spec import parse_name
from . import commands, folders
from .declaring import Declaration, refuse_unreachable, specify
from .handles import Cluster
from .programs import ask


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
        places.private(fresh / "runs")
        fresh.chmod(0o700)
        (fresh / "spec.json").write_text(json.dumps(spec.to_dict(), indent=1))
        fresh.rename(directory)
    except OSError as error:
        shutil.rmtree(fresh, ignore_errors=True)
        if directory.exists():
            raise _taken(spec.name) from None
        raise ClusterError(f"The cluster's folder cannot be made: {error.strerror}", where=str(directory)) from error
    commands.start_controller(directory)
    return Cluster(spec.name)


def cluster(name: str | None = None) -> Cluster:
    """The cluster called `name`, else the one declared last. Raises ClusterError where there is none."""
    if name is None:
        if living := clusters():
            return living[-1]
        raise ClusterError("There is no cluster yet", fix="Declare one: %transient_cluster k80x4")
    name = parse_name(name, "the cluster's name")
    if not (places.cluster(name) / "spec.json").exists():
        names = ", ".join(each.name for each in clusters(all=True))
        raise ClusterError(
            f"There is no cluster {name}",
            fix=f"There are: {names}." if names else "Declare one: %transient_cluster k80x4",
        )
    return Cluster(name)


def attach(name: str | None = None, project: str | None = None) -> Cluster:
    """Like `cluster`; one that another machine declared (in `project`, else on the emulator) is followed from here on.

    That takes some seconds, and a cluster with `--controller cluster`. Raises ClusterError or CloudError.
    """
    known = name is None or (places.cluster(parse_name(name, "the cluster's name")) / "spec.json").exists()
    if name is None or known or not (project or emulator.running()):
        return cluster(name)
    found = Path(ask("attach", "Attaching", name, *([project] if project else []))["folder"])
    commands.start_controller(found)
    return cluster(name)


def clusters(all: bool = False) -> list[Cluster]:
    """Clusters of this machine that are not deleted (`all`: those too), in the order of their declaration.

    Those of which neither declaration nor journal can be read are passed over (`unreadable`).
    """
    found = [Cluster(folder.name) for folder in folders.readable()]
    return found if all else [each for each in found if not each.state.over]


def _make_room(name: str) -> None:
    """A deleted cluster's folder makes way for a new one of the same name; nothing of it is thrown away."""
    directory = places.cluster(name)
    if not replay(read(directory / "journal.jsonl")).over:
        raise _taken(name)
    target = places.private(places.past()) / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    directory.rename(target if not target.exists() else target.with_name(f"{target.name}-{os.getpid()}"))


def _taken(name: str) -> ClusterError:
    return ClusterError(
        f"There is a cluster {name} already",
        fix=f"Take it: %transient_cluster attach {name}. Or end it: %transient_cluster delete {name}.",
    )
