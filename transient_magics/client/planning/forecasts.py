"""Forecasts: when a run that goes on ends, and what its cluster will have cost by then."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

from ...errors import ClusterError, PlanError, TransientError, UnreachableError
from ...journal import bill
from ..folders import KnownRun, known_runs
from .learning import alike, learn, record, store_of
from .revocations import foreseen

if TYPE_CHECKING:
    from ...planner.forecast import Forecast
    from ..handles import Run


def forecast(run: Run, revocations: str | None = None) -> Forecast:
    """When a run that goes on ends, and what its cluster will have cost. Raises PlanError where that cannot be told.

    `revocations`: `published` or `none`; by default `published` on Compute Engine, and on the emulator what its weather
    is (other revocations than published ones are not foreseen).
    """
    from ...planner.forecast import CLOSING_SECONDS
    from ...planner.forecast import forecast as foretell

    cluster = run.cluster
    state, now = cluster.state, time.time()
    found = state.runs.get(run.name)
    if found is None:
        raise PlanError(f"{run.name} is not known to {cluster.name} yet")
    lifetimes, _, risk = foreseen(revocations or _weather_of(run))
    known = KnownRun(cluster.directory, found)
    store = store_of(known)
    for other in alike(known_runs(), store.key):
        if other.state.over:
            learn(store, other)
    closings = [each.closing for each in store.records().values() if each.closing is not None]
    closing = statistics.median(closings) if closings else CLOSING_SECONDS
    return foretell(state, bill(state, now), now, found, record(known), lifetimes, risk=risk, closing=closing)


def forecast_line(run: Run) -> str:
    """`run-1 finishes in ...` for a run that goes on; nothing where that cannot be told."""
    if run.state.phase != "running":
        return ""
    try:
        return f"{run.name} {forecast(run)}."
    except TransientError:  # too young, or NumPy is not installed: the status says enough without
        return ""


def _weather_of(run: Run) -> str:
    spec = run.cluster.state.spec
    if spec is None or not spec.emulated:
        return "published"
    try:
        set_to = run.cluster.weather().settings.get("revocations")
    except (ClusterError, UnreachableError):
        return "none"
    return "published" if set_to == "published" else "none"
