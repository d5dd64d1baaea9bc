"""Which lines of a journal count once this machine takes a cluster back from a controller on a VM.

A VM may write what it likes. So of the time in which it was in charge the facts count, and an
intention counts only where files of this machine say the same: the declarations of runs, jobs and
studies, and the commands that were passed on. Such an intention is made again from those files. All
others are left out of the journal and kept beside it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TypeVar, cast

from ...errors import JournalError, TransientError
from ...journal import (
    ClusterState,
    Event,
    events,
    fold,
)
from ...kinds import find, having
from ...protocol.events import FACT
from ...spec import ClusterSpec, price_kind
from ..decisions.restarting import asked

log = logging.getLogger(__name__)

LEFT_OUT = "journal.left-out.jsonl"
"""What controllers on VMs wrote that does not count, in the cluster's folder."""
_USUAL = frozenset(
    {
        "cluster.resized",
        "preparation.scaled",
        "deadline.acted",
        "deadline.proposed",
        "reclaim.wanted",
        "reclaim.proposed",
        "reclaim.answered",
    }
)
"""Intentions of a controller that does its work. This machine decides them again."""
_Kind = TypeVar("_Kind", bound=Event)
_Rule = Callable[["Sieve", _Kind], Event | None]


@dataclass(frozen=True)
class Sifted:
    """The events of a journal that count, and those that do not."""

    kept: list[Event] = field(default_factory=list[Event])
    left_out: list[Event] = field(default_factory=list[Event])

    @property
    def counts(self) -> Mapping[str, int]:
        """By kind, how many events were left out."""
        return Counter(event.kind for event in self.left_out)

    @property
    def surprising(self) -> list[str]:
        """The kinds that were left out and that no controller on a VM has a reason to write."""
        return sorted(set(self.counts) - _USUAL)


def sifted_until(history: Sequence[Event]) -> int:
    """Return how many events of a journal need no sifting: all of them where no VM was in charge
    since then.

    All that stands before a `cluster.taken_back` of this machine was sifted when that was written.
    """
    end = 0
    elsewhere = False
    pending = False
    for place, event in enumerate(history, 1):
        if isinstance(event, events.ControllerMoved):
            elsewhere = bool(event.vm)
            pending = pending or elsewhere
        elif isinstance(event, events.ClusterTakenBack) and not elsewhere:
            end = place
            pending = False
    if pending:
        return end
    return len(history)


def sift(directory: Path, history: Sequence[Event], agreed: ClusterSpec) -> Sifted:
    """Return which events of the journal count for this machine.

    Parameters
    ----------
    directory
        The cluster's folder, with the files of this machine.
    history
        All events of the journal.
    agreed
        The cluster as this machine knows it.
    """
    sieve = Sieve(directory, agreed)
    settled = sifted_until(history)
    elsewhere = False
    for place, event in enumerate(history):
        if isinstance(event, events.ControllerMoved):
            elsewhere = bool(event.vm)
            sieve.keep(event)
        elif elsewhere and place >= settled:
            sieve.judge(event)
        else:
            sieve.keep(event)
    return sieve.sifted


class Sieve:
    """The journal as far as it was sifted."""

    def __init__(self, directory: Path, agreed: ClusterSpec) -> None:
        self.directory = directory
        self.agreed = agreed
        self.state = ClusterState()
        self.sifted = Sifted()

    def keep(self, event: Event) -> None:
        """Count the event."""
        self.sifted.kept.append(event)
        try:
            self.state = fold(self.state, event)
        except JournalError:
            return  # every reader of the journal passes over it

    def judge(self, event: Event) -> None:
        """Count what a VM wrote if it is a fact, or agrees with the files of this machine."""
        found: Event | None = event
        if rule := _rules().get(type(event)):
            try:
                found = rule(self, event)
            except (
                OSError,
                ValueError,
                TypeError,
                LookupError,
                AttributeError,
                ArithmeticError,
                TransientError,
            ) as error:
                log.warning(
                    "a %s event of a VM makes no sense: %s", event.kind, error
                )  # as `fold` has it
                found = None
        elif event.provenance != FACT:
            found = None
        if found is None:
            self.sifted.left_out.append(event)
        else:
            self.keep(found)


_RULES: dict[type[Event], _Rule[Event]] = {}


@cache
def _rules() -> Mapping[type[Event], _Rule[Event]]:
    """Return the rules of this module, and those of kinds: `RULES` of their modules `provenance`."""
    found = dict(_RULES)
    for part in having("provenance"):
        found.update(getattr(part, "RULES", {}))
    return found


def _rule(kind: type[_Kind]) -> Callable[[_Rule[_Kind]], _Rule[_Kind]]:
    """Make the function below the judge of a kind: it returns the event that counts, or None."""

    def register(function: _Rule[_Kind]) -> _Rule[_Kind]:
        _RULES[kind] = cast("_Rule[Event]", function)
        return function

    return register


@_rule(events.VmRequested)
def _(sieve: Sieve, event: events.VmRequested) -> Event:
    """A fact, but for its prices and its end: those of this machine hold."""
    event = replace(event, ends=min(event.ends, sieve.agreed.ends_at))
    line = sieve.agreed.find_price(price_kind(event.role, event.accelerator), event.zone)
    if line is None:
        return event
    if event.provisioning_model == "standard":
        hourly = line.on_demand_hourly
    else:
        hourly = line.hourly
    return replace(event, hourly=hourly, on_demand_hourly=line.on_demand_hourly)


@_rule(events.VmMachineAsked)
def _(sieve: Sieve, event: events.VmMachineAsked) -> Event | None:
    """A change to a machine that this machine would allow counts, at this machine's prices."""
    own = asked(sieve.state, event.vm, event.machine_type, event.at)
    if own:
        return replace(own, seq=event.seq, time=event.time)
    return None


@_rule(events.WorkDeclared)
def _(sieve: Sieve, event: events.WorkDeclared) -> Event | None:
    """Count a declaration once, as this machine has it where `declared` of the kind's part says so.

    Jobs and bags that this machine declared otherwise are ended by `take_back`, so that they stay
    visible.
    """
    if event.work in sieve.state.of_kind(event.of):
        return None
    declared = getattr(find(event.of, "provenance"), "declared", None)
    if declared:
        return declared(sieve, event)
    return event
