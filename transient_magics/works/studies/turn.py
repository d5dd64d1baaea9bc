"""The turn of a cluster that a study has for itself, and what is left of the study's limits.

The clusters of a study run one after the other. A controller reads the turn from the journals of
the clusters before its own, on this machine. Until its turn nothing is requested and billed.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ... import places
from ...controller.works import Comes, Never, Turn, Waits
from ...journal import ClusterState, kept
from ...journal.cost import charged
from ...journal.declared import declared_below, read_declaration
from ...protocol import layout
from ...spec import ClusterSpec, render_duration, render_money
from .spec import StudySpec
from .state import StudyState


def waited_for(directory: Path) -> StudySpec | None:
    """Return the study for which the cluster in a folder was made; None for other clusters.

    Raises ClusterError where its declaration cannot be read.
    """
    studies = [
        read_declaration(directory, "study", name, StudySpec.from_dict)
        for name in declared_below(directory / layout.STUDIES, layout.STUDY)
    ]
    return next((spec for spec in studies if spec.alone and directory.name in spec.parts), None)


def turn(study: StudySpec, spec: ClusterSpec, now: float) -> Turn:
    """Return whether a cluster has its turn in a study at `now` (seconds since 1970).

    A study that ended early on one cluster is over on all. The cost of the study and the time since
    it began are subtracted from its limits. A controller that replaces another one gets the same
    result.
    """
    before = study.parts[: study.parts.index(spec.name)]
    states = [kept(places.cluster(name) / layout.JOURNAL).read() for name in before]
    spent = 0.0
    passed = 0.0
    for name, state in zip(before, states, strict=True):
        begun = state.of(StudyState).get(study.name)
        if begun is None:
            if state.over or not places.cluster(name).exists():
                return Never(f"{name} was deleted before {study.name} began there")
            return Waits(f"{study.name} has not begun on {name}")
        if reason := _ended_early(begun, state):
            return Never(f"{study.name} ended on {name}: {reason}")
        if not begun.over:
            return Waits(f"{study.name} continues on {name} first")
        if begun.spec.alone and not state.over:
            return Waits(f"{name} is deleted first")
        spent += charged(state, begun.name, now)
        passed = passed or state.clock.between(begun.declared_at, now)
    return _left(study, spec, spent, passed, now)


def _ended_early(study: StudyState, state: ClusterState) -> str:
    if study.reason:
        return study.reason
    if state.over and not study.over:
        return "its cluster was deleted"
    return ""


def _left(study: StudySpec, spec: ClusterSpec, spent: float, passed: float, now: float) -> Turn:
    if study.max_cost is not None and spent >= study.max_cost:
        return Never(f"its limit of {render_money(study.max_cost)} is spent")
    seconds = spec.max_seconds
    if study.max_hours is not None:
        seconds = 3600 * study.max_hours - passed
    if seconds <= 0:
        return Never(f"its limit of {render_duration(3600 * (study.max_hours or 0.0))} has passed")
    if study.max_cost is None:
        cost = None
    else:
        cost = study.max_cost - spent
    return Comes(replace(spec, declared_at=now, max_cost=cost, max_seconds=seconds).with_end())
