"""The forecast end of a run and its cost by then, given its events so far.

Living VMs have reached certain ages, so their remaining lifetimes count. Replacements are in
flight. The speed is the measured joint speed of these workers. The rest is the simulation.

The error of that speed follows from the differences between the stretches of the run. With one
stretch, or with a GPU that has not trained yet, it is unknown. Then the intervals are a guess, and
the forecast notes that.

A forecast also compares the run with earlier runs of its model on such machines. If it is slower,
it names the cause. The alarm of the chief compares a run with its own past, so it cannot detect a
run that is slow from the first step. Here the run is compared with the planner's prediction for the
same workers and parameter servers from measured runs. Predictions whose error is a guess are not
used.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..catalog import region
from ..catalog.published import WAVES
from ..errors import PlanError
from ..journal import ClusterState, Projection, RunState, VmState, costs
from ..journal.cost import hourly_of
from ..journal.metrics import SERVER_SHARE
from ..journal.power import MachineChange, Stretch
from ..protocol.step_parts import StepParts, step_parts
from ..spec import if_capacity_lasts, render_duration
from .choices import Choice, Lifetimes
from .lifetimes.sources import stand_in
from .ranges import middle
from .run_records import Observation, Record
from .simulate import Course, Outcome, Startup, Workers, simulate
from .speeds.fitting import YOUNG_SECONDS, Cell, fit, rest_error
from .speeds.throughput import SCALING, gpu_of, kind_of
from .speeds.workloads import Estimate, Workload, by_peak

_RUNS = 4000
# First quarters of CM-DARE's runs differ from the others by 8 %, rarely by twice as much.
_YOUNG_ERROR = 0.18
# For the seconds of a step without a GPU, where only GPUs have trained.
_UNKNOWN_ERROR = 1.0
_JOIN_SECONDS = 15.0
_STALE_SECONDS = 60.0
# Of a gamma distribution: the standard deviation of the closing is half its mean.
_CLOSING_SHAPE = 4.0
CLOSING_SECONDS = 10.0
"""Seconds from a run's last step until it is over, by default.

They cover a checkpoint, an evaluation, and the transfer of results.
"""
# Shorter intervals are shown in seconds.
_MINUTES = 300.0


@dataclass(frozen=True, repr=False)
class Forecast:
    """The forecast of a run, made at the time `at` (seconds since 1970): its end and its cost."""

    run: str
    at: float
    steps_left: int
    outcome: Outcome
    risk: str
    guess: str = ""
    """Why its intervals are a guess, in words; empty if stretches of training show the error."""
    stand_in: str = ""
    """The sentence on lifetimes that stand in for unpublished ones of its VMs, or empty."""
    provisioning: str = "standard"
    """The model of its VMs.

    A forecast with spot or preemptible VMs requires capacity for replacements.
    """
    behind: Behind | None = None
    """How far it is slower than earlier runs of its model, if it is."""

    @property
    def finished(self) -> float:
        """The share of courses in which the run finishes; all other values are of these."""
        return self.outcome.finished

    @property
    def seconds(self) -> float:
        """Mean seconds from then until the run is over."""
        return 3600 * float(self._finished("hours").mean())

    @property
    def finishes_at(self) -> float:
        """The mean time at which it is over, in seconds since 1970."""
        return self.at + self.seconds

    @property
    def dollars(self) -> float:
        """The run's mean cost by then (`journal.cost`), including its cost so far."""
        return float(self._finished("dollars").mean())

    def interval(self, what: str = "seconds", level: float = 0.9) -> tuple[float, float]:
        """Return the middle `level` of the `seconds` or `dollars`. Raises PlanError for others."""
        if what not in ("seconds", "dollars") or not 0 < level < 1:
            raise PlanError(
                "An interval needs seconds or dollars, and a level between 0 and 1",
                fix='For example: forecast.interval("seconds", 0.9)',
            )
        if what == "dollars":
            values = self._finished("dollars")
        else:
            values = 3600 * self._finished("hours")
        return middle(values, level)

    @property
    def provided(self) -> str:
        """The condition of the forecast as a clause; empty without one."""
        return if_capacity_lasts(self.provisioning)

    @property
    def cost(self) -> Projection:
        """The run's cost at its end with its 90 % interval, in US dollars."""
        return Projection(self.dollars, *self.interval("dollars"))

    def __str__(self) -> str:
        return forecast_words(self)

    __repr__ = __str__

    def _finished(self, what: str) -> np.ndarray:
        return getattr(self.outcome, what)[np.isfinite(self.outcome.hours)]


