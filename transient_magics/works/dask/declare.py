"""Declare a Dask cluster on VMs, wait for its scheduler and connect: `cluster.dask()`."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from ...client import commands, text
from ...client.cluster_handle import Cluster
from ...client.new_work import NewWork
from ...errors import ClusterError, TransientError
from ...journal import ClusterState
from ...protocol.cluster_commands import Stop
from .handle import Dask, local_versions, open_client
from .spec import DaskSpec
from .state import DaskState


def begin_dask(
    cluster: Cluster, workers: int | None = None, *, timeout: float = 900.0, **options: int
) -> Dask:
    """Start a Dask cluster, or return this process's one on the cluster. See `Cluster.dask`."""
    local_versions()
    client = open_client(cluster)
    if client is not None:
        if workers not in (None, client.spec.workers):
            present = text.count(client.spec.workers, "worker")
            what = f"{cluster.name} has {client.dask} with {present} already"
            raise ClusterError(what, fix="Stop it first: dask.stop()")
        return Dask(client.dask, cluster)
    new = NewWork("dask", cluster, None)
    if workers is None:
        workers = new.cluster_spec.worker_count
    spec = new.specify(DaskSpec.from_dict, {**options, "workers": workers}, prefix="")
    name = new.declare(
        lambda free_name: replace(spec, name=free_name).to_dict(), lambda folder: None
    )
    dask = Dask(name, cluster)
    try:
        _wait_for_scheduler(dask, timeout)
        _ = dask.client
    except BaseException as error:  # after an interrupt no process waits for its VMs
        _give_up(dask, error)
        raise
    return dask


def _wait_for_scheduler(dask: Dask, timeout: float) -> None:
    """Wait until the scheduler listens.

    Raises ClusterError if it cannot, or receives no VMs in time.
    """
    cluster = dask.cluster

    def reached(state: ClusterState) -> bool:
        found = state.of(DaskState).get(dask.name)
        return dask.is_over(state) or (found is not None and found.serving is not None)

    state = cluster.follow(reached, timeout)
    if state is None:
        present = cluster.state
        others = sorted({name for name in present.leases.values() if name != dask.name})
        why = f": {', '.join(others)} has its workers" if others else ""
        what = f"{dask.name} has no scheduler after {timeout:.0f} s{why}"
        raise ClusterError(what, where=cluster.name, fix=present.trouble)
    found = state.of(DaskState).get(dask.name)
    if dask.is_over(state):
        why = found.reason if found else f"{cluster.name} was deleted"
        raise ClusterError(f"{dask.name} could not start: {why}", where=cluster.name)


def _give_up(dask: Dask, error: BaseException) -> None:
    reason = "its client was interrupted"
    if isinstance(error, TransientError):
        reason = "its client could not connect"
    with suppress(TransientError):  # without a client it ends automatically
        commands.send(dask.cluster.directory, Stop(kind="dask", name=dask.name, reason=reason))
