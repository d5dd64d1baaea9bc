"""The rules for events of work of every kind: it is declared, stopping and over.

The module `fold` of a kind has the functions that these rules need:

| name | returns | without it |
|---|---|---|
| `begin(name, spec, at)` | the first state of work that was declared at a moment | required |
| `stopping(work, event)` | the work, changed further as it begins to stop | no further change |
| `ended(work, event)` | the work, changed further at its end | no further change |
"""

from __future__ import annotations

from types import ModuleType

from ...kinds import load
from .. import events as e
from ..state import ClusterState
from . import runs
from .rules import Rules, changed, declare, put

rules = Rules()


@rules.of(e.WorkDeclared)
def _(state: ClusterState, event: e.WorkDeclared) -> ClusterState:
    return declare(state, _fold_of(event.of).begin(event.work, event.spec, event.at))


@rules.of(e.WorkStopping)
def _(state: ClusterState, event: e.WorkStopping) -> ClusterState:
    work = state.of_kind(event.of)[event.work]
    if work.over:
        return state
    work = changed(work, stop=event, stopping_at=event.at)
    if stopping := getattr(_fold_of(event.of), "stopping", None):
        work = stopping(work, event)
    return put(state, work)


@rules.of(e.WorkEnded)
def _(state: ClusterState, event: e.WorkEnded) -> ClusterState:
    work = state.of_kind(event.of)[event.work]
    if work.over:
        return state
    if ended := getattr(_fold_of(event.of), "ended", None):
        work = ended(work, event)
    work = changed(work, phase=event.state, ended_at=event.at, reason=event.reason)
    return put(state, work)


def _fold_of(kind: str) -> ModuleType:
    """Return the module that folds the events of a kind of work."""
    if kind == "run":
        return runs
    return load(kind, "fold")