def forecast(
    state: ClusterState,
    now: float,
    run: RunState,
    record: Record,
    lifetimes: Lifetimes,
    *,
    risk: str = "",
    closing: float = CLOSING_SECONDS,
    seed: int = 0,
) -> Forecast:
    """Return the forecast of a running run from its record. Raises PlanError if it is too young.

    `closing` is the seconds from the last step until the run is over.
    """
    if run.over:
        raise PlanError(f"{run.name} has already ended ({run.phase})")
    left = max(run.train_steps - _steps_by(now, run, record), 1)
    speeds = _speeds(state, run, record, left)
    own = [vm for vm in state.living if _is_of(state, run, vm)]
    vms = [_as_it_will_be(vm) for vm in own if vm.state != "leaving"]
    vms += _to_come(state, run, vms)
    if not vms:
        raise PlanError(f"{run.name} has no workers", fix="Try again when it has one.")
    startup = _startup(state)
    join = _join(state, run, record)
    offers = dict.fromkeys(map(_offer, vms))
    others, transfer = hourly_of(state, run.name)
    transfer_per_vm = transfer / state.clock.rate / len(vms)
    course = Course(
        groups=tuple(
            _workers(
                state,
                run,
                now,
                [vm for vm in vms if _offer(vm) == offer],
                speeds,
                lifetimes,
                startup,
                join,
                transfer_per_vm,
            )
            for offer in offers
        ),
        steps=left,
        work_error=speeds.error,
        servers=1,
        server_hourly=others,
        service_seconds=speeds.service_seconds,
        scaling=speeds.scaling,
        replace=bool(state.spec and state.spec.replace),
        spent=costs(state, now)[run.name].total,
        from_ready=True,
        rate=state.clock.rate,
        waves=WAVES,
        synchronous=_synchronous(run),
    )
    outcome = simulate(course, runs=_RUNS, seed=seed)
    late = np.random.default_rng(seed).gamma(_CLOSING_SHAPE, closing / _CLOSING_SHAPE, _RUNS)
    hourly = (sum(vm.hourly for vm in vms if vm.answered_at) + others) * state.clock.rate + transfer
    outcome = replace(
        outcome, hours=outcome.hours + late / 3600, dollars=outcome.dollars + late / 3600 * hourly
    )
    if not outcome.finished:
        raise PlanError(f"{run.name} does not finish with these workers in any simulation")
    stand_ins = dict.fromkeys(stand_in(group.lifetimes, short=True) for group in course.groups)
    guess = speeds.guess([kind for kind, *_ in offers])
    models = [vm.provisioning_model for vm in vms]
    provisioning = next((model for model in models if model != "standard"), "standard")
    return Forecast(
        run.name, now, left, outcome, risk, guess, "; ".join(filter(None, stand_ins)), provisioning
    )


def _kind(vm: VmState) -> str:
    return kind_of(vm.accelerator or "cpu", vm.machine_type)


def _offer(vm: VmState) -> tuple[str, str, str]:
    return _kind(vm), vm.zone, vm.provisioning_model


def _steps_by(now: float, run: RunState, record: Record) -> int:
    """Return the steps made by now: metrics arrive seconds late, and the run continued since."""
    at, step = record.latest or (now, run.step)
    step = max(step, run.step)
    since = min(max(now - at, 0.0), _STALE_SECONDS)
    return min(step + round(since * run.steps_per_second), run.train_steps)


def _is_of(state: ClusterState, run: RunState, vm: VmState) -> bool:
    """Return whether the VM is one of the run's workers; without leases, every worker is."""
    return vm.role == "worker" and (not state.leases or state.has(run.name, vm))


