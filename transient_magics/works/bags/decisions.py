"""Decide what is due for a bag: pure functions of the cluster's state and the time.

A bag has a Dask cluster of its own, with its driver beside the scheduler. If that is lost, another
one continues from the journal, once all reports of the lost driver are in there; otherwise jobs
would be computed twice. The bag ends when its driver reports that, or by a limit of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, count
from typing import Literal

from ...journal import ClusterState
from ...spec.namespace import dask_name
from ..dask.state import DaskState
from .state import DeclaredBag

MOST_DRIVERS = 20
"""Limit on the number of successive drivers of a bag."""
_PAUSE_SECONDS = 2.0
"""Pause before another driver starts: the function may have caused the loss of the previous one."""


@dataclass(frozen=True)
class Begin:
    """Begin a Dask cluster of this name, with the bag's driver."""

    dask: str


@dataclass(frozen=True)
class Stop:
    """Stop the bag for this reason, a clause: no further job begins."""

    reason: str
    state: Literal["finished", "stopped"] = "stopped"


@dataclass(frozen=True)
class EndDask:
    """Stop its Dask cluster."""

    dask: str
    reason: str


@dataclass(frozen=True)
class End:
    """End the bag in this state."""

    state: Literal["finished", "failed", "stopped"]
    reason: str


Decision = Begin | Stop | EndDask | End


def decide(
    bag: DeclaredBag, state: ClusterState, cost: float, now: float, *, arriving: bool = False
) -> Decision | None:
    """Return the next action for a bag, or None.

    `cost` is what the bag has cost so far, in US dollars. `arriving` is whether events of its last
    driver may still arrive.
    """
    if bag.over:
        return None
    if bag.dasks:
        dask = state.of(DaskState).get(bag.dasks[-1])
    else:
        dask = None
    working = None if dask is None or dask.over else dask
    if stopped := bag.state.stopped:
        if working:  # the scheduler ends automatically; this is the fallback
            if working.closed or now - stopped.at < END_SECONDS:
                return None
            return EndDask(working.name, "its bag is over")
        return End("failed" if stopped.why == "failed" else "finished", _end_reason(bag))
    if bag.stop:
        if working:
            if working.stop:
                return None
            return EndDask(working.name, bag.stop.reason)
        if arriving:
            return None
        return End(bag.stop.state, bag.stop.reason)
    if state.phase == "deleting":
        return Stop(f"the cluster ends: {state.reason}")
    if limit := _limit(bag, state, cost, now):
        return Stop(limit, "finished")
    if dask is None:
        return Begin(_free_name(bag, state))
    if working or arriving:
        return None
    return _again(bag, dask, state, now)


END_SECONDS = 10.0
"""Time from the driver's report that the bag is over until its Dask cluster is ended."""


def _again(bag: DeclaredBag, dask: DaskState, state: ClusterState, now: float) -> Decision | None:
    if len(bag.dasks) >= MOST_DRIVERS:
        return End(
            "failed", f"its driver was lost {MOST_DRIVERS} times, the last time: {dask.reason}"
        )
    if now - dask.ended_at < _PAUSE_SECONDS:
        return None
    return Begin(_free_name(bag, state))


def _limit(bag: DeclaredBag, state: ClusterState, cost: float, now: float) -> str:
    spec = bag.spec
    if spec.max_cost is not None and cost >= spec.max_cost:
        return f"its cost of ${cost:.2f} has reached its limit of ${spec.max_cost:.2f} (--max-cost)"
    if bag.began_at:
        hours = state.clock.between(bag.began_at, now) / 3600
    else:
        hours = 0.0
    if spec.max_hours is not None and hours >= spec.max_hours:
        return f"it has reached its limit of {spec.max_hours:g} hours (--max-hours)"
    return ""


def _end_reason(bag: DeclaredBag) -> str:
    stopped = bag.state.stopped
    assert stopped
    match stopped.why:
        case "counted":
            return f"all {bag.spec.jobs} results are complete"
        case "converged":
            return f"the surrogate is good enough after {len(bag.state.results)} results"
        case _:
            return stopped.reason


def _free_name(bag: DeclaredBag, state: ClusterState) -> str:
    """Return the name of the next Dask cluster, which is unique because leases refer to names.

    A name that was logged but not declared, because the controller was killed in between, is used
    again.
    """
    further = (dask_name(bag.name, number) for number in count(len(bag.dasks) + 1))
    names = chain(bag.dasks[-1:], further)
    return next(name for name in names if not state.name_conflict("dask", name, owner=bag.name))
