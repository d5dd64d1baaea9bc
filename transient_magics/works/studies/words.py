"""Studies in words: how one does, its best trial, and what happened to it."""

from __future__ import annotations

from ...client.text.words import count, number, params_words
from ...journal import ClusterState, Cost, Event, StudyState, events
from ...protocol.checks import plain

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
    """`study-1 12/40 trials`."""
    return (
        f"{study.name} {sum(trial.told for trial in study.trials.values())}/{study.wanted} trials"
    )


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
    """`12 of 40 trials, 4 under way`, and why it ended early; `deleted`: its cluster is."""
    told = sum(trial.told for trial in study.trials.values())
    running = len(study.running)
    said = f"{told} of {count(study.wanted, 'trial')}"
    if deleted and not study.over:
        return f"{said}, ended with its cluster"
    if running:
        said += f", {running} under way"
    elif not study.trials and not study.stopping:
        said += ", waits for its first trial"
    if study.reason:
        return f"{said}, ended: {plain(study.reason)}"
    if study.over and told < study.wanted:
        return f"{said}, stopped"
    return said


def best_words(study: StudyState) -> str:
    """`accuracy 0.943 in trial 7: learning_rate 0.02`; nothing before the first complete trial."""
    best = study.best
    if best is None:
        return ""
    if best.params:
        params = f": {params_words(best.params)}"
    else:
        params = ""
    return f"{study.spec.goal.metric} {number(best.value)} in trial {study.spec.first + best.number}{params}"


def event_words(event: Event) -> str:
    """Return what happened to a study; empty for other events."""
    match event:
        case events.StudyAsked():
            if event.params:
                params = f": {params_words(event.params)}"
            else:
                params = ""
            return f"{event.study} has trial {event.trial}{params}"
        case events.StudyTold():
            if event.value is not None:
                value = f", {number(event.value)}"
            else:
                value = ""
            if event.reason and not event.reason.startswith(event.state):
                why = f": {event.reason}"
            else:
                why = ""
            return f"trial {event.trial} of {event.study} {_ENDED_AS[event.state]}{value}{why}"
        case events.StudyExtended():
            return f"study {event.study} has {count(event.trials, 'trial')} more"
        case events.WorkStopping(of="study"):
            return f"study {event.work} ended{f': {event.reason}' if event.reason else ''}"
    return ""
