"""Which lines of a journal count once this machine takes a cluster back from a controller on a VM.

A VM may write what it likes. So of the time in which it was in charge the facts count, and an intention counts only
where files of this machine say the same: the declarations of runs, jobs and studies, and the commands that were passed
on. Such an intention is made again from those files. All others are left out of the journal and kept beside it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar, cast

from ...errors import JournalError, TransientError
from ...journal import (
    ClusterState,
    Event,
    RunState,
    StudyState,
    events,
    fold,
    unknown_run,
)
from ...journal.declared import declared_run, declared_study, is_brought, was_asked
from ...protocol import checks, layout
from ...protocol.cluster_commands import ExtendStudy, Move
from ...protocol.dask.spec import DaskSpec
from ...protocol.events import FACT
from ...protocol.literals import same
from ...spec import ClusterSpec, price_kind
from ...trials import point
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
_HIGHEST_SLOT = 100_000
_Kind = TypeVar("_Kind", bound=Event)
_Rule = Callable[["_Sieve", _Kind], Event | None]


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
    """Return how many events of a journal need no sifting: all of them where no VM was in charge since then.

    All that stands before a `cluster.taken_back` of this machine was sifted when that was written.
    """
    end, elsewhere, pending = 0, False, False
    for place, event in enumerate(history, 1):
        if isinstance(event, events.ControllerMoved):
            elsewhere = bool(event.vm)
            pending = pending or elsewhere
        elif isinstance(event, events.ClusterTakenBack) and not elsewhere:
            end, pending = place, False
    return end if pending else len(history)


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
    sieve = _Sieve(directory, agreed)
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


class _Sieve:
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
        if rule := _RULES.get(type(event)):
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
                log.warning("a %s event of a VM makes no sense: %s", event.kind, error)  # as `fold` has it
                found = None
        elif event.provenance != FACT:
            found = None
        if found is None:
            self.sifted.left_out.append(event)
        else:
            self.keep(found)


_RULES: dict[type[Event], _Rule[Event]] = {}


def _rule(kind: type[_Kind]) -> Callable[[_Rule[_Kind]], _Rule[_Kind]]:
    """Make the function below the judge of a kind: it returns the event that counts, or None."""

    def register(function: _Rule[_Kind]) -> _Rule[_Kind]:
        _RULES[kind] = cast("_Rule[Event]", function)
        return function

    return register


@_rule(events.VmRequested)
def _(sieve: _Sieve, event: events.VmRequested) -> Event:
    """A fact, but for its prices and its end: those of this machine hold."""
    event = replace(event, ends=min(event.ends, sieve.agreed.ends_at))
    line = sieve.agreed.known_price(price_kind(event.role, event.accelerator), event.zone)
    if line is None:
        return event
    hourly = line.on_demand_hourly if event.provisioning_model == "standard" else line.hourly
    return replace(event, hourly=hourly, on_demand_hourly=line.on_demand_hourly)


@_rule(events.VmMachineAsked)
def _(sieve: _Sieve, event: events.VmMachineAsked) -> Event | None:
    """A change to a machine that this machine would allow counts, at this machine's prices."""
    own = asked(sieve.state, event.vm, event.machine_type, event.at)
    return replace(own, seq=event.seq, time=event.time) if own else None


@_rule(events.WorkDeclared)
def _(sieve: _Sieve, event: events.WorkDeclared) -> Event | None:
    """A declaration counts once, as the files of this machine have it."""
    if event.work in sieve.state.of_kind(event.of):
        return None
    agreed = _DECLARED.get(event.of)
    return agreed(sieve, event) if agreed else event


def _declared_run(sieve: _Sieve, event: events.WorkDeclared) -> Event | None:
    if is_brought(sieve.directory, event.work) and sieve.state.study_of(event.work):
        return None
    own = declared_run(sieve.directory, unknown_run(event.work)).spec
    return replace(event, spec=own.without_token())


def _declared_dask(sieve: _Sieve, event: events.WorkDeclared) -> Event | None:
    """One without a declaration here has no keys here, and is ended by `Dasks.take_back`."""
    path = sieve.directory / layout.DASKS / event.work / layout.DASK
    try:
        own = DaskSpec.from_dict({**checks.parsed_object(path.read_bytes()), "name": event.work})
    except FileNotFoundError:
        return event
    return replace(event, spec=own.to_dict())


def _declared_study(sieve: _Sieve, event: events.WorkDeclared) -> Event | None:
    return replace(event, spec=declared_study(sieve.directory, event.work).to_dict())


_DECLARED: dict[str, _Rule[events.WorkDeclared]] = {
    "run": _declared_run,
    "dask": _declared_dask,
    "study": _declared_study,
}
"""By kind. Jobs and bags that this machine declared otherwise are ended by `take_back`, so that they stay visible."""


@_rule(events.TrainMoved)
def _(sieve: _Sieve, event: events.TrainMoved) -> Event | None:
    return event if was_asked(sieve.directory, Move(run=event.run, before=event.before)) else None


@_rule(events.PreparationScaled)
def _(sieve: _Sieve, event: events.PreparationScaled) -> Event | None:
    run = sieve.state.of(RunState).get(event.run)
    most = min(run.spec.preparers, sieve.agreed.preparation) if run else 0
    fits = len(event.slots) <= most and max(event.slots, default=0) <= _HIGHEST_SLOT
    return event if fits else None


@_rule(events.StudyAsked)
def _(sieve: _Sieve, event: events.StudyAsked) -> Event | None:
    """A trial counts if it is the next one, within the space, and where the point follows from its number, that one."""
    study = sieve.state.of(StudyState).get(event.study)
    if study is None or event.trial != len(study.trials) or event.trial >= study.wanted:
        return None
    if event.runs != study.spec.run_names(event.trial) or not study.spec.tries(event.params):
        return None
    own = point(study.spec, event.trial)
    if own is not None and not all(same(own[name], value) for name, value in event.params.items()):
        return None
    return event


@_rule(events.StudyExtended)
def _(sieve: _Sieve, event: events.StudyExtended) -> Event | None:
    study = sieve.state.of(StudyState).get(event.study)
    command = ExtendStudy(study=event.study, trials=event.trials, request=event.request)
    again = study is None or (event.request and event.request in study.requests)
    return event if not again and event.request and was_asked(sieve.directory, command) else None
