"""The section of a panel about studies: progress, the best trial, curves, and a row for each trial.

The rows of a thousand trials are sent, because they are small and can be sorted by any column.
Curves are sent of a few trials: the best ones, those that train, and the latest.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ...client import focus, text
from ...client.results.comparison import evaluated
from ...journal import ClusterState, Cost, RunState, costs
from ...panels.snapshot.axes import thinned
from ...panels.snapshot.contract import parameter, sound
from ...panels.static.markup import COLOURS, FAINT, FONT, escape, row, table
from . import words
from .handle import Plot
from .handle import Study as StudyHandle
from .picture import study_html, study_plot
from .snapshot import Point, Study, TrialLine
from .state import StudyState, TrialState
from .trials import (
    Configurations,
    TrialRow,
    best_of,
    best_so_far,
    rows_of,
    runs_of,
)

WIDE = f"{FONT};max-width:1040px"
MOST_CURVES = 40
_MANY = 200
"""The most trials with which everything is sent each second."""


def sections(state: ClusterState, now: float) -> list[Study]:
    """Return the snapshots of the studies that a panel shows at `now`."""
    studies = _shown(state)
    by_name = costs(state, now) if studies else {}
    return [study_view(state, study, by_name, now) for study in studies]


def pace(state: ClusterState) -> float:
    """Return how many times longer than usual to wait before studies are sent again.

    Many trials take long to send.
    """
    return max(1.0, sum(len(study.trials) for study in _shown(state)) / _MANY)


def _shown(state: ClusterState) -> list[StudyState]:
    return [work for work in focus.trained(state) if isinstance(work, StudyState)]


def study_view(
    state: ClusterState,
    study: StudyState,
    by_name: Mapping[str, Cost],
    now: float,
    whole: Cost | None = None,
) -> Study:
    """Return the snapshot of a study.

    Parameters
    ----------
    state, study
        The states of the cluster and of its study.
    by_name
        The costs of the cluster's work.
    now
        Seconds since 1970.
    whole
        The cost of the study on all clusters, if known.
    """
    rows = rows_of(state, study, now, by_name)
    drawn = _drawn(study, rows)
    measured = {number: _evaluations(state, study, study.trials[number]) for number in drawn}
    by_loss = max(map(len, measured.values()), default=0) < 2
    if by_loss:
        measured = {number: _losses(state, study.trials[number]) for number in drawn}
    over = study.over or state.over
    shown: Study = {
        "name": study.name,
        "phase": text.work_phase(study, state),
        "words": words.study_words(study, deleted=state.over),
        "about": _about(study, state.name),
        "ended": sum(trial.ended for trial in study.trials.values()),
        "planned": study.planned,
        "metric": study.spec.goal.metric,
        "direction": study.spec.goal.direction,
        "curves_of": "loss of training" if by_loss else study.spec.goal.metric,
        "best_words": words.best_words(study),
        "cost_words": _cost_words(study, by_name[study.name], whole) if rows else "",
        "emulated": state.spec.emulated if state.spec else True,
        "stoppable": not over,
        "params": [dimension.name for dimension in study.spec.dimensions],
        "trials": [_line(study, row, measured.get(row.number, []), over=over) for row in rows],
        "best_so_far": [(float(number), value) for number, value in best_so_far([study])],
    }
    return sound(shown)


def whole_view(begun: Sequence[tuple[ClusterState, StudyState]], now: float) -> Study:
    """Return the snapshot of a study on all of its clusters, for its plot.

    If some trials have evaluations, no curves of losses are drawn beside them.

    Parameters
    ----------
    begun
        For each cluster on which the study has begun, the states of the cluster and of the study.
    now
        Seconds since 1970.
    """
    views = [study_view(state, study, costs(state, now), now) for state, study in begun]
    parts = [study for _, study in begun]
    best = best_of(parts)
    firsts = [part.spec.first for part in parts if best and part.best is best]
    chosen = firsts[0] + best.number if best and firsts else None
    drawn = parts[0].spec.goal.metric
    if not any(view["curves_of"] == drawn for view in views):
        drawn = views[0]["curves_of"]
    trials: list[TrialLine] = [
        {
            **trial,
            "best": trial["number"] == chosen,
            "curve": trial["curve"] if view["curves_of"] == drawn else [],
        }
        for view in views
        for trial in view["trials"]
    ]
    so_far: list[Point] = [(float(number), value) for number, value in best_so_far(parts)]
    shown: Study = {**views[0], "curves_of": drawn, "trials": trials, "best_so_far": so_far}
    return sound(shown)


def _cost_words(study: StudyState, here: Cost, whole: Cost | None) -> str:
    """Return the cost of a study, on this cluster alone if that of the others is unknown."""
    if whole:
        return whole.words
    if len(study.spec.parts) > 1:
        return f"{here.words} on this cluster"
    return here.words


def _line(study: StudyState, row: TrialRow, curve: Sequence[Point], *, over: bool) -> TrialLine:
    ended = row.state == "running" and over
    return {
        "number": study.spec.first + row.number,
        "state": "stopped" if ended else row.state,
        "words": "ended with its study" if ended else row.words,
        "params": [parameter(row.params[dimension.name]) for dimension in study.spec.dimensions],
        "value": row.value,
        "best": row.best,
        "hours": row.hours,
        "dollars": row.dollars,
        "revocations": row.revocations,
        "stoppable": row.state == "running" and not over,
        "curve": list(curve),
    }


def _drawn(study: StudyState, rows: Sequence[TrialRow]) -> list[int]:
    """Return the numbers of the trials whose curves are sent."""
    goal = study.spec.goal
    sign = -1.0 if goal.direction == "max" else 1.0
    measured = [row for row in rows if row.value is not None and math.isfinite(row.value)]
    best = sorted(measured, key=lambda row: (not row.best, sign * (row.value or 0.0)))
    training = [row for row in rows if row.state == "running"]
    chosen = [*training, *best[: MOST_CURVES // 2], *reversed(rows)]
    return list(dict.fromkeys(row.number for row in chosen))[:MOST_CURVES]


def _evaluations(state: ClusterState, study: StudyState, trial: TrialState) -> list[Point]:
    """Return the evaluations of a trial, at each step the mean of its runs."""
    by_step: dict[int, list[float]] = {}
    for run in runs_of(state, trial):
        for step, value in evaluated(run, study.spec.goal):
            by_step.setdefault(step, []).append(value)
    return thinned(
        [(float(step), sum(values) / len(values)) for step, values in sorted(by_step.items())]
    )


def _losses(state: ClusterState, trial: TrialState) -> list[Point]:
    runs = runs_of(state, trial)
    if runs:
        return thinned(_series(runs[0]))
    return []


def _series(run: RunState) -> list[Point]:
    return [
        (float(step), loss)
        for _, step, loss, _ in run.series
        if loss is not None and math.isfinite(loss)
    ]


def _about(study: StudyState, cluster: str) -> str:
    spec = study.spec
    about = [str(spec.goal)]
    if spec.sampler != "none":
        about.append(f"{spec.sampler} sampler")
    if spec.pruner != "none":
        about.append(f"{spec.pruner} pruner")
    if spec.repeat > 1:
        about.append(f"each {spec.repeat} times")
    if spec.per_vm > 1:
        shared = " share their input" if spec.run.share_input else ""
        about.append(f"{spec.per_vm} runs on each VM{shared}")
    elif spec.on:
        about.append(f"on {', '.join(spec.here)}")
    else:
        about.append(f"{text.count(spec.workers, 'worker')} each")
    if spec.parts:
        about.append(f"the rest on {', '.join(part for part in spec.parts if part != cluster)}")
    return " · ".join(about)


def section_html(study: Mapping[str, Any]) -> str:
    """Return the static picture of a snapshot."""
    return study_html(study)


def text_of(study: StudyHandle) -> str:
    """Return a study as text for a terminal."""
    state = study.cluster.state
    study_state = state.of(StudyState).get(study.name)
    if study_state is None:
        return repr(study)
    progress = words.study_words(study_state, deleted=state.over)
    line = f"{study.name} on {state.name}: {progress}{text.work_cost(study.cost())}"
    if best := words.best_words(study_state):
        return f"{line}\nbest so far: {best}"
    return line


def picture(study: StudyHandle) -> str:
    """Return the static picture of a study."""
    state = study.cluster.state
    now = time.time()
    shown = study_view(state, study.state, costs(state, now), now, study.cost())
    return f"<div style='{WIDE}'>{study_html(shown)}</div>"


def plot_html(plot: Plot) -> str:
    """Return the curves of a study's trials on all of its clusters, and the best value so far."""
    study = plot.study
    drawn = study_plot(whole_view(study.begun or [(study.cluster.state, study.state)], time.time()))
    return f"<div style='{WIDE}'>{drawn or f'{escape(study.name)} has no value to draw yet.'}</div>"


def table_html(found: Configurations) -> str:
    """Return the table of a study's configurations, mean ± sd."""
    if not found:
        return f"<div style='{WIDE}'>No trial is complete yet.</div>"
    lines = [row(map(escape, ("", *found.columns)), "th")]
    best = f"<span style='color:{COLOURS['good']}' title='of the best trial'>●</span>"
    for configuration, cells in zip(found, found.cells, strict=True):
        lines.append(row([best if configuration.best else "", *map(escape, cells)]))
    notes = f"Mean ± standard deviation of n runs. {found.left_out}".strip()
    return (
        f"<div style='{WIDE}'>{table(lines)}<div "
        f"style='{FAINT};font-size:12px'>{escape(notes)}</div></div>"
    )
