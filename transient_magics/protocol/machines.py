"""Which workers a run has to have: so many of each GPU, `{"k80": 2, "p100": 1}`, and as it is
written: `k80x2+p100x1`.

Which GPUs there are is the catalog's knowledge; here it is only read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

CPU = "cpu"
"""The catalog's name of the machine without a GPU, which VMs that prepare mini-batches have."""
MOST_WORKERS = 1000
MOST_LEASED = 100
"""The most workers of one job, bag or Dask cluster."""
MOST_PER_VM = 16
"""The most trials that train on one VM at a time."""
NOTICE_SECONDS = 30.0
"""Time from a preemption notice to the end of the VM that Compute Engine grants."""
_GROUP = re.compile(r"([a-z0-9]+(?:-[a-z0-9]+)*)x([1-9]\d{0,3})", re.ASCII)

KEY = "emulator-share"
"""The item of the VM's metadata: `0.5 1`, its part of CPU and network."""
LEAST = 0.05
"""No VM is left with less: it could not even answer."""


@lru_cache
def parse_machines(text: str) -> Mapping[str, int]:
    """How many workers of each GPU. Raises ValueError, a clause that says what to write."""
    found: dict[str, int] = {}
    for part in text.split("+"):
        group = _GROUP.fullmatch(part)
        if not group:
            raise ValueError(f"'{part:.40}' is no GPU with a count: write GPUxCOUNT, as k80x4")
        found[group[1]] = found.get(group[1], 0) + int(group[2])
    if (total := sum(found.values())) > MOST_WORKERS:
        raise ValueError(f"{total} workers are more than {MOST_WORKERS}")
    return MappingProxyType(found)


def render_machines(machines: Mapping[str, int]) -> str:
    """The text that is read back as these."""
    return "+".join(f"{gpu}x{count}" for gpu, count in machines.items())


def machines_text(text: str) -> str:
    """A check of a field: machines in their written form."""
    return render_machines(parse_machines(text))


def machines_or_none(text: str) -> str:
    """The same, or the empty text: any."""
    if text:
        return machines_text(text)
    return ""


def parse_preparation(text: str) -> int:
    """How many VMs prepare mini-batches, of `cpux4`; `cpu` is one. Raises ValueError, a clause."""
    machines = parse_machines(f"{CPU}x1" if text == CPU else text)
    if [*machines] != [CPU]:
        raise ValueError(f"'{text:.40}' must be VMs without a GPU: write {CPU}x4")
    return machines[CPU]


def preparation_or_none(text: str) -> str:
    """A check of a field: these in their written form, or the empty text: none."""
    if text:
        return f"{CPU}x{parse_preparation(text)}"
    return ""


# Which part of its processors and of its network a VM has: all of both, unless it was deflated.
#
# What an emulated Compute Engine leaves to a VM stands in the VM's metadata, where its controller
# reads it; Google's own shrinks no VM that runs.


@dataclass(frozen=True, slots=True)
class Share:
    """Parts from `LEAST` to 1."""

    cpu: float = 1.0
    network: float = 1.0

    def __str__(self) -> str:
        return f"{self.cpu:.4g} {self.network:.4g}"

    @property
    def whole(self) -> bool:
        """Whether the VM has all that it was rented with."""
        return self.cpu >= 1.0 and self.network >= 1.0

    def least_of(self, other: Share) -> Share:
        """What is left where both hold."""
        return Share(min(self.cpu, other.cpu), min(self.network, other.network))


WHOLE = Share()


def share_of(text: str) -> Share:
    """What the item says; all of it, where that is no share."""
    try:
        cpu, network = map(float, text.split())
    except ValueError:
        return WHOLE
    if LEAST <= cpu <= 1.0 and LEAST <= network <= 1.0:
        return Share(cpu, network)
    return WHOLE