def _to_come(state: ClusterState, run: RunState, vms: list[VmState]) -> list[VmState]:
    """Return VMs for empty places of the run, for which no zone had capacity.

    The controller continues to request them. They are like the last VM of the place, not requested
    yet.
    """
    if not (state.spec and state.spec.replace):
        return []
    there = {vm.slot for vm in vms}
    last = {
        vm.slot: vm for vm in state.vms.values() if vm.slot not in there and _is_of(state, run, vm)
    }
    empty = list(last.values())[: max(0, state.spec.worker_count - len(vms))]
    return [_as(vm, vm.stretches[0], requested_at=0.0, running_at=0.0) for vm in empty]


def _as_it_will_be(vm: VmState) -> VmState:
    """Return a VM as it will train; a stopped one, whose disk is billed, with its next machine."""
    if vm.change:
        return _as(vm, vm.change)
    return vm


def _as(vm: VmState, what: MachineChange | Stretch, **more: float) -> VmState:
    terms = {"hourly": what.hourly, "on_demand_hourly": what.on_demand_hourly}
    return replace(vm, machine_type=what.machine_type, **terms, **more)


def _workers(
    state: ClusterState,
    run: RunState,
    now: float,
    vms: list[VmState],
    speeds: _Speeds,
    lifetimes: Lifetimes,
    startup: Startup,
    join: float,
    transfer: float,
) -> Workers:
    kind = _kind(vms[0])
    rate = state.clock.rate
    estimate = speeds.step(kind)
    way = (startup.running + startup.usable) / rate + join
    return Workers(
        accelerator=kind,
        count=len(vms),
        compute_seconds=estimate.seconds,
        error=estimate.error,
        hourly=vms[0].hourly + transfer,
        on_demand_hourly=vms[0].on_demand_hourly + transfer,
        lifetimes=None
        if vms[0].provisioning_model == "standard"
        else lifetimes(gpu_of(kind), region(vms[0].zone)),
        startup=startup,
        join_seconds=join,
        ages=tuple(
            state.clock.between(vm.ran.since, now) / 3600 if vm.running_at else 0.0 for vm in vms
        ),
        # Drawn, from now on.
        ready_in=tuple(
            -1.0
            if not vm.requested_at
            else 0.0
            if vm.name in run.workers
            else max(way - (now - vm.requested_at), 1.0)
            for vm in vms
        ),
    )


@dataclass(frozen=True, slots=True)
class _Speeds:
    """Seconds of a step by GPU, the servers' part, its scaling, and their joint error.

    With synchronous steps the seconds are those of any GPU. `guessed` is True where the stretches
    of training do not show the error.
    """

    seconds: Mapping[str, float]
    service_seconds: float
    scaling: float
    error: float
    guessed: bool
    emulated: bool

    def step(self, kind: str) -> Estimate:
        """Return the seconds of a step with a GPU.

        For a GPU that has not trained yet, they follow from its peak speed. Emulated GPUs are all
        alike.
        """
        if measured := self.seconds.get("") or self.seconds.get(kind):
            return Estimate(measured, 0.0, "measured")
        seen = {
            trained: Estimate(seconds, 0.0, "measured") for trained, seconds in self.seconds.items()
        }
        mean = statistics.fmean(self.seconds.values())
        if self.emulated:
            return Estimate(mean, 0.0, "emulated")
        return by_peak(seen, kind) or Estimate(mean, _UNKNOWN_ERROR, "unknown")

    def guess(self, kinds: Iterable[str]) -> str:
        """Return why the error of a forecast for these GPUs is unknown, or an empty string."""
        new = [
            gpu_of(kind).upper() for kind in dict.fromkeys(kinds) if not self.step(kind).measured
        ]
        if not (self.guessed or new):
            return ""
        where = f"on {' or '.join(new)}"
        if not self.guessed:
            return f"it has not trained {where} yet"
        return f"it has not trained for long yet{f', and not at all {where}' if new else ''}"


