"""What one VM does in a Dask cluster."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Literal

from ....protocol import checks
from ....protocol.agent_commands import Place
from ....protocol.checks import Amount, Name


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
