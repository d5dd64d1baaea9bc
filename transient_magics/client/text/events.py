"""What happened, as clauses that a person would say: single events, and several that are alike."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cache

from ...journal import Event, events
from ...kinds import KINDS, load, parts
from ...protocol.checks import all_plain
from ...protocol.machines import Share
from ...spec import ClusterSpec, render_duration
from ...spec import render_money as money
from .deadlines import deadline_event_words
from .records import data_words
from .states import destination, transfer_price
from .words import clock, count, evaluated_words, number, scores_words, share_words

_QUIET = frozenset(
    {
        "train.progress",
        "controller.started",
        "worker.replaced",
        "vm.traffic",
        "cluster.clock",
        "cluster.advised",
        "cluster.leased",
        "train.checked",
        "deadline.outlook",
        "train.data",
    }
)


@cache
def quiet_kinds() -> frozenset[str]:
    """Return the kinds of events that panels and `events` leave out."""
    return _QUIET.union(*(words.QUIET for words in parts("words").values()))


def event_line(event: Event, *, dated: bool = False) -> str:
    """An event as one line: the time of day, and what happened."""
    if dated:
        day = time.strftime("%Y-%m-%d ", time.localtime(event.at))
    else:
        day = ""
    return f"{day}{clock(event.at)}  {event_words(event)}"


def grouped(history: Iterable[Event]) -> list[list[Event]]:
    """Events that come one behind the other and say the same of several VMs, together."""
    groups: list[list[Event]] = []
    for event in history:
        if groups and (key := _alike(event)) and key == _alike(groups[-1][-1]):
            groups[-1].append(event)
        else:
            groups.append([event])
    return groups


def group_words(alike: Sequence[Event]) -> str:
    """One clause for a group of events: `4 workers joined run-1`, or what `event_words` says of a
    single one.
    """
    last = alike[-1]
    many = len(alike)
    if many == 1:
        return event_words(last)
    match last:
        case events.VmRequested():
            return f"{many} VMs requested in {last.zone}"
        case events.VmRunning():
            return f"{many} VMs boot"
        case events.VmReady():
            return f"{many} VMs are ready"
        case events.VmDeleted():
            return f"{many} VMs were deleted: {last.reason}"
        case events.WorkerJoined():
            return f"{many} workers joined {last.run}: {count(last.active, 'worker')}"
        case events.WorkerLeft():
            return f"{many} workers left {last.run}{_why_left(last)}"
        case events.WorkerBatchResized():
            sizes = ", ".join(
                f"{each.new}" for each in alike if isinstance(each, events.WorkerBatchResized)
            )
            return f"{many} workers of {last.run} now take mini-batches of {sizes}{_why_resized(last.reason)}"
    return event_words(last)


def _alike(event: Event) -> tuple[object, ...] | None:
    match event:
        case events.VmRequested(replaces=None):
            return event.kind, event.zone
        case events.VmRunning() | events.VmReady():
            return (event.kind,)
        case events.VmDeleted():
            return event.kind, event.reason
        case events.WorkerJoined():
            return event.kind, event.run
        case events.WorkerLeft():
            return event.kind, event.run, event.reason
        case events.WorkerBatchResized():
            return event.kind, event.run, event.reason
    return None


_WHY_RESIZED = {
    "static": "as fast as its GPU is known to be",
    "dynamic": "as fast as it was measured to be",
    "revocation": "another worker left",
    "join": "a worker joined",
    "oom": "memory was exhausted",
}


def _why_resized(reason: str) -> str:
    return f": {_WHY_RESIZED.get(reason, reason)}"


def _reshared(event: events.VmDeflated | events.VmInflated) -> str:
    if isinstance(event, events.VmDeflated):
        verb = "deflated"
    else:
        verb = "inflated"
    share = Share(event.cpu, event.network)
    before = Share(event.cpu_before, event.network_before)
    return f"{verb}: it has {share_words(share)}, and had {share_words(before)}"


def event_words(event: Event) -> str:
    """What happened, as a clause that a person would say; much of it may be a VM's words."""
    return all_plain(_words(event))


