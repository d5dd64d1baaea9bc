"""What the curves of a training panel are drawn from: columns over time, and marks on the same
axis.

They come from the run's per-second metrics where those are here, else from what the journal says of
its progress.
"""

from __future__ import annotations

import math
from collections.abc import Set
from itertools import pairwise
from statistics import fmean, median
from typing import Any

from ...client import text
from ...journal import ClusterState, RunSeries, RunState
from .contract import Curves, End, Figure, Mark, OfWorker, Speeds, finite, sound
from .split import split

_MOST_MARKS = 200
_MOST_OF_A_LANE = 120
_HOLE = 2.5  # times as long as between others: more than one span is missing


def curves(
    state: ClusterState, run: RunState, series: RunSeries | None = None, *, whole: bool = True
) -> Curves:
    """Everything that the charts of a run are drawn from; of workers no more than their speed,
    unless `whole`.
    """
    found = apart(
        _finite_columns(
            series.columns(whole=run.over) if series and series.rows else _progress(run)
        )
    )
    workers: dict[str, OfWorker] = found["workers"]
    if not whole:
        workers = {name: {"speed": each["speed"]} for name, each in workers.items()}
    return {
        "run": run.name,
        "below": run.spec.alarm_below,
        "width": found["width"],
        "unnamed": found["unnamed"],
        "time": found["time"],
        "step": found["step"],
        "loss": found["loss"],
        "speed": found["speed"],
        "expected": found["expected"],
        "workers": workers,
        "end": sound(end_of(run)),
        "split": sound(split(series, whole=run.over)) if series else None,
        "marks": _marks(state, run, set() if found["unnamed"] else workers.keys()),
    }


def speeds(run: str, series: RunSeries) -> Speeds:
    """How fast the workers of a run are, in no more rows than a lane can show."""
    found = apart(_finite_columns(series.columns()))
    by = -(-len(found["time"]) // _MOST_OF_A_LANE) or 1
    workers: dict[str, OfWorker] = found["workers"]
    return {
        "run": run,
        "width": found["width"] * by,
        "time": found["time"][::by],
        "workers": {name: _means(each["speed"], by) for name, each in workers.items()},
    }


def _means(values: list[Figure], by: int) -> list[Figure]:
    groups = (
        [value for value in values[at : at + by] if value is not None]
        for at in range(0, len(values), by)
    )
    return [fmean(group) if group else None for group in groups]


def apart(columns: dict[str, Any]) -> dict[str, Any]:
    """The columns with a row of nothing where spans are missing between two others, so that no line
    is drawn there.
    """
    time = columns["time"]
    lengths = [later - earlier for earlier, later in pairwise(time)]
    if lengths:
        usual = max(columns["width"], median(lengths))
    else:
        usual = 0.0
    holes = [
        at for at, length in enumerate(lengths, 1) if columns["width"] and length > _HOLE * usual
    ]
    if not holes:
        return columns

    def parted(values: list[Any], *, between: bool = False) -> list[Any]:
        found = list(values)
        for at in reversed(holes):
            found.insert(at, (values[at - 1] + values[at]) / 2 if between else None)
        return found

    lists = {
        name: parted(values, between=name in ("time", "step"))
        for name, values in columns.items()
        if isinstance(values, list)
    }
    workers = columns["workers"].items()
    return {
        **columns,
        **lists,
        "workers": {
            name: {what: parted(values) for what, values in each.items()} for name, each in workers
        },
    }


def end_of(run: RunState) -> End | None:
    """Where the drawn curves end, whatever was measured last: time, step, loss and speed as the
    run's figures say.
    """
    if not run.series:
        return None
    at, step, loss, speed = run.series[-1]
    if run.over:
        if run.step > step:
            made = [time for time, saved in run.checkpoints if saved == run.step]
        else:
            made = []
        at = max([at, *made[:1]])
        step = run.step
        loss = run.loss
        speed = None
    return {"time": at, "step": step, "loss": loss, "speed": speed}


def _progress(run: RunState) -> dict[str, Any]:
    if run.series:
        time, step, loss, speed = zip(*run.series, strict=True)
    else:
        time = ()
        step = ()
        loss = ()
        speed = ()
    nothing = [None] * len(time)
    columns = {"time": list(time), "step": list(step), "loss": list(loss), "speed": list(speed)}
    return {"width": 0.0, "unnamed": False, **columns, "expected": nothing, "workers": {}}


def _finite_columns(columns: dict[str, Any]) -> dict[str, Any]:
    """The columns without figures that are none, of which a page could read nothing."""
    lists = {name: finite(values) for name, values in columns.items() if isinstance(values, list)}
    return {**columns, **lists}


def _finite(value: float | None) -> float | None:
    if value is not None and math.isfinite(value):
        return value
    return None


def _marks(state: ClusterState, run: RunState, workers: Set[str]) -> list[Mark]:
    """Of revocations only those of the run's own `workers`, where they are known."""
    end = run.ended_at or float("inf")
    revoked = [
        ("revoked", vm.ended_at, None, f"{text.plain(vm.name)} was revoked")
        for vm in state.vms.values()
        if vm.state == "revoked"
        and run.declared_at <= vm.ended_at <= end
        and (not workers or vm.name in workers)
    ]
    saved = [
        ("checkpoint", at, step, f"checkpoint at step {step:,}") for at, step in run.checkpoints
    ]
    evaluated = [
        (
            "evaluation",
            at,
            step,
            f"evaluated at step {step:,}: {text.scores_words(metrics)}",
            _finite(metrics.get("loss")),
        )
        for at, step, metrics in run.evaluations
    ]
    return [*revoked[-_MOST_MARKS:], *saved, *evaluated]
