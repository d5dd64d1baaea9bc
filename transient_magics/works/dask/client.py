"""The client of a Dask cluster on VMs, which reaches the scheduler through an SSH forward.

It imports Dask, so it is imported when a client is needed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from distributed import Client

from ... import errors
from ...client import commands
from ...errors import ClusterError, RemoteError, TransientError
from ...kinds import load
from ...protocol import layout
from ...protocol.cluster_commands import Stop
from .state import DaskState

if TYPE_CHECKING:
    from ...client.following.cluster import BaseCluster

_CONNECT_SECONDS = 30.0
_END_SECONDS = 10.0


class VmClient(Client):
    """dask.distributed's client. Closing it stops its Dask cluster, so that the VMs are free."""

    def __init__(self, forwards: Forwards, *arguments: Any, **options: Any) -> None:
        self._forwards = forwards
        self.dask = forwards.dask.name
        self.spec = forwards.dask.spec
        super().__init__(*arguments, **options)

    async def _close(self, fast: bool = False) -> None:
        try:
            await super()._close(fast=fast)
        finally:
            self.give_back()

    def give_back(self) -> None:
        """Stop its Dask cluster, as closing does."""
        self._forwards.end()

    @property
    def dashboard_link(self) -> str:
        """The URL of the scheduler's dashboard, through a forward; empty if the VMs have none."""
        port = self._forwards.ports["dashboard"]
        if not port:
            return ""
        prefix = os.environ.get("JUPYTERHUB_SERVICE_PREFIX")
        if prefix and find_spec("jupyter_server_proxy"):
            return f"{prefix.rstrip('/')}/proxy/{port}/status"
        return f"http://127.0.0.1:{port}/status"


class Forwards:
    """The SSH forwards to one scheduler. They end with this process, however that ends."""

    def __init__(self, cluster: BaseCluster, dask: DaskState) -> None:
        self.dask = dask
        self._cluster = cluster
        command = [
            sys.executable,
            "-m",
            "transient_magics.works.dask.forward",
            cluster.name,
            dask.name,
        ]
        with (cluster.directory / layout.CONTROLLER_LOG).open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd="/",
                start_new_session=True,
            )
        assert self._process.stdout
        line = self._process.stdout.readline()
        try:
            answer: dict[str, Any] = json.loads(line)
        except ValueError:
            answer = {"error": f"The forward to the scheduler of {dask.name} could not be opened"}
        if "error" in answer:
            self._close()
            raise errors.from_message(answer, RemoteError)
        self.ports: dict[str, int] = answer

    def end(self) -> None:
        """Close the forwards and stop the Dask cluster, which would end later without a client."""
        if self._process.stdin is None or self._process.stdin.closed:
            return
        self._close()
        with suppress(TransientError):
            stop = Stop(kind="dask", name=self.dask.name, reason="its client was closed")
            commands.send(self._cluster.directory, stop)

    def _close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                pipe.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def connected(cluster: BaseCluster, dask: DaskState) -> VmClient:
    """Return a new client of a Dask cluster. Raises RemoteError or ClusterError."""
    folder = cluster.directory / layout.DASKS / dask.name
    forwards = Forwards(cluster, dask)
    security = load("dask", "on_vm.task").security(folder)
    try:
        return VmClient(
            forwards,
            f"tls://127.0.0.1:{forwards.ports['scheduler']}",
            security=security,
            direct_to_workers=False,
            timeout=_CONNECT_SECONDS,
        )
    except (OSError, TimeoutError) as error:
        forwards.end()
        raise ClusterError(
            f"The scheduler of {dask.name} does not answer: {error}", where=cluster.name
        ) from error
