"""`cluster.dask()`: declare a Dask cluster on VMs, wait for its scheduler, connect."""

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
    """Start a Dask cluster, or return the one that this process has on the cluster. See
    `Cluster.dask`.
    """
    local_versions()
    known = open_client(cluster)
    if known is not None:
        if workers not in (None, known.spec.workers):
            has = text.count(known.spec.workers, "worker")
            what = f"{cluster.name} has {known.dask} with {has} already"
            raise ClusterError(what, fix="Stop it first: dask.stop()")
        return Dask(known.dask, cluster)
    new = NewWork("dask", cluster, None)
    values = {**options, "workers": new.cluster_spec.worker_count if workers is None else workers}
    spec = new.specify(DaskSpec.from_dict, values, prefix="")
    dask = Dask(
        new.declare(lambda taken: replace(spec, name=taken).to_dict(), lambda folder: None), cluster
    )
    try:
        _wait_for_scheduler(dask, timeout)
        _ = dask.client
    except BaseException as error:  # after an interrupt no process waits for its VMs
        _give_up(dask, error)
        raise
    return dask


def _wait_for_scheduler(dask: Dask, timeout: float) -> None:
    """Block until the scheduler listens. Raises ClusterError where it cannot, or has no VMs in
    time.
    """
    cluster = dask.cluster

    def reached(state: ClusterState) -> bool:
        found = state.of(DaskState).get(dask.name)
        return dask.is_over(state) or (found is not None and found.serving is not None)

    state = cluster.follow(reached, timeout)
    if state is None:
        present = cluster.state
        others = sorted({name for name in present.leases.values() if name != dask.name})
        if others:
            why = f": {', '.join(others)} has its workers"
        else:
            why = ""
        what = f"{dask.name} has no scheduler after {timeout:.0f} s{why}"
        raise ClusterError(what, where=cluster.name, fix=present.trouble)
    found = state.of(DaskState).get(dask.name)
    if dask.is_over(state):
        if found:
            why = found.reason
        else:
            why = f"{cluster.name} was deleted"
        raise ClusterError(f"{dask.name} could not begin: {why}", where=cluster.name)


def _give_up(dask: Dask, error: BaseException) -> None:
    failed = isinstance(error, TransientError)
    if failed:
        reason = "its client could not connect"
    else:
        reason = "its client was interrupted"
    with suppress(TransientError):  # without a client it ends automatically
        commands.send(dask.cluster.directory, Stop(kind="dask", name=dask.name, reason=reason))
