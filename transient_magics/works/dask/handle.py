"""The handle of a Dask cluster."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError
from typing import TYPE_CHECKING, Self

from ...client.folders import Identity
from ...client.handle import Handle
from ...errors import ClusterError, DeclarationError, TransientError, install_extra
from .on_vm import versions
from .state import DaskState

if TYPE_CHECKING:
    from distributed import Client

    from ...client.following.cluster import BaseCluster
    from .client import VmClient

TRUST = (
    "Dask unpickles results of the cluster's VMs in this process: a user who controls one of them "
    "can run code here. Use it with code and data that you trust (docs/security)."
)
trust_shown: list[str] = []
"""TRUST, once this process has shown it."""
_open: dict[tuple[Identity, str], VmClient] = {}
"""The open clients of this process, by cluster and name of the Dask cluster."""


class Dask(Handle[DaskState, DaskState]):
    """A Dask cluster: a scheduler on the parameter server's VM, and a worker on each worker VM.

    `cluster.dask()` starts one. As a context manager it is stopped at the end of the block.

    Examples
    --------
    >>> with cluster.dask(workers=4) as dask:
    ...     total = dask.client.submit(sum, range(100)).result()
    """

    kind = "dask"
    at_stop = "its VMs are free for other work"

    @property
    def client(self) -> Client:
        """The `distributed.Client` of this process, which is connected first if there is none.

        All handles of a Dask cluster in one process share it. Closing it stops the Dask cluster.
        Results are unpickled in this process, so it trusts the cluster's VMs.

        Raises
        ------
        DeclarationError
            Dask is not installed here, or not in the versions that the VMs have.
        ClusterError
            The Dask cluster is over, or its scheduler does not listen yet or does not answer.
        RemoteError
            No connection to the scheduler's VM can be made.
        """
        return client_of(self.cluster, self.state)

    def stop(self) -> None:
        """Stop the Dask cluster and close its client in this process.

        Its VMs are free for other work then. Raises UnknownWorkError and ClusterError as for other
        work.
        """
        close_client(self.cluster, self.name)
        super().stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the Dask cluster; ignore failures, because it ends without its client anyway."""
        with suppress(TransientError):
            self.stop()


handle = Dask


def local_versions() -> dict[str, str]:
    """Return the versions of Python and Dask here. Raises DeclarationError without Dask."""
    try:
        return versions.versions()
    except PackageNotFoundError as error:
        fix = f"{install_extra('dask')}, and restart the kernel."
        raise DeclarationError(
            f"Dask needs {error.name}, which is not installed here", fix=fix
        ) from None


def open_client(cluster: BaseCluster, dask: str = "") -> VmClient | None:
    """Return this process's client of a Dask cluster on `cluster`, if its connection is open.

    `dask` is the name of the Dask cluster (default: any).
    """
    for (identity, name), client in list(_open.items()):
        if identity != cluster.identity or dask not in ("", name):
            continue
        if client.status == "running":
            return client
        del _open[identity, name]  # it was closed, or its connection broke
        client.give_back()
    return None


def client_of(cluster: BaseCluster, dask: DaskState) -> VmClient:
    """Return this process's client of a Dask cluster; connect it if needed. See `Dask.client`."""
    here = local_versions()
    client = open_client(cluster, dask.name)
    if client is not None:
        return client
    if dask.over or dask.stop:
        raise ClusterError(
            f"{dask.name} has ended", where=cluster.name, fix="Start another one: cluster.dask()"
        )
    if dask.serving is None:
        raise ClusterError(
            f"{dask.name} has no scheduler yet", where=cluster.name, fix="Try again in a moment."
        )
    _check_versions(here, dask.serving.versions)
    if not trust_shown:
        trust_shown.append(TRUST)
        print(TRUST, file=sys.stderr)
    from .client import connected

    client = connected(cluster, dask)
    _open[cluster.identity, dask.name] = client
    return client


def close_client(cluster: BaseCluster, name: str) -> None:
    """Close this process's client of a Dask cluster, if it has one."""
    client = _open.pop((cluster.identity, name), None)
    if client is not None:
        client.close()


def _check_versions(here: Mapping[str, str], there: Mapping[str, str]) -> None:
    missing = [name for name in ("python", *versions.SAME) if name not in there]
    if missing:
        raise ClusterError(
            f"The VMs did not report their version of {missing[0]}", fix="Try again in a moment."
        )
    what, fix = versions.mismatch(here, there)
    if what:
        raise DeclarationError(what, fix=fix)
