"""Which run makes ready on which VM, to have its worker next (pure).

A run that has begun, and waits for its workers, has a process of each made ready beside the run
that makes its last steps there: else the VM would do nothing meanwhile. That is no lease: the run
has no part of the VM or its cost, and another one may have the place all the same. Of a study's
trials, which wait for any worker, that one comes first that is ready on the VM that is free.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...journal import ClusterState, RunState
from ...journal.state import Claim

Ahead = Mapping[int, str]
"""The runs that make ready, by the slots in which they do."""


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
