"""A panel as a pure function of state: everything that is shown, in words and small numbers, ready for page and twin.

`view(state, bill, now)` is the snapshot that is sent to the page. Snapshots are whole and idempotent: any of them can
be lost. Moments are seconds since 1970, so that the page can show its own clock and count down between snapshots.
"""

from __future__ import annotations

from typing import Any

from ..client import text
from ..journal import Bill, ClusterState, Event, RunState, VmState, events
from .chart import chart

MOST_ROWS = 24
MOST_EVENTS = 7
_GONE_SHOWN_SECONDS = 60.0
_GONE_ROWS = 3
_TONES = {
    events.VmPreemptionNotice: "warn",
    events.VmRevoked: "bad",
    events.VmRefused: "warn",
    events.ControllerTrouble: "warn",
    events.TrainFailed: "bad",
    events.TrainSlow: "warn",
    events.ClusterReady: "good",
    events.TrainFinished: "good",
}
_MODELS = {"spot": "Spot", "preemptible": "preemptible", "standard": "on demand"}


def view(state: ClusterState, bill: Bill, now: float, run: str | None = None) -> dict[str, Any]:
    """The snapshot of a cluster's panel at `now`; with `run`, of the panel of that run alone."""
    spec = state.spec
    shown = state.runs.get(run) if run else (state.active_run or state.run)
    return {
        "at": now,
        "name": state.name,
        "focus": run,
        "phase": state.phase,
        "phase_words": text.phase_words(state),
        "about": " · ".join(_about(state, shown, run)),
        "over": state.over,
        "emulated": spec.emulated if spec else True,
        "trouble": state.trouble,
        "vms": _rows(state, now),
        "training": _training(state, shown, run) if shown else None,
        "cost": _cost(state, bill),
        "ending": text.ending_words(state, now),
        "events": _events(state, run),
    }


def _about(state: ClusterState, shown: RunState | None, focus: str | None) -> list[str]:
    spec = state.spec
    if spec is None:
        return []
    if focus:
        return [*([_title(shown)] if shown else []), f"on {state.name}", _vms_words(state)]
    declared = [spec.spec] if spec.spec != state.name else []
    return [_vms_words(state), *declared, ", ".join(spec.zones), _MODELS.get(spec.provisioning_model, "")]


def _title(run: RunState) -> str:
    model = run.spec.get("model")
    return f"{model} on {run.spec.get('problem', '')}" if model else "the cell's own model"


def _cost(state: ClusterState, bill: Bill) -> dict[str, Any]:
    return {
        "total": bill.total,
        "hourly": bill.hourly,
        "pace": state.clock.rate,
        "on_demand": bill.on_demand,
        "on_demand_hourly": sum(vm.on_demand_hourly for vm in state.living if vm.running_at),
        "total_words": text.money(bill.total),
        "hourly_words": text.money(bill.hourly),
        "on_demand_words": text.money(bill.on_demand),
        "saved_words": f"{bill.saved:.0%} saved" if bill.on_demand > 0 and bill.saved >= 0.005 else "",
        "projected_words": "" if bill.projected is None else f"≈ {text.money(bill.projected)}",
        "transfer_words": text.transfer_words(bill),
        "source": bill.source,
    }


def _rows(state: ClusterState, now: float) -> list[dict[str, Any]]:
    living = sorted(state.living, key=_order)
    gone = [vm for vm in state.vms.values() if vm.state in ("revoked", "refused")]
    if state.over:
        chosen = sorted(state.vms.values(), key=_order)[:MOST_ROWS]
    else:
        gone = [vm for vm in gone if now - vm.ended_at < _GONE_SHOWN_SECONDS or not _replaced(state, vm)]
        if len(living) > MOST_ROWS:  # what is not simply at work is of more interest
            living = sorted(living, key=lambda vm: (vm.role != "ps", vm.state == "ready", _order(vm)))[:MOST_ROWS]
        chosen = living + gone[-_GONE_ROWS:]
    return [_row(state, vm, now) for vm in sorted(chosen, key=_order)]


def _row(state: ClusterState, vm: VmState, now: float) -> dict[str, Any]:
    emulated = state.spec.emulated if state.spec else False
    words = text.vm_words(state, vm, now)
    return {
        "name": vm.name,
        "role": "parameter server" if vm.role == "ps" else "worker",
        "machine": text.machine(state, vm),
        "zone": vm.zone,
        "state": "training" if words == "training" else vm.state,
        "words": words,
        "leaves_at": text.leaves_at(state, vm),
        "revocable": emulated and vm.role == "worker" and vm.state in ("booting", "ready"),
    }


def _order(vm: VmState) -> tuple[bool, int, float]:
    return vm.role != "ps", vm.slot, vm.requested_at


def _replaced(state: ClusterState, vm: VmState) -> bool:
    after = text.replacement(state, vm)
    return bool(after and after.state == "ready")


def _vms_words(state: ClusterState) -> str:
    parts = []
    if not state.over:
        living = state.living
        ready = sum(vm.state in ("ready", "leaving") for vm in living)
        parts.append(f"{ready} of {text.count(len(living), 'VM')} ready")
        if len(living) > MOST_ROWS:
            parts.append(f"{MOST_ROWS} shown")
    else:
        parts.append(f"{text.count(len(state.vms), 'VM')} in all")
    if state.revocations:
        parts.append(text.count(state.revocations, "revocation"))
    return ", ".join(parts)


def _training(state: ClusterState, run: RunState, focus: str | None) -> dict[str, Any]:
    revoked = [vm.ended_at for vm in state.vms.values() if vm.state == "revoked"]
    speed = [(time, rate) for time, _, _, rate in run.series]
    loss = [(time, value) for time, _, value, _ in run.series if value is not None]
    return {
        "name": run.name,
        "title": _title(run),
        "phase": run.phase,
        "phase_words": "starting" if run.phase == "declared" else run.phase,
        "words": text.run_words(run),
        "step": run.step,
        "steps": run.train_steps,
        "facts": _facts(run),
        "charts": [
            chart("steps per second", speed, revoked, from_zero=True),
            chart("loss", loss, revoked, from_zero=False),
        ],
        "stoppable": bool(focus) and not run.over and not state.over,
    }


def _facts(run: RunState) -> list[list[str]]:
    saved = f"step {run.checkpoint_step:,}" if run.checkpoint_step is not None else "none yet"
    now = [["steps/s", text.number(run.steps_per_second)], ["workers", str(len(run.workers))]]
    measured = [[f"dev {name}", text.number(value)] for name, value in text.scores(run.metrics).items()]
    return [*([] if run.over else now), ["loss", text.number(run.loss)], ["checkpoint", saved], *measured]


def _events(state: ClusterState, run: str | None) -> list[dict[str, Any]]:
    chosen = [event for event in state.recent if event.kind not in text.QUIET and _concerns(event, run)]
    lines = []
    for alike in reversed(text.grouped(chosen)):
        event = alike[-1]
        tone = _TONES.get(type(event), "")
        lines.append({"at": event.at, "clock": text.clock(event.at), "text": text.group_words(alike), "tone": tone})
        if len(lines) == MOST_EVENTS:
            break
    return lines


def _concerns(event: Event, run: str | None) -> bool:
    """For the panel of one run: its own events, and what happened to VMs that could have worked for it."""
    if run is None:
        return True
    own = getattr(event, "run", None)
    return own == run or (own is None and event.kind in ("vm.preemption_notice", "vm.revoked", "vm.ready"))
