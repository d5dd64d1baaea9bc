"""The bags of a panel: points, VMs, quality of the surrogate, cost per result, and estimated end.

All points are sent, because each consists of a few numbers. Bags with many points are sent less
often.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ...client import focus, text
from ...journal import ClusterState, Cost, VmState, costs
from ...panels.snapshot.axes import Axis
from ...panels.snapshot.contract import Figure, Parameter, parameter, sound
from ...panels.static.markup import FONT
from ...protocol.outputs import ERROR
from ...protocol.run import Value
from ...spec import if_capacity_lasts, render_duration
from . import words
from .handle import Bag as BagHandle
from .handle import Plot
from .snapshot import Bag, BagAxis, BagPoint, BagTried, BagVm
from .state import BagJobState, DeclaredBag
from .static import bag_html, surrogate_html
from .surrogate.active_learning import COVERED

if TYPE_CHECKING:
    from .policy.simulate import Progress

WIDE = f"{FONT};max-width:1040px"
STATES = ("done", "running", "waiting", "lost", "failed", "skipped")
"""States of points, in the order in which they are shown.

A job in the state `lost` waits to be started again.
"""
MOST_VMS = 24
_MANY = 500
"""Number of points up to which all of them are sent each second."""
_DAY = 86_400.0
_HOUR = 3600.0
_STANDS_STILL = 10
"""Factor over the longest finished job.

If all running jobs exceed it, their end cannot be estimated.
"""
_LOOKS = 30
"""Number of estimates of a bag's end during a typical job, if no event occurs."""


def sections(state: ClusterState, now: float) -> list[Bag]:
    """Return the snapshots of a cluster's bags at `now`."""
    found = _shown(state)
    if found:
        by_name = costs(state, now)
    else:
        by_name = {}
    return [bag_view(state, bag, by_name[bag.name], now) for bag in found]


def pace(state: ClusterState) -> float:
    """Return the factor on the interval between snapshots.

    It grows with the number of points, which determines the size of a snapshot.
    """
    return max(1.0, sum(len(bag.state.jobs) for bag in _shown(state)) / _MANY)


def _shown(state: ClusterState) -> list[DeclaredBag]:
    return [work for work in focus.of_kind(state, "bag") if isinstance(work, DeclaredBag)]


def bag_view(state: ClusterState, bag: DeclaredBag, cost: Cost, now: float) -> Bag:
    """Return the snapshot of one bag."""
    bag_state = bag.state
    over = bag.over or state.over
    axes = _axes(bag)
    points = [_point(bag, job, over=over) for job in bag_state.jobs.values()]
    if over:
        vms = []
    else:
        vms = _vms(state, bag, now)
    results = len(bag_state.counted)
    states = [point[0] for point in points]
    shown: Bag = {
        "name": bag.name,
        "phase": text.work_phase(bag, state),
        "words": text.work_words(bag, state),
        "about": _about(bag),
        "results": results,
        "planned": bag.spec.jobs,
        "cost_words": cost.words if bag.dasks else "",
        "per_result": cost.total / results if results else None,
        "ends": "" if state.over and not bag.over else _ends(state, bag, now),
        "counts": [
            (point_state, many) for point_state in STATES if (many := states.count(point_state))
        ],
        "tried_words": words.tried_words(bag),
        "tried": _tried(bag),
        "axes": axes,
        "points": points,
        "vms": vms[:MOST_VMS],
        "more": max(0, len(vms) - MOST_VMS),
        "stoppable": not over and bag.stop is None,
    }
    return sound(shown)


def _point(bag: DeclaredBag, job: BagJobState, *, over: bool) -> BagPoint:
    returned = job.result.returned if job.result else {}
    if job.phase == "waiting" and job.attempt:
        state = "lost"
    else:
        state = job.phase
    if over and state in ("waiting", "running", "lost"):
        state = "skipped"
    place: list[Parameter] = [_short(job.point[dimension.name]) for dimension in bag.spec.space]
    outputs = bag.state.outputs if returned else ()
    values: list[Figure] = [_figure(returned[name]) for name in outputs]
    errors = [
        _figure(returned[name + ERROR]) if name + ERROR in returned else None for name in outputs
    ]
    return (
        state,
        job.attempt,
        place,
        values,
        errors if any(error is not None for error in errors) else [],
    )


