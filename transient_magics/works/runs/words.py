"""Runs in words: what a run does, its lines in the status of its cluster, its deadline, its events.

A measurement of stalls is a run, too; its words are here as well.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from ...client.text.states import to_agree_words
from ...client.text.words import count, evaluated_words, number, scores_words, size, time_words
from ...deadlines.simulation import FAR
from ...journal import ClusterState, Cost, Event, RunState, events
from ...protocol.checks import plain
from ...protocol.run import RunSpec
from ...protocol.vm_events import (
    TrainBest,
    TrainCheckpoint,
    TrainData,
    TrainDetour,
    TrainEpoch,
    TrainEvaluated,
    TrainFailed,
    TrainFinished,
    TrainMade,
    TrainMeasured,
    TrainOrder,
    TrainProgress,
    TrainRecovered,
    TrainReread,
    TrainShipped,
    TrainSlow,
    TrainStarted,
    TrainUnevaluated,
    TrainUnjudged,
    TrainUnsaved,
    TrainUnshipped,
    WorkerBatchResized,
    WorkerJoined,
    WorkerLeft,
)
from ...spec import render_duration, render_money, render_small_money, render_workers

QUIET = (
    "train.progress",
    "train.checked",
    "train.data",
    "deadline.outlook",
    "worker.replaced",
)
_MOST_PRINTED = 200
TONES = {
    TrainFailed: "bad",
    TrainSlow: "warn",
    TrainRecovered: "good",
    TrainUnevaluated: "warn",
    TrainUnsaved: "warn",
    TrainOrder: "warn",
    TrainUnjudged: "warn",
    TrainUnshipped: "warn",
    TrainDetour: "warn",
    TrainFinished: "good",
}
"""How a panel colours events."""
_WHY_RESIZED = {
    "static": "in proportion to the published speed of its GPU",
    "dynamic": "in proportion to its measured speed",
    "revocation": "another worker left",
    "join": "a worker joined",
    "oom": "memory was exhausted",
}
_ADAPTS = {
    "auto": "This holds if its workers stay as fast as measured and its VMs are available on "
    "demand: capacity or quota may be lacking.",
    "ask": "Changes of its workers are proposed and wait for your approval.",
    "off": "Its workers are not changed; only its progress is reported.",
}


def work_words(run: RunState, cluster: ClusterState | None) -> str:
    """Return what a run does, or how it ended.

    Parameters
    ----------
    run
        The run.
    cluster
        The state of its cluster, which says whether other runs are before it; None: unknown.
    """
    # For example "step 5 of 10"; a measurement of stalls counts measures instead.
    progress = f"{'measure' if run.spec.stalls else 'step'} {counted_words(run)}"
    loss_clause = "" if run.loss is None else f", loss {number(run.loss)}"
    if run.phase == "declared":
        waiting = waits_for(run, cluster) if cluster else ""
        return waiting or "waits for its first step"
    if run.phase == "failed":
        return f"failed at step {run.step:,}: {plain(run.reason)}"
    if run.phase == "finished":
        return _end_words(run, progress, loss_clause)
    if is_evaluated(run):
        return f"{progress} made{loss_clause}, {_last_part(run)}"
    workers = count(len(run.workers), "worker")
    if run.spec.stalls:
        return f"{progress} taken, {workers}"
    return f"{progress}, {number(run.steps_per_second)} steps/s{loss_clause}, {workers}"


def work_phase(run: RunState) -> str:
    """Return the phase of a run: `stopped` where it was stopped before its last step."""
    return "stopped" if was_stopped(run) else run.phase


def short_words(run: RunState) -> str:
    """Return a run in a list of clusters, such as `run-1 120/300`."""
    return f"{run.name} {counted_words(run).replace(' of ', '/')}"


def status_lines(
    run: RunState, cluster: ClusterState, cost: Cost, now: float, forecast: str
) -> list[str]:
    """Return the lines of a run in the status of its cluster.

    `forecast` says when it ends.
    """
    indent = " " * len(run.name) + "  "
    lines = [f"{run.name}  {work_words(run, None)}", f"{indent}this run {cost.words}"]
    lines += [indent + line for line in _deadline_details(run, cluster.name, now)]
    if forecast:
        lines.append(forecast)
    lines += [indent + line for line in (*_saved_details(run), *_progress_details(run))]
    return lines


def _deadline_details(run: RunState, cluster: str, now: float) -> list[str]:
    details = []
    if facts := outlook_facts(run, now):
        details.append("; ".join(f"{name} {value}" for name, value in facts))
    if run.deadline and run.deadline.proposed and now < run.deadline.proposed.until:
        how = to_agree_words(cluster, run.name)
        details.append(f"proposed: {run.deadline.proposed.reason}. {how}")
    return details


def _saved_details(run: RunState) -> list[str]:
    details = []
    if run.checkpoint_step is not None:
        details.append(f"last checkpoint at step {run.checkpoint_step:,}")
    if run.unsaved:
        _, step, reason = run.unsaved
        details.append(f"not saved since step {step:,}: {reason}")
    if run.shipped:
        details.append(f"in the bucket: {run.shipped}")
    if run.metrics:
        scores = scores_words(run.metrics) + evaluated_words(*run.evaluated)
        details.append(f"evaluation: {scores}")
    if run.unevaluated:
        _, step, reason = run.unevaluated
        details.append(f"could not be evaluated at step {step:,}: {reason}")
    return details


def _progress_details(run: RunState) -> list[str]:
    details = []
    if run.preparation.slots and not run.over:
        vms = count(len(run.preparation.slots), "VM")
        waits = ""
        if run.preparation.waited:
            _, share = run.preparation.waited[-1]
            waits = f"; steps wait for mini-batches for {100 * share:.0f}% of their time"
        details.append(f"prepared on {vms} of {run.spec.preparers}{waits}")
    if run.data:
        details.append(f"data: {data_words(run.data)}")
    if run.order and not run.over:
        details.append(run.order)
    if run.slow:
        details.append(f"slow: {slow_words(run.slow)}")
    return details


def is_evaluated(run: RunState) -> bool:
    """Return whether all steps are made, and the last checkpoint and evaluation remain."""
    return run.phase == "running" and (run.made or 0 < run.train_steps <= run.step)


def was_stopped(run: RunState) -> bool:
    """Return whether a run was ended before its last step, for example with its cluster."""
    return run.phase == "finished" and run.stopped and run.step < run.train_steps


def waits_for(run: RunState, state: ClusterState) -> str:
    """Return what a run waits for, and why; empty if it has begun or is the next to begin."""
    if run.over or state.has_begun(run):
        return ""
    kind, why = state.held_back.get(run.name, ("", ""))
    if kind == "check":
        return why
    place = state.queue.index(run)
    if place:
        return f"waits behind {state.queue[place - 1].name}"
    begun = [turn.name for turn in state.turns if state.has_begun(turn)]
    if not begun:
        return ""
    end = f"waits for the end of {' or '.join(begun)}"
    return f"{end}: {why}" if why else end


def counted_words(run: RunState) -> str:
    """Return the progress of a run, such as `120 of 300`.

    A run may have made more steps than were declared, because each worker finishes its last step.
    The figure is never more than was declared.
    """
    return f"{min(run.step, run.train_steps):,} of {run.train_steps:,}"


def _last_part(run: RunState) -> str:
    if run.made:
        return "being evaluated"
    return "its last checkpoint is being written"


def _end_words(run: RunState, of: str, loss: str) -> str:
    """Return how a run ended. `of`: its progress; `loss`: its last loss."""
    more = run.step - run.train_steps
    if more > 0:
        of += f" ({more:,} more {'was' if more == 1 else 'were'} under way)"
    if run.started_at:
        of += f" after {render_duration(run.ended_at - run.started_at)}"
    why = f": {plain(run.reason)}" if run.reason else ""
    if run.stopped and run.made:
        # All steps were made and saved: the stop ended the evaluation alone.
        return f"finished at {of}{loss}{why}, stopped before it was evaluated"
    done = "stopped" if run.stopped else "finished"
    return f"{done} at {of}{loss}{why}"


def declared_words(spec: RunSpec, now: float) -> str:
    """Return the deadline of a declared run and under which conditions it holds.

    Parameters
    ----------
    spec
        The declaration. The result is empty if it has no deadline.
    now
        Seconds since 1970.
    """
    if not spec.finish_by:
        return ""
    left = render_duration(max(spec.finish_by - now, 0.0))
    sentences = [
        f"Its deadline is {time_words(spec.finish_by, now)}, in {left}.",
        _ADAPTS[spec.adapt],
    ]
    if spec.max_cost is not None:
        cost = render_money(spec.max_cost)
        sentences.append(f"If {cost} is not enough, the cost limit wins and the run is late.")
    return " ".join(sentences)


def outlook_facts(run: RunState, now: float) -> list[tuple[str, str]]:
    """Return the deadline, chance, end and plan of a run as names and values; empty without them.

    A proposal is judged as if you had agreed to it, which the names of the chance and the end show.
    """
    deadline = run.deadline
    if deadline is None or run.over:
        return []
    facts = [("deadline", time_words(run.spec.finish_by, now))]
    outlook = deadline.outlook
    if outlook:
        agreed = ""
        if deadline.proposed and now <= deadline.proposed.until:
            agreed = " if agreed"
        chance = f"{outlook.chance:.0%}"
        if deadline.late:
            chance = "late"
        elif outlook.chance >= 0.99:
            chance = f"about {chance}"
        facts.append((f"chance{agreed}", chance))
        facts.append((f"ends{agreed}", _end_range(run, outlook, now)))
    if deadline.acted:
        facts.append(("planned", render_workers(deadline.acted.machines)))
    if outlook:
        worth = render_small_money(outlook.worth)
        price = render_small_money(outlook.price)
        gpu = outlook.gpu.upper()
        facts.append(("a step", f"worth {worth}, a Spot {gpu} makes one for {price}"))
    return facts


def _end_range(run: RunState, outlook: events.DeadlineOutlook, now: float) -> str:
    """Return when a run ends, with 90 % probability.

    Where too few simulated courses end, it is later than the last moment of the simulation.
    """
    if outlook.high < FAR:
        return f"{time_words(outlook.low, now)} to {time_words(outlook.high, now)}"
    earliest = outlook.low
    if earliest >= FAR:
        earliest = max(run.spec.finish_by, outlook.at)
    return f"later than {time_words(earliest, now)}"


def data_words(data: TrainData) -> str:
    """Return how a run reads records in blocks: epochs, cache hits, misses and copied bytes."""
    blocks = f"{size(data.bytes)} in {count(data.blocks, 'block')}"
    parts = [f"{blocks}, at most {data.bound} at a time per worker"]
    if data.epochs:
        parts.append(f"{count(data.epochs, 'epoch')} read")
    if data.hits:
        share = f"{100 * data.hits / (data.hits + data.misses):.0f}%"
        saved = size(data.saved_bytes)
        parts.append(f"{count(data.hits, 'block')} ({share}) from caches, {saved} saved")
    if data.misses:
        parts.append(f"{count(data.misses, 'block')} copied, {size(data.fetched_bytes)}")
    if data.straight_bytes and data.fetched_bytes:
        share = f"{100 * data.straight_bytes / data.fetched_bytes:.0f}%"
        parts[-1] += f" ({share} straight from the bucket)"
    if data.bytes and data.fetched_bytes > data.bytes:
        parts[-1] += f", each byte {data.fetched_bytes / data.bytes:.1f} times"
    if data.again:
        parts.append(f"{count(data.again, 'block')} read again")
    if data.waited_seconds >= 1:
        parts.append(f"{data.waited_seconds:,.0f} s waited for records")
    return "; ".join(parts)


def slow_words(event: TrainSlow) -> str:
    """Return why a run is slow, and what would help."""
    match event.bottleneck:
        case "worker":
            return f"{event.worker} is slow"
        case "parameter server":
            named = f"{event.server or 'the parameter server'} has no CPU to spare"
            if event.with_servers and event.speed:
                times = f"{event.with_servers / event.speed:.1f} times"
                return f"{named}; --ps {event.servers} would make it about {times} as fast"
            return f"{named}; more of them (--ps) would help"
        case "input pipeline":
            pipeline = "a faster input pipeline (cache, parallel map) would help"
            return f"workers wait for their examples; {pipeline}"
        case "network":
            return "the network is likely at its limit; --wire bf16 halves what crosses it"
    return event.bottleneck


def alike(event: Event) -> tuple[object, ...] | None:
    """Return a key that is the same for events that are shown as one; None: shown alone."""
    match event:
        case WorkerJoined():
            return event.kind, event.run
        case WorkerLeft() | WorkerBatchResized():
            return event.kind, event.run, event.reason
    return None


def group_words(group: Sequence[Event]) -> str:
    """Return several alike events as one clause, such as `4 workers joined run-1: 4 workers`."""
    last = group[-1]
    many = f"{len(group)} workers"
    match last:
        case WorkerJoined():
            return f"{many} joined {last.run}: {count(last.active, 'worker')}"
        case WorkerLeft():
            return f"{many} left {last.run}{_why_left(last)}"
        case WorkerBatchResized():
            sizes = ", ".join(
                f"{event.new}" for event in group if isinstance(event, WorkerBatchResized)
            )
            why = _why_resized(last.reason)
            return f"{many} of {last.run} now take mini-batches of {sizes}{why}"
    return ""


def event_words(event: Event) -> str:
    """Return what happened to a run, as a clause; empty for other events."""
    match event:
        case WorkerJoined():
            return f"{event.worker} joined {event.run}: {count(event.active, 'worker')}"
        case WorkerLeft():
            return f"{event.worker} left {event.run}{_why_left(event)}"
        case WorkerBatchResized():
            sizes = f"mini-batches of {event.new}, not of {event.old}"
            return f"{event.worker} takes {sizes}{_why_resized(event.reason)}"
        case events.WorkerReplaced():
            return f"{event.by} replaces {event.worker}"
        case events.TrainMoved():
            if event.before:
                return f"{event.run} will begin before {event.before}"
            return f"{event.run} will begin next"
        case TrainMade():
            return f"{event.run} has made all steps and is evaluated, its workers are free"
        case TrainFinished():
            ended = "stopped" if event.stopped else "finished"
            return f"{event.run} {ended} at step {event.step:,}{_because(event.reason)}"
        case TrainFailed():
            return f"{event.run} failed: {event.reason}"
    return _progress_words(event) or _result_words(event) or _deadline_words(event)


def _progress_words(event: Event) -> str:
    match event:
        case events.TrainChecked():
            parameters = ""
            if event.parameters:
                parameters = f": {count(event.parameters, 'parameter')}"
            return f"{event.run} passed its check{parameters}"
        case TrainStarted():
            phase = f" with phase {event.phase}" if event.phase else ""
            if not event.step:
                return f"{event.run} started{phase}"
            return f"{event.run} continues from step {event.step:,}{phase}"
        case TrainProgress():
            loss = "" if event.loss is None else f", loss {number(event.loss)}"
            speed = f"{number(event.steps_per_second)} steps/s"
            workers = count(event.active, "worker")
            return f"{event.run} step {event.step:,}, {speed}{loss}, {workers}"
        case TrainData():
            return f"{event.run} reads {data_words(event)}"
        case events.PreparationScaled():
            waited = ""
            if event.waiting:
                share = f"{100 * event.waiting:.0f}%"
                waited = f": steps waited for mini-batches for {share} of their time"
            return f"{event.run} has {count(len(event.slots), 'preparation VM')}{waited}"
        case TrainReread():
            blocks = f"the {count(event.blocks, 'block')} of {event.worker}"
            return f"{event.run} reads {blocks} again ({event.bound} at most)"
        case TrainDetour():
            how = "reads records through ps-0, not directly from the bucket"
            return f"{event.run} {how}: {event.reason} ({event.worker})"
        case TrainSlow():
            share = "a part"
            if event.expected:
                share = f"{100 * event.speed / event.expected:.0f}%"
            return f"{event.run} runs at {share} of its workers' best speed: {slow_words(event)}"
        case TrainRecovered():
            return f"{event.run} is as fast as its workers allow again"
        case TrainOrder():
            return f"{event.run}: {event.reason}"
        case events.TrainTraced():
            if event.reason:
                return f"no step of {event.run} was traced: {event.reason}"
            return f"{event.run} has a trace of a step of {event.worker}"
        case TrainMeasured():
            seconds = statistics.fmean(event.seconds.values()) if event.seconds else 0.0
            measured = f"{event.measure} in repeat {event.repeat}"
            return f"{event.run} measured {measured}: {1000 * seconds:.1f} ms"
    return ""


def _result_words(event: Event) -> str:
    match event:
        case TrainCheckpoint():
            following = ""
            if event.next_seconds:
                following = f", the next in {render_duration(event.next_seconds)}"
            return f"{event.run} saved a checkpoint at step {event.step:,}{following}"
        case TrainUnsaved():
            return f"{event.run} could not save a checkpoint at step {event.step:,}: {event.reason}"
        case TrainShipped():
            return f"{event.run} has the checkpoint of step {event.step:,} in its bucket"
        case TrainUnshipped():
            return f"{event.run} could not copy a checkpoint to its bucket: {event.reason}"
        case TrainEvaluated():
            scores = scores_words({**event.metrics, **dict.fromkeys(event.undefined, math.nan)})
            scores += evaluated_words(event.examples, event.complete, event.of, event.endless)
            return f"{event.run} evaluated at step {event.step:,}: {scores}"
        case TrainEpoch():
            printed = "; ".join(event.output.split("\n")).strip("; ")
            output = ""
            if printed:
                output = f"; callbacks printed: {plain(printed, _MOST_PRINTED)}"
            scores = ", ".join(f"{name} {number(value)}" for name, value in event.logs.items())
            return f"{event.run} ended epoch {event.epoch + 1}: {scores}{output}"
        case TrainUnevaluated():
            return f"{event.run} could not be evaluated at step {event.step:,}: {event.reason}"
        case TrainBest():
            where = ", and is in its bucket" if event.shipped else ""
            value = number(event.value)
            if event.seen:
                value += f" ({event.seen})"
            return f"{event.run} has its best {event.metric} at step {event.step:,}, {value}{where}"
        case TrainUnjudged():
            metrics = ""
            if event.metrics:
                metrics = f" (it has {', '.join(event.metrics)})"
            kept = "no checkpoint is kept as the best"
            return f"{event.run} has no metric {event.metric}{metrics}: {kept}"
    return ""


def _deadline_words(event: Event) -> str:
    match event:
        case events.DeadlineActed():
            if event.agreed:
                return f"{event.run} has {event.reason}"
            return f"{event.run}: {event.reason}"
        case events.DeadlineProposed(until=0):
            return f"the proposal for {event.run} was withdrawn"
        case events.DeadlineProposed():
            return f"proposed for {event.run}: {event.reason}"
        case events.DeadlineLate(again=True):
            return f"{event.run} can meet its deadline again"
        case events.DeadlineLate():
            ends = ""
            if event.ends:
                ends = f", about {time_words(event.ends, event.at)}"
            return f"{event.run} will be late{ends}: {event.reason}"
    return ""


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""


def _why_left(event: WorkerLeft) -> str:
    if event.reason == "finished":
        return ", whose steps are made"
    return f", {event.reason}: {count(event.active, 'worker')}"


def _why_resized(reason: str) -> str:
    return f": {_WHY_RESIZED.get(reason, reason)}"
