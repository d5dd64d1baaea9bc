"""Lookup of clusters and work on this machine, and of clusters that another machine declared.

If no cluster is named, a process works on the clusters that it declared or attached itself.
"""

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
"""The clusters that this process declared or attached, the latest last."""


def set_current(cluster: Cluster) -> None:
    """Make a cluster the default of this process."""
    _CURRENT.append(cluster)


def current_clusters() -> list[Cluster]:
    """Return the clusters that this process declared or attached, the latest first."""
    found = dict[Identity, Cluster]()
    for cluster in reversed(_CURRENT):
        found.setdefault(cluster.identity, cluster)
    return list(found.values())


def cluster(name: str | None = None) -> Cluster:
    """Return a cluster.

    Parameters
    ----------
    name
        The name of the cluster (default: the one that this process, such as a notebook's kernel,
        declared or attached last and that is not deleted; else the only one of this machine).
        A cluster that a study declared for itself is the default only if there is no other.

    Returns
    -------
    Cluster
        The handle of the cluster.

    Raises
    ------
    ClusterError
        There is no such cluster. Or none is named, and this machine has several.

    Examples
    --------
    >>> tm.cluster("k80x4").resize("k80x6")
    """
    if name is None:
        return _unnamed()
    name = parse_name(name, "the cluster's name")
    if not (places.cluster(name) / layout.SPEC).exists():
        names = [other.name for other in clusters()]
        fix = ""
        if not names:
            fix = "There is no cluster. Declare one: %transient_cluster k80x4"
        raise unknown("cluster", name, names, otherwise=fix, numbered=True, error=ClusterError)
    return Cluster(name)


def _unnamed() -> Cluster:
    """Return the default cluster. Raises ClusterError if there is none or several are possible."""
    own = [
        cluster for cluster in current_clusters() if cluster.state.spec and not cluster.state.over
    ]
    if own:
        return next((cluster for cluster in own if not cluster.of_study), own[0])
    living = clusters()
    possible = [cluster for cluster in living if not cluster.of_study] or living
    if not possible:
        raise ClusterError("There is no cluster yet", fix="Declare one: %transient_cluster k80x4")
    if len(possible) > 1:
        names = [cluster.name for cluster in possible]
        what = f"This machine has {len(names)} clusters ({', '.join(names)}), and none is named"
        raise ClusterError(what, fix=f"Name one of them, such as --cluster {names[-1]}.")
    return possible[0]


def attach(name: str | None = None, project: str | None = None) -> Cluster:
    """Return a cluster and make it the default of this process.

    Parameters
    ----------
    name
        The name of the cluster (default: as for `cluster`). A cluster that another machine declared
        must have been declared with `controller="cluster"`; attaching it takes some seconds.
    project
        The project in which another machine declared it (default: the emulator).

    Returns
    -------
    Cluster
        The handle of the cluster.

    Raises
    ------
    ClusterError
        There is no such cluster.
    CloudError
        The project cannot be searched.

    Examples
    --------
    >>> tm.attach("k80x4", project="my-project")
    """
    if name is not None and (project or emulator.running()):
        here = places.cluster(parse_name(name, "the cluster's name"))
        if not (here / layout.SPEC).exists():
            of_project = [project] if project else []
            found = run_program("queries", "Attaching", "attach", name, *of_project)
            commands.start_controller(Path(found["folder"]))
    attached = cluster(name)
    set_current(attached)
    return attached


def clusters(all: bool = False) -> list[Cluster]:
    """Return the clusters of this machine, oldest first.

    Clusters with neither a readable declaration nor a readable journal are left out.

    Parameters
    ----------
    all
        Whether to include deleted clusters.

    Returns
    -------
    list of Cluster
        Their handles.

    Examples
    --------
    >>> [cluster.cost().total for cluster in tm.clusters(all=True)]
    """
    found = [Cluster(folder.name) for folder in folders.readable()]
    if all:
        return found
    return [cluster for cluster in found if not cluster.state.over]


def find_work(kind: str, name: str | None = None, cluster: Cluster | str | None = None) -> Any:
    """Return the handle of work of a kind.

    Parameters
    ----------
    kind
        The kind, such as `job`.
    name
        The name of the work (default: the latest work of the kind).
    cluster
        The cluster or its name (default: the latest cluster that has such work).

    Raises
    ------
    UnknownWorkError
        There is no such work.
    ClusterError
        No cluster is named, and several that are not deleted have such work.
    """
    return _holder(kind, name, cluster).of_kind(kind, name)


