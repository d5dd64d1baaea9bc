"""Whether a further trial of a study would have a place on a VM that its trials share. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ...controller.decisions.ledger import lasting
from ...controller.decisions.slots import guests
from ...journal import ClusterState, RunState
from ...journal.state import Claim
from .state import StudyState


def has_place(study: StudyState, state: ClusterState, now: float) -> bool:
    """Whether a further trial of the study would have a place on a VM that its trials share."""
    return _has_seat(study, state, lasting(state.claims, now))


def _has_seat(study: StudyState, state: ClusterState, lasting: Sequence[Claim]) -> bool:
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
