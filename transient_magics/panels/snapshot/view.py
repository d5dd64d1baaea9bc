"""A panel as a pure function of state: everything that is shown, in words and small numbers, ready
for page and twin.

`view(state, bill, now)` is the snapshot that is sent to the page. Snapshots are whole and
idempotent: any of them can be lost. Moments are seconds since 1970, so that the page can show its
own clock and count down between snapshots.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import cache
from typing import Any

from ...client import focus as work_focus
from ...client import text
from ...client.results.comparison import revocations
from ...journal import Bill, ClusterState, Event, RunState, Work, events
from ...journal import Cost as Spent
from ...kinds import KINDS, find, parts
from ...spec import render_duration
from ..sections import section_views
from .contract import VERSION, Cost, Proposal, Said, Training, View, WorkGroup, WorkLine, sound
from .curves import end_of
from .lanes import lanes

MOST_EVENTS = 40
_TONES = {
    events.VmPreemptionNotice: "warn",
    events.VmRevoked: "bad",
    events.ReclaimWanted: "warn",
    events.VmRefused: "warn",
    events.ControllerTrouble: "warn",
    events.TrainFailed: "bad",
    events.TrainSlow: "warn",
    events.TrainRecovered: "good",
    events.TrainUnevaluated: "warn",
    events.TrainUnsaved: "warn",
    events.TrainOrder: "warn",
    events.TrainUnjudged: "warn",
    events.TrainUnshipped: "warn",
    events.TrainDetour: "warn",
    events.ClusterReady: "good",
    events.ClusterRelocated: "good",
    events.ClusterStayed: "warn",
    events.TrainFinished: "good",
}
_FAMILIES = {
    "vm": "VMs",
    "worker": "VMs",
    "reclaim": "VMs",
    **dict.fromkeys(("train", "work", *KINDS), "training"),
}
_SAID_BY_STUDY = (
    "work.declared",
    "train.started",
    "train.checkpoint",
    "train.evaluated",
    "train.finished",
    "train.best",
    "worker.joined",
    "worker.left",
    "worker.batch_resized",
)
"""What goes without saying of each of a study's many runs."""


@cache
def _tones() -> Mapping[type[Event], str]:
    tones: dict[type[Event], str] = dict(_TONES)
    for words in parts("words").values():
        tones |= getattr(words, "TONES", {})
    return tones


def shown_run(state: ClusterState, run: str | None) -> RunState | None:
    """The run that a panel shows: the one named, else that which stands for the cluster
    (`client.focus`).
    """
    if run:
        return state.of(RunState).get(run)
    return work_focus.run(state)


def view(
    state: ClusterState, bill: Bill, now: float, run: str | None = None, forecast: str = ""
) -> View:
    """The snapshot of a cluster's panel at `now`; with `run`, of the panel of that run alone.
    `forecast`: how the run that is shown ends, in words.
    """
    spec = state.spec
    shown = shown_run(state, run)
    snapshot: View = {
        "version": VERSION,
        "at": now,
        "as_of": _as_of(state, shown if run else None, now),
        "name": state.name,
        "focus": run,
        "phase": state.phase,
        "phase_words": text.phase_words(state),
        "about": " · ".join(_about(state, shown, run)),
        "over": state.over,
        "emulated": spec.emulated if spec else True,
        "trouble": state.trouble,
        "proposal": None if run else _given_up(state, now),
        "spec": spec.spec if spec else "",
        "since": state.declared_at or now,
        "until": state.ended_at or 0.0,
        "vms": lanes(state, now),
        "training": _training(state, shown, run, forecast, bill, now) if shown else None,
        "beside": [] if run else run_lines(state, bill.work),
        "work": [] if run else work_groups(state, bill.work),
        "cost": _cost(state, bill, now),
        "ending": text.ending_words(state, now),
        "events": _events(state, run),
    }
    return sound(snapshot)


