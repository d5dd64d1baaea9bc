"""Worker slots: what work asks of them, which trials share one, and which runs prepare in one. Pure.

Most runs take any workers between a least and a most number. A run with named machines
(`k80x2+p100x1`, or a study with `--on`) takes exactly these. It waits while fewer are free, and does
not block others if the cluster has fewer in total. Other work, such as a job, takes the declared
number of workers with any GPU. A Dask cluster takes what there is if there are fewer.
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
"""The runs that make ready, by the slots in which they do."""


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


# ---------------------------------------------------------------- shared VMs
#
# With `--per-vm`, the trials of a study on one VM are one claim: that of the first of them, the host.
# The others are its guests and take no worker. A trial becomes the guest of the first host of its
# study with room for another trial. If all are full, it is a host and takes a worker of its own. When
# a host ends, the next trial on its VM becomes the host.


def guests(claims: Sequence[Claim], state: ClusterState) -> Mapping[str, str]:
    """The guests among these claims, which are in their order, each with its host. Those that have
    places stay.
    """
    sharing = [claim for claim in claims if isinstance(claim, RunState) and claim.spec.per_vm > 1]
    if not sharing:
        return {}
    slots = {name: slot_of(taken) for taken, name in state.leases.items()}
    groups: list[list[RunState]] = []
    for run in sorted(sharing, key=lambda run: run.name not in slots):
        group = next((each for each in groups if _joins(run, each, slots)), None)
        if group:
            group.append(run)
        else:
            groups.append([run])
    return {guest.name: host.name for host, *others in groups for guest in others}


def hosts(claims: Sequence[Claim], state: ClusterState) -> list[Claim]:
    """Those of these claims that take workers: all but guests."""
    found = guests(claims, state)
    return [claim for claim in claims if claim.name not in found]


def seated(
    workers: Mapping[int, str], guests_of: Mapping[str, str], state: ClusterState
) -> dict[int, str]:
    """The places of all, where hosts and others have the workers in these slots: nobody changes
    seats on a VM.
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
# A run that has begun and waits for workers prepares its processes on VMs where another run makes its
# last steps. Otherwise these VMs would be idle between the runs. This is not a lease: the run pays no
# part of the VM, and another one may get the slot. Of the trials of a study, which wait for any
# worker, the one that is prepared on the free VM comes first.


def ready(
    state: ClusterState,
    known: Ahead,
    workers: Mapping[int, str],
    waiting: Mapping[str, int],
    coming: Sequence[int],
) -> Ahead:
    """Who makes ready where, of those that want so many workers (`waiting`, in their order).

    `known` are those that do already, and go on as long as the worker there is whose it was
    (`workers` from now on); `coming` are the slots of which some will be theirs, the soonest first.
    """
    found = {
        slot: name
        for slot, name in known.items()
        if name in waiting and workers.get(slot) == state.leases.get(slot)
    }
    for name, wanted in waiting.items():
        missing = wanted - sum(each == name for each in found.values())
        free = [slot for slot in coming if slot not in found]
        found |= dict.fromkeys(free[: max(missing, 0)], name)
    return dict(sorted(found.items()))


def ready_first(going: Sequence[Claim], state: ClusterState, known: Ahead) -> list[Claim]:
    """The same claims; of the trials of a study those that wait, and are ready nowhere that is
    free, come last.
    """
    names = {each.name for each in going}
    taken = {slot for slot, name in state.leases.items() if name in names}
    first = {name for slot, name in known.items() if slot not in taken} | {*state.leases.values()}
    order = list(going)
    for study in {
        each.spec.study for each in order if isinstance(each, RunState) and each.spec.study
    }:
        places = [
            at
            for at, each in enumerate(order)
            if isinstance(each, RunState) and each.spec.study == study
        ]
        trials = sorted((order[at] for at in places), key=lambda trial: trial.name not in first)
        for at, trial in zip(places, trials, strict=True):
            order[at] = trial
    return order


def by_readiness(slots: Sequence[int], name: str, known: Ahead) -> list[int]:
    """Slots whose VMs are there, in the order in which a run takes them: those where it is ready
    first, and those where another one is last.
    """
    return sorted(slots, key=lambda slot: (known.get(slot) != name, slot in known))
