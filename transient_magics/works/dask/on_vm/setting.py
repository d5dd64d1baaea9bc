"""What holds for every part: TLS and nothing else, and how soon a dead peer is noticed."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

from ....protocol import layout

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
