"""What events of bags do: what the controller tells, and what drivers do."""

from __future__ import annotations

from ...protocol.bag import events as b
from ...protocol.bag.spec import BagSpec
from ..bags import events as e
from ..bags.fold import fold
from ..bags.state import BagState, DeclaredBag
from ..state import ClusterState
from .rules import Rules, changed, refuse_taken

rules = Rules()


@rules.of(e.BagDeclared)
def _(state: ClusterState, event: e.BagDeclared) -> ClusterState:
    refuse_taken(state, "bag", event.bag)
    spec = BagSpec.from_dict({**event.spec, "name": event.bag})
    return changed(state, bags={**state.bags, event.bag: DeclaredBag(event.bag, BagState(spec), declared_at=event.at)})


def _with_bag(state: ClusterState, name: str, /, **changes: object) -> ClusterState:
    bag = state.bags[name]
    return state if bag.over else changed(state, bags={**state.bags, name: changed(bag, **changes)})


@rules.of(e.BagBegan)
def _(state: ClusterState, event: e.BagBegan) -> ClusterState:
    bag = state.bags[event.bag]
    began_at = bag.began_at or event.at
    if event.dask in bag.dasks:
        return _with_bag(state, event.bag, phase="running", began_at=began_at)
    dasks = (*bag.dasks, event.dask)
    return _with_bag(
        state, event.bag, phase="running", dasks=dasks, began_at=began_at, heard=0
    )  # by a clock of its own


@rules.of(e.BagEnding)
def _(state: ClusterState, event: e.BagEnding) -> ClusterState:
    return _with_bag(state, event.bag, ending=event)


@rules.of(e.BagEnded)
def _(state: ClusterState, event: e.BagEnded) -> ClusterState:
    return _with_bag(state, event.bag, phase=event.state, ended_at=event.at, reason=event.reason)


@rules.of(b.BagProposed, b.BagStarted, b.BagSaved, b.BagLost, b.BagResult, b.BagGaveUp, b.BagLearnt, b.BagStopped)
def _(state: ClusterState, event: b.BagEvent) -> ClusterState:
    bag = state.bags[event.bag]
    return _with_bag(state, event.bag, state=fold(bag.state, event), heard=max(bag.heard, event.time))
