"""What a terminal shows: states, events and bills as plain text, and the small words that the panels share.

Everything is a pure function of folded state and of the moment `now` (seconds since 1970); nothing here prints.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ..journal import Bill, ClusterState, Event, RunState, StudyState, VmState, events
from ..protocol.run import Value
from ..spec import ClusterSpec, render_duration
from ..spec import render_money as money
from ..spec import render_table as table
from . import foreground

NOTICE_SECONDS = 30.0
QUIET = (
    "train.progress", "controller.started", "worker.replaced", "vm.traffic", "cluster.clock", "cluster.advised",
    "cluster.leased", "train.checked", "study.asked",
)  # fmt: skip
_NEAR_END_SECONDS = 3600.0
RENTED = {"spot": "Spot", "preemptible": "preemptible", "standard": "on demand"}
"""Words for provisioning models."""
_PHASES = {"unknown": "starting", "provisioning": "being provisioned", "deleting": "being deleted"}


_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")
MOST_CHARACTERS = 400


def plain(said: str, most: int = MOST_CHARACTERS) -> str:
    """What a VM (or anybody) said, as text that steers no terminal, turns no direction of writing, and ends.

    Terminal sequences go; other control characters, marks of direction and halves of characters become `\ufffd`; lines
    and tabs stay; behind `most` characters there is an ellipsis.
    """
    said = _UNSEEN.sub("\ufffd", _ESCAPES.sub("", said[: 4 * most]).replace("\r\n", "\n"))
    return said if len(said) <= most else f"{said[: most - 1]}…"


def number(value: float | None) -> str:
    """A measured value in three significant digits, without an exponent where that reads well."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"


def scores(metrics: Mapping[str, float]) -> dict[str, float]:
    """The metrics that a reader looks for first: accuracy and loss, else the first three."""
    chosen = {name: metrics[name] for name in ("accuracy", "loss") if name in metrics}
    return chosen if "accuracy" in chosen else dict(list(metrics.items())[:3])


def scores_words(metrics: Mapping[str, float]) -> str:
    """`accuracy 0.986, loss 0.085`."""
    return ", ".join(f"{name} {number(value)}" for name, value in scores(metrics).items())


def examples_words(examples: int, complete: bool) -> str:
    """`all 360 examples`, or `the first 12,800 examples` of the dev split."""
    return f"{'all' if complete else 'the first'} {count(examples, 'example')}"


def _evaluated_words(examples: int, complete: bool) -> str:
    return f" ({examples_words(examples, complete)})" if examples else ""


def clock(at: float) -> str:
    """The local time of day of a moment."""
    return time.strftime("%H:%M:%S", time.localtime(at))


def machine(state: ClusterState, vm: VmState) -> str:
    """What the VM is: its GPU, or how many vCPUs it has where it has none."""
    if vm.role == "controller":
        return vm.machine_type
    if vm.role == "ps" and state.spec:
        return state.spec.parameter_server_machine or f"{state.spec.parameter_server_cores} vCPU"
    return "4 vCPU" if vm.accelerator == "cpu" else vm.accelerator.upper() or vm.machine_type


def leaves_at(vm: VmState) -> float:
    """When a VM under notice is taken (0: it is not under notice)."""
    return vm.noticed_at + NOTICE_SECONDS if vm.state == "leaving" and vm.noticed_at else 0.0


def replacement(state: ClusterState, vm: VmState) -> VmState | None:
    """The VM that took, or is to take, the place of this one."""
    return next((each for each in state.vms.values() if each.replaces == vm.name), None)


def vm_words(state: ClusterState, vm: VmState, now: float) -> str:
    """The VM's state in words: `ready`, `training`, `training, leaving in 23 s`, `revoked, replaced by worker-4`."""
    run, going = state.run_of(vm), [run for run in state.runs.values() if run.phase == "running"]
    training = f"training {run.name}" if run and len(going) > 1 else "training" if run else ""
    if vm.state == "ready" and training:
        return training
    if vm.state == "ready" and vm.role == "ps" and going:
        return "serving"
    if vm.name == state.seat and vm.state == "ready" and vm.role == "controller":
        return "in charge"
    if vm.state == "leaving":
        left = leaves_at(vm) - now
        leaving = f"leaving in {left:.0f} s" if left > 0 else "leaving"
        return f"{training}, {leaving}" if training else leaving
    if vm.state == "ready" and vm.failure:
        return f"of no use: {vm.failure}"
    if vm.state == "booting" and (vm.failure or vm.step):
        return f"did not boot, {vm.failure}" if vm.failure else f"booting, {vm.step}"
    if vm.state in ("revoked", "deleted", "refused"):
        after = replacement(state, vm)
        reason = f": {vm.reason}" if vm.state == "refused" and vm.reason else ""
        return f"{vm.state}, replaced by {after.name}" if after else f"{vm.state}{reason}"
    return vm.state


