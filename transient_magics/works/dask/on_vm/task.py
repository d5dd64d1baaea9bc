"""What one VM does in a Dask cluster."""

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
    "distributed.scheduler.worker-ttl": None,  # silent is one whose task holds the interpreter: its agent knows better
    "distributed.scheduler.active-memory-manager.start": True,
    "distributed.scheduler.active-memory-manager.interval": "200ms",  # of 20 s that there are to move results
    "distributed.worker.memory.terminate": False,  # the agent does, which sees also what holds the interpreter
    "distributed.admin.system-monitor.gil.enabled": False,
}
"""Of Dask's configuration."""


@dataclass(frozen=True)
class DaskTask:
    """The scheduler of a Dask cluster, or a worker of the one at `scheduler`."""

    part: Literal["scheduler", "worker"]
    vm: Name
    address: Place
    """The VM's own address."""
    scheduler: str = ""
    born: Amount = 0.0
    """Since when the VM runs, in seconds since 1970 (0: unknown)."""
    code: str = ""
    """Of a bag, the name of the whole package's code: its driver is in that, and its jobs may
    import it.
    """

    @classmethod
    def from_dict(cls, values: object) -> DaskTask:
        """Read what `to_dict` wrote. Raises ValueError."""
        return checks.built(cls, values)

    def to_dict(self) -> dict[str, object]:
        """Return the task as it is sent."""
        return asdict(self)


# What holds for every part: TLS and nothing else, and how soon a dead peer is noticed.


def security(folder: Path) -> Any:
    """The certificates in the folder, as Dask takes them. Host names are not in them: addresses of
    VMs change.
    """
    from distributed.security import Security

    ca, certificate, key = (
        str(folder / each) for each in (layout.TLS_CA, layout.TLS_CERTIFICATE, layout.TLS_KEY)
    )
    own = {
        f"tls_{role}_{what}": path
        for role in ("client", "scheduler", "worker")
        for what, path in (("cert", certificate), ("key", key))
    }
    return Security(
        tls_ca_file=ca, require_encryption=True, tls_min_version=ssl.TLSVersion.TLSv1_3, **own
    )
