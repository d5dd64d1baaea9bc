"""The curves of a training panel: columns over time, marks, the parts of a step, and their growth.

The columns come from the run's metrics of each second if they are on this machine, else from its
progress in the journal. Now and then all curves are sent (a base), in between what has grown since
then (a tail). A tail holds everything since its base, so any tail may be lost. A page with another
base than that of a tail requests both again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from itertools import pairwise
from statistics import fmean, median
from typing import Any

from ...client import text
from ...journal import ClusterState, RunSeries, RunState
from ...journal.series import LATELY_SECONDS, Spent
from ...protocol.step_parts import EXPOSED
from .contract import (
    Bar,
    Base,
    Curves,
    End,
    Figure,
    Mark,
    OfWorker,
    Speeds,
    Split,
    Tail,
    finite,
    sound,
)

_MOST_MARKS = 200
_MOST_OF_A_LANE = 120
_HOLE = 2.5  # times as long as between others: more than one span is missing

_MOST_ROWS = 27
"""Maximum number of rows of a tail.

For n rows in total, bases and tails together are smallest if a tail has at most sqrt(2n) rows.
"""

_MOST_BARS = 8
_WORTH_WORDS = 0.005


def curves(
    state: ClusterState, run: RunState, series: RunSeries | None = None, *, whole: bool = True
) -> Curves:
    """Return the data of a run's charts.

    Parameters
    ----------
    state, run
        The states of the cluster and of the run.
    series
        Its metrics, if they are here.
    whole
        Whether workers have all their columns, or only their speed.
    """
    found = apart(
        _finite_columns(
            series.columns(whole=run.over) if series and series.rows else _progress(run)
        )
    )
    workers: dict[str, OfWorker] = found["workers"]
    if not whole:
        workers = {name: {"speed": columns["speed"]} for name, columns in workers.items()}
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
        "epochs": [
            {"time": at, "step": step, "metrics": {name: _finite(logs[name]) for name in logs}}
            for at, step, logs in run.epochs
        ],
    }


def speeds(run: str, series: RunSeries) -> Speeds:
    """Return the speeds of a run's workers, in at most as many rows as a lane can show."""
    found = apart(_finite_columns(series.columns()))
    by = -(-len(found["time"]) // _MOST_OF_A_LANE) or 1
    workers: dict[str, OfWorker] = found["workers"]
    return {
        "run": run,
        "width": found["width"] * by,
        "time": found["time"][::by],
        "workers": {name: _means(columns["speed"], by) for name, columns in workers.items()},
    }


def _means(values: list[Figure], by: int) -> list[Figure]:
    groups = (
        [value for value in values[at : at + by] if value is not None]
        for at in range(0, len(values), by)
    )
    return [fmean(group) if group else None for group in groups]


def apart(columns: dict[str, Any]) -> dict[str, Any]:
    """Return the columns with an empty row where rows are missing: no line is drawn there."""
    time = columns["time"]
    lengths = [later - earlier for earlier, later in pairwise(time)]
    usual = max(columns["width"], median(lengths)) if lengths else 0.0
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
            name: {what: parted(values) for what, values in columns_of_worker.items()}
            for name, columns_of_worker in workers
        },
    }


def end_of(run: RunState) -> End | None:
    """Return the end of the drawn curves by the run's own figures, whatever was measured last."""
    if not run.series:
        return None
    at, step, loss, speed = run.series[-1]
    if run.over:
        if run.step > step:
            saved = [time for time, saved_step in run.checkpoints if saved_step == run.step]
            at = max([at, *saved[:1]])
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
    """Return the columns with None for each figure that is not finite."""
    lists = {name: finite(values) for name, values in columns.items() if isinstance(values, list)}
    return {**columns, **lists}


def _finite(value: float | None) -> float | None:
    if value is not None and math.isfinite(value):
        return value
    return None


def _marks(state: ClusterState, run: RunState, workers: Set[str]) -> list[Mark]:
    """Return the marks of a run; of revocations only those of its `workers`, if these are known."""
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


# Growing curves are sent as a complete base now and then, and in between as a tail: the rows since
# the base.
#
# A tail holds everything since its base, so that any tail can be lost. A page whose base does not
# match a tail requests both again.


def tail(base: Base, now: Curves) -> Tail | None:
    """Return what turns `base` into `now`; None if a new base is smaller, or they do not match."""
    if base["run"] != now["run"] or base["below"] != now["below"] or base["width"] != now["width"]:
        return None
    if not base["workers"].keys() <= now["workers"].keys():
        return None
    keep = min(_alike(before, after) for before, after in _pairs(base, now))
    if len(now["time"]) - keep > _MOST_ROWS:
        return None
    workers = {name: _of_worker(columns, keep) for name, columns in now["workers"].items()}
    found: Tail = {
        "base": base["number"],
        "keep": keep,
        "unnamed": now["unnamed"],
        "end": now["end"],
        "split": now["split"],
        "time": now["time"][keep:],
        "step": now["step"][keep:],
        "loss": now["loss"][keep:],
        "speed": now["speed"][keep:],
        "workers": workers,
        # A worker that is faster than ever before changes the expected speed of old rows, too.
        "expected": now["expected"],
    }
    if now["marks"] != base["marks"]:
        found["marks"] = now["marks"]
    if now["epochs"] != base["epochs"]:
        found["epochs"] = now["epochs"]
    return found


