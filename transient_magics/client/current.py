"""The clusters that this process declared or attached: a notebook's kernel works on these, not on
those of others.
"""

from __future__ import annotations

from .cluster_handle import Cluster
from .following.identity import Identity

_HELD: list[Cluster] = []


def hold(cluster: Cluster) -> None:
    """Make `cluster` the one on which this process works where none is named."""
    _HELD.append(cluster)


def held() -> list[Cluster]:
    """Return the clusters that this process declared or attached, the latest first, each once."""
    found = dict[Identity, Cluster]()
    for cluster in reversed(_HELD):
        found.setdefault(cluster.identity, cluster)
    return list(found.values())
