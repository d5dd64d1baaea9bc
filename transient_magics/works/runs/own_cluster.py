"""The cluster of a run that names its workers: `%%train k80x4`.

A kernel without a cluster declares one for the run, which is deleted when the run ends. If the
kernel already has a cluster with these workers, the run uses that cluster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ...catalog import ACCELERATORS, ZONES
from ...client import launch, lookup
from ...client.cluster_handle import Cluster
from ...client.declaring.declaration import Declaration
from ...errors import DeclarationError
from ...spec import WorkerGroup, parse_groups, render_groups
from .declare import train
from .handle import Run


def train_on(
    workers: str,
    *,
    keep_cluster: bool = False,
    project: str | None = None,
    max_hours: float | None = None,
    **options: Any,
) -> Run:
    """Declare a run on a cluster with these workers, and the cluster if there is none.

    Parameters
    ----------
    workers
        The groups of workers, such as `k80x4@us-west1-b`.
    keep_cluster
        Whether a cluster that is declared for the run stays when the run ends.
    project
        The Google Cloud project of a new cluster (default: the emulator).
    max_hours
        The time limit of a new cluster, in hours.
    options
        The options of `train`. With `finish_by`, `max_cost` limits the run, otherwise a new
        cluster, in US dollars.

    Raises
    ------
    DeclarationError, ClusterError
        See `cluster_with` and `train`. After an error, a cluster that was declared for the run is
        deleted.
    """
    if options.get("cluster") is not None:
        raise DeclarationError(
            f"{workers} and --cluster cannot be used together", fix="Leave out one of them."
        )
    limit = None
    if options.get("finish_by") is None:
        limit = options.pop("max_cost", None)
    cluster, declared = cluster_with(workers, project, limit, max_hours)
    options["cluster"] = cluster
    if not declared:
        return train(**options)
    if not keep_cluster:
        options.setdefault("when_done", "cluster")
    try:
        return train(**options)
    except BaseException:
        # No run would ever use or delete it.
        cluster.delete()
        raise


def cluster_with(
    workers: str,
    project: str | None = None,
    max_cost: float | None = None,
    max_hours: float | None = None,
) -> tuple[Cluster, bool]:
    """Return a cluster with these workers, and whether it was declared for the run.

    Parameters
    ----------
    workers
        The groups of workers, such as `k80x4@us-west1-b`.
    project
        The Google Cloud project of a new cluster (default: the emulator).
    max_cost, max_hours
        The limits of a new cluster, in US dollars and hours.

    Raises
    ------
    DeclarationError
        The kernel has a cluster with other workers, or a new cluster in a project has no limit.
    ClusterError
        The cluster cannot be declared.
    """
    groups = parse_groups(workers, ACCELERATORS, ZONES)
    ending = ("deleting", "deleted")
    own = [cluster for cluster in lookup.current_clusters() if cluster.state.phase not in ending]
    for cluster in own:
        spec = cluster.state.spec
        if spec and _alike(groups, spec.groups) and project in (None, spec.project):
            return cluster, False
    if own:
        name = own[0].name
        spec = own[0].state.spec
        existing = render_groups(spec.groups) if spec else "other workers"
        raise DeclarationError(
            f"This notebook has the cluster {name} with {existing}, not {workers}",
            fix=f"Leave {workers} out to train on {name}, or change it with "
            f"%transient_cluster resize {name} {workers}",
        )
    if project and max_cost is None and max_hours is None:
        raise DeclarationError(
            f"A cluster in {project} costs money and needs a limit",
            where="--project",
            fix="Add --max-cost DOLLARS or --max-hours HOURS.",
        )
    declared = Declaration(spec=workers, project=project, max_cost=max_cost)
    if max_hours is not None:
        declared = replace(declared, max_hours=max_hours)
    return launch.declare(declared), True


def _alike(requested: Iterable[WorkerGroup], existing: Iterable[WorkerGroup]) -> bool:
    """Return whether both have the same workers; zones count only if a requested group names one."""
    zones = any(group.zone for group in requested)

    def counted(groups: Iterable[WorkerGroup]) -> Counter[tuple[str, str]]:
        counts = Counter[tuple[str, str]]()
        for group in groups:
            counts[group.accelerator, (group.zone or "") if zones else ""] += group.count
        return counts

    return counted(requested) == counted(existing)