def _as_of(state: ClusterState, run: RunState | None, now: float) -> str:
    """When a picture of this snapshot is of, and whether things went on behind it."""
    moment = time.strftime("%d %b %Y, %H:%M:%S %Z", time.localtime(now)).lstrip("0").strip()
    if state.over or (run and run.over):
        return f"As of {moment}."
    studied = state.active_run and not run and work_focus.is_part(state.active_run, state)
    if studied:
        went_on = "study"
    else:
        went_on = "run" if run or state.active_run else "cluster"
    return f"As of {moment}; the {went_on} went on."


def _about(state: ClusterState, shown: RunState | None, focus: str | None) -> list[str]:
    spec = state.spec
    if spec is None:
        return []
    if focus:
        lost = revocations(state).get(focus, 0)
        if lost:
            taken = [f"{text.count(lost, 'revocation')} of its workers"]
        else:
            taken = []
        return [*([_title(shown)] if shown else []), f"on {state.name}", *taken]
    if spec.spec != state.name:
        declared = [spec.spec]
    else:
        declared = []
    return [
        _vms_words(state),
        *declared,
        ", ".join(spec.zones),
        text.RENTED.get(spec.provisioning_model, ""),
    ]


def _title(run: RunState) -> str:
    model = run.spec.model
    if model:
        return f"{model} on {run.spec.problem}"
    return "the cell's own model"


def _cost(state: ClusterState, bill: Bill, now: float) -> Cost:
    spec = state.spec
    if spec:
        whole = spec.ends_at - spec.declared_at
    else:
        whole = 0.0
    if whole:
        used = 1 - state.seconds_left(now) * state.clock.rate / whole
    else:
        used = 0.0
    if spec and spec.max_cost is not None:
        costs = [text.money(spec.max_cost)]
    else:
        costs = []
    return {
        "limit_words": " or ".join([*costs, render_duration(spec.max_seconds)]) if spec else "",
        "limit_used": min(1.0, max(0.0, used)),
        "total": bill.total,
        "hourly": bill.hourly,
        "pace": state.clock.rate,
        "on_demand": bill.on_demand,
        "on_demand_hourly": sum(vm.on_demand_hourly for vm in state.living if vm.running_at),
        "total_words": text.spent_words(bill),
        "hourly_words": text.rate_words(state, bill),
        "on_demand_words": text.money(bill.on_demand),
        "saved_words": text.saved_words(bill),
        "lines_words": text.lines_words(bill),
        "transfer_words": text.transfer_words(bill),
        "source": bill.source,
    }


def _vms_words(state: ClusterState) -> str:
    parts = []
    if not state.vms and not state.over:
        parts.append("no VM yet")
    elif not state.over:
        living = state.living
        ready = sum(vm.state in ("ready", "leaving") for vm in living)
        parts.append(f"{ready} of {text.count(len(living), 'VM')} ready")
    else:
        parts.append(f"{text.count(len(state.vms), 'VM')} in all")
    if state.revocations:
        parts.append(text.count(state.revocations, "revocation"))
    return ", ".join(parts)


def _training(
    state: ClusterState, run: RunState, focus: str | None, forecast: str, bill: Bill, now: float
) -> Training:
    return {
        "name": run.name,
        "title": _title(run),
        "phase": "stopped" if text.was_stopped(run) else run.phase,
        "phase_words": run_phase(state, run),
        "words": text.run_words(run, state),
        "step": run.step,
        "steps": run.train_steps,
        "counted": f"{text.counted_words(run)} {'measures' if run.spec.stalls else 'steps'}",
        "forecast": forecast,
        "facts": _facts(state, run, bill.work[run.name], now),
        "data": text.data_words(run.data) if run.data else "",
        "proposal": _proposal(state.name, run, now),
        "end": end_of(run),
        "stoppable": not run.over and not run.stopped and not state.over,
    }


def _proposal(cluster: str, run: RunState, now: float) -> Proposal | None:
    """What waits to be agreed to."""
    if run.deadline and not run.over:
        proposed = run.deadline.proposed
    else:
        proposed = None
    if proposed is None or now > proposed.until:
        return None
    return {
        "number": proposed.seq,
        "text": f"{run.name}: {proposed.reason}?",
        "how": text.to_agree_words(cluster, run.name),
        "until": proposed.until,
    }


