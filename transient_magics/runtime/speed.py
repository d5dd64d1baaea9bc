"""Whether the cluster trains as fast as its workers can, and if not, what is likely to hold it up.

A worker's speed does not depend on the others until something that they share is exhausted; so the cluster is expected
to be as fast as the sum of what each worker was seen to do at best, and a gap tells of a bottleneck (S. Li, R. Walls,
T. Guo, "Characterizing and modeling distributed training with transient cloud GPU servers", ICDCS 2020, which warms up
for 30 s and takes 6.7 % for a gap; both are settings here). Speeds are examples per second, because mini-batches may
change. Seconds of waiting for others are no part of what a worker can do, but they are part of what it does.

What goes in are the workers' lines of metrics and the CPU seconds of the parameter server that hosts the chief. What
comes out is a `Slow` when the cluster falls behind, or when another reason for it has become likely, and a `Recovered`
when it is as fast as expected again. `now` is any monotonic clock's seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

LONGEST_WINDOW = 10.0
SHORTEST_WINDOW = 5.0
"""Seconds over which speeds are averaged: as long as the warm-up, within these limits. Lines of metrics come every
second, so fewer seconds would be counted too roughly."""
WINDOWS = 2
"""How many of them in a row are slow before it is said, and how many are well before it is taken back."""
BUSY = 0.85
"""The share of its cores from which on a parameter server counts as the bottleneck."""


@dataclass(frozen=True)
class Slow:
    """The cluster makes `speed` examples per second where `expected` could be.

    `bottleneck` is `worker` (named), `parameter server` (its CPU) or `network`, which is what is left.
    """

    speed: float
    expected: float
    bottleneck: str
    worker: str = ""

    @property
    def cause(self) -> str:
        """The bottleneck, by name."""
        return self.worker or self.bottleneck


@dataclass(frozen=True)
class Recovered:
    """The cluster makes `speed` examples per second where `expected` could be, after it was slow."""

    speed: float
    expected: float
    cause: ClassVar[str] = ""


@dataclass
class _Window:
    """One worker's sums since the window began."""

    steps: int = 0
    samples: int = 0
    computing: float = 0.0
    waiting: float = 0.0


class SpeedAlarm:
    """Looks at one run. `below` is the share of the expected speed that is too slow, 0 for never; `after` the seconds
    that a worker warms up; `cores` how many the parameter server has; `sync`: workers wait for each other."""

    def __init__(self, below: float, after: float, cores: int, sync: bool = False) -> None:
        self._below, self._after, self._cores, self._sync = below, after, max(cores, 1), sync
        self._window = min(max(after, SHORTEST_WINDOW), LONGEST_WINDOW)
        self._since: dict[str, float] = {}
        self._best: dict[str, float] = {}
        self._windows: dict[str, _Window] = {}
        self._began, self._cpu_began, self._looked, self._saving = 0.0, 0.0, 0.0, 0.0
        self._history: list[str] = []
        """What held up the latest windows; empty words for those that were well."""
        self._told = ""

    def heard(self, worker: str, line: Mapping[str, Any]) -> None:
        """A line of metrics of a worker, of about a second."""
        window = self._windows.setdefault(worker, _Window())
        window.steps += int(line.get("steps") or 0)
        window.samples += int(line.get("samples") or 0)
        window.computing += float(line.get("compute_seconds") or 0.0)
        window.waiting += float(line.get("wait_seconds") or 0.0)

    def look(
        self, active: Collection[str], cpu_seconds: float, now: float, disturbed: bool = False, saving: bool = False
    ) -> Slow | Recovered | None:
        """Judge the window if it is over; None if there is nothing new to tell.

        One in which training was `disturbed`, or somebody came or left, is not judged. Seconds of `saving`, which may
        stop workers for a moment, do not count: a run that saves every few seconds is judged too.
        """
        self._saving += now - self._looked if saving else 0.0
        self._looked = now
        if disturbed or set(active) != set(self._since):
            for gone in set(self._since) - set(active):
                del self._since[gone]
                self._best.pop(gone, None)
            self._begin(cpu_seconds, now)
            self._since.update({new: now for new in active if new not in self._since})
            return None
        seconds = now - self._began
        if seconds - self._saving < self._window:
            return None
        verdict = self._judge(self._warm(), seconds - self._saving, (cpu_seconds - self._cpu_began) / seconds)
        self._begin(cpu_seconds, now)
        return self._worth_telling(verdict) if verdict else None

    def _begin(self, cpu_seconds: float, now: float) -> None:
        self._windows, self._began, self._cpu_began, self._saving = {}, now, cpu_seconds, 0.0

    def _warm(self) -> dict[str, _Window]:
        """The windows of those that have warmed up. Who made no step in this one but did before stands still."""
        for name, window in self._windows.items():
            if name in self._since and window.computing and self._began - self._since[name] >= self._after:
                self._best[name] = max(self._best.get(name, 0.0), window.samples / window.computing)
        return {name: self._windows.get(name, _Window()) for name in self._best}

    def _judge(self, windows: Mapping[str, _Window], seconds: float, cpu: float) -> Slow | Recovered | None:
        """The verdict on a window of so many seconds in which the parameter server took `cpu` of a core."""
        speeds = {name: window.samples / seconds for name, window in windows.items()}
        speed, expected = sum(speeds.values()), sum(self._best[name] for name in speeds)
        if not expected:
            return None
        if speed >= self._below * expected:
            return Recovered(speed, expected)
        if worker := self._waited_for(windows) or self._fallen_behind(speeds):
            return Slow(speed, expected, "worker", worker)
        return Slow(speed, expected, "parameter server" if cpu >= BUSY * self._cores else "network")

    def _worth_telling(self, verdict: Slow | Recovered) -> Slow | Recovered | None:
        """A verdict that several windows in a row agree on and that was not told yet."""
        self._history = [*self._history, verdict.cause][-WINDOWS:]
        agreed = len(self._history) == WINDOWS and len({bool(cause) for cause in self._history}) == 1
        if not agreed or verdict.cause == self._told or (self._told and len(set(self._history)) > 1):
            return None
        self._told = verdict.cause
        return verdict

    def _waited_for(self, windows: Mapping[str, _Window]) -> str:
        """Whom the others wait for at every step; nobody where all wait, or none."""
        if not self._sync:
            return ""
        pressed = {
            name: window.computing / max(window.steps, 1)
            for name, window in windows.items()
            if window.waiting <= (1 - self._below) * (window.waiting + window.computing)
        }
        return max(pressed, key=pressed.__getitem__) if 0 < len(pressed) < len(windows) else ""

    def _fallen_behind(self, speeds: Mapping[str, float]) -> str:
        """The one without whom the others are as fast as expected."""
        if len(speeds) < 2:
            return ""
        last = min(speeds, key=lambda name: speeds[name] / self._best[name])
        others = [name for name in speeds if name != last]
        enough = self._below * sum(self._best[name] for name in others)
        return last if sum(speeds[name] for name in others) >= enough else ""
