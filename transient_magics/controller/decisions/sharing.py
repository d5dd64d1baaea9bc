"""Which trials of a study share a VM (`--per-vm`): a pure function of who has begun, and of the
places that they have.

For all others those on one VM are one claim, that of the first of them, their host; the others are
its guests, and take no worker. A trial is the guest of the first host of its study that has fewer
than so many trials there; where all have as many, it is a host and takes a worker of its own. When
a host ends, the next trial on its VM is one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import count

from ...journal import ClusterState, RunState, StudyState
from ...journal.state import Claim
from ...spec.cluster import place, slot_of


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


def has_seat(study: StudyState, state: ClusterState, lasting: Sequence[Claim]) -> bool:
    """Whether a further trial of the study would be a guest beside the claims that are `lasting`.

    It is none while somebody waits for a worker, or another study that asks for trials has no VM,
    or two fewer than this one: the study's VMs would never come free.
    """
    seats = guests(lasting, state)
    if any(not state.has_begun(each) and each.name not in seats for each in lasting):
        return False
    mine = _vms(study, state)
    if any(
        _asks(each) and _vms(each, state) < max(mine - 1, 1)
        for each in state.of(StudyState).values()
        if each is not study
    ):
        return False
    own = Counter(
        seats.get(run.name, run.name)
        for run in lasting
        if isinstance(run, RunState) and run.spec.study == study.name
    )
    return any(many < study.spec.per_vm for many in own.values())


def _joins(run: RunState, group: Sequence[RunState], slots: Mapping[str, int]) -> bool:
    first = group[0]
    if first.spec.study != run.spec.study:
        return False
    if run.name in slots:
        return slots.get(first.name) == slots[run.name]
    return len(group) < run.spec.per_vm


def _asks(study: StudyState) -> bool:
    return not study.stopping and len(study.trials) < study.wanted


def _vms(study: StudyState, state: ClusterState) -> int:
    return len(
        {
            slot
            for trial in study.trials.values()
            for run in trial.runs
            for slot in state.slots_of(run)
        }
    )
