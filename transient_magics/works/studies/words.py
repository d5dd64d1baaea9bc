"""Studies in words: what a study does, its best trial, and its events."""

from __future__ import annotations

from collections.abc import Mapping

from ...client.text.words import count, number, params_words
from ...journal import ClusterState, Cost, Event, events
from ...protocol.checks import plain
from ...protocol.run import Value
from .events import StudyAsked, StudyExtended, StudyTold
from .state import StudyState

QUIET = ("study.asked",)
_ENDED_AS = {
    "complete": "is complete",
    "pruned": "was pruned",
    "failed": "failed",
    "stopped": "was stopped",
}


def work_words(study: StudyState, cluster: ClusterState | None) -> str:
    """Return what a study does, or how it ended, on a cluster in this state."""
    return study_words(study, deleted=cluster is not None and cluster.over)


def short_words(study: StudyState) -> str:
    """Return a study in a list of clusters, such as `study-1 12/40 trials`."""
    return f"{study.name} {_ended(study)}/{study.planned} trials"


def status_lines(
    study: StudyState, cluster: ClusterState, cost: Cost, now: float, forecast: str
) -> list[str]:
    """Return the lines of a study in the status of its cluster."""
    indent = " " * len(study.name)
    lines = [f"{study.name}  {work_words(study, cluster)}", f"{indent}  this study {cost.words}"]
    if best := best_words(study):
        lines.append(f"{indent}  best so far: {best}")
    return lines


def study_words(study: StudyState, *, deleted: bool = False) -> str:
    """Return `12 of 40 trials, 4 under way`, and why it ended early.

    Parameters
    ----------
    study
        The study.
    deleted
        Whether its cluster is deleted.
    """
    ended = _ended(study)
    words = f"{ended} of {count(study.planned, 'trial')}"
    if deleted and not study.over:
        return f"{words}, ended with its cluster"
    if study.running:
        words += f", {len(study.running)} under way"
    elif not study.trials and not study.stopping:
        words += ", waits for its first trial"
    if study.reason:
        return f"{words}, ended: {plain(study.reason)}"
    if study.over and ended < study.planned:
        return f"{words}, stopped"
    return words


def _ended(study: StudyState) -> int:
    return sum(trial.ended for trial in study.trials.values())


def best_words(study: StudyState) -> str:
    """Return `accuracy 0.943 in trial 7: learning_rate 0.02`; empty before a trial is complete."""
    best = study.best
    if best is None:
        return ""
    value = f"{study.spec.goal.metric} {number(best.value)}"
    return f"{value} in trial {study.spec.first + best.number}{_params_words(best.params)}"


def _params_words(params: Mapping[str, Value]) -> str:
    return f": {params_words(params)}" if params else ""


def event_words(event: Event) -> str:
    """Return what happened to a study; empty for other events."""
    match event:
        case StudyAsked():
            return f"{event.study} has trial {event.trial}{_params_words(event.params)}"
        case StudyTold():
            words = f"trial {event.trial} of {event.study} {_ENDED_AS[event.state]}"
            if event.value is not None:
                words += f", {number(event.value)}"
            if event.reason and not event.reason.startswith(event.state):
                words += f": {event.reason}"
            return words
        case StudyExtended():
            return f"study {event.study} has {count(event.trials, 'trial')} more"
        case events.WorkStopping(of="study"):
            return f"study {event.work} ended{f': {event.reason}' if event.reason else ''}"
    return ""