def _words(event: Event) -> str:
    match event:
        case events.ClusterDeclared():
            return "the cluster was declared"
        case events.ClusterResized():
            if event.gives_up:
                without = f", without {', '.join(event.gives_up)}"
            else:
                without = ""
            return f"the cluster is to be {ClusterSpec.from_dict(event.spec).spec} from now on{without}"
        case events.ClusterRelocating():
            return f"the cluster moves to {destination(ClusterSpec.from_dict(event.spec))}"
        case events.ClusterRelocated():
            if event.dollars:
                paid = f" for {transfer_price(event.dollars)}"
            else:
                paid = ""
            if event.transferred:
                followed = f", {event.transferred / 2**20:,.1f} MiB followed{paid}"
            else:
                followed = ""
            return f"the cluster has moved{followed}"
        case events.ClusterStayed():
            return f"the cluster stays where it is: {event.reason}"
        case events.ClusterClock():
            return "the emulated time passes at another rate"
        case events.ClusterAdvised():
            best = max(event.zones, key=lambda zone: event.zones[zone][0], default="")
            if event.measured:
                if best:
                    found = f", most often in {best} ({event.zones[best][0]:.0%} of the looks)"
                else:
                    found = ""
                return (
                    f"what was measured of Spot {event.accelerator.upper()}s within the hour{found}"
                )
            if best:
                likely = f", best in {best} ({event.zones[best][0]:.0%} likely)"
            else:
                likely = ""
            return f"Compute Engine's advice on Spot {event.accelerator.upper()}s{likely}"
        case events.ClusterLeased():
            counted = {
                run: sum(worker == run for worker in event.workers.values()) for run in event.ports
            }
            has = [f"{run} has {count(many, 'worker')}" for run, many in counted.items()] or [
                "no run goes on"
            ]
            return "; ".join([*has, *(f"{run} {_held(*held)}" for run, held in event.held.items())])
        case events.ClusterImageChosen():
            if event.image:
                return f"VMs boot from {event.image}: {event.why}"
            return event.why
        case events.ClusterZonesFound():
            found = "; ".join(
                f"{kind.upper()} in {', '.join(zones)}" for kind, zones in event.zones.items()
            )
            return f"Compute Engine offers other zones than the catalog: {found}"
        case events.ClusterPriced():
            rates = f"{money(event.hourly)} per hour, {money(event.on_demand_hourly)} on demand"
            return f"Google's prices of today count: {rates}"
        case events.ClusterReady():
            return f"the cluster is ready: {count(event.workers, 'worker')} after {render_duration(event.seconds)}"
        case events.ClusterDeleting():
            return f"deleting the cluster: {event.reason}"
        case events.ClusterDeleted():
            return "the cluster is deleted, no VM is left"
        case events.VmRequested():
            if event.replaces:
                instead = f" in the place of {event.replaces}"
            else:
                instead = ""
            return f"{event.vm} requested in {event.zone}{instead}"
        case events.VmRefused():
            return f"{event.vm} refused: {event.reason}"
        case events.VmRunning():
            return f"{event.vm} boots"
        case events.VmBootStep():
            return f"{event.vm} is {event.what}"
        case events.VmBootFailed():
            if event.lines:
                lines = f"\n{event.lines}"
            else:
                lines = ""
            return f"{event.vm} did not boot, {event.reason}{lines}"
        case events.VmUnfit():
            return f"{event.vm} is of no use: {event.reason}"
        case events.VmReady():
            return f"{event.vm} is ready"
        case events.VmPreemptionAsked():
            if event.seconds:
                later = f" in {render_duration(event.seconds)}"
            else:
                later = ""
            return f"{event.vm} is to be taken back{later}: asked by the user"
        case events.VmPreemptionNotice():
            return f"{event.vm} will be taken back within {event.seconds:.0f} s"
        case events.VmDeflated() | events.VmInflated():
            return f"{event.vm} was {_reshared(event)}"
        case events.VmMachineAsked():
            return f"{event.vm} is to be stopped, made {event.machine_type} and started again: {event.reason}"
        case events.VmStopped():
            return f"{event.vm} is stopped: {event.reason}"
        case events.VmMachineChanged():
            return f"{event.vm} is {event.machine_type} now, and was {event.machine_before}"
        case events.VmMachineRefused():
            return f"{event.vm} stays what it was: {event.reason}"
        case events.VmEndSet():
            return f"{event.vm} had lost its end: Compute Engine was told {clock(event.ends)} again"
        case events.VmStartRefused():
            return f"{event.vm} was not started: {event.reason}"
        case events.VmStarted():
            if event.address:
                return f"{event.vm} boots again"
            return f"{event.vm} runs, and is not as it should be"
        case events.ReclaimWanted():
            until = f"{count(event.number, 'VM')} back until {clock(event.until)}"
            return f"the provider wants {until if event.number else 'no VM back any more'}"
        case events.ReclaimProposed():
            return f"proposed to be given up: {', '.join(event.vms)} ({event.reason})"
        case events.ReclaimAnswered():
            return f"{', '.join(event.vms)} {'is' if len(event.vms) == 1 else 'are'} given up: {event.reason}"
        case events.VmRevoked():
            return f"{event.vm} {'cannot be started again' if event.signal == 'start' else 'was revoked'}"
        case events.VmDeleted():
            return f"{event.vm} was deleted: {event.reason}"
        case events.WorkerJoined():
            return f"{event.worker} joined {event.run}: {count(event.active, 'worker')}"
        case events.WorkerLeft():
            return f"{event.worker} left {event.run}{_why_left(event)}"
        case events.WorkerBatchResized():
            return f"{event.worker} takes mini-batches of {event.new}, not of {event.old}{_why_resized(event.reason)}"
        case events.WorkerReplaced():
            return f"{event.by} takes the place of {event.worker}"
        case events.ControllerMoved():
            return f"the controller moved to {event.vm or 'the machine that declared the cluster'}"
        case events.ClusterForgotten():
            return f"its journal was removed; it counts with ${event.dollars:.2f}, the most that it can have cost"
        case events.ClusterTakenBack():
            lines = ", ".join(sorted(event.left_out))
            return f"this machine took the cluster back{f', without what its VM wrote: {lines}' if lines else ''}"
        case events.ControllerTrouble():
            if event.what:
                return f"trouble: {event.what}"
            return "the trouble is over"
        case events.ControllerStarted():
            return "the controller started"
        case events.ControllerRecovered():
            if event.unreadable:
                damage = f"; {count(event.unreadable, 'line')} of the journal cannot be read"
            else:
                damage = ""
            return f"a new controller took over {count(event.vms, 'VM')}{damage}"
        case events.WorkDeclared(of="run"):
            return f"{event.work} was declared"
        case events.WorkDeclared():
            return f"{KINDS[event.of]} {event.work} was declared"
        case events.WorkStopping():
            own = load(event.of, "words").event_words(event)
            return own or f"{event.work} is to end: {event.reason}"
        case events.WorkEnded() if event.reason:
            return f"{event.work} {event.state}: {event.reason}"
        case events.WorkEnded():
            return f"{event.work} {event.state}"
    for words in parts("words").values():
        if said := words.event_words(event):
            return said
    return deadline_event_words(event) or train_event_words(event)


