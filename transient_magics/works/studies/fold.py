"""The rules for events of studies: trials start, end, and are added."""

from __future__ import annotations

from collections.abc import Mapping

from ...journal import events as e
from ...journal.folding.rules import Rules, changed, put
from ...journal.state import ClusterState
from .events import StudyAsked, StudyExtended, StudyTold
from .spec import StudySpec
from .state import StudyState, TrialState

rules = Rules()


def begin(name: str, spec: Mapping[str, object], at: float) -> StudyState:
    """Return the state of a study that was declared at a moment (seconds since 1970)."""
    declared = StudySpec.from_dict({**spec, "name": name})
    return StudyState(name, declared, declared_at=at, planned=declared.bounded(declared.trials))


@rules.of(StudyAsked)
def _(state: ClusterState, event: StudyAsked) -> ClusterState:
    study = state.of(StudyState)[event.study]
    if event.trial != len(study.trials):
        raise ValueError(f"the next trial must be {len(study.trials)}, not {event.trial}")
    trial = TrialState(event.trial, dict(event.params), event.runs, asked_at=event.at)
    return _with_study(state, event, trials={**study.trials, event.trial: trial})


@rules.of(StudyTold)
def _(state: ClusterState, event: StudyTold) -> ClusterState:
    trials = state.of(StudyState)[event.study].trials
    if trials[event.trial].ended:
        raise ValueError(f"trial {event.trial} has already ended")
    ended = changed(
        trials[event.trial],
        state=event.state,
        value=event.value,
        reason=event.reason,
        ended_at=event.at,
    )
    return _with_study(state, event, trials={**trials, event.trial: ended})


@rules.of(StudyExtended)
def _(state: ClusterState, event: StudyExtended) -> ClusterState:
    study = state.of(StudyState)[event.study]
    planned = study.spec.bounded(study.planned + event.trials)
    requests = study.requests | {event.request}
    return _with_study(
        state, event, planned=planned, requests=requests, stop=None, stopping_at=0.0, reason=""
    )


def stopping(study: StudyState, event: e.WorkStopping) -> StudyState:
    """Return a study that begins no further trial. It is over if no trial runs."""
    return _with_phase(changed(study, reason=event.reason), event.at)


def _with_study(
    state: ClusterState,
    event: StudyAsked | StudyTold | StudyExtended,
    /,
    **changes: object,
) -> ClusterState:
    """Change a study, also one that is over: it can be extended."""
    study = changed(state.of(StudyState)[event.study], **changes)
    return put(state, _with_phase(study, event.at))


def _with_phase(study: StudyState, at: float) -> StudyState:
    """Return the study in the phase that follows from its trials, at a moment."""
    if study.stopping and not study.running:
        count = sum(trial.ended for trial in study.trials.values())
        phase = "finished" if count >= study.planned else "stopped"
        return changed(study, phase=phase, ended_at=study.ended_at or at)
    return changed(study, phase="running" if study.trials else "declared", ended_at=0.0)
