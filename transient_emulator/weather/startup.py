"""How long a VM takes from its insert to RUNNING, and on until SSH answers."""

from __future__ import annotations

from dataclasses import dataclass, field

from transient_magics import catalog
from transient_magics.catalog import published

from . import chance

_PROVISIONING_PART = 0.3


@dataclass(frozen=True)
class Startup:
    """Seconds on this machine's clock in PROVISIONING, in STAGING, and RUNNING without an answer from SSH yet."""

    provisioning: float
    staging: float
    booting: float = 0.0
    fails: bool = field(default=False, kw_only=True)
    """SSH never answers, and the start-up script tells that it failed."""
    silent: bool = field(default=False, kw_only=True)
    """SSH never answers, and nobody tells why."""

    @property
    def answers(self) -> bool:
        """Whether SSH will."""
        return not (self.fails or self.silent)


def fixed(seconds: float, rate: float, *, fails: bool = False, silent: bool = False) -> Startup:
    """RUNNING, with SSH answering, after so many seconds on the emulated clock."""
    whole = seconds / rate
    return Startup(whole * _PROVISIONING_PART, whole * (1 - _PROVISIONING_PART), fails=fails, silent=silent)


def as_published(zone: str, name: str, gpu: str, transient: bool, seed: int, rate: float) -> Startup:
    """As measured for VMs with this GPU: normally distributed, no less than half the mean."""
    *parts, deviation = published.startup(gpu, transient, catalog.region(zone))
    mean = sum(parts)
    stretch = max(chance.normal(1.0, deviation / mean, seed, "startup", zone, name), 0.5) / rate
    return Startup(*(part * stretch for part in parts))
