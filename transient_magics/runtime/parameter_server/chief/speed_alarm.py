"""Whether a cluster trains as fast as its workers can, and what the bottleneck is if not. Pure.

A worker's speed does not depend on the others until something that they share is exhausted. So the
cluster should be as fast as the sum of each worker's best speed, and a gap shows a bottleneck (S.
Li, R. Walls, T. Guo, "Characterizing and modeling distributed training with transient cloud GPU
servers", ICDCS 2020; they warm up for 30 s and take 6.7 % for a gap, which are both settings here).

Speeds are examples per second, because mini-batches may change. A worker's best speed leaves out
the seconds in which it waited for others or for examples, and its actual speed includes them. So a
run whose input pipeline is too slow from its first step on is slow.

A run whose parameter server has no CPU time left from its first step on is slow too, if one more
server would help much. With one more, each of n servers has n / (n + 1) of its work, and steps wait
that much less for variables and for gradients to be applied.

The input are the workers' metrics and the CPU seconds of the parameter servers. The output is
`Slow` when the cluster falls behind or another cause becomes likely, and `Recovered` when it is as
fast as expected again. `now` is the time of any monotonic clock, in seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from ....protocol.step_parts import StepParts, step_parts
from ..server_load import Load

LONGEST_WINDOW = 10.0
SHORTEST_WINDOW = 3.0
"""Limits of the window over which speeds are averaged, in seconds; it is as long as the warm-up."""
WINDOWS = 2
"""Successive windows that must agree before `Slow` or `Recovered` is reported."""
_SILENT = 3.0
"""Seconds without metrics, and usual steps, after which a worker counts as stalled.

