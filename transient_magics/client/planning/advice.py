"""`run.advice("reclaim 1")`: what it would mean to lose a worker or to shrink some, beside what
came of it before.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ...errors import DeclarationError, PlanError
from ...journal import Event, RunState, events, metrics
from ...protocol import layout
from ...spec import WORKER

if TYPE_CHECKING:
    from ...planner.deflation import Advice, Measured
    from ..recorded_run import RecordedRun

_ASKED = re.compile(r"\s*reclaim\s+(\d+(?:\.\d+)?)\s*", re.IGNORECASE)
_AROUND = 20.0
_SETTLING = 10.0
"""Seconds that are measured before and after a change, and that pass in between."""
_CHANGES = (
    events.VmDeflated,
    events.VmInflated,
    events.VmRevoked,
    events.VmMachineAsked,
    events.VmMachineRefused,
)


def advice(run: RecordedRun, question: str) -> Advice:
    """What to give up as many workers as `question` says means. Raises DeclarationError, or
    PlanError where the run does not train or has as few workers.
    """
    from ...planner.deflation import advise

    match = _ASKED.fullmatch(question)
    if not match or not float(match[1]):
        raise DeclarationError(
            f"Invalid question '{question}'", fix='For example: run.advice("reclaim 1").'
        )
    wanted = float(match[1])
    state = run.cluster.state
    found = state.of(RunState).get(run.name)
    if found is None or found.phase != "running" or not found.steps_per_second:
        raise PlanError(f"{run.name} does not train at this moment, so that its speed is not known")
    hourly = [vm.hourly for name, vm in state.vms.items() if name in found.workers]
    if wanted >= len(hourly):
        what = f"{run.name} has {len(hourly)} workers, of which {wanted:g} cannot be given up"
        raise PlanError(what, fix="Ask for less.")
    rest = sum(vm.hourly for vm in state.living if vm.role != WORKER)
    balanced = found.spec.batching == "dynamic"
    told = advise(
        1 / found.steps_per_second, hourly, rest, wanted, mode=found.spec.mode, balanced=balanced
    )
    return replace(told, measured=tuple(_measured(run, run.cluster.events("vm"))))


def _measured(run: RecordedRun, history: Sequence[Event]) -> Iterable[Measured]:
    """What came of VMs that were shrunk or taken while it trained, where nothing else happened
    around that.
    """
    from ...planner.deflation import Measured

    restarted = {each.vm for each in history if isinstance(each, events.VmMachineAsked)}
    changes = [
        each
        for each in history
        if isinstance(each, _CHANGES) or (isinstance(each, events.VmReady) and each.vm in restarted)
    ]
    moments = [0.0, *(change.at for change in changes), math.inf]
    rows = metrics.read(run.directory / layout.METRICS)
    for before, event, after in zip(moments, changes, moments[2:], strict=False):
        if not isinstance(event, events.VmDeflated | events.VmRevoked):
            continue
        if min(event.at - before, after - event.at) < _AROUND + _SETTLING:
            continue
        settled = event.at + _SETTLING
        rates = _rate(rows, event.at - _AROUND, event.at), _rate(rows, settled, settled + _AROUND)
        if all(rates):
            if isinstance(event, events.VmDeflated):
                became = f"shrank to {event.cpu:.0%}"
            else:
                became = "was revoked"
            yield Measured(f"{event.vm} {became}", 1 / rates[0], 1 / rates[1])


def _rate(rows: list[dict[str, int]], since: float, until: float) -> float:
    """Steps per second of all workers, 0 where they were not measured."""
    chosen = [row for row in rows if since <= row["time"] / 1e9 <= until]
    if len(chosen) < 2 or chosen[-1]["time"] == chosen[0]["time"]:
        return 0.0
    return (chosen[-1]["step"] - chosen[0]["step"]) / (chosen[-1]["time"] - chosen[0]["time"]) * 1e9
