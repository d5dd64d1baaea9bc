"""Runs side by side as HTML: a table, and their curves over each other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ..client import Comparison, Runs
from ..client.recorded_run import RecordedRun
from ..client.results.comparison import COLUMNS, Row, best_row, best_words, evaluated, judged_by
from ..journal import RunSeries, metrics
from ..protocol import layout
from .static.charts import STYLES, Line, figure, sample, values
from .static.markup import FAINT, FONT, escape, row, table

_ACROSS = "steps"


def runs_html(runs: Runs) -> str:
    """Return the table of runs."""
    if runs:
        return f"<div style='{FONT}'>{_table(runs.rows, {})}</div>"
    return "<div>No run yet.</div>"


def comparison_html(runs: Comparison) -> str:
    """Return the table with a line style for each run, and curves over steps in these styles."""
    rows = runs.rows
    states = [run.state for run in runs[: len(STYLES)]]
    styles = list(zip(_names(rows), STYLES, strict=False))
    losses = [
        Line(name, _losses(run), style) for run, (name, style) in zip(runs, styles, strict=False)
    ]
    charts = [("loss of training", losses)]
    metric = next(filter(None, map(judged_by, states)), None)
    if metric:
        best = best_row(rows)
        measured = [
            Line(name, evaluated(run, metric), style, _marked(row) if row is best else None)
            for run, row, (name, style) in zip(states, rows, styles, strict=False)
        ]
        charts.append((f"{metric.metric} of evaluations", measured))
    drawn = "".join(figure(title, _ACROSS, lines) for title, lines in charts)
    more = f"<div style='{FAINT}'>The curves are those of the first {len(STYLES)} runs.</div>"
    best_line = best_words(rows)
    return (
        f"<div style='{FONT};max-width:1040px'>{_table(rows, dict(enumerate(STYLES)))}"
        f"{f'<div>{escape(best_line)}</div>' if best_line else ''}{drawn}"
        f"{more if len(runs) > len(STYLES) else ''}"
        f"{values(_ACROSS, charts[-1][1])}</div>"
    )


def _names(rows: Sequence[Row]) -> list[str]:
    """Return the names of the runs, with their clusters if two have the same name."""
    alone = len({row.run for row in rows}) == len(rows)
    return [row.run if alone else f"{row.run} on {row.cluster}" for row in rows]


def _losses(run: RecordedRun) -> list[tuple[float, float]]:
    """Return the losses by the metrics of each second if they are here, else by the journal."""
    series = RunSeries()
    series.add(metrics.sample(run.directory / layout.METRICS))
    measured = series.columns()
    pairs = zip(measured["step"], measured["loss"], strict=True)
    losses = [(step, loss) for step, loss in pairs if loss is not None and math.isfinite(loss)]
    progress = ((step, loss) for _, step, loss, _ in run.state.series)
    return losses or [
        (step, loss) for step, loss in progress if loss is not None and math.isfinite(loss)
    ]


def _marked(row: Row) -> tuple[float, float] | None:
    if row.best_step is not None and row.value is not None:
        return (row.best_step, row.value)
    return None


def _table(rows: Sequence[Row], styles: Mapping[int, tuple[str, str]]) -> str:
    lines = [row(map(escape, COLUMNS), "th")]
    for number, found in enumerate(rows):
        first, *rest = map(escape, found.cells)
        style = ""
        if number in styles:
            style = f"{sample(styles[number])} "
        lines.append(row([f"<span style='white-space:nowrap'>{style}{first}</span>", *rest]))
    return table(lines)
