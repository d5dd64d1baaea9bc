"""Runs in a journal that a controller on a VM wrote: which events count.

Events count if the files of this machine confirm them.
"""

from __future__ import annotations

from dataclasses import replace

from ...controller.trust import Sieve
from ...journal import Event, RunState, events, unknown_run
from ...journal.declared import declared_run, is_brought, was_asked
from ...protocol.cluster_commands import Move

_HIGHEST_SLOT = 100_000


def declared(sieve: Sieve, event: events.WorkDeclared) -> Event | None:
    """Return the event with the declaration of this machine; None for a trial's run from a VM."""
    if is_brought(sieve.directory, event.work) and sieve.state.study_of(event.work):
        return None
    own = declared_run(sieve.directory, unknown_run(event.work)).spec
    return replace(event, spec=own.without_token())


def moved(sieve: Sieve, event: events.TrainMoved) -> Event | None:
    """Return a change of the queue if this machine requested it."""
    if was_asked(sieve.directory, Move(run=event.run, before=event.before)):
        return event
    return None


def scaled(sieve: Sieve, event: events.PreparationScaled) -> Event | None:
    """Return the event if the run and the cluster may have that many preparers of batches."""
    run = sieve.state.of(RunState).get(event.run)
    most = min(run.spec.preparers, sieve.agreed.preparation) if run else 0
    fits = len(event.slots) <= most and max(event.slots, default=0) <= _HIGHEST_SLOT
    return event if fits else None


RULES = {events.TrainMoved: moved, events.PreparationScaled: scaled}
