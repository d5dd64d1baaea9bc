"""The choice of the run and other work that panels, `status` and forecasts show for a cluster.

Runs of a study are shown in its table only, and Dask clusters of a bag with that bag only.
"""

from __future__ import annotations

from typing import Any

from ..journal import ClusterState, RunState, Work
from ..kinds import KINDS

AnyWork = Work[Any]


def is_part(work: AnyWork, state: ClusterState) -> bool:
    """Return whether the work is part of other work of the cluster, as a run of its study.

    A run whose study is not in the journal is not a part: it would not be shown otherwise.
    """
    return bool(work.owner) and (work.owner in state.works or not work.trains)


def trained(state: ClusterState) -> list[AnyWork]:
    """Return the work that trains with runs of its own, such as studies, and is not over.

    If all of it is over, return the latest one, unless a separate run was declared after it.
    """
    found = [work for work in state.works.values() if work.trains and not work.takes_workers]
    running = [work for work in found if not work.over and not state.over]
    if running or not found:
        return running
    latest = max(found, key=lambda work: work.declared_at)
    alone = max((run.declared_at for run in _alone(state)), default=0.0)
    if latest.declared_at >= alone:
        return [latest]
    return []


def others(state: ClusterState) -> list[AnyWork]:
    """Return the work of kinds that do not train: what is not over, and the latest of each kind."""
    kinds = [
        kind for kind in KINDS if not any(work.trains for work in state.of_kind(kind).values())
    ]
    return [work for kind in kinds for work in of_kind(state, kind)]


def of_kind(state: ClusterState, kind: str) -> list[AnyWork]:
    """Return the work of a kind that is not over, and the latest; without parts of other work."""
    own = [work for work in state.of_kind(kind).values() if not is_part(work, state)]
    return [work for work in own if not work.over or work is own[-1]]


def run(state: ClusterState) -> RunState | None:
    """Return the separate run that trains, or that trains next.

    If all are over, return the latest one, or None if other work that trains is shown.
    """
    return _first(state, _alone(state))


def beside(state: ClusterState) -> list[RunState]:
    """Return the other separate runs that are not over, in the order in which they begin."""
    alone = _alone(state)
    first = _first(state, alone)
    names = {run.name for run in alone}
    return [
        turn
        for turn in state.turns
        if turn.name in names and (first is None or turn.name != first.name)
    ]


def _first(state: ClusterState, alone: list[RunState]) -> RunState | None:
    names = {run.name for run in alone}
    turns = [turn for turn in state.turns if turn.name in names]
    if turns:
        return next((turn for turn in turns if state.has_begun(turn)), turns[0])
    if alone and not trained(state):
        return alone[-1]
    return None


def _alone(state: ClusterState) -> list[RunState]:
    return [run for run in state.of(RunState).values() if not is_part(run, state)]
