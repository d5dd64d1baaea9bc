"""Workers that a run requires, by GPU: `{"k80": 2, "p100": 1}`, written as `k80x2+p100x1`.

The catalog knows the available GPUs; this module only reads their names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

CPU = "cpu"
"""The catalog's name of the machine without a GPU, for VMs that prepare mini-batches."""
MOST_WORKERS = 1000
MOST_LEASED = 100
"""Maximum number of workers of one job, bag or Dask cluster."""
MOST_PER_VM = 16
"""Maximum number of trials that train on one VM simultaneously."""
NOTICE_SECONDS = 30.0
"""Time between a preemption notice and the end of the VM on Compute Engine."""
_GROUP = re.compile(r"([a-z0-9]+(?:-[a-z0-9]+)*)x([1-9]\d{0,3})", re.ASCII)

KEY = "emulator-share"
"""The key in the VM's metadata for its shares of CPU and network, such as `0.5 1`."""
LEAST = 0.05
"""The minimum share of a VM: with less, it could not respond."""


@lru_cache
def parse_machines(text: str) -> Mapping[str, int]:
    """Return the number of workers by GPU. Raises ValueError, a clause that says what to write."""
    found: dict[str, int] = {}
    for part in text.split("+"):
        group = _GROUP.fullmatch(part)
        if not group:
            raise ValueError(
                f"'{part:.40}' is not a GPU with a count: write GPUxCOUNT, such as k80x4"
            )
        found[group[1]] = found.get(group[1], 0) + int(group[2])
    if (total := sum(found.values())) > MOST_WORKERS:
        raise ValueError(f"{total} workers exceed the limit of {MOST_WORKERS}")
    return MappingProxyType(found)


def render_machines(machines: Mapping[str, int]) -> str:
    """Return the text that `parse_machines` reads as these machines."""
    return "+".join(f"{gpu}x{count}" for gpu, count in machines.items())


def machines_text(text: str) -> str:
    """Check a field: return machines in their written form."""
    return render_machines(parse_machines(text))


def machines_or_none(text: str) -> str:
    """Check a field: return machines in their written form, or the empty text: any machines."""
    if text:
        return machines_text(text)
    return ""


def parse_preparation(text: str) -> int:
    """Return the number of VMs that prepare mini-batches, from `cpux4`; `cpu` is one.

    Raises ValueError, a clause.
    """
    machines = parse_machines(f"{CPU}x1" if text == CPU else text)
    if [*machines] != [CPU]:
        raise ValueError(f"'{text:.40}' must be VMs without a GPU: write {CPU}x4")
    return machines[CPU]


def preparation_or_none(text: str) -> str:
    """Check a field: return preparation VMs in their written form, or the empty text: none."""
    if text:
        return f"{CPU}x{parse_preparation(text)}"
    return ""


# The shares of its processors and network that a VM has: all of both, unless it was deflated.
#
# The emulated Compute Engine writes these shares into the VM's metadata, where the controller reads
# them. Google's Compute Engine does not shrink running VMs.


@dataclass(frozen=True, slots=True)
class Share:
    """Shares of CPU and network, from `LEAST` to 1."""

    cpu: float = 1.0
    network: float = 1.0

    def __str__(self) -> str:
        return f"{self.cpu:.4g} {self.network:.4g}"

    @property
    def whole(self) -> bool:
        """Whether the VM has everything that it was rented with."""
        return self.cpu >= 1.0 and self.network >= 1.0

    def least_of(self, other: Share) -> Share:
        """Return the smaller one of each share."""
        return Share(min(self.cpu, other.cpu), min(self.network, other.network))


WHOLE = Share()


def share_of(text: str) -> Share:
    """Read the shares from the metadata; invalid text means full shares."""
    try:
        cpu, network = map(float, text.split())
    except ValueError:
        return WHOLE
    if LEAST <= cpu <= 1.0 and LEAST <= network <= 1.0:
        return Share(cpu, network)
    return WHOLE
