"""`cluster.dask()`: declare a Dask cluster on VMs, wait for its scheduler, connect."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from ..errors import ClusterError, DeclarationError, TransientError
from ..journal import ClusterState
from ..protocol.cluster_commands import Stop
from ..protocol.dask.spec import DaskSpec
from . import commands, text
from .dask.connection import local_versions, open_client
from .declaring import claims
from .handles import Cluster, Dask
from .training import refuse_when_ending

_STEM = "dask"


def begin_dask(cluster: Cluster, workers: int | None = None, *, timeout: float = 900.0, **options: int) -> Dask:
    """Start a Dask cluster, or return the one that this process has on the cluster. See `Cluster.dask`."""
    local_versions()
    known = open_client(cluster)
    if known is not None:
        if workers not in (None, known.spec.workers):
            has = text.count(known.spec.workers, "worker")
            what = f"{cluster.name} has {known.dask} with {has} already"
            raise ClusterError(what, fix="Stop it first: dask.stop()")
        return Dask(known.dask, cluster)
    dask = Dask(_declare(cluster, workers, options), cluster)
    try:
        _wait_for_scheduler(dask, timeout)
        _ = dask.client
    except BaseException as error:  # after an interrupt no process waits for its VMs
        _give_up(dask, error)
        raise
    return dask


def _declare(cluster: Cluster, workers: int | None, options: Mapping[str, int]) -> str:
    refuse_when_ending(cluster)
    spec = cluster.state.spec
    most = spec.worker_count if spec else 0
    if workers is not None and workers > most:
        what = f"{cluster.name} has {text.count(most, 'worker')}, not {workers}"
        raise DeclarationError(what, where="workers", fix="Take fewer, or resize the cluster first.")
    try:
        declared = DaskSpec.from_dict({
            **options, "name": f"{_STEM}-1", "workers": most if workers is None else workers,
            "declared_at": time.time(),
        })  # fmt: skip
    except ValueError as error:
        raise DeclarationError(f"This is no Dask cluster: {error}") from None
    name = claims.declare(
        cluster,
        "dask",
        None,
        stem=_STEM,
        record=lambda chosen_name: replace(declared, name=chosen_name).to_dict(),
        fill=lambda folder: None,
    )
    claims.announce(cluster, "dask", name)
    return name


def _wait_for_scheduler(dask: Dask, timeout: float) -> None:
    """Block until the scheduler listens. Raises ClusterError where it cannot, or has no VMs in time."""
    cluster = dask.cluster

    def reached(state: ClusterState) -> bool:
        found = state.dasks.get(dask.name)
        return dask.is_over(state) or (found is not None and found.serving is not None)

    state = cluster.follow(reached, timeout)
    if state is None:
        present = cluster.state
        others = sorted({name for name in present.leases.values() if name != dask.name})
        why = f": {', '.join(others)} has its workers" if others else ""
        what = f"{dask.name} has no scheduler after {timeout:.0f} s{why}"
        raise ClusterError(what, where=cluster.name, fix=present.trouble)
    found = state.dasks.get(dask.name)
    if dask.is_over(state):
        why = found.reason if found else f"{cluster.name} was deleted"
        raise ClusterError(f"{dask.name} could not begin: {why}", where=cluster.name)


def _give_up(dask: Dask, error: BaseException) -> None:
    failed = isinstance(error, TransientError)
    reason = "its client could not connect" if failed else "its client was interrupted"
    with suppress(TransientError):  # without a client it ends automatically
        commands.send(dask.cluster.directory, Stop(kind="dask", name=dask.name, reason=reason))
