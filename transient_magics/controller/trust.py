"""Trust boundary of a cluster: which lines and intentions of a VM count.

User code runs on VMs, so a VM may write anything. Lines that do not fit are rejected
(`RejectedLines`). When this machine takes a cluster back from a controller on a VM, the facts of
that time count. An intention counts only if files of this machine say the same: declarations of
work, and commands that were passed on (`sift`). Other lines are kept beside the journal. Each
request for a VM is compared with the user's agreement (`agreed_spec`, `compare`).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import TypeVar, cast

from ..cloud import VmRequest
from ..deadlines.situation import zones_for
from ..errors import AgreementError, JournalError, TransientError
from ..journal import (
    ClusterState,
    Event,
    VmState,
    events,
    fold,
)
from ..journal.declared import Agreement
from ..kinds import find, having
from ..protocol.events import FACT
from ..protocol.machines import CPU
from ..spec import CONTROLLER, PARAMETER_SERVER, PREPARATION, WORKER, ClusterSpec, price_kind
from ..spec.cluster import PriceLine
from .decisions.machine_change import asked

log = logging.getLogger(__name__)

LEFT_OUT = "journal.left-out.jsonl"
"""File in the cluster's folder with lines of controllers on VMs that do not count."""
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

_FIRST = 10
_EACH = 1000


# ---------------------------------------------------------------- rejected lines


class RejectedEventError(Exception):
    """Error for an event of a VM that contradicts what the VM reported before."""


class RejectedLines:
    """Lines that were rejected. `source` is their writer, `tell` receives one sentence, once."""

    def __init__(self, source: str, tell: Callable[[str], object]) -> None:
        self.count = 0
        self._source = source
        self._tell = tell

    def add(self, line: bytes, error: Exception) -> None:
        """Count one more line. Only some are logged, so that a VM cannot fill the log."""
        self.count += 1
        if self.count <= _FIRST or self.count % _EACH == 0:
            log.warning(
                "%s: line %d that is refused: %s: %r", self._source, self.count, error, line[:200]
            )
        if self.count == 1:
            self._tell(f"{self._source} wrote lines that are refused, the first one: {error}")


@dataclass(frozen=True)
class Sifted:
    """Events of a journal that count, and those that do not."""

    kept: list[Event] = field(default_factory=list[Event])
    left_out: list[Event] = field(default_factory=list[Event])

    @property
    def counts(self) -> Mapping[str, int]:
        """Number of events that were left out, by kind."""
        return Counter(event.kind for event in self.left_out)

    @property
    def surprising(self) -> list[str]:
        """Kinds left out that no controller on a VM has a reason to write."""
        return sorted(set(self.counts) - _USUAL)


def sifted_until(history: Sequence[Event]) -> int:
    """Return how many events of a journal need no sifting: all if no VM was in charge since.

    All events before this machine's `cluster.taken_back` were sifted when that was written.
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
    """Sifter of the journal, with its sifted part so far."""

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
            # Every reader of the journal skips it.
            return

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
                # As in `fold`.
                log.warning("a %s event of a VM makes no sense: %s", event.kind, error)
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
    """Return the rules of this module, and `RULES` of the kinds' modules `provenance`."""
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
    """Count a request as a fact, but with the prices and the end of this machine."""
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
    """Count a change of machine type that this machine would allow, at this machine's prices."""
    own = asked(sieve.state, event.vm, event.machine_type, event.at)
    if own:
        return replace(own, seq=event.seq, time=event.time)
    return None


@_rule(events.WorkDeclared)
def _(sieve: Sieve, event: events.WorkDeclared) -> Event | None:
    """Count a declaration once, in this machine's form if the kind's part has `declared`.

    Jobs and bags that this machine declared differently are ended by `take_back`, so that they stay
    visible.
    """
    if event.work in sieve.state.of_kind(event.of):
        return None
    declared = getattr(find(event.of, "provenance"), "declared", None)
    if declared:
        return declared(sieve, event)
    return event


# ---------------------------------------------------------------- requests
#
# What is requested follows from the state, and the state from the journal. The agreement is read
# from files that no journal writes (`journal/declared.py`). Each request is compared with it as a
# whole, so that a feature that rents something new is refused until its agreement is saved. Pure.


def agreed_spec(
    agreement: Agreement, event: events.VmRequested, there: Iterable[VmState]
) -> ClusterSpec:
    """Return the declaration of the agreement in which the VM has a place.

    Parameters
    ----------
    agreement
        What this machine's user agreed to.
    event
        The VM that would be requested.
    there
        The VMs that stay: requested or running, and not about to go.

    Raises
    ------
    AgreementError
        The VM is outside the agreement.
    """
    specs = [spec for spec in (agreement.spec, agreement.moving) if spec is not None]
    whys = [_outside(spec, agreement, event) for spec in specs]
    if all(whys):
        raise _refusal(agreement, event, whys[-1])
    most = sum(_most(spec, agreement, event) for spec in specs)
    alike = [vm for vm in there if vm.name != event.vm and _is_alike(agreement, vm, event)]
    if len(alike) >= most:
        raise _refusal(
            agreement, event, f"it allows {most} such VMs, and there are already {len(alike)}"
        )
    return next(spec for spec, why in zip(specs, whys, strict=True) if not why)


