"""Forecasts of the end and cost of a running run, and advice on which workers to give up."""

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
_SETTLING = 10.0
"""Seconds that are measured before and after a change, and that pass in between."""
_CHANGES = (
    events.VmDeflated,
    events.VmInflated,
    events.VmRevoked,
    events.VmMachineAsked,
    events.VmMachineRefused,
)


def forecast(run: RecordedRun, revocations: str | None = None) -> Forecast:
    """Forecast the end of a running run, and its cost by then. Raises PlanError where no forecast
    can be made.

    `revocations`: `published` or `none`; by default `published` on Compute Engine, and on the
    emulator what its weather is (other revocations than published ones are not foreseen).
    """
    from ...planner.forecast import CLOSING_SECONDS
    from ...planner.forecast import forecast as foretell

    cluster = run.cluster
    state = cluster.state
    now = time.time()
    found = state.of(RunState).get(run.name)
    if found is None:
        raise PlanError(f"{run.name} is not known to {cluster.name} yet")
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
    known = KnownRun(cluster.directory, found)
    store = store_of(known)
    for other in alike(known_runs(), store):
        if other.state.over:
            learn(store, other)
    seen = record(known)
    closings = [
        each.closing for each in store.records(source(known)).values() if each.closing is not None
    ]
    if closings:
        closing = statistics.median(closings)
    else:
        closing = CLOSING_SECONDS
    told = foretell(state, now, found, seen, lifetimes, risk=risk, closing=closing)
    if as_emulated:
        told = replace(told, stand_in=_stand_ins(state))
    return replace(told, behind=_behind(known, state, store, seen))


def _stand_ins(state: ClusterState) -> str:
    """What the emulator's weather uses where no lifetimes were published of a cluster's workers;
    empty where they were.
    """
    kinds = {(vm.accelerator or "cpu", region(vm.zone)) for vm in state.living if vm.role == WORKER}
    clauses = ", ".join(filter(None, (stand_ins(*kind) for kind in sorted(kinds))))
    if clauses:
        return f"its emulated VMs live like others: {clauses}"
    return ""


def _behind(run: KnownRun, state: ClusterState, store: ModelStore, seen: Record) -> Behind | None:
    """Where the run is slower, with the workers that it has had for long enough, than its like
    were.
    """
    from ...planner.choices import Choice
    from ...planner.forecast import behind

    spec = run.state.spec
    if seen.observations:
        latest = seen.observations[-1]
    else:
        latest = None
    if not spec.alarm_below or latest is None or latest.seconds < spec.alarm_after:
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
    if rows:
        until = rows[-1]["time"]
    else:
        until = 0
    try:
        workload = store.workload(run.state.name, source(run), spec.wire, among=like)
        return behind(
            workload,
            choice,
            latest.steps_per_second,
            spec.alarm_below,
            [row for row in rows if row["time"] > until - latest.seconds * 1e9],
        )
    except (
        TransientError
    ):  # no run like it has trained long enough, or the price or place of such a VM is not known
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
    """Whether what is declared of both would make them as fast on the same machines."""
    declared = all(
        getattr(run.state.spec, name) == getattr(other.state.spec, name) for name in _SAME
    )
    return declared and other.identity != run.identity and _machines(run) == _machines(other)


def _machines(run: KnownRun) -> tuple[bool, frozenset[tuple[str, str, str]]]:
    """Whether its cluster is an emulated one, and what its VMs are, by role and GPU."""
    state = kept(run.cluster / layout.JOURNAL).read()
    kinds = frozenset((vm.role, vm.accelerator, vm.machine_type) for vm in state.vms.values())
    return bool(state.spec and state.spec.emulated), kinds


def projected(cost: Cost, run: RecordedRun) -> Cost:
    """Return the cost of a running run with its projection to the end, or with a note on why that
    cannot be read; unchanged where the run is too young to tell.
    """
    try:
        found = forecast(run)
        return replace(cost, projected=replace(found.cost, provided=found.provided))
    except StoreError as error:
        return replace(cost, note=no_forecast(error))
    except (
        TransientError,
        ImportError,
        OSError,
    ):  # the files of a run on another machine may not be here yet
        return cost


def forecast_line(run: RecordedRun) -> str:
    """`run-1 finishes in ...` for a run that goes on; nothing where that cannot be told."""
    if run.state.phase != "running":
        return ""
    try:
        return f"{run.name} {forecast(run)}."
    except StoreError as error:
        return f"{run.name}: {no_forecast(error)}"
    except TransientError:  # too young, or NumPy is not installed: the status says enough without
        return ""


def no_forecast(error: StoreError) -> str:
    """Return why there is no forecast."""
    return f"no forecast: {error}"


def weather_of(cluster: BaseCluster) -> str:
    """Which revocations are foreseen of a cluster: `published`, or `none` where the emulator's
    weather has others.
    """
    spec = cluster.state.spec
    if spec is None or not spec.emulated:
        return "published"
    try:
        set_to = weather(cluster, {}).settings.get("revocations")
    except (ClusterError, UnreachableError):
        return "none"
    return "published" if set_to == "published" else "none"


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
