"""Which workers a run has to have: so many of each GPU, `{"k80": 2, "p100": 1}`, and as it is written: `k80x2+p100x1`.

Which GPUs there are is the catalog's knowledge; here it is only read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

CPU = "cpu"
"""The catalog's name of the machine without a GPU, which VMs that prepare mini-batches have."""
MOST_WORKERS = 1000
_GROUP = re.compile(r"([a-z0-9]+(?:-[a-z0-9]+)*)x([1-9]\d{0,3})", re.ASCII)


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
    return machines_text(text) if text else ""


def parse_preparation(text: str) -> int:
    """How many VMs prepare mini-batches, of `cpux4`; `cpu` is one. Raises ValueError, a clause."""
    machines = parse_machines(f"{CPU}x1" if text == CPU else text)
    if [*machines] != [CPU]:
        raise ValueError(f"'{text:.40}' must be VMs without a GPU: write {CPU}x4")
    return machines[CPU]


def preparation_or_none(text: str) -> str:
    """A check of a field: these in their written form, or the empty text: none."""
    return f"{CPU}x{parse_preparation(text)}" if text else ""
