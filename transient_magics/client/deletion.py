"""Deleting clusters one after the other: one that cannot be deleted keeps none of the others."""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import ClusterError, TransientError, joined
from .cluster_handle import Cluster
from .commands import SWEPT
from .finding import cluster, clusters
from .folders import unreadable


def deleted(name: str = "", *, all: bool = False) -> Iterator[Cluster]:
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
        raise joined(failed)
