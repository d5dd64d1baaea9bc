"""What preparing mini-batches takes, as far as steps were seen to wait for it, and what another machine would change.

Mini-batches are prepared beside the step, in as many calls at once as the VM has vCPUs, so that a step takes the longer
of the two. Where it waits for its mini-batch it takes as long as the preparation, whose vCPU-seconds are then known:
with n times the vCPUs it takes an n-th, until the rest of the step is longer (DS-Analyzer: Mohan et al., VLDB 2021,
section 3.3; what is fetched, and does not need vCPUs, is taken for preparation here).

A kind of worker is a GPU, and its machine where that is not the catalog's: `t4`, `t4/n1-standard-16`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import NamedTuple

from ...catalog import accelerator, worker_entry
from ...errors import DeclarationError

LEAST_SHARE = 0.05
"""Of a step: who waits less for mini-batches does not wait for preparation, as far as a split tells."""
PREPARATION_ERROR = 0.2
"""How far off, relatively, a step may be that preparation bounds on other vCPUs: not all of it is spread over them."""
SMALLER_ERROR = 0.3
"""The same of a step with fewer vCPUs than it was measured with, where it waited for none."""


class Waits(NamedTuple):
    """Of one kind of worker: seconds for which steps waited for their mini-batch, seconds of these steps, how many."""

    waited: float
    seconds: float
    steps: int

    @property
    def share(self) -> float:
        """What of a step is waiting."""
        return self.waited / self.seconds if self.seconds > 0 else 0.0


@cache
def kind_of(gpu: str, machine: str = "") -> str:
    """The kind of a worker with this GPU in this machine (empty, or one that it cannot have: in the catalog's)."""
    try:
        entry = worker_entry(gpu, machine)
    except DeclarationError:  # a journal may be of a version that knew of more machines
        return gpu
    return gpu if entry.machine_type == accelerator(gpu).machine_type else f"{gpu}/{entry.machine_type}"


def gpu_of(kind: str) -> str:
    """The GPU of a kind of worker."""
    return kind.partition("/")[0]


def vcpus_of(kind: str) -> int:
    """The vCPUs of a kind of worker. Raises DeclarationError for a machine that its GPU does not have."""
    gpu, _, machine = kind.partition("/")
    return worker_entry(gpu, machine).vcpus


def waiting(told: Iterable[Mapping[str, Waits]]) -> tuple[dict[str, float], float]:
    """From what several runs tell: seconds of a step for which each kind that waits does, and the vCPU-seconds that the
    preparation of a mini-batch takes (0 where nobody waits)."""
    sums: dict[str, Waits] = {}
    for each in told:
        for kind, more in each.items():
            known = sums.get(kind, Waits(0.0, 0.0, 0))
            sums[kind] = Waits(known.waited + more.waited, known.seconds + more.seconds, known.steps + more.steps)
    found = {kind: each for kind, each in sums.items() if each.steps and each.share >= LEAST_SHARE}
    steps = sum(each.steps for each in found.values())
    taken = sum(each.seconds * vcpus_of(kind) for kind, each in found.items())
    return {kind: each.waited / each.steps for kind, each in found.items()}, taken / steps if steps else 0.0
