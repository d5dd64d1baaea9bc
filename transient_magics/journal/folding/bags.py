"""What events of bags do: what the controller tells, and what drivers do."""

from __future__ import annotations

from collections.abc import Mapping

from ...protocol.bag import events as b
from ...protocol.bag.spec import BagSpec
from ..bags import events as e
from ..bags.fold import fold
from ..bags.state import BagState, DeclaredBag
from ..state import ClusterState
from .rules import Rules, with_work

rules = Rules()


def begin(name: str, spec: Mapping[str, object], at: float) -> DeclaredBag:
    """Return the state of a bag that was declared at a moment (seconds since 1970)."""
    declared = BagSpec.from_dict({**spec, "name": name})
    return DeclaredBag(name, declared, declared_at=at, state=BagState(declared))


@rules.of(e.BagBegan)
def _(state: ClusterState, event: e.BagBegan) -> ClusterState:
    bag = state.of(DeclaredBag)[event.bag]
    began_at = bag.began_at or event.at
    if event.dask in bag.dasks:
        return with_work(state, "bag", event.bag, phase="running", began_at=began_at)
    dasks = (*bag.dasks, event.dask)
    return with_work(
        state, "bag", event.bag, phase="running", dasks=dasks, began_at=began_at, heard=0
    )  # by a clock of its own


@rules.of(
    b.BagProposed,
    b.BagStarted,
    b.BagSaved,
    b.BagLost,
    b.BagResult,
    b.BagGaveUp,
    b.BagLearnt,
    b.BagStopped,
)
def _(state: ClusterState, event: b.BagEvent) -> ClusterState:
    bag = state.of(DeclaredBag)[event.bag]
    return with_work(
        state, "bag", event.bag, state=fold(bag.state, event), heard=max(bag.heard, event.time)
    )