Metrics come every second.
"""
BUSY = 0.85
"""Least share of its cores that makes a parameter server the bottleneck."""

_NOTHING = StepParts()


@dataclass(frozen=True)
class Slow:
    """The cluster is slower than expected."""

    speed: float
    """Examples per second."""
    expected: float
    """Examples per second that the workers could compute."""
    bottleneck: str
    """`worker`, `input pipeline`, `parameter server` (its CPU), or else `network`."""
    worker: str = ""
    """Name of the slow worker."""
    server: str = ""
    """Name of the busy parameter server, if there are several."""
    servers: int = 0
    """One more than the present parameter servers, if that would help; else 0."""
    with_servers: float = 0.0
    """Examples per second with that many servers."""

    @property
    def cause(self) -> str:
        """Name of the bottleneck."""
        return self.worker or self.server or self.bottleneck


@dataclass(frozen=True)
class Recovered:
    """The cluster is as fast as expected again, in examples per second."""

    speed: float
    expected: float
    cause: ClassVar[str] = ""


@dataclass
class _Worker:
    """One worker: its best speed, and its sums since the window began."""

    since: float
    """Time at which it joined."""
    reported: float
    """Time of its last metrics, which cover the time since the ones before."""
    best: float = 0.0
    """Best speed so far, in examples per second of computing."""
    usual: float = 0.0
    """Seconds of a step in the last window."""
    began: float = 0.0
    """Start of the window."""
    steps: int = 0
    samples: int = 0
    computing: float = 0.0
    waiting: float = 0.0
    parts: StepParts = _NOTHING
    traced: float = 0.0
    """Seconds of traced steps, which no speed counts."""

    def begin(self, now: float) -> None:
        """Begin a window with the last metrics, because the next ones cover the time since then."""
        self.began = self._until(now)
        self.steps = 0
        self.samples = 0
        self.computing = 0.0
        self.waiting = 0.0
        self.traced = 0.0
        self.parts = _NOTHING

    def measure(self) -> None:
        """Update its best speed at the end of a window."""
        busy = self.computing - self.parts.input
        if busy > 0:
            self.best = max(self.best, self.samples / busy)
            self.usual = (self.computing + self.waiting) / self.steps

    def speed(self, now: float, saving: float) -> float:
        """Return its examples per second in the window, without the seconds of `saving`."""
        return self.samples / max(self._until(now) - self.began - saving - self.traced, 1.0)

    def is_stalled(self, now: float) -> bool:
        """Return whether it sent no metrics for the time of several steps."""
        return now - self.reported > max(_SILENT, _SILENT * self.usual)

    def _until(self, now: float) -> float:
        return now if self.is_stalled(now) else self.reported


class SpeedAlarm:
    """Watches the speed of one run.

    Parameters
    ----------
    below
        Share of the expected speed below which the run is slow; 0 never reports anything.
    after
        Seconds that a worker warms up.
    sync
        Whether workers wait for each other in each step.
    """

    def __init__(self, below: float, after: float, sync: bool = False) -> None:
        self._below = below
        self._after = after
        self._sync = sync
        self._window = min(max(after, SHORTEST_WINDOW), LONGEST_WINDOW)
        self._workers: dict[str, _Worker] = {}
        self._servers = dict[str, Load]()
        """Last loads of the parameter servers."""
        self._servers_before = dict[str, Load]()
        """Their loads when the window began."""
        self._began = 0.0
        self._checked_at = 0.0
        self._saving = 0.0
        """Seconds of the window in which a checkpoint was written."""
        self._history: list[str] = []
        """Causes of the last windows; "" for those that were fast."""
        self._reported = ""
        """Cause that was reported last; "" if the run is fast."""

    def add_metrics(self, name: str, line: Mapping[str, Any], now: float) -> None:
        """Add a worker's metrics of about a second."""
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

    def add_load(self, name: str, load: Load) -> None:
        """Add the load of a parameter server."""
        self._servers[name] = load

    def check(
        self, active: Collection[str], now: float, disturbed: bool = False, saving: bool = False
    ) -> Slow | Recovered | None:
        """Judge the window if it has ended; None if there is nothing new to report.

        A window lasts until each worker has made a step in it or is stalled.

        Parameters
        ----------
        active
            Names of the workers that train. If they change, the window is not judged.
        now
            The current time.
        disturbed
            Whether something else, such as an evaluation, slows training. Such a window is not
            judged.
        saving
            Whether a checkpoint is written. These seconds do not count, because workers may stop
            for a moment; so a run that saves every few seconds is still judged.
        """
        if saving:
            self._saving += now - self._checked_at
        self._checked_at = now
        if disturbed or set(active) != set(self._workers):
            self._workers = {name: self._workers.get(name) or _Worker(now, now) for name in active}
            self._begin(now)
            return None
        seconds = now - self._began
        warm = self._warm()
        reported = all(worker.steps or worker.is_stalled(now) for worker in warm.values())
        if seconds - self._saving < self._window or not reported:
            return None
        for worker in warm.values():
            worker.measure()
        verdict = self._judge(warm, now)
        self._begin(now)
        if verdict:
            return self._if_new(verdict)
        return None

    def _begin(self, now: float) -> None:
        self._began = now
        self._saving = 0.0
        self._servers_before = dict(self._servers)
        for worker in self._workers.values():
            worker.begin(now)

    def _warm(self) -> dict[str, _Worker]:
        """Return the workers that had warmed up when the window began."""
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
        more = 0.0  # speed with one more parameter server
        if server:
            more = speed * self._with_one_more(workers)
        count = len(self._servers)
        server_busy = Slow(
            speed,
            max(expected, more),
            "parameter server",
            server=server if count > 1 else "",
            servers=count + 1 if more else 0,
            with_servers=more,
        )
        if speed >= self._below * expected:
            if speed < self._below * more:
                return server_busy
            return Recovered(speed, expected)
        if name := self._waited_for(workers) or self._fallen_behind(speeds):
            return Slow(speed, expected, "worker", name)
        if speed >= self._below * expected * (1 - self._starved(workers)):
            return Slow(speed, expected, "input pipeline")
        if server:
            return server_busy
        return Slow(speed, expected, "network")

    def _starved(self, workers: Mapping[str, _Worker]) -> float:
        """Return the share of their time in which workers waited for examples."""
        seconds = sum(worker.computing + worker.waiting for worker in workers.values())
        if seconds:
            return min(sum(worker.parts.input for worker in workers.values()) / seconds, 1.0)
        return 0.0

    def _with_one_more(self, workers: Mapping[str, _Worker]) -> float:
        """Return how many times as fast workers would be with one more parameter server."""
        seconds = sum(worker.parts.step for worker in workers.values())
        served = sum(worker.parts.pull + worker.parts.push for worker in workers.values())
        spared = served / (len(self._servers) + 1)
        if seconds > spared:
            return seconds / (seconds - spared)
        return 0.0

    def _busiest(self) -> str:
        """Return the parameter server that used the largest share of its cores, if it was busy."""
        shares = {
            name: load.share_since(self._servers_before.get(name, load))
            for name, load in self._servers.items()
        }
        name = max(shares, key=shares.__getitem__, default="")
        return name if shares.get(name, 0.0) >= BUSY else ""

    def _if_new(self, verdict: Slow | Recovered) -> Slow | Recovered | None:
        """Return the verdict if successive windows agree on it and it was not reported yet."""
        self._history = [*self._history, verdict.cause][-WINDOWS:]
        if len(self._history) < WINDOWS:
            return None
        slow = {bool(cause) for cause in self._history}
        if len(slow) > 1 or verdict.cause == self._reported:
            return None
        if self._reported and len(set(self._history)) > 1:
            return None  # slow before and now, but the windows differ about the cause
        self._reported = verdict.cause
        return verdict

    def _waited_for(self, workers: Mapping[str, _Worker]) -> str:
        """Return the worker that the others wait for in each step; "" if all wait, or none does."""
        if not self._sync:
            return ""
        busy = {
            name: worker.computing / max(worker.steps, 1)
            for name, worker in workers.items()
            if worker.waiting <= (1 - self._below) * (worker.waiting + worker.computing)
        }
        if 0 < len(busy) < len(workers):
            return max(busy, key=busy.__getitem__)
        return ""

    def _fallen_behind(self, speeds: Mapping[str, float]) -> str:
        """Return the worker without which the others are as fast as expected; "" if none is."""
        if len(speeds) < 2:
            return ""
        best = {name: self._workers[name].best for name in speeds}
        last = min(speeds, key=lambda name: speeds[name] / best[name])
        others = [name for name in speeds if name != last]
        enough = self._below * sum(best[name] for name in others)
        if sum(speeds[name] for name in others) >= enough:
            return last
        return ""