def _pairs(base: Curves, now: Curves) -> Iterator[tuple[Sequence[Figure], Sequence[Figure]]]:
    """Yield each column of `now` with the same column of `base`."""
    yield base["time"], now["time"]
    yield base["step"], now["step"]
    yield base["loss"], now["loss"]
    yield base["speed"], now["speed"]
    nothing: list[Figure] = [None] * len(base["time"])
    for name, columns in now["workers"].items():
        before = base["workers"].get(name)
        for after, was in zip(
            _columns(columns), _columns(before) if before else (nothing,) * 3, strict=False
        ):
            yield was, after


def _columns(of: OfWorker) -> list[list[Figure]]:
    return [
        of["speed"],
        *([of["batch"]] if "batch" in of else []),
        *([of["staleness"]] if "staleness" in of else []),
    ]


def _of_worker(of: OfWorker, keep: int) -> OfWorker:
    found: OfWorker = {"speed": of["speed"][keep:]}
    if "batch" in of:
        found["batch"] = of["batch"][keep:]
    if "staleness" in of:
        found["staleness"] = of["staleness"][keep:]
    return found


def _alike(before: Sequence[Figure], after: Sequence[Figure]) -> int:
    """Return how many values both begin with."""
    most = min(len(before), len(after))
    if before[:most] == after[:most]:
        return most
    return next(index for index in range(most) if before[index] != after[index])


# Where the time of a step goes, worker by worker: bars of its parts, and the same in words.


def split(series: RunSeries, *, whole: bool = False) -> Split | None:
    """Return the parts of a step of workers that made steps recently; None before a step was split.

    Of many workers the slowest ones are shown. `whole`: since the start of the run.
    """
    spent = {
        name: worker
        for name, worker in series.spent(whole=whole).items()
        if worker.steps > 0 and worker.parts.step > 0
    }
    if not spent:
        return None
    slowest = sorted(
        spent, key=lambda name: spent[name].parts.step / spent[name].steps, reverse=True
    )[:_MOST_BARS]
    return {
        "names": list(EXPOSED),
        "words": " · ".join([_when(whole), *_served(spent)]),
        "bars": [
            _bar(name, worker)
            for name, worker in sorted(spent.items(), key=_counted)
            if name in slowest
        ],
        "more": len(spent) - len(slowest),
    }


def split_lines(split: Split | None) -> list[str]:
    """Return the parts of a step as lines for a terminal."""
    if not split:
        return []
    if split["more"]:
        more = [f"  and {split['more']} more"]
    else:
        more = []
    return [
        f"where a step's time goes, {split['words']}",
        *(f"  {bar_words(bar)}" for bar in split["bars"]),
        *more,
    ]


def _when(whole: bool) -> str:
    if whole:
        return "over the whole run"
    return f"over the last {LATELY_SECONDS:.0f} s"


def _served(spent: Mapping[str, Spent]) -> list[str]:
    """Return how busy the busiest parameter server was, if it is known."""
    lines = sum(worker.lines for worker in spent.values())
    if not lines:
        return []
    share = sum(worker.shares for worker in spent.values()) / lines
    return [f"the busiest parameter server used {share:.0%} of its cores"]


def _bar(worker: str, spent: Spent) -> Bar:
    parts = [getattr(spent.parts, name) / spent.steps for name in EXPOSED]
    step = sum(parts)
    shares = [
        f"{name} {part / step:.0%}"
        for name, part in zip(EXPOSED, parts, strict=True)
        if part >= _WORTH_WORDS * step
    ]
    seconds: list[Figure] = [float(f"{part:.4g}") for part in parts]
    return {
        "worker": worker,
        "step": milliseconds(step),
        "parts": seconds,
        "words": ", ".join(shares),
    }


def bar_words(bar: Mapping[str, Any]) -> str:
    """Return a bar in words."""
    return f"{bar['worker']}: {bar['step']} a step: {bar['words']}"


def milliseconds(seconds: float) -> str:
    """Return a duration, such as `84 ms`, or in seconds from one on."""
    if seconds >= 1:
        return f"{text.number(seconds)} s"
    return f"{text.number(1000 * seconds)} ms"


def _counted(item: tuple[str, Spent]) -> tuple[str, int]:
    """Sort names as people count: worker-9 before worker-10."""
    name, _, number = item[0].rpartition("-")
    if number.isdecimal():
        return (name, int(number))
    return (item[0], 0)
