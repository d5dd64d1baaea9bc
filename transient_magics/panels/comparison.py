"""Runs beside each other as plain HTML: a table, and their curves over each other in the style of a panel's twin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..client import Comparison, Runs
from ..client.results.comparison import COLUMNS, evaluated, judged_by
from .snapshot.chart import HEIGHT, WIDTH, overlaid
from .snapshot.markup import COLOURS, FAINT, FONT, attribute, escape, row, table

_LINES = (COLOURS["busy"], COLOURS["warn"], COLOURS["good"], COLOURS["bad"], "#8a63c9", "#2a9d9d")
_MOST_DRAWN = 12


def runs_html(runs: Runs) -> str:
    """The table alone."""
    return f"<div style='{FONT}'>{_table(runs, {})}</div>" if runs else "<div>No run yet.</div>"


def comparison_html(runs: Comparison) -> str:
    """The table with a colour for each run, and the curves in these colours over the steps."""
    drawn = [run.state for run in runs[:_MOST_DRAWN]]
    colours = {number: _LINES[number % len(_LINES)] for number in range(len(drawn))}
    losses = [[(step, loss) for _, step, loss, _ in run.series if loss is not None] for run in drawn]
    charts = [overlaid("loss", losses)]
    metrics = [metric for run in drawn if (metric := judged_by(run))]
    if metrics:
        charts.append(overlaid(f"{metrics[0].metric}, evaluated", [evaluated(run, metrics[0]) for run in drawn]))
    more = len(runs) - len(drawn)
    note = f"<div style='{FAINT}'>Drawn are the first {_MOST_DRAWN}.</div>" if more else ""
    return f"<div style='{FONT}'>{_table(runs, colours)}{''.join(map(_chart, charts))}{note}</div>"


def _table(runs: Runs, colours: Mapping[int, str]) -> str:
    lines = [row(map(escape, COLUMNS), "th")]
    for number, found in enumerate(runs.rows):
        first, *rest = map(escape, found.cells)
        dot = f"<span style='color:{colours[number]}'>●</span> " if number in colours else ""
        lines.append(row([dot + first, *rest]))
    return table(lines)


def _chart(chart: Mapping[str, Any]) -> str:
    paths: Sequence[str] = chart["paths"]
    if not any(paths):
        return ""
    drawn = "".join(
        f"<path d='{path}' fill='none' stroke='{_LINES[number % len(_LINES)]}' stroke-width='1.5' "
        f"stroke-linecap='round'/>"
        for number, path in enumerate(paths)
        if path
    )
    said = f"{chart['title']}, {chart['low']} to {chart['high']}, steps {chart['first']} to {chart['last']}"
    return (
        f"<span style='display:inline-block;margin-right:24px'><svg width='{WIDTH}' height='{2 * HEIGHT}' "
        f"viewBox='0 0 {WIDTH} {HEIGHT}' preserveAspectRatio='none' role='img' aria-label='{attribute(said)}'>{drawn}"
        f"</svg><br/><span style='{FAINT}'>{escape(said)}</span></span>"
    )