def _given_up(state: ClusterState, now: float) -> Proposal | None:
    """The workers that are proposed where the provider wants some back."""
    if not (words := text.given_up_words(state, now)) or not (
        state.reclaim and state.reclaim.proposed
    ):
        return None
    proposed = state.reclaim.proposed
    how = text.to_agree_words(state.name)
    return {"number": proposed.seq, "text": words, "how": how, "until": proposed.until}


def _facts(state: ClusterState, run: RunState, cost: Spent, now: float) -> list[tuple[str, str]]:
    if cost.total:
        spent = [("this run", cost.words)]
    else:
        spent = []
    if run.phase == "declared":
        return spent
    if run.spec.stalls:  # it trains nothing and saves nothing
        if run.over:
            return spent
        return [*spent, ("workers", str(len(run.workers)))]
    if run.checkpoint_step is not None:
        saved = f"step {run.checkpoint_step:,}"
    else:
        saved = "none yet"
    going = [("steps/s", text.number(run.steps_per_second)), ("workers", str(len(run.workers)))]
    measured = [
        (f"dev {name}", text.number(value)) for name, value in text.scores(run.metrics).items()
    ]
    if run.evaluated[0]:
        measured.append(("dev split", text.examples_words(*run.evaluated)))
    lost = lost_words(state, run, now)
    if lost:
        missing = [("lost to revocations", lost)]
    else:
        missing = []
    due = text.outlook_facts(run, now)
    return [
        *([] if run.over else going),
        *due,
        *spent,
        ("loss", text.number(run.loss)),
        ("checkpoint", saved),
        *missing,
        *measured,
    ]


def _events(state: ClusterState, run: str | None) -> list[Said]:
    if run:
        of_study = set()
    else:
        of_study = {
            each.name for each in state.of(RunState).values() if work_focus.is_part(each, state)
        }
    chosen = [
        event
        for event in state.recent
        if event.kind not in text.quiet_kinds()
        and _concerns(event, state, run)
        and not (event.kind in _SAID_BY_STUDY and event.work_of("run") in of_study)
    ]
    lines: list[Said] = []
    for alike in reversed(text.grouped(chosen)):
        event = alike[-1]
        tone = _tones().get(type(event), "")
        lines.append(
            {
                "at": event.at,
                "clock": text.clock(event.at),
                "text": text.group_words(alike),
                "tone": tone,
                "family": _FAMILIES.get(event.kind.partition(".")[0], "cluster"),
            }
        )
        if len(lines) == MOST_EVENTS:
            break
    return lines


def _concerns(event: Event, state: ClusterState, run: str | None) -> bool:
    """For the panel of one run: its own events, and what happened to its workers' VMs while it had
    them.
    """
    if run is None:
        return True
    if event.kind not in ("vm.preemption_notice", "vm.revoked", "vm.ready"):
        return event.work_of("run") == run
    vm = state.vms.get(getattr(event, "vm", ""))
    return vm is not None and state.had(run, vm, event.at)


# What revocations cost a run: how long places of workers stood empty, and the steps that are missing for it.


def lost(state: ClusterState, run: RunState, now: float) -> tuple[float, float]:
    """Seconds of a worker that are missing, and steps at the run's mean speed per worker.

    A place is empty from the moment its VM was revoked until the VM that took it was ready. A
    worker that goes takes no step of others with it: what is lost is what it would have done.
    Nothing is told where the run shares the cluster with another, or has a part of it alone,
    because the state does not keep whose worker it was.
    """
    end = run.ended_at or now
    workers = state.spec.worker_count if state.spec else 0
    if (
        not run.started_at
        or not workers
        or 0 < run.spec.most_workers < workers
        or _has_company(state, run, end)
    ):
        return 0.0, 0.0
    seconds = 0.0
    after_them = text.replacements(state)
    for vm in state.vms.values():
        if vm.role == "worker" and vm.state == "revoked" and vm.slot < workers:
            after = after_them.get(vm.name)
            if after:
                until = after.ready_at or after.ended_at or end
            else:
                until = end
            seconds += max(0.0, min(until, end) - max(vm.ended_at, run.started_at))
    present = workers * (end - run.started_at) - seconds
    steps = run.step - (run.series[0][1] if run.series else 0)
    return seconds, seconds * steps / present if present > 0 else 0.0


