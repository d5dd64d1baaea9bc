"""Forecasts of the end and the cost of a running run, and advice on releasing workers."""

from __future__ import annotations

import math
import re
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ...catalog import region
from ...catalog.published import stand_ins
from ...errors import (
    ClusterError,
    DeclarationError,
    PlanError,
    StoreError,
    TransientError,
    UnreachableError,
)
from ...journal import ClusterState, Cost, Event, RunState, events, kept, metrics
from ...protocol import layout
from ...spec import WORKER, WorkerGroup
from ..folders import KnownRun, known_runs
from ..project.weather import weather
from ..text.words import count
from .revocations import emulated, foreseen
from .workloads import alike, learn, record, source, store_of

if TYPE_CHECKING:
    from ...planner.deflation import Advice, Measured
    from ...planner.forecast import Behind, Forecast
    from ...planner.model_store import ModelStore
    from ...planner.run_records import Record
    from ..following.cluster import BaseCluster
    from ..recorded_run import RecordedRun

_ASKED = re.compile(r"\s*reclaim\s+(\d+(?:\.\d+)?)\s*", re.IGNORECASE)
_AROUND = 20.0
"""Seconds that are measured before and after a change."""
_SETTLING = 10.0
"""Seconds after a change that are not measured, because the speed is still changing."""
_CHANGES = (
    events.VmDeflated,
    events.VmInflated,
    events.VmRevoked,
    events.VmMachineAsked,
    events.VmMachineRefused,
)


def forecast(run: RecordedRun, revocations: str | None = None) -> Forecast:
    """Forecast the end of a running run, and its cost by then.

    Parameters
    ----------
    run
        The run.
    revocations
        The assumed revocations: `published` or `none` (default: `published` on Compute Engine, and
        the weather of the emulator, if that is `published`).

    Raises
    ------
    PlanError
        The run is not running, or has too few measurements.
    StoreError
        The measurements of earlier runs are unreadable.
    """
    from ...planner.forecast import CLOSING_SECONDS
    from ...planner.forecast import forecast as foretell

    cluster = run.cluster
    state = cluster.state
    now = time.time()
    found = state.of(RunState).get(run.name)
    if found is None:
        raise PlanError(
            f"{run.name} has not started on {cluster.name} yet", fix="Try again when it trains."
        )
    expected = revocations or weather_of(cluster)
    as_emulated = (
        not revocations
        and expected == "published"
        and cluster.state.spec
        and cluster.state.spec.emulated
    )
    if as_emulated:
        lifetimes, _, risk = emulated()
    else:
        lifetimes, _, risk = foreseen(expected)
    recorded = KnownRun(cluster.directory, found)
    store = store_of(recorded)
    for other in alike(known_runs(), store):
        if other.state.over:
            learn(store, other)
    seen = record(recorded)
    closings = [
        other.closing
        for other in store.records(source(recorded)).values()
        if other.closing is not None
    ]
    closing = CLOSING_SECONDS
    if closings:
        closing = statistics.median(closings)
    predicted = foretell(state, now, found, seen, lifetimes, risk=risk, closing=closing)
    if as_emulated:
        predicted = replace(predicted, stand_in=_stand_ins(state))
    return replace(predicted, behind=_behind(recorded, state, store, seen))


def _stand_ins(state: ClusterState) -> str:
    """Return a clause about workers for which the weather uses lifetimes of other VMs, or ''."""
    kinds = {(vm.accelerator or "cpu", region(vm.zone)) for vm in state.living if vm.role == WORKER}
    clauses = ", ".join(filter(None, (stand_ins(*kind) for kind in sorted(kinds))))
    if clauses:
        return f"its emulated VMs live like others: {clauses}"
    return ""


def _behind(run: KnownRun, state: ClusterState, store: ModelStore, seen: Record) -> Behind | None:
    """Return by how much the run is slower than similar runs with the same workers, or None."""
    from ...planner.choices import Choice
    from ...planner.forecast import behind

    spec = run.state.spec
    if not spec.alarm_below or not seen.observations:
        return None
    latest = seen.observations[-1]
    if latest.seconds < spec.alarm_after:
        return None
    mine = [state.vms[name] for name in run.state.workers if name in state.vms]
    places = Counter((vm.accelerator or "cpu", vm.zone) for vm in mine)
    groups = tuple(WorkerGroup(gpu, count, zone) for (gpu, zone), count in places.items())
    machines = {vm.accelerator or "cpu": vm.machine_type for vm in mine}
    choice = Choice(groups, latest.servers, machines=machines)
    if sum((Counter({choice.kind(group): group.count}) for group in groups), Counter()) != Counter(
        latest.workers
    ):
        return None
    like = {
        other.identity
        for other in alike(known_runs(), store)
        if other.state.over and _is_like(run, other)
    }
    rows = metrics.sample(run.directory / layout.METRICS)
    until = 0
    if rows:
        until = rows[-1]["time"]
    try:
        workload = store.workload(run.state.name, source(run), spec.wire, among=like)
        return behind(
            workload,
            choice,
            latest.steps_per_second,
            spec.alarm_below,
            [row for row in rows if row["time"] > until - latest.seconds * 1e9],
        )
    except TransientError:
        # No similar run has trained long enough, or the price or place of such a VM is unknown.
        return None


_SAME = (
    "params",
    "hparams",
    "mode",
    "backup_workers",
    "batching",
    "wire",
    "pace_seconds",
    "ps_shards",
    "chief",
    "threads",
)


