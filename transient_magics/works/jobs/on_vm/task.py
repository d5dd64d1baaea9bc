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
    """The number of the archive with which the folder begins (0: there is none)."""
    packed: Count = 0
    """The number of the last archive that was reported, after which those of this attempt are
    numbered.

    It is not `kept` where that archive was lost with its machine.
    """
    at: Amount = 0.0
    """The controller's clock, in seconds since 1970 (0: unknown). Ranks are compared by it: which
    one saved last.
    """

    @classmethod
    def from_dict(cls, values: object) -> JobTask:
        """Read what `to_dict` wrote. Raises ValueError."""
        return checks.built(cls, values)

    def to_dict(self) -> dict[str, object]:
        """Return the task as it is sent."""
        return {**asdict(self), "addresses": [*self.addresses]}
