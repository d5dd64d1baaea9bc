"""The rules by which a journal's events add up to a ClusterState. No clock, no file.

`fold(state, event)` returns the next state and never changes the old one. `replay(events)` folds
all of them. An event that was folded already changes nothing: events carry their `seq`, and `fold`
ignores older ones.

Each kind of event has one rule, a function of the state and the event. The rules for the cluster,
for VMs and for runs are in `clusters`, `vms` and `runs`, and `works` has those for events of work
of every kind. Each kind of work has a module `fold`, with `rules` for its own events and
`FREQUENT`, the events that `recent` leaves out.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from ...errors import JournalError, TransientError
from ...kinds import having
from ...protocol.events import Unknown
from ...protocol.vm_events import TrainData, TrainMeasured, TrainProgress
from .. import events as e
from ..events import Event
from ..state import ClusterState
from . import clusters, runs, vms, works
from .rules import Rules, changed

MOST_LOST = 1_000_000
"""Largest difference between the numbers of two successive events.

A VM may have written the number. Numbers are below 2**63, so a huge one would leave none for later
events.
"""
RECENT = 60
"""Number of events in `ClusterState.recent`, for panels and `events`."""
_FREQUENT = (
    TrainProgress,
    TrainData,
    TrainMeasured,
    e.VmTraffic,
    e.DeadlineOutlook,
    Unknown,
)
"""Events that are too frequent to be kept among the recent ones."""


@cache
def _rules() -> Rules:
    """Return all rules, those of each kind of work included."""
    modules = [clusters, vms, works, runs, *having("fold")]
    found = Rules()
    for module in modules:
        found |= module.rules
    return found


@cache
def _frequent() -> tuple[type[Event], ...]:
    """Return the classes of events that are not kept among the recent ones."""
    found = list[type[Event]](_FREQUENT)
    for module in having("fold"):
        found += getattr(module, "FREQUENT", ())
    return tuple(found)


def replay(history: Iterable[Event], state: ClusterState | None = None) -> ClusterState:
    """Fold all of `history`, starting at `state` (default: the empty one).

    Events that do not fit are counted and skipped.
    """
    state = state or ClusterState()
    for event in history:
        try:
            state = fold(state, event)
        except JournalError:
            state = changed(state, passed_over=state.passed_over + 1)
    return state


def fold(state: ClusterState, event: Event) -> ClusterState:
    """Return the state after `event`. An event that was folded already changes nothing.

    An event without a number (0) is not in a journal yet, as on a full disk, and is always folded.

    Raises JournalError for an event that does not fit the state; the state stays the same.
    """
    if event.seq and event.seq <= state.seq:
        return state
    if event.seq > state.seq + MOST_LOST:
        raise JournalError(f"Event {event.seq} cannot follow event {state.seq}")
    if rule := _rules().get(type(event)):
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
            # A VM may have written the event. Its fields were checked one by one, but not whether
            # they fit the state: a rule may miss a key, index or field, or divide by zero. Such an
            # event is skipped and must not stop the readers of the journal.
            raise JournalError(f"A {event.kind} event does not fit the state: {error}") from error
    recent = state.recent
    if not isinstance(event, _frequent()):
        recent = (*recent, event)[-RECENT:]
    return changed(state, seq=max(event.seq, state.seq), recent=recent)