def _speeds(state: ClusterState, run: RunState, record: Record, left: int) -> _Speeds:
    seen = list(record.observations)
    emulated = bool(state.spec and state.spec.emulated)
    least = 0.0
    if not seen:
        if run.steps_per_second <= 0 or not run.workers:
            raise PlanError(
                f"{run.name} has made too few steps for a forecast",
                fix="Try again in some seconds.",
            )
        kinds = [_kind(state.vms[name]) for name in run.workers if name in state.vms]
        seen = [
            Observation({kind: kinds.count(kind) for kind in kinds}, 1, run.steps_per_second, 1.0)
        ]
        least = _YOUNG_ERROR
    lasted = [observation.seconds for observation in seen]
    rest = left / seen[-1].steps_per_second
    guessed = sum(lasted) < YOUNG_SECONDS
    # Each of them is as fast as all of them were together last.
    if _synchronous(run):
        alike = [observation for observation in seen if observation.workers == seen[-1].workers]
        lasted = [observation.seconds for observation in alike]
        speed = float(
            np.average([observation.steps_per_second for observation in alike], weights=lasted)
        )
        error = rest_error(
            [speed / observation.steps_per_second - 1 for observation in alike], lasted, 1, rest
        )
        return _Speeds(
            {"": 1 / speed}, 0.0, SCALING, max(least, error), sum(lasted) < YOUNG_SECONDS, emulated
        )
    # The forecast is for the current servers, so the fit treats any number of them as one.
    found = fit(
        [
            Cell(
                observation.workers, 1, observation.steps_per_second, observation.seconds, run.name
            )
            for observation in seen
        ]
    )
    error = rest_error(found.errors, lasted, len(found.compute_seconds), rest)
    return _Speeds(
        found.compute_seconds,
        found.service_seconds,
        found.scaling,
        max(least, error),
        guessed,
        emulated,
    )


def _synchronous(run: RunState) -> bool:
    return run.spec.mode == "sync"


def _startup(state: ClusterState) -> Startup:
    """Return the start-up time of this cluster's VMs, in the seconds of its own clock.

    The time until a VM runs is the cloud's, on its clock at any rate. The time after that is work,
    which takes the same real time where the emulated clock is faster now.
    """
    workers = [
        vm for vm in state.vms.values() if vm.role == "worker" and vm.ready_at and vm.running_at
    ]
    if not workers:
        return Startup(0.0, 0.0, 0.0)
    running = statistics.median(
        state.clock.between(vm.requested_at, vm.running_at) for vm in workers
    )
    usable = state.clock.rate * statistics.median(vm.ready_at - vm.running_at for vm in workers)
    return Startup(running, usable, 0.1 * (running + usable))


def _join(state: ClusterState, run: RunState, record: Record) -> float:
    if record.joins:
        return statistics.median(record.joins)
    spans = [
        worker.joined_at - max(state.vms[name].answered_at, run.started_at)
        for name, worker in run.workers.items()
        if name in state.vms
    ]
    return min([max(span, 0.0) for span in spans] or [_JOIN_SECONDS]) or _JOIN_SECONDS


_NORMAL = 1.645
"""Standard deviations to either end of the middle 90 %."""
_WELL_BELOW = 0.5
"""Share of the servers' limit below which the error of the limit has no effect."""
_BUSY = 0.85
"""The share of its cores from which on a parameter server counts as the cause."""


@dataclass(frozen=True, slots=True)
class Expected:
    """Steps per second of a cluster from measured runs, with the ends of the 90 % interval."""

    speed: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Behind:
    """A run at `speed` steps per second, below the `expected` speed; `why` is a clause."""

    speed: float
    expected: Expected
    why: str

    def __str__(self) -> str:
        low = self.expected.low
        high = self.expected.high
        return (
            f"it makes {self.speed:.3g} steps/s where earlier runs lead to expect "
            f"{self.expected.speed:.3g} "
            f"({low:.3g} to {high:.3g}): {self.why}"
        )


def expected(workload: Workload, choice: Choice) -> Expected | None:
    """Return the joint speed of the workers of `choice`; None if its error was not measured."""
    is_measured = all(
        (step := workload.compute.get(choice.kind(group))) and step.measured
        for group in choice.groups
    )
    if workload.synchronous or workload.guess or choice.far() or not is_measured:
        return None
    if not workload.limit_measured and choice.load(workload) > _WELL_BELOW:
        return None
    speed = choice.steps_per_second(workload)
    of_steps = max(choice.step(workload, group).error for group in choice.placed)
    wide = math.exp(
        _NORMAL * math.hypot(workload.speed_error, of_steps, choice.speed_error(workload))
    )
    return Expected(speed, speed / wide, speed * wide)