def phase_words(state: ClusterState) -> str:
    """The phase of a cluster in words, with the reason where it ends."""
    words = _PHASES.get(state.phase, state.phase)
    return f"{words}: {state.reason}" if state.reason and state.phase in ("deleting", "deleted") else words


def is_evaluated(run: RunState) -> bool:
    """Whether all steps are made, and what goes on is its last checkpoint and evaluation."""
    return run.phase == "running" and 0 < run.train_steps <= run.step


def was_stopped(run: RunState) -> bool:
    """Whether it was ended before its last step, as by deleting its cluster."""
    return run.phase == "finished" and run.stopped and run.step < run.train_steps


def waits_for(run: RunState, state: ClusterState) -> str:
    """What a run waits for, and why; nothing if it has begun, or is the next to."""
    if run.over or state.has_begun(run):
        return ""
    kind, why = state.held.get(run.name, ("", ""))
    if kind == "check":
        return why
    *before, _ = [each.name for each in state.queue[: state.queue.index(run) + 1]]
    if before:
        return f"waits behind {before[-1]}"
    begun = [each.name for each in state.turns if state.has_begun(each)]
    end = f"waits for the end of {' or '.join(begun)}" if begun else ""
    return f"{end}: {why}" if end and why else end


def run_words(run: RunState, state: ClusterState | None = None) -> str:
    """Where a run stands, in one sentence without its name; `state` of its cluster tells whether another goes first."""
    of = f"step {run.step:,} of {run.train_steps:,}"
    if run.phase == "declared":
        return (waits_for(run, state) if state else "") or "waits for its first step"
    if run.phase == "failed":
        return f"failed at step {run.step:,}: {run.reason}"
    loss = f", loss {number(run.loss)}" if run.loss is not None else ""
    if run.phase == "finished":
        took = render_duration(run.finished_at - run.started_at) if run.started_at else ""
        done = "stopped" if run.stopped else "finished"
        why = f": {run.reason}" if run.reason else ""
        return f"{done} at {of}{f' after {took}' if took else ''}{loss}{why}"
    if is_evaluated(run):
        return f"{of} made{loss}, being evaluated"
    return f"{of}, {number(run.steps_per_second)} steps/s{loss}, {count(len(run.workers), 'worker')}"


