"""The snapshot of a cluster's panel, a pure function of state, for the page and static picture.

`view(state, bill, now)` is what is sent to the page. Snapshots are whole, so any of them may be
lost. Times are seconds since 1970, so that the page can show its own clock and count down between
snapshots. What runs and other kinds of work add is in the part `view` of each kind
(`panels/sections.py`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import cache
from types import ModuleType
from typing import Any

from ...client import focus as work_focus
from ...client import text
from ...client.results.comparison import revocations
from ...journal import Bill, ClusterState, Event, RunState, Work, events
from ...journal import Cost as WorkCost
from ...kinds import KINDS, find, load, parts
from ...spec import render_duration
from ..sections import section_views
from .contract import VERSION, Cost, EventLine, Proposal, View, WorkGroup, WorkLine, sound
from .lanes import lanes

MOST_EVENTS = 40
MOST_LINES = 12
"""Maximum number of lines for each kind of work."""
_TONES = {
    events.VmPreemptionNotice: "warn",
    events.VmRevoked: "bad",
    events.ReclaimWanted: "warn",
    events.VmRefused: "warn",
    events.ControllerTrouble: "warn",
    events.ClusterReady: "good",
    events.ClusterRelocated: "good",
    events.ClusterStayed: "warn",
}
_FAMILIES = {
    "vm": "VMs",
    "worker": "VMs",
    "reclaim": "VMs",
    **dict.fromkeys(("train", "work", *KINDS), "training"),
}
_QUIET_OF_PARTS = frozenset(
    {
        "work.declared",
        "train.started",
        "train.checkpoint",
        "train.evaluated",
        "train.finished",
        "train.best",
        "worker.joined",
        "worker.left",
        "worker.batch_resized",
    }
)
"""Events that are left out for parts of other work, such as the many runs of a study."""


@cache
def _tones() -> Mapping[type[Event], str]:
    tones: dict[type[Event], str] = dict(_TONES)
    for words in parts("words").values():
        tones |= getattr(words, "TONES", {})
    return tones


def view_of(run: RunState) -> ModuleType:
    """Return the part `view` of the kind of a run."""
    return load(run.kind, "view")


def shown_run(state: ClusterState, run: str | None) -> RunState | None:
    """Return the run called `run`; without a name the one that the cluster's panel shows."""
    if run:
        return state.of(RunState).get(run)
    return work_focus.run(state)


def view(
    state: ClusterState, bill: Bill, now: float, run: str | None = None, forecast: str = ""
) -> View:
    """Return the snapshot of a panel.

    Parameters
    ----------
    state, bill
        The state of the cluster and its bill.
    now
        Seconds since 1970.
    run
        The name of a run, for the panel of that run alone.
    forecast
        How the run that is shown ends, in words.
    """
    spec = state.spec
    shown = shown_run(state, run)
    training = None
    if shown:
        cost = bill.work[shown.name]
        training = view_of(shown).training(shown, state, cost, forecast, now)
    snapshot: View = {
        "version": VERSION,
        "at": now,
        "as_of": _as_of(state, shown if run else None, now),
        "name": state.name,
        "focus": run,
        "phase": state.phase,
        "phase_words": text.phase_words(state),
        "about": " · ".join(_about_run(state, shown, run) if run else _about_cluster(state)),
        "over": state.over,
        "emulated": spec.emulated if spec else True,
        "trouble": state.trouble,
        "proposal": None if run else _reclaim_proposal(state, now),
        "spec": spec.spec if spec else "",
        "since": state.declared_at or now,
        "until": state.ended_at or 0.0,
        "vms": lanes(state, now),
        "training": training,
        "beside": [] if run else run_lines(state, bill.work),
        "work": [] if run else work_groups(state, bill.work),
        "cost": _cost(state, bill, now),
        "ending": text.ending_words(state, now),
        "events": _event_lines(state, run),
    }
    return sound(snapshot)


def _as_of(state: ClusterState, run: RunState | None, now: float) -> str:
    """Return the time of a snapshot, and what continued after a picture of it was stored."""
    moment = time.strftime("%d %b %Y, %H:%M:%S %Z", time.localtime(now)).lstrip("0").strip()
    if state.over or (run and run.over):
        return f"As of {moment}."
    active = state.current_or_next_run
    if run:
        what = "run"
    elif not active:
        what = "cluster"
    else:
        what = "study" if work_focus.is_part(active, state) else "run"
    return f"As of {moment}; the {what} continued."


def _about_cluster(state: ClusterState) -> list[str]:
    spec = state.spec
    if spec is None:
        return []
    about = [_vms_words(state)]
    if spec.spec != state.name:
        about.append(spec.spec)
    return [*about, ", ".join(spec.zones), text.RENTED.get(spec.provisioning_model, "")]


def _about_run(state: ClusterState, shown: RunState | None, name: str) -> list[str]:
    if state.spec is None:
        return []
    about = [f"on {state.name}"]
    if shown:
        about.insert(0, view_of(shown).title(shown))
    lost = revocations(state).get(name, 0)
    if lost:
        about.append(f"{text.count(lost, 'revocation')} of its workers")
    return about


