"""Records of past runs: speed, waits and losses of each, and start-up times of VMs.

Between two changes of its workers a run's speed is that of one cluster. Each such stretch, without
its first seconds, is an observation. A long stretch is several observations, which show how far the
speed varies. In 117 runs of CM-DARE, the later speed was within the 90 % interval from up to four
earlier parts in 98 of 100 cases. With more parts, each is too much like the one before.
Observations are plain values, so that they can be stored after the cluster is deleted (`store`).
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from ..catalog import region
from ..catalog.published import startup
from ..journal import ClusterState, Event, RunState, VmState, events, known_states, metrics, replay
from ..protocol.machines import Share
from ..protocol.step_parts import step_parts
from ..protocol.vm_events import (
    TrainEvaluated,
    TrainFailed,
    TrainFinished,
    WorkerJoined,
    WorkerLeft,
)
from ..spec import CONTROLLER, Source
from ..spec.image import image_of
from .simulate import Startup
from .speeds.throughput import Waits, kind_of

CROSSING = frozenset(
    {
        "batch_size",
        "evaluations",
        "gigaflops",
        "gradients",
        "mode",
        "over",
        "parameters",
        "settings",
        "workers",
    }
)
"""The fields of a `Record` that hold on any machine: properties of the mathematics.

All others are seconds of the machines.
"""
WARM_UP_SECONDS = 5.0
_MOST_ESTIMATES = 256
_SHORTEST_SECONDS = 10.0
_PART_SECONDS = 30.0
_MOST_PARTS = 4
"""Largest number of parts of a stretch, each at least `_PART_SECONDS` long."""

ENOUGH = 5
"""Number of own VMs of a kind that replaces published values.

