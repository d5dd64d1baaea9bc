"""Where a VM of the tests is, and how it is entered."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from transient_magics.remote import Connection, Direct, connect


@dataclass
class Vm:
    """Where a server is, and how to enter it."""

    home: Path
    key: Path
    port: int
    host_key: str
    pid: int = 0

    async def connect(self, *, timeout: float = 60.0) -> Connection:
        return await connect(
            Direct(),
            "127.0.0.1",
            port=self.port,
            user="transient",
            key=self.key,
            host_keys=[self.host_key],
            name="worker-1",
            timeout=timeout,
        )