def value_words(value: Value | None) -> str:
    """A parameter's value as one reads it."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return "-" if value is None else str(value)


def params_words(params: Mapping[str, Value]) -> str:
    """`learning_rate 0.02, batch_size 64`."""
    return ", ".join(f"{name} {value_words(value)}" for name, value in params.items())


def study_words(study: StudyState, *, deleted: bool = False) -> str:
    """`12 of 40 trials, 4 training`, and why it ended early; `deleted`: its cluster is."""
    told, running = sum(trial.told for trial in study.trials.values()), len(study.running)
    said = f"{told} of {count(study.wanted, 'trial')}"
    if deleted and not study.over:
        return f"{said}, ended with its cluster"
    if running:
        said += f", {running} training"
    elif not study.trials and not study.ended:
        said += ", waits for its first trial"
    if study.reason:
        return f"{said}, ended: {study.reason}"
    return f"{said}, stopped" if study.over and told < study.wanted else said


def best_words(study: StudyState) -> str:
    """`accuracy 0.943 in trial 7: learning_rate 0.02`; nothing before the first complete trial."""
    best = study.best
    if best is None:
        return ""
    params = f": {params_words(best.params)}" if best.params else ""
    return f"{study.spec.goal.metric} {number(best.value)} in trial {best.number}{params}"


def count(many: int, what: str) -> str:
    """`1 worker`, `2 workers`."""
    return f"{many:,} {what}{'' if many == 1 else 's'}"


def bill_words(bill: Bill, *, emulated: bool) -> str:
    """The bill in one or two lines: so far, per hour, on demand, the saving, whose prices."""
    saving = f", {bill.saved:.0%} saved" if bill.on_demand > 0 and bill.saved >= 0.005 else ""
    text = f"{money(bill.total)} so far, {money(bill.hourly)} per hour now; on demand {money(bill.on_demand)}{saving}"
    if bill.projected is not None:
        text += f"; about {money(bill.projected)} at the end of the run"
    notes = [f"Prices: {bill.source}."] if bill.source else []
    if emulated:
        notes.insert(0, "Emulated, nothing is billed.")
    lines = [text, transfer_words(bill), " ".join(notes)]
    return "\n".join(line for line in lines if line)


def transfer_words(bill: Bill) -> str:
    """What data transfer between zones costs, with a warning where it rivals the VMs; nothing where there is none."""
    if bill.transfer <= 0:
        return ""
    said = f"{money(bill.transfer)} of it for data transfer between zones, {money(bill.transfer_hourly)} per hour now"
    if bill.transfer_hourly > 0.5 * (bill.hourly - bill.transfer_hourly):
        return f"{said}: it rivals the VMs. Workers in the zone of the parameter servers pay nothing for it."
    return f"{said}."


def ending_words(state: ClusterState, now: float) -> str:
    """When the cluster, or part of it, ends by itself if nothing else happens; nothing if that is far away."""
    spec = state.spec
    if spec is None or state.phase in ("deleting", "deleted"):
        return ""
    said = []
    if since := state.unused_since:
        lacking = "without a parameter server" if state.active_run else "without a run"
        workers, all_of_it = since + spec.idle_seconds - now, since + spec.idle_end_seconds - now
        if workers > 0:
            said.append(f"{lacking}, the workers are deleted in {render_duration(workers)}")
        elif all_of_it > 0:
            said.append(f"{lacking}, everything is deleted in {render_duration(all_of_it)}")
    if (left := state.seconds_left(now)) < _NEAR_END_SECONDS:
        said.append(f"its limits end it in {render_duration(max(0.0, left))}")
    text = "; ".join(said)
    return f"{text[0].upper()}{text[1:]}." if text else ""


NOTHING_TO_DELETE = "There is no cluster to delete."


def deleted_words(state: ClusterState, bill: Bill) -> str:
    """What is said when a cluster is gone: what it cost, and where its results are."""
    kept = state.spec.bucket if state.spec and state.runs else None
    where = f" Its results are in gs://{kept}; run.fetch(folder) brings them." if kept else ""
    return f"{state.name} is deleted, no VM is left. It cost {money(bill.total)}.{where}"


def status(state: ClusterState, bill: Bill, now: float, forecast: str = "") -> str:
    """All about one cluster on one screen. `forecast`: when its run ends, in words."""
    spec = state.spec
    if spec is None:
        return "Declared a moment ago; its controller is starting."
    where = ", ".join(spec.zones)
    lines = [f"{state.name}  {phase_words(state)}  ({spec.spec}, {spec.provisioning_model}, {where})"]
    if state.trouble:
        lines.append(f"Trouble: {state.trouble}")
    for study in foreground.studies(state):
        lines.append(f"{study.name}  {study_words(study, deleted=state.over)}")
        if best := best_words(study):
            lines.append(f"{' ' * len(study.name)}  best so far: {best}")
    if run := foreground.run(state):
        lines.append(f"{run.name}  {run_words(run)}")
        if forecast:
            lines.append(forecast)
        if run.checkpoint_step is not None:
            lines.append(f"{' ' * len(run.name)}  last checkpoint at step {run.checkpoint_step:,}")
        if run.unsaved:
            lines.append(f"{' ' * len(run.name)}  not saved since step {run.unsaved[1]:,}: {run.unsaved[2]}")
        if run.shipped:
            lines.append(f"{' ' * len(run.name)}  in the bucket: {run.shipped}")
        if run.metrics:
            scores = scores_words(run.metrics) + _evaluated_words(*run.evaluated)
            lines.append(f"{' ' * len(run.name)}  evaluation: {scores}")
        if run.unevaluated:
            _, step, reason = run.unevaluated
            lines.append(f"{' ' * len(run.name)}  could not be evaluated at step {step:,}: {reason}")
        if run.slow:
            lines.append(f"{' ' * len(run.name)}  slow: {_why_slow(run.slow)}")
    lines += [f"{each.name}  {run_words(each, state)}" for each in foreground.beside(state)]
    shown = [vm for vm in state.vms.values() if vm.living] or list(state.vms.values())
    if shown:
        lines += ["", *table(("VM", "MACHINE", "ZONE", "STATE"), [_vm_row(state, vm, now) for vm in shown])]
    if state.revocations:
        lines.append(f"{count(state.revocations, 'revocation')} so far")
    ending = ending_words(state, now)
    unknown = forecast or not run  # a forecast says more of the end than the bill; of a study nobody knows it
    known = replace(bill, projected=None) if unknown else bill
    return "\n".join([*lines, "", bill_words(known, emulated=spec.emulated), *([ending] if ending else [])])


def listing(clusters: Iterable[tuple[str, ClusterState, Bill]]) -> str:
    """One line per cluster: its name, its state, its bill."""
    rows = [listing_row(name, state, bill) for name, state, bill in clusters]
    if not rows:
        return "No cluster."
    return "\n".join(table(tuple(name.upper() for name in rows[0]), [tuple(row.values()) for row in rows]))


def listing_row(name: str, state: ClusterState, bill: Bill) -> dict[str, str]:
    """A cluster in a list, by column."""
    spec, run = state.spec, foreground.run(state)
    working = [f"{run.name} {run.step:,}/{run.train_steps:,}"] if run else []
    for study in foreground.studies(state):
        working.append(f"{study.name} {sum(trial.told for trial in study.trials.values())}/{study.wanted} trials")
    ready = sum(vm.state == "ready" for vm in state.vms.values())
    return {
        "name": name,
        "phase": "starting" if state.phase == "unknown" else state.phase,
        "workers": spec.spec if spec else "",
        "VMs": f"{ready}/{len(state.living)}",
        "run": ", ".join(working),
        "cost": money(bill.total),
        "per hour": money(bill.hourly),
        "where": ("emulated" if spec.emulated else str(spec.project)) if spec else "",
    }


def event_line(event: Event, *, dated: bool = False) -> str:
    """An event as one line: the time of day, and what happened."""
    day = time.strftime("%Y-%m-%d ", time.localtime(event.at)) if dated else ""
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
    """One clause for a group of events: `4 workers joined run-1`, or what `event_words` says of a single one."""
    last, many = alike[-1], len(alike)
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
            sizes = ", ".join(f"{each.new}" for each in alike if isinstance(each, events.WorkerBatchResized))
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


def event_words(event: Event) -> str:
    """What happened, as a clause that a person would say."""
    match event:
        case events.ClusterDeclared():
            return "the cluster was declared"
        case events.ClusterResized():
            return f"the cluster is to be {ClusterSpec.from_dict(event.spec).spec} from now on"
        case events.ClusterClock():
            return "the emulated time passes at another rate"
        case events.ClusterAdvised():
            best = max(event.zones, key=lambda zone: event.zones[zone][0], default="")
            likely = f", best in {best} ({event.zones[best][0]:.0%} likely)" if best else ""
            return f"Compute Engine's advice on Spot {event.accelerator.upper()}s{likely}"
        case events.ClusterLeased():
            counted = {run: sum(each == run for each in event.workers.values()) for run in event.ports}
            has = [f"{run} has {count(many, 'worker')}" for run, many in counted.items()] or ["no run goes on"]
            return "; ".join([*has, *(f"{run} {_held(*held)}" for run, held in event.held.items())])
        case events.ClusterImageChosen():
            return f"VMs boot from {event.image}: {event.why}" if event.image else event.why
        case events.ClusterZonesFound():
            found = "; ".join(f"{kind.upper()} in {', '.join(zones)}" for kind, zones in event.zones.items())
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
            instead = f" in the place of {event.replaces}" if event.replaces else ""
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
            return f"{event.vm} is of no use: {event.reason}"
        case events.VmReady():
            return f"{event.vm} is ready"
        case events.VmPreemptionAsked():
            later = f" in {render_duration(event.seconds)}" if event.seconds else ""
            return f"{event.vm} is to be taken back{later}: asked by the user"
        case events.VmPreemptionNotice():
            return f"{event.vm} will be taken back in 30 s"
        case events.VmRevoked():
            return f"{event.vm} was revoked"
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
        case events.ControllerTrouble():
            return f"trouble: {event.what}" if event.what else "the trouble is over"
        case events.ControllerStarted():
            return "the controller started"
        case events.ControllerRecovered():
            return f"a new controller took over {count(event.vms, 'VM')}"
        case events.StudyDeclared():
            return f"study {event.study} was declared"
        case events.StudyAsked():
            params = f": {params_words(event.params)}" if event.params else ""
            return f"{event.study} has trial {event.trial}{params}"
        case events.StudyTold():
            value = f", {number(event.value)}" if event.value is not None else ""
            why = f": {event.reason}" if event.reason and not event.reason.startswith(event.state) else ""
            return f"trial {event.trial} of {event.study} {_ENDED_AS[event.state]}{value}{why}"
        case events.StudyExtended():
            return f"study {event.study} has {count(event.trials, 'trial')} more"
        case events.StudyEnded():
            return f"study {event.study} ended{f': {event.reason}' if event.reason else ''}"
    return _train_words(event)


_ENDED_AS = {"complete": "is complete", "pruned": "was pruned", "failed": "failed", "stopped": "was stopped"}


def _held(kind: str, why: str) -> str:
    return why if kind == "check" else f"waits: {why}"


def _why_left(event: events.WorkerLeft) -> str:
    if event.reason == "finished":
        return ", whose steps are made"
    return f", {event.reason}: {count(event.active, 'worker')}"


def _why_slow(event: events.TrainSlow) -> str:
    match event.bottleneck:
        case "worker":
            return f"{event.worker} is slow"
        case "parameter server":
            named = f"{event.server or 'the parameter server'} has no CPU to spare"
            if event.with_servers and event.speed:
                faster = event.with_servers / event.speed
                return f"{named}; --ps {event.servers} would make it about {faster:.1f} times as fast"
            return f"{named}; more of them (--ps) would help"
        case "input pipeline":
            return "workers wait for their examples; a faster input pipeline (cache, parallel map) would help"
        case "network":
            return "the network is likely at its limit; --wire bf16 halves what crosses it"
    return event.bottleneck


def _train_words(event: Event) -> str:
    match event:
        case events.TrainDeclared():
            return f"{event.run} was declared"
        case events.TrainChecked():
            counted = f": {count(event.parameters, 'parameter')}" if event.parameters else ""
            return f"{event.run} passed its check{counted}"
        case events.TrainMoved():
            return f"{event.run} is to begin before {event.before}" if event.before else f"{event.run} is to begin next"
        case events.TrainStarted():
            return f"{event.run} started" if not event.step else f"{event.run} goes on from step {event.step:,}"
        case events.TrainProgress():
            loss = f", loss {number(event.loss)}" if event.loss is not None else ""
            speed = f"{number(event.steps_per_second)} steps/s"
            return f"{event.run} step {event.step:,}, {speed}{loss}, {count(event.active, 'worker')}"
        case events.TrainCheckpoint():
            then = f", the next in {render_duration(event.next_seconds)}" if event.next_seconds else ""
            return f"{event.run} saved a checkpoint at step {event.step:,}{then}"
        case events.TrainUnsaved():
            return f"{event.run} could not save a checkpoint at step {event.step:,}: {event.reason}"
        case events.TrainShipped():
            return f"{event.run} has the checkpoint of step {event.step:,} in its bucket"
        case events.TrainSlow():
            share = f"{100 * event.speed / event.expected:.0f}%" if event.expected else "a part"
            return f"{event.run} runs at {share} of its workers' best speed: {_why_slow(event)}"
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
            scores += _evaluated_words(event.examples, event.complete)
            return f"{event.run} evaluated at step {event.step:,}: {scores}"
        case events.TrainUnevaluated():
            return f"{event.run} could not be evaluated at step {event.step:,}: {event.reason}"
        case events.TrainFinished():
            why = f": {event.reason}" if event.reason else ""
            return f"{event.run} {'stopped' if event.stopped else 'finished'} at step {event.step:,}{why}"
        case events.TrainBest():
            where = ", and is in its bucket" if event.shipped else ""
            return f"{event.run} has its best {event.metric} at step {event.step:,}, {number(event.value)}{where}"
        case events.TrainUnjudged():
            has = f" (it has {', '.join(event.metrics)})" if event.metrics else ""
            return f"{event.run} has no metric {event.metric}{has}: no checkpoint is kept as the best"
        case events.TrainFailed():
            return f"{event.run} failed: {event.reason}"
        case events.Unknown():
            return _unknown_words(event.values)
    return event.kind or "something happened"


def _unknown_words(values: Mapping[str, object]) -> str:
    rest = ", ".join(f"{key} {value}" for key, value in values.items() if key not in ("seq", "time", "kind"))
    return f"{values.get('kind', 'unknown event')}{f': {rest}' if rest else ''}"


def _vm_row(state: ClusterState, vm: VmState, now: float) -> tuple[str, str, str, str]:
    return vm.name, machine(state, vm), vm.zone, vm_words(state, vm, now)