def _has_company(state: ClusterState, run: RunState, end: float) -> bool:
    """Whether another run trained at the same time."""
    others = (
        each for each in state.of(RunState).values() if each.name != run.name and each.started_at
    )
    return any(
        other.started_at < end and run.started_at < (other.ended_at or end) for other in others
    )


def lost_words(state: ClusterState, run: RunState, now: float) -> str:
    """`42 s of a worker, ≈ 70 steps`; nothing where nothing was lost."""
    seconds, steps = lost(state, run, now)
    if seconds < 1:
        return ""
    return f"{render_duration(seconds)} of a worker" + (
        f", ≈ {text.count(round(steps), 'step')}" if steps >= 0.5 else ""
    )


MOST_LINES = 12
"""Lines of each kind of work."""


def run_lines(state: ClusterState, by_name: Mapping[str, Spent]) -> list[WorkLine]:
    """Return a line for each run that is not over but for those of studies, which are in the table
    of their study.

    `by_name`: the costs of the cluster's work.
    """
    lines: list[WorkLine] = []
    for run in work_focus.beside(state):
        line = _line(state, run, by_name)
        line["phase"] = run_phase(state, run)
        if run.phase != "declared":
            line["step"] = run.step
            line["steps"] = run.train_steps
        lines.append(line)
    return lines


def work_groups(state: ClusterState, by_name: Mapping[str, Spent]) -> list[WorkGroup]:
    """Return the lines of work that trains nothing and has no section of its own, by kind.

    Each kind has a line for everything that is not over and for the latest one; of many, a last
    line counts the others. `by_name`: the costs of the cluster's work.
    """
    groups: list[WorkGroup] = []
    with_sections = section_views()
    for kind in KINDS.values():
        found = [work for work in work_focus.of_kind(state, kind.name) if not work.trains]
        if kind.name in with_sections or not found:
            continue
        has_vms = set(state.leases.values())
        found.sort(key=lambda work: work.over or work.name not in has_vms)
        lines = [_line(state, work, by_name) for work in found[:MOST_LINES]]
        if len(found) > MOST_LINES:
            words = f"and {text.count(len(found) - MOST_LINES, f'more {kind}')}"
            lines.append(
                {
                    "name": "",
                    "phase": "declared",
                    "words": words,
                    "step": 0,
                    "steps": 0,
                    "stoppable": False,
                }
            )
        title = f"{kind.title} of this cluster"
        groups.append({"kind": kind.name, "title": title, "lines": lines})
    return groups


def run_phase(state: ClusterState, run: RunState) -> str:
    """Return the phase of a run, or what it does in it: waiting, starting, evaluating."""
    if text.is_evaluated(run):
        return "evaluating"
    if run.phase != "declared":
        return "stopped" if text.was_stopped(run) else run.phase
    return "waiting" if text.waits_for(run, state) else "starting"


def _line(state: ClusterState, work: Work[Any], by_name: Mapping[str, Spent]) -> WorkLine:
    if isinstance(work, RunState):
        stopping = work.stopped
    else:
        stopping = work.stop is not None
    words = text.work_words(work, state) + _more_words("more_words", work, state)
    words += text.work_cost(by_name[work.name]) + _more_words("last_words", work, state)
    return {
        "name": work.name,
        "phase": work.phase,
        "words": words,
        "step": 0,
        "steps": 0,
        "stoppable": not (stopping or work.over or state.over),
    }


def _more_words(name: str, work: Work[Any], state: ClusterState) -> str:
    """Return what the view of a kind adds to the line of its work, under one of two names; empty
    where it has none.
    """
    own = getattr(find(work.kind, "view"), name, None)
    if own:
        return own(work, state)
    return ""
