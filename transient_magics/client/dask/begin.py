"""`cluster.dask()`: declare a Dask cluster on VMs, wait for its scheduler, see that both ends fit, connect."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from typing import TYPE_CHECKING

from ...errors import ClusterError, DeclarationError, TransientError, install_extra
from ...journal import ClusterState, DaskState
from ...protocol.cluster_commands import Dask, StopDask
from ...protocol.dask import versions
from ...protocol.dask.spec import DaskSpec
from .. import commands, text
from ..declaring import claims
from ..following.identity import Identity
from ..training import refuse_when_ending

if TYPE_CHECKING:
    from distributed import Client

    from ..handles import Cluster
    from .vm_client import VmClient

TRUST = (
    "Dask unpickles in this process what the cluster's VMs compute: who controls one of them can run code here. "
    "Use it with code and data that you trust (docs/security)."
)
_STEM = "dask"
_said: list[str] = []
_open: dict[Identity, VmClient] = {}


def begin_dask(cluster: Cluster, workers: int | None = None, *, timeout: float = 900.0, **options: int) -> Client:
    """What `Cluster.dask` says."""
    here = _versions()
    if known := _known(cluster, workers):
        return known
    name = _declare(cluster, workers, options)
    try:
        there = _served(cluster, name, timeout)
        _refuse_others(here, there.serving.versions if there.serving else {})
        if not _said:
            _said.append(TRUST)
            print(TRUST, file=sys.stderr)
        from .vm_client import connected

        _open[cluster.identity] = client = connected(cluster, there)
    except BaseException as error:  # an interrupted wait, too: nobody is left who wants its VMs
        _give_up(cluster, name, error)
        raise
    return client


def _versions() -> dict[str, str]:
    try:
        return versions.versions()
    except PackageNotFoundError as error:
        fix = f"{install_extra('dask')}, and restart the kernel."
        raise DeclarationError(f"Dask needs {error.name}, which is not installed here", fix=fix) from None


def _known(cluster: Cluster, workers: int | None) -> VmClient | None:
    """The client that this process has of it, as where a cell is run again. Raises ClusterError where it is another."""
    known = _open.get(cluster.identity)
    if known is None:
        return None
    if known.status != "running":  # closed, or its connection broke
        del _open[cluster.identity]
        known.give_back()
        return None
    if workers not in (None, known.spec.workers):
        has = text.count(known.spec.workers, "worker")
        raise ClusterError(f"{cluster.name} has {known.dask} with {has} already", fix="Close its client first.")
    return known


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
        "Dask cluster",
        None,
        stem=_STEM,
        record=lambda chosen_name: replace(declared, name=chosen_name).to_dict(),
        fill=lambda folder: None,
    )
    claims.announce(cluster, "Dask cluster", name, Dask(dask=name))
    return name


def _served(cluster: Cluster, name: str, timeout: float) -> DaskState:
    """Wait until its scheduler listens. Raises ClusterError where it cannot, or has no VMs in time."""

    def reached(state: ClusterState) -> bool:
        dask = state.dasks.get(name)
        return state.over or (dask is not None and (dask.over or dask.serving is not None))

    state = cluster.follow(reached, timeout)
    if state is None:
        now = cluster.state
        others = sorted({each for each in now.leases.values() if each != name})
        why = f": {', '.join(others)} has its workers" if others else ""
        raise ClusterError(f"{name} has no scheduler after {timeout:.0f} s{why}", where=cluster.name, fix=now.trouble)
    dask = state.dasks.get(name)
    if dask is None or dask.over or dask.serving is None:
        why = dask.reason if dask else f"{cluster.name} was deleted"
        raise ClusterError(f"{name} could not begin: {why}", where=cluster.name)
    return dask


def _refuse_others(here: Mapping[str, str], there: Mapping[str, str]) -> None:
    if missing := [each for each in ("python", *versions.SAME) if each not in there]:
        raise ClusterError(f"The VMs do not say which {missing[0]} they have")
    what, fix = versions.mismatch(here, there)
    if what:
        raise DeclarationError(what, fix=fix)


def _give_up(cluster: Cluster, name: str, error: BaseException) -> None:
    reason = "its client could not connect" if isinstance(error, TransientError) else "nobody waits for it any more"
    try:
        commands.send(cluster.directory, StopDask(dask=name, reason=reason))
    except TransientError:
        return  # without a client it ends by itself
