"""Lookup of clusters and work on this machine, and of clusters that another machine declared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .. import emulator, places
from ..errors import (
    ClusterError,
    DeclarationError,
    TransientError,
    UnknownWorkError,
    combined,
    unknown,
)
from ..journal import ClusterState, RunState
from ..kinds import KINDS
from ..protocol import layout
from ..spec import parse_name
from . import commands, folders
from .cluster_handle import Cluster
from .commands import SWEPT, run_program
from .folders import Identity, unreadable
from .recorded_run import RecordedRun
from .results.comparison import Comparison, Runs
from .work_list import WorkList

_CURRENT: list[Cluster] = []


def set_current(cluster: Cluster) -> None:
    """Make `cluster` the one on which this process works where none is named."""
    _CURRENT.append(cluster)


def current_clusters() -> list[Cluster]:
    """Return the clusters that this process declared or attached, the latest first, each once."""
    found = dict[Identity, Cluster]()
    for cluster in reversed(_CURRENT):
        found.setdefault(cluster.identity, cluster)
    return list(found.values())


def cluster(name: str | None = None) -> Cluster:
    """Return the cluster called `name`, else the one on which this process works.

    That is the cluster that this process (a notebook's kernel) declared or attached last and that
    is not deleted, else the only one of this machine that is not deleted. A cluster that a study
    has for itself is meant only where there is no other.

    Raises
    ------
    ClusterError
        There is no such cluster; or none is named, this process has none, and this machine has
        several.
    """
    if name is None:
        return _unnamed()
    name = parse_name(name, "the cluster's name")
    if not (places.cluster(name) / layout.SPEC).exists():
        names = [each.name for each in clusters()]
        if names:
            fix = ""
        else:
            fix = "None is there now. Declare one: %transient_cluster k80x4"
        raise unknown("cluster", name, names, otherwise=fix, numbered=True, error=ClusterError)
    return Cluster(name)


def _unnamed() -> Cluster:
    """Return the cluster that is meant where none is named. Raises ClusterError where that is not
    clear.
    """
    own = [held for held in current_clusters() if held.state.spec and not held.state.over]
    if own:
        return next((held for held in own if not held.of_study), own[0])
    living = clusters()
    possible = [found for found in living if not found.of_study] or living
    if not possible:
        raise ClusterError("There is no cluster yet", fix="Declare one: %transient_cluster k80x4")
    if len(possible) > 1:
        names = [found.name for found in possible]
        what = f"No cluster is named, and this machine has {len(names)}: {', '.join(names)}"
        raise ClusterError(what, fix=f"Name one of them, such as --cluster {names[-1]}.")
    return possible[0]


def attach(name: str | None = None, project: str | None = None) -> Cluster:
    """Return a cluster, on which this process works from now on where none is named.

    A cluster that another machine declared (in `project`, else on the emulator) is followed from
    now on. That takes some seconds, and needs a cluster with `--controller cluster`. Raises
    ClusterError or CloudError.
    """
    known = (
        name is None
        or (places.cluster(parse_name(name, "the cluster's name")) / layout.SPEC).exists()
    )
    if name is not None and not known and (project or emulator.running()):
        found = Path(
            run_program("queries", "Attaching", "attach", name, *([project] if project else []))[
                "folder"
            ]
        )
        commands.start_controller(found)
    attached = cluster(name)
    set_current(attached)
    return attached


def clusters(all: bool = False) -> list[Cluster]:
    """Clusters of this machine that are not deleted (`all`: those too), in the order of their
    declaration.

    Those of which neither declaration nor journal can be read are passed over (`unreadable`).
    """
    found = [Cluster(folder.name) for folder in folders.readable()]
    if all:
        return found
    return [each for each in found if not each.state.over]


def find_work(kind: str, name: str | None = None, cluster: Cluster | str | None = None) -> Any:
    """Return the handle of work of a kind: of `cluster`, or of the last cluster that has it.

    Parameters
    ----------
    name
        The name of the work (default: the latest work of the kind).

    Raises
    ------
    UnknownWorkError
        There is no such work.
    ClusterError
        No cluster is named, and several that are not deleted have such work.
    """
    return _holder(kind, name, cluster).of_kind(kind, name)


def work(cluster: Cluster | str | None = None) -> WorkList:
    """Return all work of `cluster` (default: of all clusters that are not deleted), of all kinds,
    the oldest first.

    Runs of a study and Dask clusters of a bag are left out: they are parts of that study or bag.

    Returns
    -------
    WorkList
        Handles, which show themselves as a table: kind, name, cluster, phase, the time of the
        declaration, and the cost so far. `data` has the rows, `frame` makes a DataFrame of them.

    Raises
    ------
    ClusterError
        There is no such cluster.
    """
    if cluster is not None:
        chosen = [_cluster(cluster)]
    else:
        chosen = clusters()
    return WorkList(handle for each in chosen for handle in each.work())


def runs(cluster: Cluster | str | None = None) -> Runs[Any]:
    """All runs (of `cluster`, else of every one), oldest first: a list that shows itself as a
    table.
    """
    if cluster is not None:
        chosen = [_cluster(cluster)]
    else:
        chosen = clusters(all=True)
    return Runs(each.run(name) for each in chosen for name in each.state.of(RunState))


def compare(*runs: RecordedRun) -> Comparison[Any]:
    """Put runs beside each other: a table and, in a notebook, their losses and evaluations over the
    steps.

    Raises DeclarationError where there are none, or something that is no run.
    """
    found = [
        each for given in runs for each in (given if isinstance(given, list | tuple) else [given])
    ]
    if not found or not all(isinstance(each, RecordedRun) for each in found):
        raise DeclarationError(
            "compare takes runs", fix='For example: tm.compare(tm.run("run-1"), tm.run("run-2"))'
        )
    return Comparison(found)


def _holder(kind: str, name: str | None, cluster: Cluster | str | None) -> Cluster:
    """Return `cluster`, or the cluster, deleted ones included, that has `name`, or any work of the
    kind without one.

    Raises UnknownWorkError where there is none, or ClusterError where it is not clear which of
    several is meant.
    """
    if cluster is not None:
        return _cluster(cluster)

    def has(candidate: Cluster) -> bool:
        known = candidate.state.of_kind(kind)
        if name:
            return name in known
        return bool(known)

    if found := holding(has):
        return found
    if name is None:
        raise UnknownWorkError(f"There is no {KINDS[kind]} yet")
    names = [known for other in clusters(all=True) for known in _names_of(kind, other.state)]
    raise unknown(str(KINDS[kind]), name, names, numbered=True, error=UnknownWorkError)


def _names_of(kind: str, state: ClusterState) -> list[str]:
    """Return the names of all work of a kind, but for parts of other work."""
    return [work.name for work in state.of_kind(kind).values() if not work.owner]


def holding(has: Callable[[Cluster], bool]) -> Cluster | None:
    """Return the cluster that is meant by the work that it has; None where no cluster has such
    work.

    Clusters that this process declared or attached come first, the latest before the others. Then
    comes the only one that is not deleted, then the latest deleted one. Raises ClusterError where
    several that are not deleted have it.
    """
    for held in current_clusters():
        if has(held):
            return held
    found = [cluster for cluster in reversed(clusters(all=True)) if has(cluster)]
    living = [cluster for cluster in found if not cluster.state.over]
    if len(living) > 1:
        names = ", ".join(cluster.name for cluster in reversed(living))
        what = f"No cluster is named, and {len(living)} have such work: {names}"
        raise ClusterError(what, fix=f"Name one of them, such as --cluster {living[0].name}.")
    return next(iter(living or found), None)


def _cluster(given: Cluster | str) -> Cluster:
    if isinstance(given, Cluster):
        return given
    return cluster(given)


# Deleting clusters one after the other: one that cannot be deleted keeps none of the others.


def delete_clusters(name: str = "", *, all: bool = False) -> Iterator[Cluster]:
    """Delete the cluster of that name, or `all`, and yield each when it is gone.

    Raises, when all were tried, the error of the one that failed, or ClusterError with what several
    said and which folders here cannot be read.
    """
    if all:
        chosen = clusters()
    else:
        chosen = [cluster(name)]
    broken = unreadable() if all else []
    failed: list[TransientError] = []
    for each in chosen:
        try:
            each.delete()
        except TransientError as error:
            failed.append(error)
        else:
            yield each
    if broken:
        raise ClusterError(" ".join([*map(str, failed), *broken]), fix=SWEPT)
    if failed:
        raise combined(failed)
