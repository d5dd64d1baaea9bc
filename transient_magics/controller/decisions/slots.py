"""Worker slots: their use by work, by trials that share one, and by runs that prepare. Pure.

Most runs take any workers between a least and a most number. A run with named machines
(`k80x2+p100x1`, or a study with `--on`) takes exactly these. It waits while fewer are free, and
does not block others if the cluster has fewer in total. Other work, such as a job, takes the
declared number of workers with any GPU. A Dask cluster takes what there is if there are fewer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import count

from ...journal import ClusterState, RunState
from ...journal.state import Claim
from ...protocol.machines import parse_machines
from ...spec.cluster import place, slot_of

Machines = Mapping[str, int]
NONE: Machines = {}

Ahead = Mapping[int, str]
"""Runs that prepare for their next workers, by slot."""


class Pool:
    """Places of a cluster's workers: by slot, the GPU of its worker (`cpu` for none)."""

    def __init__(self, gpus: Mapping[int, str]) -> None:
        self.gpus = gpus
        self.counts = Counter(gpus.values())

    @property
    def size(self) -> int:
        """Number of slots, at least one: a worker is requested if all were sent home."""
        return max(1, len(self.gpus))

    def holds(self, machines: Machines) -> bool:
        """Return whether the cluster has these machines, free or not."""
        return all(self.counts[gpu] >= count for gpu, count in machines.items())

    def least(self, claim: Claim) -> int:
        """Return the least number of workers that the claim needs; 0 if it can never have them."""
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
        """Return how many of them a begun claim keeps if the cluster became smaller."""
        machines = machines_of(claim)
        if machines:
            return sum(self.in_reach(machines).values())
        return self.least(claim)

    def most(self, claim: Claim) -> int:
        """Return how many workers the claim takes if they are free."""
        if not isinstance(claim, RunState) or machines_of(claim):
            return self.keeps(claim)
        return min(claim.spec.most_workers or self.size, self.size)

    def in_reach(self, machines: Machines) -> Machines:
        """Return these machines, at most as many as there are."""
        return {gpu: min(count, self.counts[gpu]) for gpu, count in machines.items()}

    def has_room(
        self, beside: Iterable[Claim], workers: int, machines: Machines, had: Mapping[int, str]
    ) -> bool:
        """Return whether these workers and machines are left when all of `beside` have their least.

        `had` maps the places to their present claims. A run that takes any workers keeps places
        that it has, as many as its least.
        """
        claims = list(beside)
        if sum(map(self.keeps, claims)) + workers > self.size:
            return False
        return all(
            sum(self._kept(claim, gpu, had) for claim in claims) + count <= self.counts[gpu]
            for gpu, count in machines.items()
        )

    def delays(self, begun: Sequence[Claim], another: Claim, head: Claim) -> bool:
        """Return whether the head might have to wait for `another`, besides the begun claims.

        It might if some of the begun claims could be left with which the head alone would fit, but
        not both. Among claims with named machines, this is checked for each GPU. If some claims
        take any workers, it is unknown which ones they will have kept by then, so no run passes the
        head.
        """
        named = [machines_of(claim) for claim in (*begun, another, head)]
        if len(self.counts) < 2 or not any(named):
            return _within(map(self.keeps, begun), self.least(another), self.least(head), self.size)
        if not all(named):
            return True
        *going, other, first = named
        return any(
            _within(
                (machines.get(gpu, 0) for machines in going),
                other[gpu],
                first[gpu],
                self.counts[gpu],
            )
            for gpu in set(other) & set(first)
        )

    def _kept(self, claim: Claim, gpu: str, had: Mapping[int, str]) -> int:
        """Return how many slots with this GPU are unavailable to others while the claim trains."""
        if machines := machines_of(claim):
            return min(machines.get(gpu, 0), self.counts[gpu])
        slots = [slot_of(place) for place, name in had.items() if name == claim.name]
        own = [self.gpus[slot] for slot in slots if slot in self.gpus]
        others = len(own) - own.count(gpu)
        return max(0, min(self.keeps(claim), len(own)) - others)


def machines_of(claim: Claim) -> Machines:
    """Return the only machines that the claim takes; empty if it takes any."""
    named = claim.spec.machines if isinstance(claim, RunState) else ""
    if named:
        return parse_machines(named)
    return NONE


def _within(begun: Iterable[int], another: int, head: int, places: int) -> bool:
    """Return whether a sum of leasts leaves room for the head, but not for `another` beside it."""
    sums = {0}
    for least in begun:
        sums |= {total + least for total in sums}
    return any(places - head - another < total <= places - head for total in sums)


