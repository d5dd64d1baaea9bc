"""What events of VMs that a provider wants back do: how many, which are proposed, which go."""

from __future__ import annotations

from dataclasses import replace

from .. import events as e
from ..state import ClusterState, Reclaim
from .rules import Rules, changed

rules = Rules()


@rules.of(e.ReclaimWanted)
def _(state: ClusterState, event: e.ReclaimWanted) -> ClusterState:
    return changed(state, reclaim=Reclaim(event) if event.number else None)


@rules.of(e.ReclaimProposed)
def _(state: ClusterState, event: e.ReclaimProposed) -> ClusterState:
    return changed(state, reclaim=replace(_known(state), proposed=event))


@rules.of(e.ReclaimAnswered)
def _(state: ClusterState, event: e.ReclaimAnswered) -> ClusterState:
    return changed(state, reclaim=replace(_known(state), proposed=None, answered=event))


def _known(state: ClusterState) -> Reclaim:
    if state.reclaim is None:
        raise ValueError("no VM is wanted back")
    return state.reclaim
