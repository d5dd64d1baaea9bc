"""The state that all work on a cluster has in common, whatever its kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Generic, Protocol, TypeVar

_Spec = TypeVar("_Spec", covariant=True)


class Stopping(Protocol):
    """The event by which work began to end."""

    @property
    def reason(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Work(Generic[_Spec]):
    """Work on a cluster. Times in seconds since 1970 (0: not yet)."""

    kind: ClassVar[str] = ""
    """The name of its kind in `kinds.KINDS`."""
    trains: ClassVar[bool] = False
    """Whether it needs parameter servers. Other work needs workers alone."""
    leases: ClassVar[bool] = True
    """Whether it has workers itself, not through work that it begins."""
    begins_with_fewer: ClassVar[bool] = False
    """Whether it begins with fewer workers than it was declared with where its cluster has fewer."""

    name: str
    spec: _Spec
    """Its declaration."""
    phase: str = "declared"
    """declared (it waits), running, finished, failed, stopped."""
    declared_at: float = 0.0
    stop: Stopping | None = None
    """Why it began to end."""
    stopping_at: float = 0.0
    """When it began to end."""
    ended_at: float = 0.0
    reason: str = ""
    """Why it failed, or ended before it was done, a clause."""

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.phase in ("finished", "failed", "stopped")

    @property
    def worker_count(self) -> int:
        """How many workers it asks for. Runs, which may have more or fewer, have a range of their own."""
        return 1

    @property
    def may_change_vms(self) -> bool:
        """Whether it can have other VMs in the place of its own now, as between two attempts."""
        return False

    @property
    def ends_cluster(self) -> bool:
        """Whether its cluster was made for it alone, and ends now that it is over."""
        return False
