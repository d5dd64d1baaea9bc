"""The metrics of the run that a panel shows, and of those beside it, as they come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...journal import RunSeries, RunState
from ...protocol import layout
from .contract import Speeds
from .curves import speeds

_MOST_GOING = 24
_MOST_BESIDE = 8
"""Of runs beside the one whose curves are drawn: those that go on, and with the latest that are
over so many.
"""

Rows = Callable[[Path, Callable[[list[dict[str, Any]]], None]], Callable[[], None]]


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