def behind(
    workload: Workload,
    choice: Choice,
    speed: float,
    below: float,
    rows: Iterable[Mapping[str, Any]] = (),
) -> Behind | None:
    """Return how far `speed` (steps per second) is behind, or None.

    It is behind if it is outside of the interval and `below` that share of the expected speed.
    `rows` are the run's metrics in that time, which show the cause.
    """
    prediction = expected(workload, choice)
    if prediction is None or speed >= min(prediction.low, below * prediction.speed):
        return None
    return Behind(speed, prediction, _why(choice, speed / (below * prediction.speed), list(rows)))


def _why(choice: Choice, share: float, rows: list[Mapping[str, Any]]) -> str:
    """Return the part of a step that explains the loss of speed.

    Without it the speed, now `share` of the least expected one, would be normal.
    """
    parts = StepParts()
    for row in rows:
        parts = parts.plus(step_parts(row.get("split")) or StepParts())
    whole = parts.step or 1.0
    if share >= 1 - parts.input / whole:
        return f"workers wait for their examples for {parts.input / whole:.0%} of their time"
    shares = [float(row[SERVER_SHARE]) for row in rows if row.get(SERVER_SHARE) is not None]
    if shares and sum(shares) / len(shares) >= _BUSY:
        return (
            f"the parameter server has no CPU to spare; --ps {max(choice.servers, 1) + 1} "
            "would help"
        )
    if share >= 1 - (parts.pull + parts.push) / whole:
        return (
            "variables and gradients are on their way for "
            f"{(parts.pull + parts.push) / whole:.0%} of a step"
        )
    return "its workers compute slower than those did"


def forecast_words(forecast: Forecast) -> str:
    """Return the forecast as a line, without intervals whose ends read the same.

    For example `finishes in 12 min (11 min to 14 min), at 14:03, if Spot capacity lasts; this run
    $1.23 at its end ($1.20 to $1.31)`.
    """
    low, high = forecast.interval("seconds")
    at = time.strftime("%H:%M", time.localtime(forecast.finishes_at))
    return (
        "finishes in "
        f"{render_duration(forecast.seconds)}{_range(render_duration(low), render_duration(high))}, "
        f"at {at}{forecast.provided}; this run {forecast.cost}{_but(forecast)}"
    )


def ending_words(forecast: Forecast) -> str:
    """Return the end and cost of the forecast as a line.

    For example `ends about 14:32 (14:20 to 14:55), if Spot capacity lasts; this run $0.610 at its
    end ($0.553 to $0.704)`. Times include the day unless it is today, and seconds if minutes would
    read the same twice.
    """
    low, high = forecast.interval("seconds")
    today = time.localtime(forecast.at)[:3]
    later = time.localtime(forecast.at + high)[:3] != today
    if high - low < _MINUTES:
        clock = "%H:%M:%S"
    else:
        clock = "%a %H:%M" if later else "%H:%M"

    def moment(seconds: float) -> str:
        return time.strftime(clock, time.localtime(forecast.at + seconds))

    return (
        f"ends about {moment(forecast.seconds)}{_range(moment(low), moment(high))}"
        f"{forecast.provided}; this run {forecast.cost}{_but(forecast)}"
    )


def _range(low: str, high: str) -> str:
    if low != high:
        return f" ({low} to {high})"
    return ""


def _but(forecast: Forecast) -> str:
    """Return further conditions of the forecast as text.

    They are the probability that the run ends, whether the intervals are measured, which lifetimes
    stand in, and whether it is slower than expected.
    """
    lost = 1 - forecast.finished
    if lost >= 0.0005:
        unless = f", unless all workers are lost before ({max(lost, 0.01):.0%})"
    else:
        unless = ""
    if forecast.guess:
        guess = f"a guess: {forecast.guess}"
    else:
        guess = ""
    if forecast.behind:
        behind = str(forecast.behind)
    else:
        behind = ""
    return unless + "".join(
        f"; {condition}" for condition in (guess, forecast.stand_in, behind) if condition
    )
