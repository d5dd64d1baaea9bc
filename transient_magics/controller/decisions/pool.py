"""The places that workers may take, each with its GPU, and what a run or job asks of them.

Most runs take any workers, so many at least and at most. A run whose machines were named
(`k80x2+p100x1`, as those of a study with `--on`) takes exactly these and no other: it waits where
there are fewer free, and nobody waits for it where the cluster has fewer altogether. Other work,
such as a job, takes as many as it was declared with, of any GPU, and a Dask cluster takes as many
as there are where there are fewer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ...journal import RunState
from ...journal.state import Claim
from ...protocol.machines import parse_machines
from ...spec.cluster import slot_of

Machines = Mapping[str, int]
NONE: Machines = {}


class Pool:
    """The places of a cluster's workers: by slot, the GPU of the worker that belongs there (`cpu`:
    none).
    """

    def __init__(self, gpus: Mapping[int, str]) -> None:
        self.gpus = gpus
        self.counts = Counter(gpus.values())

    @property
    def size(self) -> int:
        """How many there are; one that is sent for where all were sent home."""
        return max(1, len(self.gpus))

    def holds(self, machines: Machines) -> bool:
        """Whether there are so many of each GPU, free or not."""
        return all(self.counts[gpu] >= count for gpu, count in machines.items())

    def least(self, claim: Claim) -> int:
        """How many workers it has to have; 0 where it never can."""
        if not isinstance(claim, RunState):
            if claim.begins_with_fewer:
                return min(claim.worker_count, self.size)
            return claim.worker_count if claim.worker_count <= self.size else 0
        if machines := machines_of(claim):
            if self.holds(machines) or not self.gpus:
                return sum(machines.values())
            return 0
        return min(claim.spec.least_workers or self.size, self.size)

    def keeps(self, claim: Claim) -> int:
        """How many of them one that has begun keeps where the cluster has become smaller."""
        machines = machines_of(claim)
        if machines:
            return sum(self.in_reach(machines).values())
        return self.least(claim)

    def most(self, claim: Claim) -> int:
        """How many it takes where they are free."""
        if not isinstance(claim, RunState) or machines_of(claim):
            return self.keeps(claim)
        return min(claim.spec.most_workers or self.size, self.size)

    def in_reach(self, machines: Machines) -> Machines:
        """As many of these as there are."""
        return {gpu: min(count, self.counts[gpu]) for gpu, count in machines.items()}

    def has_room(
        self, beside: Iterable[Claim], workers: int, machines: Machines, had: Mapping[int, str]
    ) -> bool:
        """Whether so many workers, and of them these machines, are left when all of `beside` have
        their least.

        `had`: who has which place now. A run that takes any workers keeps the places that it has,
        and of those as many as it has to.
        """
        claims = list(beside)
        if sum(map(self.keeps, claims)) + workers > self.size:
            return False
        return all(
            sum(self._kept(claim, gpu, had) for claim in claims) + count <= self.counts[gpu]
            for gpu, count in machines.items()
        )

    def delays(self, begun: Sequence[Claim], another: Claim, head: Claim) -> bool:
        """Whether the head might have to wait for `another`, too, besides those that have begun.

        It might where some of them can be left with which the head alone would fit, and both would
        not. Among runs with named machines that is so for one GPU or another; where some take any
        workers, nobody knows which they will have kept by then, and so nobody passes the head.
        """
        named = [machines_of(each) for each in (*begun, another, head)]
        if len(self.counts) < 2 or not any(named):
            return _within(map(self.keeps, begun), self.least(another), self.least(head), self.size)
        if not all(named):
            return True
        *going, other, first = named
        return any(
            _within((each.get(gpu, 0) for each in going), other[gpu], first[gpu], self.counts[gpu])
            for gpu in set(other) & set(first)
        )

    def _kept(self, claim: Claim, gpu: str, had: Mapping[int, str]) -> int:
        """How many places with this GPU nobody else can have while it trains."""
        if machines := machines_of(claim):
            return min(machines.get(gpu, 0), self.counts[gpu])
        slots = [slot_of(place) for place, name in had.items() if name == claim.name]
        own = [self.gpus[slot] for slot in slots if slot in self.gpus]
        others = len(own) - own.count(gpu)
        return max(0, min(self.keeps(claim), len(own)) - others)


def machines_of(claim: Claim) -> Machines:
    """The machines that it takes and no others; nothing: any."""
    named = claim.spec.machines if isinstance(claim, RunState) else ""
    if named:
        return parse_machines(named)
    return NONE


def _within(begun: Iterable[int], another: int, head: int, places: int) -> bool:
    """Whether a sum of some of these leasts lies within the last `another` places that the head
    leaves.
    """
    sums = {0}
    for least in begun:
        sums |= {each + least for each in sums}
    return any(places - head - another < each <= places - head for each in sums)
