"""The studies of a panel: for each its progress, its best trial, the curves over each other, and a
row for each trial.

The rows of a thousand trials are sent, because they are small and can be sorted by any column;
curves are sent of a few trials alone: the best ones, those that train, and the latest.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ...client import focus, text
from ...client.results.comparison import evaluated
from ...journal import ClusterState, Cost, RunState, StudyState, TrialState, costs
from ...panels.snapshot.axes import thinned
from ...panels.snapshot.contract import parameter, sound
from ...panels.static.markup import COLOURS, FAINT, FONT, escape, row, table
from . import words
from .handle import Plot
from .handle import Study as StudyHandle
from .picture import study_html, study_plot
from .snapshot import Point, Study, TrialLine
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
"""Trials up to which everything is sent each second."""


def sections(state: ClusterState, now: float) -> list[Study]:
    """What a cluster's panel shows of its studies at `now`."""
    found = _shown(state)
    if found:
        by_name = costs(state, now)
    else:
        by_name = {}
    return [study_view(state, study, by_name, now) for study in found]


def pace(state: ClusterState) -> float:
    """How many times longer than usual to wait until the studies are sent again: many trials are
    much to send.
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
    """The snapshot of one study. `by_name`: costs of the cluster's work; `whole`: of the study on
    all clusters.
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
        "ended": sum(trial.told for trial in study.trials.values()),
        "planned": study.wanted,
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
    """The snapshot of a study on all of its clusters, each with the study's state there, for what
    is drawn of it.

    Where some trials have evaluations, no curves of losses are drawn beside theirs.
    """
    views = [study_view(state, study, costs(state, now), now) for state, study in begun]
    parts = [study for _, study in begun]
    best = best_of(parts)
    if best:
        chosen = next((part.spec.first + best.number for part in parts if part.best is best), None)
    else:
        chosen = None
    metric = parts[0].spec.goal.metric
    if any(view["curves_of"] == metric for view in views):
        drawn = metric
    else:
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
    """The cost of the study; where it runs on several clusters and the sum is unknown, its cost on
    this one.
    """
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
    """The numbers of the trials whose curves are sent."""
    goal = study.spec.goal
    sign = -1.0 if goal.direction == "max" else 1.0
    known = [row for row in rows if row.value is not None and math.isfinite(row.value)]
    best = sorted(known, key=lambda row: (not row.best, sign * (row.value or 0.0)))
    training = [row for row in rows if row.state == "running"]
    chosen = [*training, *best[: MOST_CURVES // 2], *reversed(rows)]
    return list(dict.fromkeys(row.number for row in chosen))[:MOST_CURVES]


def _evaluations(state: ClusterState, study: StudyState, trial: TrialState) -> list[Point]:
    """Of several runs the mean at each step."""
    found: dict[int, list[float]] = {}
    for run in runs_of(state, trial):
        for step, value in evaluated(run, study.spec.goal):
            found.setdefault(step, []).append(value)
    return thinned(
        [(float(step), sum(values) / len(values)) for step, values in sorted(found.items())]
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
    if spec.sampler == "none":
        sampler = []
    else:
        sampler = [f"{spec.sampler} sampler"]
    if spec.pruner == "none":
        pruner = []
    else:
        pruner = [f"{spec.pruner} pruner"]
    if spec.repeat > 1:
        repeats = [f"each {spec.repeat} times"]
    else:
        repeats = []
    workers = [
        f"on {', '.join(spec.here)}" if spec.on else f"{text.count(spec.workers, 'worker')} each"
    ]
    if spec.per_vm > 1:
        workers = [
            f"{spec.per_vm} runs on each VM{' share their input' if spec.run.share_input else ''}"
        ]
    workers += (
        [f"the rest on {', '.join(part for part in spec.parts if part != cluster)}"]
        if spec.parts
        else []
    )
    return " · ".join([str(spec.goal), *sampler, *pruner, *repeats, *workers])


def section_html(study: Mapping[str, Any]) -> str:
    """Return the static picture of a snapshot."""
    return study_html(study)


def text_of(study: StudyHandle) -> str:
    """A study in a terminal."""
    state = study.cluster.state
    known = state.of(StudyState).get(study.name)
    if known is None:
        return repr(study)
    best = words.best_words(known)
    spent = text.work_cost(study.cost())
    said = f"{study.name} on {state.name}: {words.study_words(known, deleted=state.over)}{spent}"
    return "\n".join([said, *([f"best so far: {best}"] if best else [])])


def picture(study: StudyHandle) -> str:
    """The picture of a study."""
    state = study.cluster.state
    now = time.time()
    shown = study_view(state, study.state, costs(state, now), now, study.cost())
    return f"<div style='{WIDE}'>{study_html(shown)}</div>"


def plot_html(plot: Plot) -> str:
    """The curves of a study's trials on all of its clusters, and the best so far."""
    study = plot.study
    drawn = study_plot(whole_view(study.begun or [(study.cluster.state, study.state)], time.time()))
    said = drawn or f"{escape(study.name)} has no value to draw yet."
    return f"<div style='{WIDE}'>{said}</div>"


def table_html(found: Configurations) -> str:
    """The table of a study's configurations, mean ± sd."""
    if not found:
        return f"<div style='{WIDE}'>No trial is complete yet.</div>"
    lines = [row(map(escape, ("", *found.columns)), "th")]
    for each, cells in zip(found, found.cells, strict=True):
        if each.best:
            mark = f"<span style='color:{COLOURS['good']}' title='of the best trial'>●</span>"
        else:
            mark = ""
        lines.append(row([mark, *map(escape, cells)]))
    notes = f"Mean ± standard deviation of n runs. {found.left_out}".strip()
    return f"<div style='{WIDE}'>{table(lines)}<div style='{FAINT};font-size:12px'>{escape(notes)}</div></div>"
