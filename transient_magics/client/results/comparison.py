"""Runs beside each other: how far each came, how good it became, and what that took."""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from ...journal import ClusterState, Cost, RunState, costs
from ...protocol.objective import Objective
from ...spec import WORKER
from ...spec.cluster import places
from .. import text
from ..recorded_run import RecordedRun

if TYPE_CHECKING:
    import pandas


AnyRun = TypeVar("AnyRun", bound=RecordedRun)

COLUMNS = ("run", "cluster", "steps", "best", "loss", "hours", "dollars", "revocations", "state")


@dataclass(frozen=True, slots=True)
class Row:
    """One run. `best` is the `value` of `metric` at `best_step`, where it was evaluated; its
    `direction` is max or min.

    `hours` from its start on, by the clock of its bill; `dollars` are what it cost (`Run.cost`),
    and `revocations` how many of its workers were revoked.
    """

    run: str
    cluster: str
    step: int
    train_steps: int
    metric: str
    direction: str
    value: float | None
    best_step: int | None
    loss: float | None
    hours: float
    dollars: float
    revocations: int
    state: str

    @property
    def cells(self) -> tuple[str, ...]:
        """As text, under COLUMNS."""
        if self.value is not None:
            best = f"{self.metric} {text.number(self.value)} at {self.best_step:,}"
        else:
            best = "-"
        if self.step < self.train_steps:
            steps = f"{self.step:,} of {self.train_steps:,}"
        else:
            steps = f"{self.step:,}"
        return (
            self.run,
            self.cluster,
            steps,
            best,
            text.number(self.loss),
            text.number(self.hours),
            text.money(self.dollars),
            str(self.revocations),
            self.state,
        )


class Runs(list[AnyRun]):
    """Runs in a list, which shows itself as a table; `rows` has its figures, `frame` makes a
    DataFrame of them.
    """

    @property
    def rows(self) -> list[Row]:
        """A row for each run, as its journal says now."""
        now = time.time()
        of_clusters = dict[int, tuple[ClusterState, Mapping[str, Cost], Mapping[str, int]]]()
        rows = list[Row]()
        for run in self:
            state = run.cluster.state
            if id(state) not in of_clusters:
                of_clusters[id(state)] = state, costs(state, now), revocations(state)
            _, by_name, taken = of_clusters[id(state)]
            rows.append(
                row_of(state, run.state, now, by_name[run.name].total, taken.get(run.name, 0))
            )
        return rows

    def frame(self) -> pandas.DataFrame:
        """The same as a DataFrame, a row for each run."""
        import pandas

        return pandas.DataFrame(
            [{name: getattr(row, name) for name in Row.__slots__} for row in self.rows]
        )

    def __repr__(self) -> str:
        rows = [row.cells for row in self.rows]
        if rows:
            return "\n".join(text.table(COLUMNS, rows))
        return "No run yet."

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))


class Comparison(Runs[AnyRun]):
    """Runs whose losses and evaluations are drawn over each other, too, where there is a page to
    draw on.
    """

    def __repr__(self) -> str:
        return "\n".join(filter(None, [super().__repr__(), best_words(self.rows)]))


def best_row(rows: Sequence[Row]) -> Row | None:
    """The best of several that are judged by the same metric, which is that of the first that was
    evaluated.
    """
    measured = [row for row in rows if row.value is not None]
    alike = [
        row
        for row in measured
        if (row.metric, row.direction) == (measured[0].metric, measured[0].direction)
    ]
    if len(alike) < 2:
        return None
    return (max if alike[0].direction == "max" else min)(alike, key=lambda row: row.value or 0.0)


def best_words(rows: Sequence[Row]) -> str:
    """`Best: run-2, accuracy 0.96 at step 600.`; empty where there is none."""
    best = best_row(rows)
    if best is None:
        return ""
    if sum(row.run == best.run for row in rows) > 1:
        where = f" on {best.cluster}"
    else:
        where = ""
    return f"Best: {best.run}{where}, {best.metric} {text.number(best.value)} at step {best.best_step:,}."