def _short(value: Value) -> Parameter:
    """Return a parameter with the number of digits that a picture shows."""
    shown = parameter(value)
    if isinstance(shown, float):
        return _figure(shown)
    return shown


def _figure(value: float) -> float:
    return float(f"{value:.6g}")


def _axes(bag: DeclaredBag) -> list[BagAxis]:
    parameters = [Axis.of(dimension) for dimension in bag.spec.space]
    values = {
        name: [returned[name] for _, returned in bag.state.points()] for name in bag.state.outputs
    }
    outputs = [Axis.over(name, found) for name, found in values.items() if found]
    return [_axis(axis, output=False) for axis in parameters] + [
        _axis(output, output=True) for output in outputs
    ]


def _axis(axis: Axis, *, output: bool) -> BagAxis:
    return {
        "name": axis.name,
        "output": output,
        "kind": axis.kind,
        "low": axis.low,
        "high": axis.high,
        "choices": [_short(choice) for choice in axis.choices],
        "named": [(round(place, 4), words) for place, words in axis.named],
    }


def _about(bag: DeclaredBag) -> str:
    spec = bag.spec
    models = {"gp": "Gaussian process", "ensemble": "ensemble of networks"}
    if spec.surrogate in models:
        surrogate = [models[spec.surrogate]]
    else:
        surrogate = []
    if spec.until:
        until = [
            f"until {', '.join(f'{name} {goal:g}'.strip() for name, goal in spec.until.items())}"
        ]
    else:
        until = []
    return " · ".join([*map(str, spec.space), *surrogate, *until, spec.policy])


def _tried(bag: DeclaredBag) -> list[BagTried]:
    learnt = bag.state.learnt
    until = bag.spec.until
    judged = next((batch for batch in reversed(learnt) if batch.judged), None)
    found: list[BagTried] = []
    for name, largest in learnt[-1].largest.items() if learnt else ():
        if judged:
            coverage = judged.coverage.get(name)
        else:
            coverage = None
        if judged:
            residual = judged.residual.get(name)
        else:
            residual = None
        goal = until.get(name) or until.get("")
        right = (
            coverage is not None
            and residual is not None
            and COVERED[0] <= coverage <= COVERED[1]
            and residual <= 1
        )
        found.append(
            {
                "output": name,
                "coverage": coverage,
                "residual": residual,
                "largest": largest,
                "until": goal,
                "good": right and (goal is None or largest <= goal),
            }
        )
    return found


def _vms(state: ClusterState, bag: DeclaredBag, now: float) -> list[BagVm]:
    """Return the VMs of the bag, the oldest first.

    Lost VMs that still have one of its jobs are included.
    """
    holds = {job.vm: job for job in bag.state.running}
    if bag.dasks:
        dask = bag.dasks[-1]
    else:
        dask = ""
    own = [vm for vm in state.living if state.has(dask, vm)]
    gone = [vm for name in holds if (vm := state.vms.get(name)) and vm not in own]
    ages = {vm.name: _age(state, vm, now) for vm in (*own, *gone)}
    ordered = sorted((*own, *gone), key=lambda vm: -ages[vm.name])
    return [_vm(state, vm, ages[vm.name], holds.get(vm.name), now) for vm in ordered]


def _vm(state: ClusterState, vm: VmState, age: float, job: BagJobState | None, now: float) -> BagVm:
    if vm.state == "ready":
        words = []
    else:
        words = [text.vm_words(state, vm, now)]
    if job:
        words.append(f"for {render_duration(max(0.0, now - job.began_at))}")
        words += [f"attempt {job.attempt}"] if job.attempt > 1 else []
        words += [f"{render_duration(job.done)} saved"] if job.done else []
    return {
        "name": vm.name,
        "age": render_duration(age) if age else "",
        "state": vm.state,
        "job": job.number if job else None,
        "at": text.params_words(job.point) if job else "",
        "words": ", ".join(words),
    }


def _age(state: ClusterState, vm: VmState, now: float) -> float:
    """Return how long a VM has run, in seconds of the cluster's clock."""
    born = vm.started_at or vm.running_at
    if born:
        return max(0.0, state.clock.between(born, vm.ended_at or now))
    return 0.0


