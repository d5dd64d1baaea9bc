"""Events as clauses: single ones, and several alike ones as one."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from types import ModuleType

from ...journal import Event, events
from ...kinds import KINDS, load, parts
from ...protocol.checks import all_plain
from ...protocol.events import Unknown
from ...protocol.machines import Share
from ...spec import ClusterSpec, render_duration
from ...spec import render_money as money
from .states import destination, transfer_price
from .words import clock, count, share_words

_QUIET = frozenset(
    {
        "controller.started",
        "vm.traffic",
        "cluster.clock",
        "cluster.advised",
        "cluster.leased",
    }
)


@cache
def quiet_kinds() -> frozenset[str]:
    """Return the kinds of events that panels and `events` leave out."""
    return _QUIET.union(*(words.QUIET for words in parts("words").values()))


def event_line(event: Event, *, dated: bool = False) -> str:
    """Return an event as one line: the local time, with the date if `dated`, and what happened."""
    day = ""
    if dated:
        day = time.strftime("%Y-%m-%d ", time.localtime(event.at))
    return f"{day}{clock(event.at)}  {event_words(event)}"


def grouped(history: Iterable[Event]) -> list[list[Event]]:
    """Return the events in order, consecutive alike ones in one list."""
    groups: list[list[Event]] = []
    for event in history:
        key = _alike(event)
        if groups and key and key == _alike(groups[-1][-1]):
            groups[-1].append(event)
        else:
            groups.append([event])
    return groups


def group_words(group: Sequence[Event]) -> str:
    """Return alike events as one clause, such as `4 VMs are ready`."""
    last = group[-1]
    many = f"{len(group)} VMs"
    if len(group) == 1:
        return event_words(last)
    match last:
        case events.VmRequested():
            return all_plain(f"{many} requested in {last.zone}")
        case events.VmRunning():
            return f"{many} boot"
        case events.VmReady():
            return f"{many} are ready"
        case events.VmDeleted():
            return all_plain(f"{many} were deleted: {last.reason}")
    for words in _grouping():
        if found := words.group_words(group):
            return all_plain(found)
    return event_words(last)


def event_words(event: Event) -> str:
    """Return what happened as a clause.

    Most of it may come from a VM, so that characters that control a terminal are removed.
    """
    own = _cluster_words(event) or _vm_words(event) or _controller_words(event)
    if own:
        return all_plain(own)
    for words in parts("words").values():
        if found := words.event_words(event):
            return all_plain(found)
    return all_plain(_other_words(event))


@cache
def _grouping() -> tuple[ModuleType, ...]:
    return tuple(words for words in parts("words").values() if hasattr(words, "group_words"))


def _alike(event: Event) -> tuple[object, ...] | None:
    """Return a key that is the same for events that are shown as one; None: shown separately."""
    match event:
        case events.VmRequested(replaces=None):
            return event.kind, event.zone
        case events.VmRunning() | events.VmReady():
            return (event.kind,)
        case events.VmDeleted():
            return event.kind, event.reason
    return next((key for words in _grouping() if (key := words.alike(event))), None)


def _cluster_words(event: Event) -> str:
    match event:
        case events.ClusterDeclared():
            return "the cluster was declared"
        case events.ClusterResized():
            without = ""
            if event.gives_up:
                without = f", without {', '.join(event.gives_up)}"
            return f"the cluster becomes {ClusterSpec.from_dict(event.spec).spec}{without}"
        case events.ClusterRelocating():
            return f"the cluster moves to {destination(ClusterSpec.from_dict(event.spec))}"
        case events.ClusterRelocated():
            return f"the cluster has moved{_transferred(event)}"
        case events.ClusterStayed():
            return f"the cluster stays where it is: {event.reason}"
        case events.ClusterClock():
            return "the emulated time passes at another rate"
        case events.ClusterAdvised():
            return _advice(event)
        case events.ClusterLeased():
            counts = {
                run: sum(worker == run for worker in event.workers.values()) for run in event.ports
            }
            leases = [f"{run} has {count(workers, 'worker')}" for run, workers in counts.items()]
            waits = [f"{run} {_why_waits(*why)}" for run, why in event.held.items()]
            return "; ".join([*(leases or ["no run has workers"]), *waits])
        case events.ClusterImageChosen():
            if event.image:
                return f"VMs boot from {event.image}: {event.why}"
            return event.why
        case events.ClusterZonesFound():
            offers = "; ".join(
                f"{kind.upper()} in {', '.join(zones)}" for kind, zones in event.zones.items()
            )
            return f"Compute Engine offers other zones than the catalog: {offers}"
        case events.ClusterPriced():
            rates = f"{money(event.hourly)} per hour, {money(event.on_demand_hourly)} on demand"
            return f"Google's prices of today count: {rates}"
        case events.ClusterReady():
            workers = count(event.workers, "worker")
            return f"the cluster is ready: {workers} after {render_duration(event.seconds)}"
        case events.ClusterDeleting():
            return f"deleting the cluster: {event.reason}"
        case events.ClusterDeleted():
            return "the cluster is deleted, no VM is left"
        case events.ReclaimWanted():
            if not event.number:
                return "the provider no longer wants VMs back"
            return f"the provider wants {count(event.number, 'VM')} back by {clock(event.until)}"
        case events.ReclaimProposed():
            return f"proposed to be given up: {', '.join(event.vms)} ({event.reason})"
        case events.ReclaimAnswered():
            verb = "is" if len(event.vms) == 1 else "are"
            return f"{', '.join(event.vms)} {verb} given up: {event.reason}"
    return ""


def _transferred(event: events.ClusterRelocated) -> str:
    if not event.transferred:
        return ""
    words = f", {event.transferred / 2**20:,.1f} MiB were transferred"
    if event.dollars:
        words += f" for {transfer_price(event.dollars)}"
    return words


def _advice(event: events.ClusterAdvised) -> str:
    gpus = f"Spot {event.accelerator.upper()}s"
    best = max(event.zones, key=lambda zone: event.zones[zone][0], default="")
    share = f"{event.zones[best][0]:.0%}" if best else ""
    if event.measured:
        where = f", most often in {best} ({share} of the polls)" if best else ""
        return f"measured availability of {gpus} within the hour{where}"
    where = f", best in {best} ({share} likely)" if best else ""
    return f"Compute Engine's advice on {gpus}{where}"


def _why_waits(kind: str, why: str) -> str:
    if kind == "check":
        return why
    return f"waits: {why}"


def _vm_words(event: Event) -> str:
    match event:
        case events.VmRequested():
            instead = f" to replace {event.replaces}" if event.replaces else ""
            return f"{event.vm} requested in {event.zone}{instead}"
        case events.VmRefused():
            return f"{event.vm} refused: {event.reason}"
        case events.VmRunning():
            return f"{event.vm} boots"
        case events.VmBootStep():
            return f"{event.vm} is {event.what}"
        case events.VmBootFailed():
            lines = f"\n{event.lines}" if event.lines else ""
            return f"{event.vm} did not boot, {event.reason}{lines}"
        case events.VmUnfit():
            return f"{event.vm} is unusable: {event.reason}"
        case events.VmReady():
            return f"{event.vm} is ready"
        case events.VmPreemptionAsked():
            later = f" in {render_duration(event.seconds)}" if event.seconds else ""
            return f"the user asked to revoke {event.vm}{later}"
        case events.VmPreemptionNotice():
            return f"{event.vm} will be revoked within {event.seconds:.0f} s"
        case events.VmRevoked():
            if event.signal == "start":
                return f"{event.vm} cannot be started again"
            return f"{event.vm} was revoked"
        case events.VmDeleted():
            return f"{event.vm} was deleted: {event.reason}"
        case events.VmDeflated():
            return f"{event.vm} was deflated: {_changed_share(event)}"
        case events.VmInflated():
            return f"{event.vm} was inflated: {_changed_share(event)}"
    return _machine_words(event)


def _machine_words(event: Event) -> str:
    match event:
        case events.VmMachineAsked():
            change = f"restarted as {event.machine_type}"
            return f"{event.vm} will be {change}: {event.reason}"
        case events.VmMachineChanged():
            return f"{event.vm} is {event.machine_type} now, and was {event.machine_before}"
        case events.VmMachineRefused():
            return f"{event.vm} stays as it was: {event.reason}"
        case events.VmStopped():
            return f"{event.vm} is stopped: {event.reason}"
        case events.VmStartRefused():
            return f"{event.vm} was not started: {event.reason}"
        case events.VmStarted():
            if event.address:
                return f"{event.vm} boots again"
            return f"{event.vm} runs, but not as expected"
        case events.VmEndSet():
            return f"{event.vm} had lost its time limit: it was set to {clock(event.ends)} again"
    return ""


def _changed_share(event: events.VmDeflated | events.VmInflated) -> str:
    share = Share(event.cpu, event.network)
    before = Share(event.cpu_before, event.network_before)
    return f"it has {share_words(share)}, and had {share_words(before)}"


def _controller_words(event: Event) -> str:
    match event:
        case events.ControllerStarted():
            return "the controller started"
        case events.ControllerMoved():
            return f"the controller moved to {event.vm or 'the machine that declared the cluster'}"
        case events.ControllerRecovered():
            damage = ""
            if event.unreadable:
                damage = f"; {count(event.unreadable, 'line')} of the journal cannot be read"
            return f"a new controller took over {count(event.vms, 'VM')}{damage}"
        case events.ControllerTrouble():
            if event.what:
                return f"trouble: {event.what}"
            return "the trouble is over"
        case events.ClusterForgotten():
            cost = f"it counts with ${event.dollars:.2f}, the most that it can have cost"
            return f"its journal was removed; {cost}"
        case events.ClusterTakenBack():
            without = ""
            if event.left_out:
                without = f", without what its VM wrote: {', '.join(sorted(event.left_out))}"
            return f"this machine took the cluster back{without}"
        case events.WorkDeclared():
            return f"{_named(event.of, event.work)} was declared"
        case events.WorkStopping():
            own = load(event.of, "words").event_words(event)
            return own or f"{event.work} is stopping: {event.reason}"
        case events.WorkEnded():
            reason = f": {event.reason}" if event.reason else ""
            return f"{event.work} {event.state}{reason}"
    return ""


def _named(kind: str, name: str) -> str:
    """Return the name of work, such as `run-1`, with the kind if the name does not contain it."""
    if name.startswith(KINDS[kind].stems):
        return name
    return f"{KINDS[kind]} {name}"


def _other_words(event: Event) -> str:
    if isinstance(event, Unknown):
        return _unknown_words(event.values)
    return event.kind or "something happened"


def _unknown_words(values: Mapping[str, object]) -> str:
    fields = {key: value for key, value in values.items() if key not in ("seq", "time", "kind")}
    words = str(values.get("kind", "unknown event"))
    if fields:
        words += f": {', '.join(f'{key} {value}' for key, value in fields.items())}"
    return words
