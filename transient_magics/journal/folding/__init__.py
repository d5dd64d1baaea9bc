"""What follows from an event: the rules by which a journal's events add up to a ClusterState. No
clock, no file.

`fold(state, event)` returns the next state and never changes the old one; `replay(events)` folds
them all. Folding an event twice does not happen, because events carry their `seq` and older ones
are passed over. What an event does to the cluster, its moves, VMs and their power, runs, studies,
jobs, Dask clusters, bags, deadlines and reclaims is said by a rule in the module of that name.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...errors import JournalError, TransientError
from ...protocol.bag import events as b
from .. import events as e
from ..events import Event
from ..state import ClusterState
from . import (
    bags,
    clusters,
    dasks,
    deadlines,
    jobs,
    moves,
    power,
    reclaims,
    runs,
    studies,
    vms,
    works,
)
from .rules import changed

MOST_LOST = 1_000_000
"""So many events may be missing before the next one: numbers that others choose must leave room for
ours.
"""


RECENT = 60
_MANY = (
    e.TrainProgress,
    e.TrainData,
    e.TrainMeasured,
    e.VmTraffic,
    e.DeadlineOutlook,
    e.Unknown,
    b.BagProposed,
    b.BagStarted,
    b.BagSaved,
    b.BagResult,
)
"""Too many to be kept among the recent ones."""

_RULES = (
    clusters.rules
    | moves.rules
    | vms.rules
    | runs.rules
    | studies.rules
    | jobs.rules
    | dasks.rules
    | bags.rules
    | deadlines.rules
    | reclaims.rules
    | power.rules
    | works.rules
)


def replay(history: Iterable[Event], state: ClusterState | None = None) -> ClusterState:
    """Fold all of `history`, from the empty state or from `state` on. Events that do not fit are
    passed over.
    """
    state = state or ClusterState()
    for event in history:
        try:
            state = fold(state, event)
        except JournalError:
            state = changed(state, passed_over=state.passed_over + 1)
    return state


def fold(state: ClusterState, event: Event) -> ClusterState:
    """The state after `event`. Events that were folded already (by their seq) change nothing.

    Raises JournalError for an event that nothing can be made of; as yet it was not folded then.
    """
    if event.seq and event.seq <= state.seq:
        return state
    if event.seq > state.seq + MOST_LOST:
        raise JournalError(f"An event of number {event.seq} cannot follow on number {state.seq}")
    if rule := _RULES.get(type(event)):
        try:
            state = rule(state, event)
        except (
            ValueError,
            TypeError,
            LookupError,
            AttributeError,
            ArithmeticError,
            TransientError,
        ) as error:
            raise JournalError(f"A {event.kind} event makes no sense: {error}") from error
    recent = state.recent
    if not isinstance(event, _MANY):
        recent = (*recent[1 - RECENT :], event)
    return changed(state, seq=max(event.seq, state.seq), recent=recent)
