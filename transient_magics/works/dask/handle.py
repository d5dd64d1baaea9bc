"""The handle of a Dask cluster."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Self

from ...client.handle import Handle
from ...errors import TransientError
from ...journal import DaskState
from .connection import client_of, close_client

if TYPE_CHECKING:
    from distributed import Client


class Dask(Handle[DaskState, DaskState]):
    """A Dask cluster on VMs of a cluster: a scheduler beside the parameter server, and a worker
    process on each VM.

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
        """End the Dask cluster and close its client in this process. Its VMs are free for other
        work.

        Raises UnknownWorkError and ClusterError as for other work.
        """
        close_client(self.cluster, self.name)
        super().stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the Dask cluster. Without its client it ends automatically, so a failure to stop it
        is ignored.
        """
        with suppress(TransientError):
            self.stop()


handle = Dask
