"""Feeds of a panel besides the journal: the metrics of runs, and forecasts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..journal import RunSeries, RunState
from ..kinds import load
from ..protocol import layout
from .snapshot.contract import Speeds
from .snapshot.curves import speeds

_MOST_GOING = 24
_MOST_BESIDE = 8
"""Maximum number of runs followed beside the one with curves: training ones, else the latest."""

Rows = Callable[[Path, Callable[[list[dict[str, Any]]], None]], Callable[[], None]]

Forecasts = Callable[[str, str], str]
"""Function that forecasts a run's end in words; empty if unknown. May take seconds."""
_CALM_SECONDS = 15.0
_YOUNG_SECONDS = 5.0
_SHARE = 20.0
"""Pause after a forecast, as a multiple of its duration."""


class Measured:
    """Follower of the metrics of one run at a time; calls `changed` when there are new ones.

    `directory` is the cluster's folder, `rows` follows a file (`Follower.rows`).
    """

    def __init__(self, directory: Path, rows: Rows, changed: Callable[[], None]) -> None:
        self._directory = directory
        self._rows = rows
        self._changed = changed
        self._run = ""
        self._series = RunSeries()
        self._stop: Callable[[], None] | None = None

    @property
    def rows(self) -> int:
        """The number of rows so far."""
        return self._series.rows

    @property
    def newest(self) -> tuple[str, float, int]:
        """A value that changes when there is more to draw."""
        return self._run, self._series.width, self._series.newest

    def series_of(self, run: str) -> RunSeries | None:
        """Return the metrics of a run; None if another run is followed."""
        return self._series if run == self._run else None

    def follow(self, run: RunState | None) -> None:
        """Follow the metrics of a run once its folder exists."""
        if run is None or run.name == self._run:
            return
        folder = self._directory / layout.RUNS / run.name
        if folder.is_dir():
            self.end()
            self._run = run.name
            self._series = RunSeries()
            self._stop = self._rows(folder / layout.METRICS, self._add)

    def end(self) -> None:
        """Stop following."""
        if self._stop:
            self._stop()
            self._stop = None

    def _add(self, rows: list[dict[str, Any]]) -> None:
        self._series.add(rows)
        self._changed()


class Beside:
    """Follower of the metrics of runs beside the one whose curves are drawn."""

    def __init__(self, directory: Path, rows: Rows, changed: Callable[[], None]) -> None:
        self._new = lambda: Measured(directory, rows, changed)
        self._of: dict[str, Measured] = {}

    @property
    def newest(self) -> tuple[object, ...]:
        """A value that changes when there is more to draw."""
        return tuple(run.newest for run in self._of.values() if run.rows)

    def follow(self, runs: Sequence[RunState]) -> None:
        """Follow the metrics of the runs that train, then of the latest, and of no others."""
        count = max(_MOST_BESIDE, min(sum(not run.over for run in runs), _MOST_GOING))
        latest = sorted(runs, key=lambda run: (not run.over, run.started_at))[-count:]
        chosen = {run.name: run for run in latest}
        for name in self._of.keys() - chosen.keys():
            self._of.pop(name).end()
        for name, run in chosen.items():
            self._of.setdefault(name, self._new()).follow(run)

    def speeds(self) -> list[Speeds]:
        """Return the speeds of the workers of each run that has metrics."""
        series_by_run = ((name, run.series_of(name)) for name, run in self._of.items())
        return [speeds(name, series) for name, series in series_by_run if series and series.rows]

    def end(self) -> None:
        """Stop following."""
        self.follow([])


# The forecast that a panel shows for the end of its run.


class Outlook:
    """Forecaster of one run at a time, in threads; calls `changed` when the words change.

    `call` runs a function in the follower's thread, in which everything but the forecast happens.
    """

    def __init__(
        self,
        cluster: str,
        forecasts: Forecasts,
        call: Callable[..., None],
        changed: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._forecasts = forecasts
        self._call = call
        self._changed = changed
        self._run = ""
        self._words = ""
        self._workers: frozenset[str] = frozenset()
        self._asking = False
        self._next = 0.0
        self._answered = 0.0

    def of(self, run: RunState | None) -> str:
        """Return the latest forecast of a run; empty if it does not train."""
        trains = run and run.phase == "running" and not load(run.kind, "words").is_evaluated(run)
        if run and trains and run.name == self._run:
            return self._words
        return ""

    def follow(self, run: RunState | None) -> None:
        """Start a forecast if one is due: periodically, and soon after the workers changed."""
        if run is None or run.phase != "running" or self._asking:
            return
        now = time.monotonic()
        workers = frozenset(run.workers)
        others = workers != self._workers and now >= self._answered + _YOUNG_SECONDS
        if run.name == self._run and now < self._next and not others:
            return
        if run.name != self._run:
            self._run = run.name
            self._words = ""
        self._asking = True
        self._workers = workers
        threading.Thread(
            target=self._ask, args=(run.name,), name="transient-forecast", daemon=True
        ).start()

    def _ask(self, run: str) -> None:
        began = time.monotonic()
        words = ""
        try:
            words = self._forecasts(self._cluster, run)
        finally:
            self._call(self._answer, words, time.monotonic() - began)

    def _answer(self, words: str, took: float) -> None:
        self._asking = False
        self._answered = time.monotonic()
        self._next = self._answered + max(_CALM_SECONDS if words else _YOUNG_SECONDS, _SHARE * took)
        if words != self._words:
            self._words = words
            self._changed()


def no_forecast(cluster: str, run: str) -> str:
    """Return no forecast, for clusters that are only displayed."""
    return ""
