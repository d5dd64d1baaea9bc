"""What stands for a cluster where there is room for one run: that run, what it belongs to, and
other work.

The runs of a study stand in its table and nowhere else, a Dask cluster of a bag only with that bag.
A panel, the status in a terminal and the forecast show the same choice.
"""

from __future__ import annotations

from typing import Any

from ..journal import ClusterState, RunState, Work
from ..kinds import KINDS

AnyWork = Work[Any]


def is_part(work: AnyWork, state: ClusterState) -> bool:
    """Return whether other work of the cluster has begun the work, as a study its runs.

    A run whose study the journal does not have stands alone: it is shown nowhere else.
    """
    return bool(work.owner) and (work.owner in state.works or not work.trains)


def trained(state: ClusterState) -> list[AnyWork]:
    """Return the work that trains by runs of its own, studies, and is not over.

    Where none is left, it is the latest one, unless a run that belongs to none was declared after
    it.
    """
    found = [work for work in state.works.values() if work.trains and not work.leases]
    running = [work for work in found if not work.over and not state.over]
    if running or not found:
        return running
    latest = max(found, key=lambda work: work.declared_at)
    alone = max((run.declared_at for run in _alone(state)), default=0.0)
    if latest.declared_at >= alone:
        return [latest]
    return []


def others(state: ClusterState) -> list[AnyWork]:
    """Return the work that trains nothing: of each kind what is not over, and the latest one."""
    kinds = [
        kind for kind in KINDS if not any(work.trains for work in state.of_kind(kind).values())
    ]
    return [work for kind in kinds for work in of_kind(state, kind)]


def of_kind(state: ClusterState, kind: str) -> list[AnyWork]:
    """Return the work of a kind that is not over, and the latest one, without parts of other work."""
    own = [work for work in state.of_kind(kind).values() if not is_part(work, state)]
    return [work for work in own if not work.over or work is own[-1]]


def run(state: ClusterState) -> RunState | None:
    """Return the run that is not part of other work and trains, or is the next to train.

    None where other work that trains is shown; where no run is left, the latest.
    """
    return _first(state, _alone(state))


def beside(state: ClusterState) -> list[RunState]:
    """Return the other runs that are not part of other work and not over, in the order in which
    they begin.
    """
    alone = _alone(state)
    first = _first(state, alone)
    names = {each.name for each in alone}
    return [
        turn
        for turn in state.turns
        if turn.name in names and (first is None or turn.name != first.name)
    ]


def _first(state: ClusterState, alone: list[RunState]) -> RunState | None:
    names = {each.name for each in alone}
    turns = [each for each in state.turns if each.name in names]
    if turns:
        return next((turn for turn in turns if state.has_begun(turn)), turns[0])
    if alone and not trained(state):
        return alone[-1]
    return None


def _alone(state: ClusterState) -> list[RunState]:
    return [each for each in state.of(RunState).values() if not is_part(each, state)]
