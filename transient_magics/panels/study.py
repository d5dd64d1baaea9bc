"""A study as text and as a picture; its table, its plot."""

from __future__ import annotations

import time

from ..client import Study, text
from ..client.handles.study import Plot
from ..client.results.trials import Configurations
from ..journal import StudyState, costs
from .snapshot.studies import study_view, whole_view
from .twin.markup import COLOURS, FAINT, FONT, escape, row, table
from .twin.study import study_html, study_plot

_WIDE = f"{FONT};max-width:1040px"


def study_text(study: Study) -> str:
    """A study in a terminal."""
    state = study.cluster.state
    known = state.of(StudyState).get(study.name)
    if known is None:
        return repr(study)
    best = text.best_words(known)
    spent = text.work_cost(study.cost())
    said = f"{study.name} on {state.name}: {text.study_words(known, deleted=state.over)}{spent}"
    return "\n".join([said, *([f"best so far: {best}"] if best else [])])


def study_panel_html(study: Study) -> str:
    """The picture of a study."""
    state, now = study.cluster.state, time.time()
    shown = study_view(state, study.state, costs(state, now), now, study.cost())
    return f"<div style='{_WIDE}'>{study_html(shown)}</div>"


def study_plot_html(plot: Plot) -> str:
    """The curves of a study's trials on all of its clusters, and the best so far."""
    study = plot.study
    drawn = study_plot(whole_view(study.begun or [(study.cluster.state, study.state)], time.time()))
    said = drawn or f"{escape(study.name)} has no value to draw yet."
    return f"<div style='{_WIDE}'>{said}</div>"


def study_table_html(found: Configurations) -> str:
    """The table of a study's configurations, mean ± sd."""
    if not found:
        return f"<div style='{_WIDE}'>No trial is complete yet.</div>"
    lines = [row(map(escape, ("", *found.columns)), "th")]
    for each, cells in zip(found, found.cells, strict=True):
        mark = f"<span style='color:{COLOURS['good']}' title='of the best trial'>●</span>" if each.best else ""
        lines.append(row([mark, *map(escape, cells)]))
    notes = f"Mean ± standard deviation of n runs. {found.left_out}".strip()
    return f"<div style='{_WIDE}'>{table(lines)}<div style='{FAINT};font-size:12px'>{escape(notes)}</div></div>"
