"""Runs side by side: progress, quality and cost; and tables of them as DataFrames."""

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
    """A run in a comparison.

    `value` of `metric` at `best_step` is its best evaluation, if any; `direction` is max or min.
    `hours` is from its start on, by the clock of its bill. `dollars` is its cost (`Run.cost`), and
    `revocations` the number of its workers that were revoked.
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
        """The text of the row, for COLUMNS."""
        best = "-"
        if self.value is not None:
            best = f"{self.metric} {text.number(self.value)} at {self.best_step:,}"
        steps = f"{self.step:,}"
        if self.step < self.train_steps:
            steps += f" of {self.train_steps:,}"
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
    """A list of runs that shows itself as a table. `rows` has its figures, `frame` a DataFrame."""

    @property
    def rows(self) -> list[Row]:
        """A row for each run, from the present state of its journal."""
        now = time.time()
        of_clusters = dict[int, tuple[ClusterState, Mapping[str, Cost], Mapping[str, int]]]()
        rows = list[Row]()
        for run in self:
            state = run.cluster.state
            if id(state) not in of_clusters:
                of_clusters[id(state)] = state, costs(state, now), revocations(state)
            _, by_name, lost = of_clusters[id(state)]
            dollars = by_name[run.name].total
            rows.append(row_of(state, run.state, now, dollars, lost.get(run.name, 0)))
        return rows

    def frame(self) -> pandas.DataFrame:
        """Return the rows as a DataFrame."""
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
    """Runs whose losses and evaluations are also drawn over each other, in a notebook."""

    def __repr__(self) -> str:
        return "\n".join(filter(None, [super().__repr__(), best_words(self.rows)]))


def best_row(rows: Sequence[Row]) -> Row | None:
    """Return the best of the rows with the metric of the first evaluated one; None if unknown."""
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
    """Return `Best: run-2, accuracy 0.96 at step 600.`; empty if there is none."""
    best = best_row(rows)
    if best is None:
        return ""
    name = best.run
    if sum(row.run == best.run for row in rows) > 1:
        name += f" on {best.cluster}"
    value = f"{best.metric} {text.number(best.value)}"
    return f"Best: {name}, {value} at step {best.best_step:,}."


def row_of(state: ClusterState, run: RunState, now: float, dollars: float, revocations: int) -> Row:
    """Return the row of a run.

    Parameters
    ----------
    state, run
        The states of its cluster and of the run.
    now
        Seconds since 1970.
    dollars
        Its cost.
    revocations
        The number of its workers that were revoked.
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
    """Return what rates a run's evaluations: its declared objective, else accuracy, else loss."""
    if run.spec.objective:
        return run.spec.objective
    names: Sequence[str] = [name for _, _, metrics in run.evaluations for name in metrics]
    return next((Objective.parse(name) for name in ("accuracy", "loss") if name in names), None)


def best_of(run: RunState, objective: Objective | None) -> tuple[int, float] | None:
    """Return the step and the value of the best evaluation; None without any."""
    best = None
    if run.best and run.spec.objective == objective:
        best = (run.best.step, run.best.value)
    for step, value in evaluated(run, objective):
        if objective and (best is None or objective.better(value, best[1])):
            best = step, value
    return best


def evaluated(run: RunState, objective: Objective | None) -> list[tuple[int, float]]:
    """Return the steps and values of evaluations that have the metric."""
    name = objective.metric if objective else ""
    measured = ((step, metrics.get(name)) for _, step, metrics in run.evaluations)
    return [(step, value) for step, value in measured if value is not None and math.isfinite(value)]


def revocations(state: ClusterState) -> dict[str, int]:
    """Return how many workers each run lost to revocations or notices while it had them."""
    tenures_of = defaultdict[int, list[tuple[float, float, str]]](list)
    for name, tenures in state.tenures.items():
        for place, begin, end in tenures:
            tenures_of[place].append((begin, min(end, state.ended_of(name) or end), name))
    for place, name in state.leases.items():
        tenures_of[place].append(
            (state.leased_at.get(place, 0.0), state.ended_of(name) or math.inf, name)
        )
    for tenures in tenures_of.values():
        tenures.sort()
    counts = Counter[str]()
    for vm in state.vms.values():
        if vm.role == WORKER and vm.state in ("leaving", "revoked"):
            moment = vm.noticed_at or vm.ended_at
            counts.update(
                {
                    name
                    for place in places(vm.slot)
                    for name in _holders(tenures_of.get(place, ()), moment)
                }
            )
    return dict(counts)


def _holders(tenures: Sequence[tuple[float, float, str]], moment: float) -> Iterator[str]:
    """Yield the work that had a slot at a moment: one, or two at the moment of a change.

    `tenures` must be sorted.
    """
    latest = bisect_right(tenures, (moment, math.inf, ""))
    for _, end, name in tenures[max(latest - 2, 0) : latest]:
        if moment <= end:
            yield name


def parameter_columns(names: Iterable[str], others: Collection[str]) -> dict[str, str]:
    """Return the column of each parameter: its name, or `params_NAME` if that is taken."""
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
    """Return rows as a DataFrame in which parameters keep the values of the declaration."""
    import pandas

    frame = pandas.DataFrame(rows, columns=list(columns))
    for name in parameters:
        values = [row[name] for row in rows]
        # pandas turns None into NaN, and whole numbers beside it into floats.
        if any(value is None for value in values):
            frame[name] = pandas.Series(values, index=frame.index, dtype="object")
    return frame
