"""Requested machine changes of a VM, and its past machine types and prices."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MachineChange:
    """The requested machine of a stopped VM. Prices in US dollars per hour."""

    machine_type: str
    hourly: float
    on_demand_hourly: float
    disk_hourly: float
    """The price while it is stopped."""
    part: float
    """The future share of the vCPUs with which it was rented."""
    reason: str = ""
    refused: int = 0
    """Number of refused starts, and the time of the last one, in seconds since 1970."""
    refused_at: float = 0.0
    tries: int = 0
    """Number of attempts after which the VM was still not as requested."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A period from `since` (seconds since 1970) in which a VM had one type and one state."""

    since: float
    machine_type: str
    hourly: float
    on_demand_hourly: float
    part: float = 1.0
    runs: bool = True
    ready_at: float = 0.0
    """The time of its first response."""