def row_of(state: ClusterState, run: RunState, now: float, dollars: float, revocations: int) -> Row:
    """The row of one run of the cluster in `state`, which has cost US dollars and lost workers to
    revocations.
    """
    end = run.ended_at or state.ended_at or now
    began = run.started_at or end
    metric = judged_by(run)
    best = best_of(run, metric)
    return Row(
        run=run.name,
        cluster=state.name,
        step=run.step,
        train_steps=run.train_steps,
        metric=metric.metric if metric else "",
        direction=metric.direction if metric else "",
        value=best[1] if best else None,
        best_step=best[0] if best else None,
        loss=run.loss,
        hours=state.clock.between(began, end) / 3600,
        dollars=dollars,
        revocations=revocations,
        state=text.work_phase(run),
    )


def judged_by(run: RunState) -> Objective | None:
    """What its evaluations are compared by: what it was declared with, else accuracy, else loss."""
    if run.spec.objective:
        return run.spec.objective
    names: Sequence[str] = [name for _, _, metrics in run.evaluations for name in metrics]
    return next((Objective.parse(name) for name in ("accuracy", "loss") if name in names), None)


def best_of(run: RunState, objective: Objective | None) -> tuple[int, float] | None:
    """Step and value of the best evaluation; None where there is none."""
    if run.best and run.spec.objective == objective:
        best = (run.best.step, run.best.value)
    else:
        best = None
    for step, value in evaluated(run, objective):
        if objective and (best is None or objective.better(value, best[1])):
            best = step, value
    return best


def evaluated(run: RunState, objective: Objective | None) -> list[tuple[int, float]]:
    """Steps and values of its evaluations that have one."""
    name = objective.metric if objective else ""
    found = ((step, metrics.get(name)) for _, step, metrics in run.evaluations)
    return [(step, value) for step, value in found if value is not None and math.isfinite(value)]


def revocations(state: ClusterState) -> dict[str, int]:
    """How many workers a run lost: their notice, or their end without one, came while it had them."""
    had = defaultdict[int, list[tuple[float, float, str]]](list)
    for name, tenures in state.tenures.items():
        for place, begin, end in tenures:
            had[place].append((begin, min(end, state.ended_of(name) or end), name))
    for place, name in state.leases.items():
        had[place].append((state.leased_at.get(place, 0.0), state.ended_of(name) or math.inf, name))
    for tenures in had.values():
        tenures.sort()
    counts = Counter[str]()
    for vm in state.vms.values():
        if vm.role == WORKER and vm.state in ("leaving", "revoked"):
            moment = vm.noticed_at or vm.ended_at
            counts.update(
                {name for place in places(vm.slot) for name in _holders(had.get(place, ()), moment)}
            )
    return dict(counts)


def _holders(tenures: Sequence[tuple[float, float, str]], moment: float) -> Iterator[str]:
    """The work that had a place at a moment: one, or two as it went from one to the other.
    `tenures`: sorted.
    """
    latest = bisect_right(tenures, (moment, math.inf, ""))
    for _, end, name in tenures[max(latest - 2, 0) : latest]:
        if moment <= end:
            yield name


def parameter_columns(names: Iterable[str], others: Collection[str]) -> dict[str, str]:
    """Return the column of each parameter beside these `others`: its name, or `params_NAME` where
    they have that.
    """
    columns: dict[str, str] = {}
    for name in names:
        column = name
        while column in others or column in columns.values():
            column = f"params_{column}"
        columns[name] = column
    return columns


def frame_of(
    rows: Sequence[Mapping[str, object]], columns: Sequence[str], parameters: Sequence[str]
) -> pandas.DataFrame:
    """The rows as a DataFrame, in which the values of parameters are those of the declaration."""
    import pandas

    frame = pandas.DataFrame(rows, columns=list(columns))
    for name in parameters:
        values = [row[name] for row in rows]
        if any(
            value is None for value in values
        ):  # pandas makes NaN of None, and floats of whole numbers beside it
            frame[name] = pandas.Series(values, index=frame.index, dtype="object")
    return frame
