"""The metrics of the run that a panel shows, and of those beside it, as they come."""

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
"""Of runs beside the one whose curves are drawn: those that go on, and with the latest that are
over so many.
"""

Rows = Callable[[Path, Callable[[list[dict[str, Any]]], None]], Callable[[], None]]

Forecasts = Callable[[str, str], str]
"""How a run of a cluster ends, in words; nothing where that cannot be told. May take seconds."""
_CALM_SECONDS = 15.0
_YOUNG_SECONDS = 5.0
_SHARE = 20.0
"""After a forecast nobody asks for so many times as long as it took."""


class Measured:
    """Follows the metrics of one run at a time, and tells `changed` of what is new.

    `directory` is the cluster's, `rows` what follows a file (`Follower.rows`).
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
        """How many lines were added."""
        return self._series.rows

    @property
    def newest(self) -> tuple[str, float, int]:
        """What is another when there is more to draw."""
        return self._run, self._series.width, self._series.newest

    def series_of(self, run: str) -> RunSeries | None:
        """What is known of `run`; None where that is another one."""
        return self._series if run == self._run else None

    def follow(self, run: RunState | None) -> None:
        """See that the metrics of `run` are followed, once its folder is there."""
        if run is None or run.name == self._run:
            return
        folder = self._directory / layout.RUNS / run.name
        if folder.is_dir():
            self.end()
            self._run = run.name
            self._series = RunSeries()
            self._stop = self._rows(folder / layout.METRICS, self._add)

    def end(self) -> None:
        """Follow nothing any more."""
        if self._stop:
            self._stop()
            self._stop = None

    def _add(self, rows: list[dict[str, Any]]) -> None:
        self._series.add(rows)
        self._changed()


class Beside:
    """Follows the metrics of the runs that train, or did, beside the one whose curves are drawn."""

    def __init__(self, directory: Path, rows: Rows, changed: Callable[[], None]) -> None:
        self._new = lambda: Measured(directory, rows, changed)
        self._of: dict[str, Measured] = {}

    @property
    def newest(self) -> tuple[object, ...]:
        """What is another when there is more to draw."""
        return tuple(each.newest for each in self._of.values() if each.rows)

    def follow(self, runs: Sequence[RunState]) -> None:
        """See that the metrics of those of these runs are followed that go on, then of the latest,
        and no others.
        """
        many = max(_MOST_BESIDE, min(sum(not run.over for run in runs), _MOST_GOING))
        latest = sorted(runs, key=lambda run: (not run.over, run.started_at))[-many:]
        wanted = {run.name: run for run in latest}
        for name in self._of.keys() - wanted.keys():
            self._of.pop(name).end()
        for name, run in wanted.items():
            self._of.setdefault(name, self._new()).follow(run)

    def speeds(self) -> list[Speeds]:
        """The speeds of their workers, of each run that has told some."""
        known = ((name, each.series_of(name)) for name, each in self._of.items())
        return [speeds(name, series) for name, series in known if series and series.rows]

    def end(self) -> None:
        """Follow nothing any more."""
        self.follow([])


# What a panel says of how the run that it shows will end.


class Outlook:
    """Asks for forecasts of one run at a time in threads of their own, and tells `changed` of
    another answer.

    `call` has the follower's thread call something; everything here but the asking happens in that
    thread.
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
        """What was told of the run last; nothing where it does not train, or not any more."""
        trains = run and run.phase == "running" and not load(run.kind, "words").is_evaluated(run)
        if run and trains and run.name == self._run:
            return self._words
        return ""

    def follow(self, run: RunState | None) -> None:
        """Ask again where it is time to: now and then, and soon where there are other workers."""
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
            self._call(self._told, words, time.monotonic() - began)

    def _told(self, words: str, took: float) -> None:
        self._asking = False
        self._answered = time.monotonic()
        self._next = self._answered + max(_CALM_SECONDS if words else _YOUNG_SECONDS, _SHARE * took)
        if words != self._words:
            self._words = words
            self._changed()


def no_forecast(cluster: str, run: str) -> str:
    """The forecasts of clusters that are only told of."""
    return ""
