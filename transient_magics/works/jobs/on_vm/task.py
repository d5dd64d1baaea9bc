"""The task of one VM in an attempt of a job."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from ....protocol import checks
from ....protocol.checks import Amount, Count


@dataclass(frozen=True)
class JobTask:
    """One rank of an attempt."""

    rank: Count
    addresses: tuple[str, ...]
    """The addresses of its VMs, rank 0 first."""
    kept: Count = 0
    """Number of the archive that the folder is restored from (0: none)."""
    packed: Count = 0
    """Number of the last reported archive; those of this attempt follow it.

    It differs from `kept` if that archive was lost with the machine that had it.
    """
    at: Amount = 0.0
    """The controller's clock, in seconds since 1970 (0: unknown).

    It determines which rank saved last.
    """

    @classmethod
    def from_dict(cls, values: object) -> JobTask:
        """Create a task from the values of `to_dict`. Raises ValueError."""
        return checks.built(cls, values)

    def to_dict(self) -> dict[str, object]:
        """Return the task as it is sent."""
        return {**asdict(self), "addresses": [*self.addresses]}