def _ends(state: ClusterState, bag: DeclaredBag, now: float) -> str:
    """Return when all results will be available: the median and a 90 % interval."""
    if bag.over:
        return f"at {text.clock(bag.ended_at)}"
    if bag.stop or bag.state.enough:
        return ""
    found = _ending(state, bag, now)
    if found is None:
        return ""
    low, middle, high = found
    sooner = ", or sooner" if bag.spec.until else ""
    sooner += if_capacity_lasts(state.spec.provisioning_model if state.spec else "spot")
    about = f"in about {render_duration(middle)}"
    if low == high:
        return f"{about}{sooner}"
    if high >= _DAY:
        return f"{about} ({render_duration(low)} to {render_duration(high)}){sooner}"
    at, early, late = (text.clock(now + seconds)[:5] for seconds in (middle, low, high))
    return f"{about}, at {at} ({early} to {late}){sooner}"


def _ending(state: ClusterState, bag: DeclaredBag, now: float) -> tuple[float, float, float] | None:
    """Return the seconds until all results are available: 5 %, 50 % and 95 % quantiles.

    The quantiles are those of simulated courses. All three are equal if the error is unknown. None
    if the duration of a job is unknown, or if the end may be a year away.
    """
    from .policy.simulate import LEAST_FINISHED, MOST_HOURS, Progress

    bag_state = bag.state
    spec = bag.spec
    vms = sum(dask in bag.dasks for dask in state.leases.values())
    finished = tuple(_took(bag_state.jobs[number]) for number in bag_state.counted)
    running = tuple(job.done + max(now - job.began_at, 0.0) for job in bag_state.running)
    left = spec.jobs - len(bag_state.counted)
    if len(finished) < LEAST_FINISHED:
        if vms:
            about = left * spec.job_seconds / vms
        else:
            about = 0.0
        if about:
            return (about, about, about)
        return None
    if running and min(running) > _STANDS_STILL * max(finished):
        return None
    coarse = statistics.median(finished) / _LOOKS  # so that cached courses are reused for a while
    lived = [_age(state, vm, now) for vm in state.vms.values()]
    progress = Progress(
        left=left,
        waiting=max(spec.begun - len(bag_state.results), left) - len(running),
        finished=tuple(seconds / _HOUR for seconds in finished),
        running=tuple(round(seconds / coarse) * coarse / _HOUR for seconds in running),
        vms=vms,
        lost=sum(job.interruptions for job in bag_state.jobs.values()),
        watched=round(sum(lived) / _DAY, 1) * _DAY / _HOUR,
        revocable=_revocable(state),
    )
    low, middle, high = _quantiles(progress)
    if high >= MOST_HOURS * _HOUR:
        return None
    if len(finished) <= len(running):  # the longest jobs have not finished yet
        return middle, middle, middle
    return low, middle, high


def _revocable(state: ClusterState) -> bool:
    """Return whether the cluster's workers may be revoked."""
    return state.spec is None or state.spec.provisioning_model != "standard"


@lru_cache(maxsize=64)
def _quantiles(progress: Progress) -> tuple[float, float, float]:
    from .policy.simulate import hours_left, middle

    low, median, high = middle(hours_left(progress))
    return low * _HOUR, median * _HOUR, high * _HOUR


def _took(job: BagJobState) -> float:
    """Return the seconds for which a finished job had its VM.

    For a restarted job, return the seconds that it computed.
    """
    assert job.result is not None
    if job.attempt == 1:
        return max(job.result.at - job.began_at, 1e-3)
    return max(job.result.seconds, 1e-3)


def section_html(bag: Mapping[str, Any]) -> str:
    """Return the static picture of a snapshot."""
    return bag_html(bag)


def text_of(bag: BagHandle) -> str:
    """Return the text of a bag for a terminal."""
    state = bag.cluster.state
    work = state.of(DeclaredBag).get(bag.name)
    if work is None:
        return repr(bag)
    quality = words.quality_words(work)
    line = f"{bag.name} on {state.name}: {words.bag_words(work)}"
    return "\n".join([line, *([f"{words.tried_words(work)}; {quality}"] if quality else [])])


def picture(bag: BagHandle) -> str:
    """Return the picture of a bag."""
    state = bag.cluster.state
    now = time.time()
    return (
        "<div "
        f"style='{WIDE}'>{bag_html(bag_view(state, bag.state, costs(state, now)[bag.name], now))}</div>"
    )


def plot_html(plot: Plot) -> str:
    """Return the pictures of a surrogate's predictions, a row for each output."""
    drawn = "".join(f"<div>{surrogate_html(section)}</div>" for section in plot.sections)
    return f"<div style='{WIDE}'>{drawn}</div>"
