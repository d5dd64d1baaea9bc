"""The lines of a panel for runs beside the one whose curves are shown, and for work that trains
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...client import focus, text
from ...journal import ClusterState, Cost, RunState, Work
from ...kinds import KINDS, find
from ..sections import section_views
from .contract import WorkGroup, WorkLine

MOST_LINES = 12
"""Lines of each kind of work."""


def run_lines(state: ClusterState, by_name: Mapping[str, Cost]) -> list[WorkLine]:
    """Return a line for each run that is not over but for those of studies, which are in the table
    of their study.

    `by_name`: the costs of the cluster's work.
    """
    lines: list[WorkLine] = []
    for run in focus.beside(state):
        line = _line(state, run, by_name)
        line["phase"] = run_phase(state, run)
        if run.phase != "declared":
            line["step"] = run.step
            line["steps"] = run.train_steps
        lines.append(line)
    return lines


def work_groups(state: ClusterState, by_name: Mapping[str, Cost]) -> list[WorkGroup]:
    """Return the lines of work that trains nothing and has no section of its own, by kind.

    Each kind has a line for everything that is not over and for the latest one; of many, a last
    line counts the others. `by_name`: the costs of the cluster's work.
    """
    groups: list[WorkGroup] = []
    with_sections = section_views()
    for kind in KINDS.values():
        found = [work for work in focus.of_kind(state, kind.name) if not work.trains]
        if kind.name in with_sections or not found:
            continue
        has_vms = set(state.leases.values())
        found.sort(key=lambda work: work.over or work.name not in has_vms)
        lines = [_line(state, work, by_name) for work in found[:MOST_LINES]]
        if len(found) > MOST_LINES:
            words = f"and {text.count(len(found) - MOST_LINES, f'more {kind}')}"
            lines.append(
                {
                    "name": "",
                    "phase": "declared",
                    "words": words,
                    "step": 0,
                    "steps": 0,
                    "stoppable": False,
                }
            )
        title = f"{str(kind)[0].upper()}{str(kind)[1:]}s of this cluster"
        groups.append({"kind": kind.name, "title": title, "lines": lines})
    return groups


def run_phase(state: ClusterState, run: RunState) -> str:
    """Return the phase of a run, or what it does in it: waiting, starting, evaluating."""
    if text.is_evaluated(run):
        return "evaluating"
    if run.phase != "declared":
        return "stopped" if text.was_stopped(run) else run.phase
    return "waiting" if text.waits_for(run, state) else "starting"


def _line(state: ClusterState, work: Work[Any], by_name: Mapping[str, Cost]) -> WorkLine:
    if isinstance(work, RunState):
        stopping = work.stopped
    else:
        stopping = work.stop is not None
    words = text.work_words(work, state) + _more_words("more_words", work, state)
    words += text.work_cost(by_name[work.name]) + _more_words("last_words", work, state)
    return {
        "name": work.name,
        "phase": work.phase,
        "words": words,
        "step": 0,
        "steps": 0,
        "stoppable": not (stopping or work.over or state.over),
    }


def _more_words(name: str, work: Work[Any], state: ClusterState) -> str:
    """Return what the view of a kind adds to the line of its work, under one of two names; empty
    where it has none.
    """
    own = getattr(find(work.kind, "view"), name, None)
    if own:
        return own(work, state)
    return ""
