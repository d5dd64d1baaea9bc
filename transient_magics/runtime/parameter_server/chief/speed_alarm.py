"""Whether the cluster trains as fast as its workers can, and if not, what is likely to hold it up.

A worker's speed does not depend on the others until something that they share is exhausted; so the
cluster is expected to be as fast as the sum of what each worker was seen to do at best, and a gap
tells of a bottleneck (S. Li, R. Walls, T. Guo, "Characterizing and modeling distributed training
with transient cloud GPU servers", ICDCS 2020, which warms up for 30 s and takes 6.7 % for a gap;
both are settings here). Speeds are examples per second, because mini-batches may change. Seconds of
waiting, for others or for examples, are no part of what a worker can do, but they are part of what
it does: a run whose input pipeline is too slow from its first step on is slow. So is one whose
parameter server has no CPU to spare from its first step on, if another would help much: of n
servers each does n / (n + 1) of its work then, and so long a step would wait for variables, and for
gradients to be applied.

What goes in are the workers' lines of metrics and the CPU seconds of the parameter servers. What
comes out is a `Slow` when the cluster falls behind, or when another reason for it has become
likely, and a `Recovered` when it is as fast as expected again. `now` is any monotonic clock's
seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ....protocol.measures.step_parts import StepParts, step_parts
from ..server_load import Load

LONGEST_WINDOW = 10.0
SHORTEST_WINDOW = 3.0
"""Seconds over which speeds are averaged: as long as the warm-up, within these limits."""
WINDOWS = 2
"""How many of them in a row are slow before it is said, and how many are well before it is taken
back.
"""
_SILENT = 3.0
"""Seconds, and usual steps, without a line after which a worker stands still. Lines come every
second.
"""
BUSY = 0.85
"""The share of its cores from which on a parameter server counts as the bottleneck."""

_NOTHING = StepParts()


@dataclass(frozen=True)
class Slow:
    """The cluster makes `speed` examples per second where `expected` could be.

    `bottleneck` is `worker` (named), `input pipeline`, `parameter server` (its CPU; `server` is its
    name, where there are several) or `network`, which is what is left. With so many `servers`,
    which is one more, it would make `with_servers` examples per second; 0: nothing says so.
    """

    speed: float
    expected: float
    bottleneck: str
    worker: str = ""
    server: str = ""
    servers: int = 0
    with_servers: float = 0.0

    @property
    def cause(self) -> str:
        """The bottleneck, by name."""
        return self.worker or self.server or self.bottleneck


@dataclass(frozen=True)
class Recovered:
    """The cluster makes `speed` examples per second where `expected` could be, after it was slow."""

    speed: float
    expected: float
    cause: ClassVar[str] = ""


@dataclass
class _Worker:
    """One worker: what it was seen to do, and its sums since the window began."""

    since: float
    reported: float
    """When its last line came; a line tells of the time since the one before."""
    best: float = 0.0
    """Examples per second of computing."""
    usual: float = 0.0
    """Seconds of a step, as last seen."""
    began: float = 0.0
    steps: int = 0
    samples: int = 0
    computing: float = 0.0
    waiting: float = 0.0
    parts: StepParts = _NOTHING
    traced: float = 0.0
    """Seconds of a traced step, which is counted nowhere."""

    def begin(self, now: float) -> None:
        """A window begins: with the last line, because the next one tells of all that came after
        that.
        """
        self.began = self._until(now)
        self.steps = self.samples = 0
        self.computing = self.waiting = self.traced = 0.0
        self.parts = _NOTHING

    def measure(self) -> None:
        """See what it did in the window."""
        if (busy := self.computing - self.parts.input) > 0:
            self.best = max(self.best, self.samples / busy)
            self.usual = (self.computing + self.waiting) / self.steps

    def speed(self, now: float, saving: float) -> float:
        """Examples per second in the window, of which so many seconds do not count."""
        return self.samples / max(self._until(now) - self.began - saving - self.traced, 1.0)

    def stands_still(self, now: float) -> bool:
        """It made no step for so long that one would have been due some times over."""
        return now - self.reported > max(_SILENT, _SILENT * self.usual)

    def _until(self, now: float) -> float:
        return now if self.stands_still(now) else self.reported


class SpeedAlarm:
    """Looks at one run. `below` is the share of the expected speed that is too slow, 0 for never;
    `after` the seconds that a worker warms up; `sync`: workers wait for each other.
    """

    def __init__(self, below: float, after: float, sync: bool = False) -> None:
        self._below = below
        self._after = after
        self._sync = sync
        self._window = min(max(after, SHORTEST_WINDOW), LONGEST_WINDOW)
        self._workers: dict[str, _Worker] = {}
        self._servers = dict[str, Load]()
        self._servers_before = dict[str, Load]()
        """As they were heard of last, and when the window began."""
        self._began = 0.0
        self._looked = 0.0
        self._saving = 0.0
        self._history: list[str] = []
        """What held up the latest windows; empty words for those that were well."""
        self._told = ""

    def heard(self, name: str, line: Mapping[str, Any], now: float) -> None:
        """A line of metrics of a worker, of about a second."""
        worker = self._workers.get(name)
        steps = int(line.get("steps") or 0)
        traced = float(line.get("traced_seconds") or 0.0)
        if worker is None or not steps:
            return
        worker.reported = now
        worker.steps += steps
        worker.traced += traced
        worker.samples += int(line.get("samples") or 0)
        worker.computing += float(line.get("compute_seconds") or 0.0)
        worker.waiting += float(line.get("wait_seconds") or 0.0)
        worker.parts = worker.parts.plus(step_parts(line.get("split")) or _NOTHING)

    def served(self, name: str, load: Load) -> None:
        """What a parameter server has taken so far."""
        self._servers[name] = load

    def look(
        self, active: Collection[str], now: float, disturbed: bool = False, saving: bool = False
    ) -> Slow | Recovered | None:
        """Judge the window if it is over; None if there is nothing new to tell.

        One in which training was `disturbed`, or somebody came or left, is not judged. Seconds of
        `saving`, which may stop workers for a moment, do not count: a run that saves every few
        seconds is judged too. A window lasts until everybody has made a step in it or stands still.
        """
        self._saving += now - self._looked if saving else 0.0
        self._looked = now
        if disturbed or set(active) != set(self._workers):
            self._workers = {name: self._workers.get(name) or _Worker(now, now) for name in active}
            self._begin(now)
            return None
        seconds = now - self._began
        warm = self._warm()
        reported = all(worker.steps or worker.stands_still(now) for worker in warm.values())
        if seconds - self._saving < self._window or not reported:
            return None
        for worker in warm.values():
            worker.measure()
        verdict = self._judge(warm, now)
        self._begin(now)
        if verdict:
            return self._worth_telling(verdict)
        return None

    def _begin(self, now: float) -> None:
        self._began, self._saving, self._servers_before = now, 0.0, dict(self._servers)
        for worker in self._workers.values():
            worker.begin(now)

    def _warm(self) -> dict[str, _Worker]:
        """Those that had warmed up when the window began."""
        return {
            name: worker
            for name, worker in self._workers.items()
            if self._began - worker.since >= self._after
        }

    def _judge(self, workers: Mapping[str, _Worker], now: float) -> Slow | Recovered | None:
        speeds = {
            name: worker.speed(now, self._saving) for name, worker in workers.items() if worker.best
        }
        speed = sum(speeds.values())
        expected = sum(workers[name].best for name in speeds)
        if not expected:
            return None
        server = self._busiest()
        more = 0.0
        if server:
            more = speed * self._with_one_more(workers)
        many = len(self._servers)
        of_server = Slow(
            speed,
            max(expected, more),
            "parameter server",
            server=server if many > 1 else "",
            servers=many + 1 if more else 0,
            with_servers=more,
        )
        if speed >= self._below * expected:
            if speed < self._below * more:
                return of_server
            return Recovered(speed, expected)
        if name := self._waited_for(workers) or self._fallen_behind(speeds):
            return Slow(speed, expected, "worker", name)
        if speed >= self._below * expected * (1 - self._starved(workers)):
            return Slow(speed, expected, "input pipeline")
        if server:
            return of_server
        return Slow(speed, expected, "network")

    def _starved(self, workers: Mapping[str, _Worker]) -> float:
        """The part of their time in which workers waited for examples."""
        seconds = sum(worker.computing + worker.waiting for worker in workers.values())
        if seconds:
            return min(sum(worker.parts.input for worker in workers.values()) / seconds, 1.0)
        return 0.0

    def _with_one_more(self, workers: Mapping[str, _Worker]) -> float:
        """How many times as fast workers would be if the parameter servers were one more."""
        seconds = sum(worker.parts.step for worker in workers.values())
        served = sum(worker.parts.pull + worker.parts.push for worker in workers.values())
        spared = served / (len(self._servers) + 1)
        if seconds > spared:
            return seconds / (seconds - spared)
        return 0.0

    def _busiest(self) -> str:
        """The parameter server that took the most of its cores in the window, if that was too much;
        else nothing.
        """
        shares = {
            name: load.share_since(self._servers_before.get(name, load))
            for name, load in self._servers.items()
        }
        name = max(shares, key=shares.__getitem__, default="")
        return name if shares.get(name, 0.0) >= BUSY else ""

    def _worth_telling(self, verdict: Slow | Recovered) -> Slow | Recovered | None:
        """A verdict that several windows in a row agree on and that was not told yet."""
        self._history = [*self._history, verdict.cause][-WINDOWS:]
        agreed = (
            len(self._history) == WINDOWS and len({bool(cause) for cause in self._history}) == 1
        )
        if (
            not agreed
            or verdict.cause == self._told
            or (self._told and len(set(self._history)) > 1)
        ):
            return None
        self._told = verdict.cause
        return verdict

    def _waited_for(self, workers: Mapping[str, _Worker]) -> str:
        """The worker that the others wait for at every step; none where all wait, or none does."""
        if not self._sync:
            return ""
        pressed = {
            name: worker.computing / max(worker.steps, 1)
            for name, worker in workers.items()
            if worker.waiting <= (1 - self._below) * (worker.waiting + worker.computing)
        }
        if 0 < len(pressed) < len(workers):
            return max(pressed, key=pressed.__getitem__)
        return ""

    def _fallen_behind(self, speeds: Mapping[str, float]) -> str:
        """The one without which the others are as fast as expected."""
        if len(speeds) < 2:
            return ""
        best = {name: self._workers[name].best for name in speeds}
        last = min(speeds, key=lambda name: speeds[name] / best[name])
        others = [name for name in speeds if name != last]
        enough = self._below * sum(best[name] for name in others)
        if sum(speeds[name] for name in others) >= enough:
            return last
        return ""
