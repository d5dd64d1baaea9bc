"""A study's own clusters have their turns one after the other: when this cluster's comes, and what
is left for it.

Read from files of this machine: the journals of the clusters that come before, whoever writes
those. Until its turn comes nothing is asked for, and so nothing is billed.
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
    """The study whose turns the cluster in this folder waits for; none where it waits for nobody.

    Raises ClusterError where its declaration cannot be read.
    """
    found = [
        read_declaration(directory, "study", name, StudySpec.from_dict)
        for name in declared_below(directory / layout.STUDIES, layout.STUDY)
    ]
    return next((spec for spec in found if spec.alone and directory.name in spec.parts), None)


def turn(study: StudySpec, spec: ClusterSpec, now: float) -> Turn:
    """Whether the cluster declared as `spec` has its turn in `study` at `now` (seconds since 1970).

    A study that has ended early on one cluster has ended; what its trials and its own clusters
    cost, and the time since it began, are taken off its limits. The same again for a controller
    that follows on one that died meanwhile.
    """
    before = study.parts[: study.parts.index(spec.name)]
    states = [kept(places.cluster(name) / layout.JOURNAL).read() for name in before]
    spent = 0.0
    passed = 0.0
    for name, state in zip(before, states, strict=True):
        known = state.of(StudyState).get(study.name)
        if known is None:
            if state.over or not places.cluster(name).exists():
                return Never(f"{name} was deleted before {study.name} began there")
            return Waits(f"{study.name} has not begun on {name}")
        if reason := _ended_early(known, state):
            return Never(f"{study.name} ended on {name}: {reason}")
        if not known.over:
            return Waits(f"{study.name} goes on on {name} first")
        if known.spec.alone and not state.over:
            return Waits(f"{name} is deleted first")
        spent += charged(state, known.name, now)
        passed = passed or state.clock.between(known.declared_at, now)
    return _left(study, spec, spent, passed, now)


def _ended_early(known: StudyState, state: ClusterState) -> str:
    if known.reason:
        return known.reason
    if state.over and not known.over:
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