def _vms_words(state: ClusterState) -> str:
    if state.over:
        words = f"{text.count(len(state.vms), 'VM')} in all"
    elif not state.vms:
        words = "no VM yet"
    else:
        living = state.living
        ready = sum(vm.state in ("ready", "leaving") for vm in living)
        words = f"{ready} of {text.count(len(living), 'VM')} ready"
    if state.revocations:
        words += f", {text.count(state.revocations, 'revocation')}"
    return words


def _cost(state: ClusterState, bill: Bill, now: float) -> Cost:
    spec = state.spec
    limits = []
    used = 0.0
    if spec:
        if spec.max_cost is not None:
            limits.append(text.money(spec.max_cost))
        limits.append(render_duration(spec.max_seconds))
        whole = spec.ends_at - spec.declared_at
        if whole:
            used = 1 - state.seconds_left(now) * state.clock.rate / whole
    return {
        "limit_words": " or ".join(limits),
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


def _reclaim_proposal(state: ClusterState, now: float) -> Proposal | None:
    """Return which workers will be given up to a provider that wants VMs back."""
    words = text.given_up_words(state, now)
    proposed = state.reclaim.proposed if state.reclaim else None
    if not words or proposed is None:
        return None
    how = text.to_agree_words(state.name)
    return {"number": proposed.seq, "text": words, "how": how, "until": proposed.until}


def run_lines(state: ClusterState, costs: Mapping[str, WorkCost]) -> list[WorkLine]:
    """Return a line for each run that is not over, without the runs of studies.

    Parameters
    ----------
    state
        The state of the cluster.
    costs
        The costs of its work, by name.
    """
    return [_line(state, run, costs) for run in work_focus.beside(state)]


def work_groups(state: ClusterState, costs: Mapping[str, WorkCost]) -> list[WorkGroup]:
    """Return the lines of the kinds of work that train nothing and have no section.

    Each kind has a line for everything that is not over, and for its latest work. Beyond
    `MOST_LINES` a last line counts the others.

    Parameters
    ----------
    state
        The state of the cluster.
    costs
        The costs of its work, by name.
    """
    groups: list[WorkGroup] = []
    has_vms = set(state.leases.values())
    for kind in KINDS.values():
        works = [work for work in work_focus.of_kind(state, kind.name) if not work.trains]
        if not works or kind.name in section_views():
            continue
        works.sort(key=lambda work: work.over or work.name not in has_vms)
        lines = [_line(state, work, costs) for work in works[:MOST_LINES]]
        if len(works) > MOST_LINES:
            lines.append(_more_line(f"and {text.count(len(works) - MOST_LINES, f'more {kind}')}"))
        title = f"{kind.title} of this cluster"
        groups.append({"kind": kind.name, "title": title, "lines": lines})
    return groups


def _line(state: ClusterState, work: Work[Any], costs: Mapping[str, WorkCost]) -> WorkLine:
    view = find(work.kind, "view")
    if isinstance(work, RunState):
        stopping = work.stopped
    else:
        stopping = work.stop is not None
    words = text.work_words(work, state) + _own_words(view, "more_words", work, state)
    words += text.work_cost(costs[work.name]) + _own_words(view, "last_words", work, state)
    line: WorkLine = {
        "name": work.name,
        "phase": work.phase,
        "words": words,
        "step": 0,
        "steps": 0,
        "stoppable": not (stopping or work.over or state.over),
    }
    add_progress = getattr(view, "add_progress", None)
    if add_progress:
        add_progress(line, work, state)
    return line


def _more_line(words: str) -> WorkLine:
    return {
        "name": "",
        "phase": "declared",
        "words": words,
        "step": 0,
        "steps": 0,
        "stoppable": False,
    }


def _own_words(view: ModuleType | None, name: str, work: Work[Any], state: ClusterState) -> str:
    own = getattr(view, name, None)
    if own:
        return own(work, state)
    return ""


def _event_lines(state: ClusterState, run: str | None) -> list[EventLine]:
    of_parts = set[str]()
    if run is None:
        runs = state.of(RunState).values()
        of_parts = {part.name for part in runs if work_focus.is_part(part, state)}
    shown = [
        event
        for event in state.recent
        if event.kind not in text.quiet_kinds()
        and _concerns(event, state, run)
        and not (event.kind in _QUIET_OF_PARTS and event.work_of("run") in of_parts)
    ]
    groups = text.grouped(shown)[-MOST_EVENTS:]
    return [_event_line(group) for group in reversed(groups)]


def _event_line(group: list[Event]) -> EventLine:
    event = group[-1]
    return {
        "at": event.at,
        "clock": text.clock(event.at),
        "text": text.group_words(group),
        "tone": _tones().get(type(event), ""),
        "family": _FAMILIES.get(event.kind.partition(".")[0], "cluster"),
    }


def _concerns(event: Event, state: ClusterState, run: str | None) -> bool:
    """Return whether an event is shown on the panel of a cluster (None), or of a run.

    A run has its own events, and those of the VMs of its workers.
    """
    if run is None:
        return True
    if event.kind not in ("vm.preemption_notice", "vm.revoked", "vm.ready"):
        return event.work_of("run") == run
    vm = state.vms.get(getattr(event, "vm", ""))
    return vm is not None and state.had(run, vm, event.at)
