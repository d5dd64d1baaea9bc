"""Chart data of a run's metrics: averages over equal time spans, in limited number.

Metrics lines (`metrics.py`) go in, and columns of at most POINTS values come out. A span lasts two
seconds at first. Its width doubles when there would be too many spans, so memory use is the same
after a minute and after a month.

The expected speed of the cluster is estimated as in `train.slow`. Each worker counts with its best
speed in ten seconds after its warm-up, and the cluster with the sum (S. Li, R. Walls, T. Guo,
"Characterizing and modeling distributed training with transient cloud GPU servers", ICDCS 2020).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from statistics import median
from typing import Any, NamedTuple

from ..protocol.step_parts import StepParts, step_parts
from .metrics import GRADIENTS, SERVER_SHARE

POINTS = 360
WARM_UP_SECONDS = 30.0
WINDOW_SECONDS = 10.0
LATELY_SECONDS = 30.0
"""The period for the recent time of steps, while a run trains."""
_FIRST_WIDTH = 2.0
_LONGEST_ROW = 5.0  # A longer interval is a gap, or lines were skipped.
_NAMED = 64
_MOST_LATELY = 2**15
"""Maximum number of lines kept for the recent period, whatever their times."""
_LEAST = 1e-9
_SCRAP = 0.25


@dataclass(slots=True)
class _Sums:
    """Sums of one worker in one span."""

    rows: int = 0
    seconds: float = 0.0
    step: int = 0
    steps: float = 0.0
    loss: float = 0.0
    losses: int = 0
    batch: float = 0.0
    staleness: float = 0.0
    squared: float = 0.0
    signal: float = 0.0
    noise: float = 0.0
    estimates: int = 0

    def add(self, other: _Sums) -> None:
        self.step = max(self.step, other.step)
        for name in _ADDED:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def speed(self, seen: float) -> float:
        """Return the steps per second over the `seen` seconds.

        A worker that was present for most of them counts as present for all of them.
        """
        if self.seconds <= 0:
            return 0.0
        present = self.seconds / seen
        return self.steps / self.seconds * (1.0 if present > 0.4 else present)


class Spent(NamedTuple):
    """Time of a worker: number of steps, sum of their parts, and load of the parameter servers.

    `shares` is the sum of the busiest parameter server's CPU share, over the `lines` that report
    it.
    """

    steps: float = 0.0
    parts: StepParts = StepParts()
    shares: float = 0.0
    lines: int = 0

    def plus(self, other: Spent) -> Spent:
        """Return the sum of both."""
        return Spent(
            self.steps + other.steps,
            self.parts.plus(other.parts),
            self.shares + other.shares,
            self.lines + other.lines,
        )


_ADDED = tuple(field.name for field in fields(_Sums) if field.name != "step")


@dataclass(slots=True)
class _Pace:
    """The best speed of a worker, in examples per second of computing."""

    since: float
    seen: float = 0.0
    began: float = 0.0
    samples: float = 0.0
    computing: float = 0.0
    best: float = 0.0

    def add(self, at: float, samples: float, computing: float) -> None:
        self.seen = at
        if at - self.since < WARM_UP_SECONDS:
            return
        self.began = self.began or at
        self.samples = self.samples + samples
        self.computing = self.computing + computing
        if at - self.began >= WINDOW_SECONDS:
            if self.computing > 0:
                self.best = max(self.best, self.samples / self.computing)
            self.began = at
            self.samples = 0.0
            self.computing = 0.0


@dataclass
class RunSeries:
    """Metrics of one run. Times in seconds since 1970, speeds in steps per second."""

    width: float = _FIRST_WIDTH
    rows: int = 0
    """Number of lines that were added."""
    _spans: dict[int, dict[str, _Sums]] = field(default_factory=dict[int, dict[str, _Sums]])
    _paces: dict[str, _Pace] = field(default_factory=dict[str, _Pace])
    _spent: dict[str, Spent] = field(default_factory=dict[str, Spent])
    _lately: deque[tuple[float, str, Spent]] = field(
        default_factory=lambda: deque[tuple[float, str, Spent]](maxlen=_MOST_LATELY)
    )

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add metrics lines; a line without its time, worker or steps is skipped."""
        for row in rows:
            try:
                self._add(row)
            except (KeyError, TypeError, ValueError):
                continue  # The line is of another version, and the panel can do without it.
        while len(self._spans) > POINTS:
            self._widen()

    @property
    def newest(self) -> int:
        """The number of the unfinished span; `columns` change only when it changes."""
        return max(self._spans, default=0)

    def _add(self, row: Mapping[str, Any]) -> None:
        at = float(row["time"]) / 1e9
        worker = str(row["worker"])
        steps = float(row["steps"])
        computing = float(row.get("compute_seconds") or 0.0)
        waiting = float(row.get("wait_seconds") or 0.0)
        batch = float(row.get("batch_size") or 0.0)
        loss = row.get("loss")
        pace = self._paces.get(worker)
        if pace:
            since = at - pace.seen - float(row.get("traced_seconds") or 0.0)
        else:
            since = 0.0
        if pace is None:
            worker = self._named(worker)
            pace = self._paces.setdefault(worker, _Pace(at))
        if 0 < since < _LONGEST_ROW:
            seconds = since
        else:
            seconds = computing + waiting
        pace.add(at, float(row.get("samples") or 0.0), computing)
        new = _Sums(1, seconds, int(row.get("step") or 0), steps)
        new.batch = batch
        new.staleness = float(row.get("staleness") or 0.0)
        if loss is not None:
            new.loss = float(loss)
            new.losses = 1
        if row.get(GRADIENTS[0]) is not None:
            new.squared, new.signal, new.noise = (float(row[name]) for name in GRADIENTS)
            new.estimates = 1
        self.rows += 1
        self._spend(at, worker, steps, row)
        span = self._spans.setdefault(int(at // self.width), {})
        if worker in span:
            span[worker].add(new)
        else:
            span[worker] = new

    def _spend(self, at: float, worker: str, steps: float, row: Mapping[str, Any]) -> None:
        if (parts := step_parts(row.get("split"))) is None or not worker:
            return
        share = row.get(SERVER_SHARE)
        spent = Spent(steps, parts, float(share or 0.0), int(share is not None))
        self._spent[worker] = self._spent.get(worker, Spent()).plus(spent)
        if len(self._spent) > _NAMED:
            del self._spent[next(iter(self._spent))]
        self._lately.append((at, worker, spent))
        while self._lately[0][0] < at - LATELY_SECONDS:
            self._lately.popleft()

    def spent(self, *, whole: bool = False) -> dict[str, Spent]:
        """Return the time of each worker that stepped recently.

        `whole`: of all workers, for the whole run.
        """
        if whole:
            return dict(self._spent)
        found: dict[str, Spent] = {}
        for _, worker, time_spent in self._lately:
            found[worker] = found.get(worker, Spent()).plus(time_spent)
        return found

    def _named(self, worker: str) -> str:
        """Return the worker's name, or "" for workers beyond the maximum number of names."""
        if len(self._paces) >= _NAMED:
            longest = min(self._paces, key=lambda name: self._paces[name].seen)
            newest = max(pace.seen for pace in self._paces.values())
            if newest - self._paces[longest].seen < 600:
                return ""
            del self._paces[longest]
        return worker

    def _widen(self) -> None:
        self.width *= 2
        wider: dict[int, dict[str, _Sums]] = {}
        for number, span in self._spans.items():
            into = wider.setdefault(number // 2, {})
            for worker, sums in span.items():
                if worker in into:
                    into[worker].add(sums)
                else:
                    into[worker] = sums
        self._spans = wider

    def columns(self, *, whole: bool = False) -> dict[str, Any]:
        """Return the columns of the chart, all of the same length, None where data is missing.

        The keys are `time`, `step`, `loss`, `speed`, `expected` (of the whole cluster),
        `gradient_squared`, `noise_scale`, and `workers`: speed, batch and staleness of each.
        `unnamed` is true if there were too many workers to name. The unfinished span is left out
        (unless the run is over: `whole`), and so are spans with too little data.
        """
        lengths = {number: _seen(self._spans[number]) for number in sorted(self._spans)}
        if len(lengths) > 2 and not whole:
            del lengths[max(lengths)]
        if lengths:
            enough = _SCRAP * median(lengths.values())
        else:
            enough = 0.0
        numbers = [number for number, seconds in lengths.items() if seconds >= enough]
        spans = [self._spans[number] for number in numbers]
        both = [(self._spans[number], lengths[number]) for number in numbers]
        names = sorted({name for span in spans for name in span if name})
        return {
            "width": self.width,
            "unnamed": any("" in span for span in spans),
            "time": [(number + 0.5) * self.width for number in numbers],
            "step": [max(sums.step for sums in span.values()) for span in spans],
            "loss": [_mean(span.values(), "loss", "losses") for span in spans],
            "speed": [
                _short(sum(sums.speed(seconds) for sums in span.values())) for span, seconds in both
            ],
            "expected": [self._expected(span) for span in spans],
            "gradient_squared": [_mean(span.values(), "squared", "estimates") for span in spans],
            "noise_scale": [_noise_scale(span.values()) for span in spans],
            "workers": {
                name: {
                    "speed": [
                        _short(span[name].speed(seconds)) if name in span else None
                        for span, seconds in both
                    ],
                    "batch": [
                        _mean([span[name]], "batch", "rows") if name in span else None
                        for span in spans
                    ],
                    "staleness": [
                        _mean([span[name]], "staleness", "rows") if name in span else None
                        for span in spans
                    ],
                }
                for name in names
            },
        }

    def _expected(self, span: Mapping[str, _Sums]) -> float | None:
        total = 0.0
        for name, sums in span.items():
            pace = self._paces.get(name)
            if pace is None or pace.best <= 0 or sums.batch <= _LEAST:
                return None
            total += pace.best / (sums.batch / sums.rows)
        return _short(total)


def _seen(span: Mapping[str, _Sums]) -> float:
    """Return the number of seconds of a span for which there are lines."""
    return max(sums.seconds for sums in span.values()) or 1.0


def _mean(sums: Iterable[_Sums], what: str, of: str) -> float | None:
    sums = list(sums)
    many = sum(getattr(worker_sums, of) for worker_sums in sums)
    if many:
        return _short(sum(getattr(worker_sums, what) for worker_sums in sums) / many)
    return None


def _noise_scale(sums: Iterable[_Sums]) -> float | None:
    """Return the noise scale of a span's sums, in examples.

    None if it was not measured, or if the noise exceeds the gradient.
    """
    sums = list(sums)
    signal = sum(worker_sums.signal for worker_sums in sums)
    if signal > 0:
        return _short(max(sum(worker_sums.noise for worker_sums in sums), 0.0) / signal)
    return None


def _short(value: float) -> float:
    """Return the value with five significant digits, so that messages stay small."""
    return float(f"{value:.5g}")
