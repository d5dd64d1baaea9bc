"""The task of one VM in a Dask cluster, and settings that all parts share."""

from __future__ import annotations

import ssl
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from ....protocol import checks, layout
from ....protocol.agent_commands import Place
from ....protocol.checks import Amount, Name

SETTINGS: dict[str, Any] = {
    "distributed.comm.require-encryption": True,
    "distributed.comm.timeouts.tcp": "15s",
    "distributed.comm.timeouts.connect": "20s",
    # A worker is silent while a task holds the interpreter. Its agent knows whether it lives.
    "distributed.scheduler.worker-ttl": None,
    "distributed.scheduler.active-memory-manager.start": True,
    # Results have to be moved within 20 s after a notice.
    "distributed.scheduler.active-memory-manager.interval": "200ms",
    # The agent does this, also while a task holds the interpreter.
    "distributed.worker.memory.terminate": False,
    "distributed.admin.system-monitor.gil.enabled": False,
}
"""Dask's configuration: TLS only, and short timeouts."""


@dataclass(frozen=True)
class DaskTask:
    """The scheduler of a Dask cluster, or a worker of the one at `scheduler`."""

    part: Literal["scheduler", "worker"]
    vm: Name
    address: Place
    """The VM's own address."""
    scheduler: str = ""
    born: Amount = 0.0
    """Start time of the VM, in seconds since 1970 (0: unknown)."""
    code: str = ""
    """The name of the whole package's code, for a bag: its driver and its jobs need it."""

    @classmethod
    def from_dict(cls, values: object) -> DaskTask:
        """Create a task from the values of `to_dict`. Raises ValueError."""
        return checks.built(cls, values)

    def to_dict(self) -> dict[str, object]:
        """Return the task as it is sent."""
        return asdict(self)


def security(folder: Path) -> Any:
    """Return the certificates in the folder as Dask's `Security`."""
    from distributed.security import Security

    ca, certificate, key = (
        str(folder / name) for name in (layout.TLS_CA, layout.TLS_CERTIFICATE, layout.TLS_KEY)
    )
    own = {
        f"tls_{role}_{what}": path
        for role in ("client", "scheduler", "worker")
        for what, path in (("cert", certificate), ("key", key))
    }
    return Security(
        tls_ca_file=ca, require_encryption=True, tls_min_version=ssl.TLSVersion.TLSv1_3, **own
    )