def refuse_difference(
    agreement: Agreement, event: events.VmRequested, request: VmRequest, agreed: VmRequest
) -> None:
    """Raise AgreementError if the request differs from the agreement's request for the same VM."""
    names = [field.name for field in fields(VmRequest)]
    other = [name for name in names if getattr(request, name) != getattr(agreed, name)]
    if other:
        raise _refusal(
            agreement, event, f"the request differs in {', '.join(other).replace('_', ' ')}"
        )


def _refusal(agreement: Agreement, event: events.VmRequested, why: str) -> AgreementError:
    return AgreementError(
        f"{event.vm} is not requested, because the declaration of {agreement.spec.name} on this "
        f"machine does not allow it: {why}"
    )


def _outside(spec: ClusterSpec, agreement: Agreement, event: events.VmRequested) -> str:
    """Return why the VM has no place in this declaration, a clause, or ""."""
    zones = _zones(spec, agreement, event)
    if not zones:
        return f"it declares no {event.role} with {event.accelerator or 'no GPU'}"
    if event.zone not in zones:
        return f"it declares no such VM in {event.zone}"
    line = spec.find_price(price_kind(event.role, event.accelerator), event.zone)
    if line is None:
        return f"it has no price for {event.accelerator or event.role}"
    if event.machine_type != line.machine_type:
        return f"the machine type must be {line.machine_type}, not {event.machine_type}"
    if not _has_terms(spec, agreement, event):
        return f"it declares no such VM with the provisioning model {event.provisioning_model}"
    return _wrong_limit(spec, event, line)


def _wrong_limit(spec: ClusterSpec, event: events.VmRequested, line: PriceLine) -> str:
    if event.ends > spec.ends_at:
        return f"the VM would end {event.ends - spec.ends_at:,.0f} s after the cluster"
    if event.hourly < min(line.hourly, line.on_demand_hourly):
        return "the price on its bill is too low"
    return ""


def _zones(spec: ClusterSpec, agreement: Agreement, event: events.VmRequested) -> Sequence[str]:
    """Return the zones of such a VM; empty if the declaration has none."""
    if event.role == CONTROLLER and not event.accelerator:
        return spec.all_zones if spec.controller_vm else ()
    if event.role == PARAMETER_SERVER and not event.accelerator:
        if not spec.parameter_servers:
            return ()
        if spec.parameter_server_zone:
            return (spec.parameter_server_zone,)
        return spec.all_zones
    if event.role == PREPARATION and event.accelerator == CPU:
        if spec.preparation:
            return (spec.home_zone,)
        return ()
    if event.role != WORKER:
        return ()
    groups = [group for group in spec.groups if group.accelerator == event.accelerator]
    zones = [group.zone for group in groups if group.zone]
    if any(not group.zone for group in groups):
        zones += spec.zones_for(event.accelerator)
    if agreement.deadline and event.accelerator in spec.prices:
        zones += zones_for(spec, agreement.deadline, event.accelerator)
    return zones


def _has_terms(spec: ClusterSpec, agreement: Agreement, event: events.VmRequested) -> bool:
    if event.role in (CONTROLLER, PARAMETER_SERVER):
        return event.provisioning_model == "standard"
    if event.provisioning_model == spec.provisioning_model:
        return True
    falls_back = spec.fallback_seconds is not None
    return event.provisioning_model == "standard" and (falls_back or agreement.deadline is not None)


def _most(spec: ClusterSpec, agreement: Agreement, event: events.VmRequested) -> int:
    """Return how many such VMs the declaration allows simultaneously."""
    if event.role == CONTROLLER:
        return 1 if spec.controller_vm else 0
    if event.role == PARAMETER_SERVER:
        return spec.parameter_servers
    if event.role == PREPARATION:
        return spec.preparation
    if agreement.deadline:
        return max(spec.max_workers, spec.worker_count)
    return sum(group.count for group in spec.groups if group.accelerator == event.accelerator)


def _is_alike(agreement: Agreement, vm: VmState, event: events.VmRequested) -> bool:
    """Return whether both VMs are counted together: of workers those with the same GPU.

    A deadline may have workers of several kinds. There those on the same terms count together, as
    in `decisions.core.worker_places`.
    """
    if vm.role != event.role:
        return False
    if vm.role != WORKER:
        return True
    if agreement.deadline:
        return (vm.provisioning_model == "standard") == (event.provisioning_model == "standard")
    return vm.accelerator == event.accelerator