def _is_like(run: KnownRun, other: KnownRun) -> bool:
    """Return whether two runs have equal settings and machines, so that they should be as fast."""
    declared = all(
        getattr(run.state.spec, name) == getattr(other.state.spec, name) for name in _SAME
    )
    return declared and other.identity != run.identity and _machines(run) == _machines(other)


def _machines(run: KnownRun) -> tuple[bool, frozenset[tuple[str, str, str]]]:
    """Return whether the cluster of a run is emulated, and the role, GPU and type of its VMs."""
    state = kept(run.cluster / layout.JOURNAL).read()
    kinds = frozenset((vm.role, vm.accelerator, vm.machine_type) for vm in state.vms.values())
    return bool(state.spec and state.spec.emulated), kinds


def projected(cost: Cost, run: RecordedRun) -> Cost:
    """Add the projected cost at its end to the cost of a running run.

    If the measurements are unreadable, add a note instead. If the run is too young, do nothing.
    """
    try:
        found = forecast(run)
        return replace(cost, projected=replace(found.cost, provided=found.provided))
    except StoreError as error:
        return replace(cost, note=no_forecast(error))
    except (TransientError, ImportError, OSError):
        # The files of a run on another machine may not have arrived yet.
        return cost


def forecast_line(run: RecordedRun) -> str:
    """Return `run-1 finishes in ...` for a running run; empty without a forecast."""
    if run.state.phase != "running":
        return ""
    try:
        return f"{run.name} {forecast(run)}."
    except StoreError as error:
        return f"{run.name}: {no_forecast(error)}"
    except TransientError:  # the run is too young, or NumPy is not installed
        return ""


def no_forecast(error: StoreError) -> str:
    """Return the reason why there is no forecast."""
    return f"no forecast: {error}"


def weather_of(cluster: BaseCluster) -> str:
    """Return the assumed revocations of a cluster: `published`, or `none` for other weather."""
    spec = cluster.state.spec
    if spec is None or not spec.emulated:
        return "published"
    try:
        set_to = weather(cluster, {}).settings.get("revocations")
    except (ClusterError, UnreachableError):
        return "none"
    if set_to == "published":
        return "published"
    return "none"


def advice(run: RecordedRun, question: str) -> Advice:
    """Predict the effect of releasing workers, beside earlier changes that were measured.

    Parameters
    ----------
    run
        The run.
    question
        `reclaim N`, with the number of workers, which may be a fraction.

    Raises
    ------
    DeclarationError
        The question is invalid.
    PlanError
        The run does not train, or has too few workers.
    """
    from ...planner.deflation import advise

    match = _ASKED.fullmatch(question)
    if not match or not float(match[1]):
        raise DeclarationError(
            f"Invalid question '{question}'", fix='For example: run.advice("reclaim 1").'
        )
    workers = float(match[1])
    state = run.cluster.state
    found = state.of(RunState).get(run.name)
    if found is None or found.phase != "running" or not found.steps_per_second:
        raise PlanError(
            f"{run.name} is not training, so its speed is unknown", fix="Try again when it trains."
        )
    hourly = [vm.hourly for name, vm in state.vms.items() if name in found.workers]
    if workers >= len(hourly):
        what = f"{run.name} has {count(len(hourly), 'worker')}, so it cannot release {workers:g}"
        raise PlanError(what, fix="Use a smaller number.")
    rest = sum(vm.hourly for vm in state.living if vm.role != WORKER)
    balanced = found.spec.batching == "dynamic"
    effect = advise(
        1 / found.steps_per_second, hourly, rest, workers, mode=found.spec.mode, balanced=balanced
    )
    return replace(effect, measured=tuple(_measured(run, run.cluster.events("vm"))))


def _measured(run: RecordedRun, history: Sequence[Event]) -> Iterable[Measured]:
    """Yield the measured effect of VMs that were shrunk or revoked without other changes nearby."""
    from ...planner.deflation import Measured

    restarted = {event.vm for event in history if isinstance(event, events.VmMachineAsked)}
    changes = [
        event
        for event in history
        if isinstance(event, _CHANGES)
        or (isinstance(event, events.VmReady) and event.vm in restarted)
    ]
    moments = [0.0, *(change.at for change in changes), math.inf]
    rows = metrics.read(run.directory / layout.METRICS)
    for before, event, after in zip(moments, changes, moments[2:], strict=False):
        if not isinstance(event, events.VmDeflated | events.VmRevoked):
            continue
        if min(event.at - before, after - event.at) < _AROUND + _SETTLING:
            continue
        settled = event.at + _SETTLING
        rate_before = _rate(rows, event.at - _AROUND, event.at)
        rate_after = _rate(rows, settled, settled + _AROUND)
        if rate_before and rate_after:
            change = "was revoked"
            if isinstance(event, events.VmDeflated):
                change = f"shrank to {event.cpu:.0%}"
            yield Measured(f"{event.vm} {change}", 1 / rate_before, 1 / rate_after)


def _rate(rows: list[dict[str, int]], since: float, until: float) -> float:
    """Return the steps per second of all workers; 0 without measurements."""
    chosen = [row for row in rows if since <= row["time"] / 1e9 <= until]
    if len(chosen) < 2 or chosen[-1]["time"] == chosen[0]["time"]:
        return 0.0
    steps = chosen[-1]["step"] - chosen[0]["step"]
    return steps / (chosen[-1]["time"] - chosen[0]["time"]) * 1e9