With five, the error of their mean is less than half a deviation.
"""
_LONGEST_SECONDS = 3600.0
_NEWEST = 50


@dataclass(frozen=True, slots=True)
class Observation:
    """The joint speed of `workers` by kind (`speeds.throughput.kind_of`) and `servers`.

    They made `steps_per_second` together for `seconds`. `distant` is True if some of the workers
    were in another region than a parameter server, so that their steps include the network path.
    """

    workers: Mapping[str, int]
    servers: int
    steps_per_second: float
    seconds: float
    distant: bool = False


@dataclass(frozen=True, slots=True)
class Record:
    """The stored data of a run, whose VMs were of one `source`.

    `joins` has the seconds from a usable VM to its worker's first step, for replacements.
    `evaluations` has (step, metrics) of the dev split. `parameters` and `gigaflops` are of the
    training graph at a batch of one, 0 where not counted.
    """

    observations: tuple[Observation, ...]
    source: Source
    joins: tuple[float, ...] = ()
    evaluations: tuple[tuple[int, Mapping[str, float]], ...] = ()
    batch_size: int = 0
    parameters: int = 0
    gigaflops: float = 0.0
    over: bool = False
    closing: float | None = None
    """Seconds from the last step until the run was over."""
    latest: tuple[float, int] | None = None
    """The newest metric: its time (seconds since 1970) and the global step."""
    workers: float = 0.0
    """Mean number of workers over the training time; 0 where unknown."""
    gradients: tuple[tuple[int, float, float], ...] = ()
    """Estimates of gradient noise: step, signal, noise (`journal.metrics`).

    For a long run they are means of neighbours.
    """
    mode: str = "async"
    waits: Mapping[str, Waits] = field(default_factory=dict[str, Waits])
    """Waits by kind of worker, without the first seconds."""
    settings: str = ""
    """Other settings that distinguish experiments, as text: hparams and params."""

    @property
    def global_batch(self) -> float:
        """The examples of one step of each worker; 0 where unknown."""
        return self.workers * self.batch_size

    def of(self, source: Source) -> Record:
        """Return the record itself if its VMs were of `source`, else without their seconds.

        `CROSSING` lists the fields that are kept. An emulated worker is a process of this machine,
        so its seconds do not apply to the GPU that it emulates.
        """
        if source == self.source:
            return self
        crossing = {
            record_field.name: getattr(self, record_field.name)
            for record_field in fields(self)
            if record_field.name in CROSSING
        }
        return Record((), self.source, **crossing)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Record:
        """Return a record from the values of `to_dict`."""
        return cls(
            latest=tuple(values["latest"]) if values.get("latest") else None,
            observations=tuple(
                Observation(**observation) for observation in values["observations"]
            ),
            source=values["source"],
            joins=tuple(values.get("joins", ())),
            evaluations=tuple((step, metrics) for step, metrics in values.get("evaluations", ())),
            **{
                key: values[key]
                for key in (
                    "batch_size",
                    "parameters",
                    "gigaflops",
                    "over",
                    "closing",
                    "workers",
                    "mode",
                    "settings",
                )
                if key in values
            },
            gradients=tuple(
                (step, signal, noise) for step, signal, noise in values.get("gradients", ())
            ),
            waits={kind: Waits(*waits) for kind, waits in values.get("waits", {}).items()},
        )


def record(
    history: Sequence[Event],
    rows: Sequence[Mapping[str, Any]],
    run: str,
    model: Mapping[str, Any] | None = None,
    *,
    whole: bool = False,
) -> Record:
    """Return the record of `run` from events, metrics and the counts of its `model`.

    With `whole`, speeds and waits are only those of VMs with all their resources, not of deflated
    ones, so they apply to such VMs in other runs.
    """
    state = replay(history)
    counts = _whole(history) if whole else _always
    run_state = state.of(RunState).get(run)
    model = model or {}
    sizes = [
        row["samples"] / row["steps"] for row in rows if row.get("samples") and row.get("steps")
    ]
    return Record(
        observations=tuple(_observations(history, rows, run, counts)),
        source=state.spec.source if state.spec else "emulated",
        joins=tuple(_joins(history, run)),
        evaluations=tuple(
            (event.step, dict(event.metrics))
            for event in history
            if isinstance(event, TrainEvaluated) and event.run == run
        ),
        batch_size=round(statistics.median(sizes)) if sizes else 0,
        parameters=int(model.get("parameters", 0)),
        gigaflops=float(model.get("gigaflops", 0.0)),
        over=run_state is not None and run_state.over,
        closing=_closing(history, rows, run),
        latest=max(((row["time"] / 1e9, row["step"]) for row in rows), default=None),
        workers=_workers(history, rows, run),
        gradients=tuple(_gradients(rows)),
        waits=_waits(history, rows, counts),
    )


def _kinds(history: Sequence[Event]) -> Callable[[str, float], str]:
    """Return a function for a VM's kind of worker at a time (seconds since 1970).

    The kind changes with the machine type.
    """
    gpus = dict[str, str]()
    turns = dict[str, list[tuple[float, str]]]()
    for event in history:
        if isinstance(event, events.VmRequested):
            gpus[event.vm] = event.accelerator or "cpu"
        if isinstance(event, events.VmRequested | events.VmMachineChanged) and event.vm in gpus:
            turns.setdefault(event.vm, []).append(
                (event.at, kind_of(gpus[event.vm], event.machine_type))
            )

    def kind(vm: str, at: float) -> str:
        changes = turns.get(vm, [(0.0, "cpu")])
        return next(
            (worker_kind for since, worker_kind in reversed(changes) if since <= at), changes[0][1]
        )

    return kind


def _always(vm: str, at: float) -> bool:
    return True


def _whole(history: Sequence[Event]) -> Callable[[str, float], bool]:
    """Return a function: whether a VM had all its resources at a time (seconds since 1970)."""
    turns = dict[str, list[tuple[float, bool]]]()
    for event in history:
        if isinstance(event, _RESHARED):
            turns.setdefault(event.vm, []).append((event.at, Share(event.cpu, event.network).whole))
        elif isinstance(event, events.VmRevoked | events.VmDeleted) and event.vm in turns:
            turns[event.vm].append((event.at, True))

    def whole(vm: str, at: float) -> bool:
        return next(
            (has_all for since, has_all in reversed(turns.get(vm, ())) if since <= at), True
        )

    return whole


def _waits(
    history: Sequence[Event],
    rows: Sequence[Mapping[str, Any]],
    counts: Callable[[str, float], bool],
) -> dict[str, Waits]:
    kind_at = _kinds(history)
    began = dict[tuple[str, str], float]()
    found: dict[str, Waits] = {}
    for row in rows:
        at = row["time"] / 1e9
        parts = step_parts(row.get("split"))
        steps = row.get("steps") or 0
        kind = kind_at(row["worker"], at)
        if (
            at - began.setdefault((row["worker"], kind), at) < WARM_UP_SECONDS
            or not parts
            or not steps
        ):
            continue
        if not counts(row["worker"], at):
            continue
        total = found.get(kind, Waits(0.0, 0.0, 0))
        found[kind] = Waits(
            total.waited + parts.input, total.seconds + parts.step, total.steps + steps
        )
    return found


def _workers(history: Sequence[Event], rows: Sequence[Mapping[str, Any]], run: str) -> float:
    if rows:
        last = rows[-1]["time"] / 1e9
    else:
        last = 0.0
    total = 0.0
    seconds = 0.0
    active = 0
    since = 0.0
    changes = [
        event for event in history if isinstance(event, _JOINED_OR_LEFT) and event.run == run
    ]
    for at, now in [*((min(change.at, last), change.active) for change in changes), (last, 0)]:
        if active:
            total = total + active * (at - since)
            seconds = seconds + at - since
        active = now
        since = at
    if seconds > 0:
        return total / seconds
    return 0.0


def _gradients(rows: Sequence[Mapping[str, Any]]) -> Iterable[tuple[int, float, float]]:
    _, signal, noise = metrics.GRADIENTS
    found = sorted(
        (row["step"], row[signal], row[noise]) for row in rows if row.get(signal) is not None
    )
    many = -(-len(found) // _MOST_ESTIMATES) or 1
    for group in (found[begin : begin + many] for begin in range(0, len(found), many)):
        _, signals, noises = zip(*group, strict=True)
        yield group[-1][0], statistics.fmean(signals), statistics.fmean(noises)


def _observations(
    history: Sequence[Event],
    rows: Sequence[Mapping[str, Any]],
    run: str,
    counts: Callable[[str, float], bool],
) -> Iterable[Observation]:
    kind_at = _kinds(history)
    asked = [
        request
        for request in history
        if isinstance(request, events.VmRequested) and request.role == "ps"
    ]
    servers = sum(not request.replaces for request in asked)
    regions = {
        request.vm: region(request.zone)
        for request in history
        if isinstance(request, events.VmRequested)
    }
    active: dict[str, int] = {}
    began = 0.0
    progress = sorted((row["time"] / 1e9, row["step"]) for row in rows)
    if progress:
        last = progress[-1][0]
    else:
        last = 0.0
    for event in [*history, None]:
        changes = isinstance(event, _RESHARED) or (isinstance(event, _CHANGES) and event.run == run)
        if event is not None and not changes:
            continue
        if event is None:
            at = last
        else:
            at = min(event.at, last)
        took_part = (*active, *(request.vm for request in asked))
        counted = all(counts(vm, began) for vm in took_part)
        if active and counted and at - began - WARM_UP_SECONDS >= _SHORTEST_SECONDS:
            workers = Counter(kind_at(name, began) for name in active)
            # All servers are in one zone, which may change.
            servers_at = [region(request.zone) for request in asked if request.at <= began]
            if servers_at:
                distant = any(regions.get(name) != servers_at[-1] for name in active)
            else:
                distant = False
            for speed, seconds in _parts(progress, began + WARM_UP_SECONDS, at):
                yield Observation(dict(workers), max(servers, 1), speed, seconds, distant)
        if isinstance(event, WorkerJoined):
            active[event.worker] = event.number
        elif isinstance(event, WorkerLeft) and active.get(event.worker) == event.number:
            del active[event.worker]
        elif isinstance(event, TrainFinished | TrainFailed):
            return
        began = at


_RESHARED = (events.VmDeflated, events.VmInflated)

_JOINED_OR_LEFT = (WorkerJoined, WorkerLeft)

_CHANGES = (WorkerJoined, WorkerLeft, TrainFinished, TrainFailed)


def _parts(
    progress: Sequence[tuple[float, int]], since: float, until: float
) -> list[tuple[float, float]]:
    """Return (steps per second, seconds) of each part of a stretch.

    If the speed of some part is unknown, return those of the whole stretch.
    """
    count = min(max(int((until - since) / _PART_SECONDS), 1), _MOST_PARTS)
    seconds = (until - since) / count
    speeds = [
        _speed(progress, since + part * seconds, since + (part + 1) * seconds)
        for part in range(count)
    ]
    if all(speed > 0 for speed in speeds):
        return [(speed, seconds) for speed in speeds]
    whole = _speed(progress, since, until)
    if whole > 0:
        return [(whole, until - since)]
    return []


def _speed(progress: Sequence[tuple[float, int]], since: float, until: float) -> float:
    begin = bisect_left(progress, (since, 0))
    end = bisect_left(progress, (until, math.inf)) - 1
    if end <= begin:
        return 0.0
    (first, before), (last, step) = progress[begin], progress[end]
    if last > first:
        return (step - before) / (last - first)
    return 0.0


def _closing(history: Sequence[Event], rows: Sequence[Mapping[str, Any]], run: str) -> float | None:
    ends = [event.at for event in history if isinstance(event, TrainFinished) and event.run == run]
    last = max((row["time"] / 1e9 for row in rows), default=0.0)
    if ends and last:
        return max(ends[0] - last, 0.0)
    return None


def _joins(history: Sequence[Event], run: str) -> Iterable[float]:
    replacing = {
        request.vm
        for request in history
        if isinstance(request, events.VmRequested) and request.replaces
    }
    # The first time that each VM was ready.
    ready = {
        ready_event.vm: ready_event.at
        for ready_event in reversed(history)
        if isinstance(ready_event, events.VmReady)
    }
    seen = set()
    for event in history:
        if isinstance(event, WorkerJoined) and event.run == run and event.worker not in seen:
            seen.add(event.worker)
            if event.worker in replacing and event.worker in ready:
                yield max(event.at - ready[event.worker], 0.0)


# Start-up times of VMs, from the request until they are usable: your own on Compute Engine, else
# published ones.
#
# The boot image has the largest effect: a VM from a baked image is ready minutes before one that
# installs its packages. So only VMs with the same kind of image as the newest of their kind count,
# and only if there are enough of them. Emulated VMs are left out, because their times do not apply
# to Compute Engine.


@dataclass(frozen=True, slots=True)
class Start:
    """A start-up time, and the number of own VMs behind its mean; 0: published."""

    startup: Startup
    own: int = 0


Starts = Callable[[str, bool, str], Start]
"""The start-up of VMs with a GPU (`cpu`: none), transient or on demand, in a region."""


def published_starts(gpu: str, transient: bool, place: str) -> Start:
    """Return the start-up time measured by CM-DARE in 2019."""
    provisioning, staging, booting, deviation = startup(gpu, transient, place)
    return Start(Startup(provisioning + staging, booting, deviation))


def own_starts() -> Starts:
    """Return start-up times of this machine's clusters, including deleted ones.

    Kinds with too few VMs have published times.
    """
    return starts_of(known_states())


def starts_of(states: Iterable[ClusterState]) -> Starts:
    """Return start-up times of the VMs of these clusters, else published ones."""
    seen: dict[tuple[str, bool], list[_Seen]] = {}
    for state in states:
        for vm_start in _usable(state):
            seen.setdefault((vm_start.gpu, vm_start.transient), []).append(vm_start)
    own_starts = {kind: start for kind, some in seen.items() if (start := _start(some))}

    def starts(gpu: str, transient: bool, place: str) -> Start:
        return own_starts.get((gpu, transient)) or published_starts(gpu, transient, place)

    return starts


@dataclass(frozen=True, slots=True)
class _Seen:
    gpu: str
    transient: bool
    boots_from: tuple[bool, str]
    """Whether it booted from an image, and its purpose: less is installed without TensorFlow."""
    at: float
    running: float
    usable: float


def _usable(state: ClusterState) -> Iterator[_Seen]:
    spec = state.spec
    if spec is None or spec.emulated:
        return
    for vm in state.vms.values():
        if vm.role == CONTROLLER or not (vm.requested_at and vm.ready_at):
            continue
        running = _began(vm) - vm.requested_at
        usable = vm.ready_at - _began(vm)
        if running >= 0 and usable >= 0 and running + usable < _LONGEST_SECONDS:
            image = bool(image_of(spec, vm.accelerator))
            yield _Seen(
                vm.accelerator or "cpu",
                vm.provisioning_model != "standard",
                (image, spec.purpose),
                vm.ready_at,
                running,
                usable,
            )


def _began(vm: VmState) -> float:
    return vm.started_at or vm.running_at


def _start(seen: list[_Seen]) -> Start | None:
    newest = max(seen, key=lambda vm_start: vm_start.at)
    alike = sorted(
        (vm_start for vm_start in seen if vm_start.boots_from == newest.boots_from),
        key=lambda vm_start: vm_start.at,
    )[-_NEWEST:]
    if len(alike) < ENOUGH:
        return None
    running, usable = (
        statistics.fmean(getattr(vm_start, part) for vm_start in alike)
        for part in ("running", "usable")
    )
    deviation = statistics.stdev(vm_start.running + vm_start.usable for vm_start in alike)
    return Start(Startup(running, usable, deviation), len(alike))
