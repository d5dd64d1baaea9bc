"""Runs beside each other as plain HTML: a table, and their curves over each other in the style of a
panel's twin.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ..client import Comparison, Runs
from ..client.recorded_run import RecordedRun
from ..client.results.comparison import COLUMNS, Row, best_row, best_words, evaluated, judged_by
from ..journal import RunSeries, metrics
from ..protocol import layout
from .static.charts import LOOKS, Line, figure, sample, values
from .static.markup import FAINT, FONT, escape, row, table

_ACROSS = "steps"


def runs_html(runs: Runs) -> str:
    """The table alone."""
    if runs:
        return f"<div style='{FONT}'>{_table(runs.rows, {})}</div>"
    return "<div>No run yet.</div>"


def comparison_html(runs: Comparison) -> str:
    """The table with a look for each run, and the curves with these looks over the steps."""
    rows = runs.rows
    states = [run.state for run in runs[: len(LOOKS)]]
    looks = list(zip(_names(rows), LOOKS, strict=False))
    losses = [
        Line(name, _losses(run), look) for run, (name, look) in zip(runs, looks, strict=False)
    ]
    charts = [("loss of training", losses)]
    metric = next(filter(None, map(judged_by, states)), None)
    if metric:
        best = best_row(rows)
        measured = [
            Line(name, evaluated(run, metric), look, _marked(row) if row is best else None)
            for run, row, (name, look) in zip(states, rows, looks, strict=False)
        ]
        charts.append((f"{metric.metric} of evaluations", measured))
    drawn = "".join(figure(title, _ACROSS, lines) for title, lines in charts)
    more = f"<div style='{FAINT}'>The curves are those of the first {len(LOOKS)} runs.</div>"
    said = best_words(rows)
    return (
        f"<div style='{FONT};max-width:1040px'>{_table(rows, dict(enumerate(LOOKS)))}"
        f"{f'<div>{escape(said)}</div>' if said else ''}{drawn}{more if len(runs) > len(LOOKS) else ''}"
        f"{values(_ACROSS, charts[-1][1])}</div>"
    )


def _names(rows: Sequence[Row]) -> list[str]:
    """Their names; with the clusters', where two are called the same."""
    alone = len({row.run for row in rows}) == len(rows)
    return [row.run if alone else f"{row.run} on {row.cluster}" for row in rows]


def _losses(run: RecordedRun) -> list[tuple[float, float]]:
    """By its metrics of each second, where they are here; else by its progress in the journal."""
    series = RunSeries()
    series.add(metrics.sample(run.directory / layout.METRICS))
    measured = series.columns()
    pairs = zip(measured["step"], measured["loss"], strict=True)
    found = [(step, loss) for step, loss in pairs if loss is not None and math.isfinite(loss)]
    told = ((step, loss) for _, step, loss, _ in run.state.series)
    return found or [
        (step, loss) for step, loss in told if loss is not None and math.isfinite(loss)
    ]


def _marked(row: Row) -> tuple[float, float] | None:
    if row.best_step is not None and row.value is not None:
        return (row.best_step, row.value)
    return None


def _table(rows: Sequence[Row], looks: Mapping[int, tuple[str, str]]) -> str:
    lines = [row(map(escape, COLUMNS), "th")]
    for number, found in enumerate(rows):
        first, *rest = map(escape, found.cells)
        if number in looks:
            look = f"{sample(looks[number])} "
        else:
            look = ""
        lines.append(row([f"<span style='white-space:nowrap'>{look}{first}</span>", *rest]))
    return table(lines)
