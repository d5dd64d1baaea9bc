"""The line of a Dask cluster on a panel."""

from __future__ import annotations

from ...journal import ClusterState
from .state import DaskState


def last_words(dask: DaskState, state: ClusterState) -> str:
    """Return how to find the dashboard of a Dask cluster while it has one."""
    has_dashboard = dask.serving is not None and bool(dask.serving.dashboard)
    if dask.phase == "running" and has_dashboard and not state.over:
        return "; its dashboard: dask.client.dashboard_link"
    return ""
