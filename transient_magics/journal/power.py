"""What a VM is to become that is stopped and started again, and what it has been: prices and
machine types by time.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MachineChange:
    """What a VM is to be when it has been stopped and started again. Prices in US dollars per hour."""

    machine_type: str
    hourly: float
    on_demand_hourly: float
    disk_hourly: float
    """What it costs while it is stopped."""
    part: float
    """What it will have of the vCPUs that it was rented with."""
    reason: str = ""
    refused: int = 0
    """How often its start was refused, and when the last time, in seconds since 1970."""
    refused_at: float = 0.0
    tries: int = 0
    """How often its end was set again, and it ran without being what it should be."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """From `since` on (seconds since 1970) a VM was a machine of this type, and ran or was stopped."""

    since: float
    machine_type: str
    hourly: float
    on_demand_hourly: float
    part: float = 1.0
    runs: bool = True
    ready_at: float = 0.0
    """When it answered."""