def work(cluster: Cluster | str | None = None) -> WorkList:
    """Return all work of all kinds, oldest first.

    Runs of a study and Dask clusters of a bag are left out: they are parts of that study or bag.

    Parameters
    ----------
    cluster
        The cluster or its name (default: all clusters that are not deleted).

    Returns
    -------
    WorkList
        Handles, shown as a table: kind, name, cluster, phase, time of the declaration, and cost so
        far in US dollars. `data` has the rows, and `frame()` returns a DataFrame.

    Raises
    ------
    ClusterError
        There is no such cluster.

    Examples
    --------
    >>> tm.work().frame().groupby("kind")["cost"].sum()
    """
    if cluster is None:
        chosen = clusters()
    else:
        chosen = [_as_cluster(cluster)]
    return WorkList(handle for holder in chosen for handle in holder.work())


def runs(cluster: Cluster | str | None = None) -> Runs[Any]:
    """Return all runs, oldest first, including those of deleted clusters.

    Parameters
    ----------
    cluster
        The cluster or its name (default: all clusters).

    Returns
    -------
    Runs
        A list of handles, shown as a table.

    Raises
    ------
    ClusterError
        There is no such cluster.

    Examples
    --------
    >>> tm.compare(*tm.runs("k80x4"))
    """
    if cluster is None:
        chosen = clusters(all=True)
    else:
        chosen = [_as_cluster(cluster)]
    return Runs(holder.run(name) for holder in chosen for name in holder.state.of(RunState))


def compare(*runs: RecordedRun) -> Comparison[Any]:
    """Compare runs in a table and, in a notebook, in plots of losses and evaluations over steps.

    Parameters
    ----------
    runs
        Handles of runs, or lists of them.

    Raises
    ------
    DeclarationError
        There are no runs, or a value is not a run.

    Examples
    --------
    >>> tm.compare(tm.run("run-1"), tm.run("run-2"))
    """
    found: list[RecordedRun] = []
    for given in runs:
        if isinstance(given, list | tuple):
            found += given
        else:
            found.append(given)
    if not found or not all(isinstance(run, RecordedRun) for run in found):
        raise DeclarationError(
            "The arguments of compare must be runs",
            fix='For example: tm.compare(tm.run("run-1"), tm.run("run-2"))',
        )
    return Comparison(found)


def _holder(kind: str, name: str | None, cluster: Cluster | str | None) -> Cluster:
    """Return the given cluster, or the default one among those with such work, deleted or not.

    Raises UnknownWorkError if there is none, or ClusterError if several are possible.
    """
    if cluster is not None:
        return _as_cluster(cluster)

    def has(candidate: Cluster) -> bool:
        works = candidate.state.of_kind(kind)
        if name:
            return name in works
        return bool(works)

    if found := holding(has):
        return found
    if name is None:
        raise UnknownWorkError(f"There is no {KINDS[kind]} yet")
    names = [name for other in clusters(all=True) for name in _names_of(kind, other.state)]
    raise unknown(str(KINDS[kind]), name, names, numbered=True, error=UnknownWorkError)


def _names_of(kind: str, state: ClusterState) -> list[str]:
    """Return the names of all work of a kind, without parts of other work."""
    return [work.name for work in state.of_kind(kind).values() if not work.owner]


def holding(has: Callable[[Cluster], bool]) -> Cluster | None:
    """Return the default cluster among those for which `has(cluster)` is true, or None.

    It is the one that this process declared or attached last, else the only one that is not
    deleted, else the latest deleted one.

    Raises
    ------
    ClusterError
        Several clusters that are not deleted have such work.
    """
    for cluster in current_clusters():
        if has(cluster):
            return cluster
    found = [cluster for cluster in reversed(clusters(all=True)) if has(cluster)]
    living = [cluster for cluster in found if not cluster.state.over]
    if len(living) > 1:
        names = ", ".join(cluster.name for cluster in reversed(living))
        what = f"{len(living)} clusters have such work ({names}), and none is named"
        raise ClusterError(what, fix=f"Name one of them, such as --cluster {living[0].name}.")
    return next(iter(living or found), None)


def _as_cluster(given: Cluster | str) -> Cluster:
    if isinstance(given, Cluster):
        return given
    return cluster(given)


# Deleting clusters one after the other: one that cannot be deleted keeps none of the others.


def delete_clusters(name: str = "", *, all: bool = False) -> Iterator[Cluster]:
    """Delete one cluster or all clusters, and yield each one when it is deleted.

    A cluster that cannot be deleted does not keep the others.

    Parameters
    ----------
    name
        The name of the cluster.
    all
        Whether to delete all clusters.

    Raises
    ------
    TransientError
        A deletion failed, or the folder of a cluster is unreadable. The other clusters are deleted
        first.
    """
    broken: list[str] = []
    if all:
        chosen = clusters()
        broken = unreadable()
    else:
        chosen = [cluster(name)]
    failed: list[TransientError] = []
    for doomed in chosen:
        try:
            doomed.delete()
        except TransientError as error:
            failed.append(error)
        else:
            yield doomed
    if broken:
        raise ClusterError(" ".join([*map(str, failed), *broken]), fix=SWEPT)
    if failed:
        raise combined(failed)