def _held(kind: str, why: str) -> str:
    if kind == "check":
        return why
    return f"waits: {why}"


def _why_left(event: events.WorkerLeft) -> str:
    if event.reason == "finished":
        return ", whose steps are made"
    return f", {event.reason}: {count(event.active, 'worker')}"


def why_slow(event: events.TrainSlow) -> str:
    match event.bottleneck:
        case "worker":
            return f"{event.worker} is slow"
        case "parameter server":
            named = f"{event.server or 'the parameter server'} has no CPU to spare"
            if event.with_servers and event.speed:
                faster = event.with_servers / event.speed
                return (
                    f"{named}; --ps {event.servers} would make it about {faster:.1f} times as fast"
                )
            return f"{named}; more of them (--ps) would help"
        case "input pipeline":
            return "workers wait for their examples; a faster input pipeline (cache, parallel map) would help"
        case "network":
            return "the network is likely at its limit; --wire bf16 halves what crosses it"
    return event.bottleneck


def train_event_words(event: Event) -> str:
    match event:
        case events.TrainChecked():
            if event.parameters:
                counted = f": {count(event.parameters, 'parameter')}"
            else:
                counted = ""
            return f"{event.run} passed its check{counted}"
        case events.TrainMoved():
            if event.before:
                return f"{event.run} is to begin before {event.before}"
            return f"{event.run} is to begin next"
        case events.TrainStarted():
            if not event.step:
                return f"{event.run} started"
            return f"{event.run} goes on from step {event.step:,}"
        case events.TrainProgress():
            if event.loss is not None:
                loss = f", loss {number(event.loss)}"
            else:
                loss = ""
            speed = f"{number(event.steps_per_second)} steps/s"
            return (
                f"{event.run} step {event.step:,}, {speed}{loss}, {count(event.active, 'worker')}"
            )
        case events.TrainData():
            return f"{event.run} reads {data_words(event)}"
        case events.PreparationScaled():
            waited = f": steps waited for mini-batches for {100 * event.waiting:.0f}% of their time"
            return f"{event.run} has {count(len(event.slots), 'preparation VM')}{waited if event.waiting else ''}"
        case events.TrainReread():
            held = f"the {count(event.blocks, 'block')} that {event.worker} held"
            return f"{event.run} reads {held} again ({event.bound} at most)"
        case events.TrainDetour():
            return f"{event.run} has records from ps-0, not straight from the bucket: {event.reason} ({event.worker})"
        case events.TrainCheckpoint():
            if event.next_seconds:
                then = f", the next in {render_duration(event.next_seconds)}"
            else:
                then = ""
            return f"{event.run} saved a checkpoint at step {event.step:,}{then}"
        case events.TrainUnsaved():
            return f"{event.run} could not save a checkpoint at step {event.step:,}: {event.reason}"
        case events.TrainShipped():
            return f"{event.run} has the checkpoint of step {event.step:,} in its bucket"
        case events.TrainSlow():
            if event.expected:
                share = f"{100 * event.speed / event.expected:.0f}%"
            else:
                share = "a part"
            return f"{event.run} runs at {share} of its workers' best speed: {why_slow(event)}"
        case events.TrainTraced():
            if event.reason:
                return f"No step of {event.run} was traced: {event.reason}"
            return f"{event.run} has a trace of a step of {event.worker}"
        case events.TrainRecovered():
            return f"{event.run} is as fast as its workers can be again"
        case events.TrainUnshipped():
            return f"{event.run} could not bring a checkpoint into its bucket: {event.reason}"
        case events.TrainEvaluated():
            scores = scores_words({**event.metrics, **dict.fromkeys(event.undefined, math.nan)})
            scores += evaluated_words(event.examples, event.complete, event.of, event.endless)
            return f"{event.run} evaluated at step {event.step:,}: {scores}"
        case events.TrainUnevaluated():
            return f"{event.run} could not be evaluated at step {event.step:,}: {event.reason}"
        case events.TrainMeasured():
            if event.seconds:
                step = statistics.fmean(event.seconds.values())
            else:
                step = 0.0
            return f"{event.run} measured {event.measure} in repeat {event.repeat}: {1000 * step:.1f} ms"
        case events.TrainMade():
            return f"{event.run} has made its steps and is evaluated, its workers are free"
        case events.TrainFinished():
            if event.reason:
                why = f": {event.reason}"
            else:
                why = ""
            return f"{event.run} {'stopped' if event.stopped else 'finished'} at step {event.step:,}{why}"
        case events.TrainBest():
            where = ", and is in its bucket" if event.shipped else ""
            value = number(event.value) + (f" ({event.seen})" if event.seen else "")
            return f"{event.run} has its best {event.metric} at step {event.step:,}, {value}{where}"
        case events.TrainOrder():
            return f"{event.run}: {event.reason}"
        case events.TrainUnjudged():
            if event.metrics:
                has = f" (it has {', '.join(event.metrics)})"
            else:
                has = ""
            return (
                f"{event.run} has no metric {event.metric}{has}: no checkpoint is kept as the best"
            )
        case events.TrainFailed():
            return f"{event.run} failed: {event.reason}"
        case events.Unknown():
            return _unknown_words(event.values)
    return event.kind or "something happened"


def _unknown_words(values: Mapping[str, object]) -> str:
    rest = ", ".join(
        f"{key} {value}" for key, value in values.items() if key not in ("seq", "time", "kind")
    )
    return f"{values.get('kind', 'unknown event')}{f': {rest}' if rest else ''}"