# ---------------------------------------------------------------- shared VMs
#
# With `--per-vm`, the trials of a study on one VM are one claim: that of the first of them, the
# host. The others are its guests and take no worker. A trial becomes the guest of the first host of
# its study with room for another trial. If all are full, it is a host and takes a worker of its
# own. When a host ends, the next trial on its VM becomes the host.


def guests(claims: Sequence[Claim], state: ClusterState) -> Mapping[str, str]:
    """Return the guests among these claims, which are in order, each with its host.

    Trials that have places keep them.
    """
    sharing = [claim for claim in claims if isinstance(claim, RunState) and claim.spec.per_vm > 1]
    if not sharing:
        return {}
    slots = {name: slot_of(place) for place, name in state.leases.items()}
    groups: list[list[RunState]] = []
    for run in sorted(sharing, key=lambda run: run.name not in slots):
        group = next((candidate for candidate in groups if _joins(run, candidate, slots)), None)
        if group:
            group.append(run)
        else:
            groups.append([run])
    return {guest.name: host.name for host, *others in groups for guest in others}


def hosts(claims: Sequence[Claim], state: ClusterState) -> list[Claim]:
    """Return the claims that take workers: all but guests."""
    found = guests(claims, state)
    return [claim for claim in claims if claim.name not in found]


def seated(
    workers: Mapping[int, str], guests_of: Mapping[str, str], state: ClusterState
) -> dict[int, str]:
    """Return the places of all claims when the workers are in these slots.

    Trials keep their places on a VM.
    """
    slots = {host: slot for slot, host in workers.items()}
    together: dict[int, list[str]] = {slot: [name] for slot, name in workers.items()}
    for guest, host in guests_of.items():
        if host in slots:
            together[slots[host]].append(guest)
    found: dict[int, str] = {}
    for slot, names in together.items():
        had = {
            seat: name
            for seat, name in state.leases.items()
            if slot_of(seat) == slot and name in names
        }
        free = (seat for number in count() if (seat := place(slot, number)) not in had)
        found |= {
            **had,
            **dict(zip(free, [name for name in names if name not in had.values()], strict=False)),
        }
    return dict(sorted(found.items()))


def _joins(run: RunState, group: Sequence[RunState], slots: Mapping[str, int]) -> bool:
    first = group[0]
    if first.spec.study != run.spec.study:
        return False
    if run.name in slots:
        return slots.get(first.name) == slots[run.name]
    return len(group) < run.spec.per_vm


# ---------------------------------------------------------------- prewarming
#
# A run that has begun and waits for workers prepares its processes on VMs where another run makes
# its last steps. Otherwise these VMs would be idle between the runs. This is not a lease: the run
# pays no part of the VM, and another one may get the slot. Of the trials of a study, which wait for
# any worker, the one that is prepared on the free VM comes first.


def ready(
    state: ClusterState,
    ahead: Ahead,
    workers: Mapping[int, str],
    waiting: Mapping[str, int],
    coming: Sequence[int],
) -> Ahead:
    """Return which runs prepare in which slots.

    `waiting` has the runs that wait, in order, each with the workers that it needs. `ahead` are the
    runs that prepare already: they continue while the worker in their slot stays with the same run
    (`workers` from now on). `coming` are the slots that may become theirs, the soonest first.
    """
    found = {
        slot: name
        for slot, name in ahead.items()
        if name in waiting and workers.get(slot) == state.leases.get(slot)
    }
    for name, needed in waiting.items():
        missing = needed - sum(run_name == name for run_name in found.values())
        free = [slot for slot in coming if slot not in found]
        found |= dict.fromkeys(free[: max(missing, 0)], name)
    return dict(sorted(found.items()))


def ready_first(going: Sequence[Claim], state: ClusterState, ahead: Ahead) -> list[Claim]:
    """Return the claims with the waiting, unprepared trials of each study last.

    A trial counts as prepared if it is ready in a free slot.
    """
    names = {claim.name for claim in going}
    occupied = {slot for slot, name in state.leases.items() if name in names}
    first = {name for slot, name in ahead.items() if slot not in occupied} | {
        *state.leases.values()
    }
    order = list(going)
    for study in {
        claim.spec.study for claim in order if isinstance(claim, RunState) and claim.spec.study
    }:
        places = [
            at
            for at, claim in enumerate(order)
            if isinstance(claim, RunState) and claim.spec.study == study
        ]
        trials = sorted((order[at] for at in places), key=lambda trial: trial.name not in first)
        for at, trial in zip(places, trials, strict=True):
            order[at] = trial
    return order


def by_readiness(slots: Sequence[int], name: str, ahead: Ahead) -> list[int]:
    """Return slots with VMs in the order in which a run takes them.

    Slots where the run is prepared come first, and slots where another one is come last.
    """
    return sorted(slots, key=lambda slot: (ahead.get(slot) != name, slot in ahead))
