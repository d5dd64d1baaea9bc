"""Free places for further trials of a study on VMs that its trials share. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ...controller.decisions.ledger import lasting
from ...controller.decisions.slots import guests
from ...journal import ClusterState, RunState
from ...journal.state import Claim
from .state import StudyState


def has_place(study: StudyState, state: ClusterState, now: float) -> bool:
    """Return whether a further trial of the study has a place on a VM that its trials share."""
    return _has_seat(study, state, lasting(state.claims, now))


def _has_seat(study: StudyState, state: ClusterState, lasting: Sequence[Claim]) -> bool:
    """Return whether a further trial of the study would share a VM with the `lasting` claims.

    It does not while other work waits for a worker. It also does not while another study with
    further trials has no VM, or at least two fewer than this one: the study's VMs would never
    become free.
    """
    seats = guests(lasting, state)
    if any(not state.has_begun(claim) and claim.name not in seats for claim in lasting):
        return False
    mine = _vms(study, state)
    if any(
        _asks(other_study) and _vms(other_study, state) < max(mine - 1, 1)
        for other_study in state.of(StudyState).values()
        if other_study is not study
    ):
        return False
    own = Counter(
        seats.get(run.name, run.name)
        for run in lasting
        if isinstance(run, RunState) and run.spec.study == study.name
    )
    return any(many < study.spec.per_vm for many in own.values())


def _asks(study: StudyState) -> bool:
    return not study.stopping and len(study.trials) < study.planned


def _vms(study: StudyState, state: ClusterState) -> int:
    return len(
        {
            slot
            for trial in study.trials.values()
            for run in trial.runs
            for slot in state.slots_of(run)
        }
    )
