"""How fast workers of a run are together, as measured, and how fast they are at least: pure.

A parameter server holds many workers up, so a speed grows less than the workers do: it is concave. From this the lower
bound follows without a model: of fewer workers than were measured it is their share of the measured speed, of more the
measured speed itself. The mean lies on straight lines between no worker and the sizes that were measured, for servers
hold nobody up until there are many; beyond the largest a step takes a/m + c seconds, m being the workers' speeds added
up and c the parameter servers' part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from operator import itemgetter
from statistics import NormalDist

from ..catalog import accelerator
from ..journal.deadlines import Pace
from ..protocol.machines import parse_machines

Counts = Mapping[str, int]
"""Workers by GPU."""
_FEW = 5.0
"""So many stretches of a size tell of it as much as the other sizes do."""
_YOUNG_ERROR = 0.1
"""Of one stretch, which tells nothing of how stretches differ: first quarters of CM-DARE's runs are 8 % off."""


class Speeds:
    """What `paces` of certain workers tell; `alike`: whether GPUs make no difference, as on the emulator."""

    def __init__(self, paces: Mapping[str, Pace], confidence: float, *, alike: bool = False) -> None:
        self._alike, self._deviations = alike, NormalDist().inv_cdf(confidence)
        measured = {text: pace for text, pace in paces.items() if pace.steps > 0}
        self._points = [(parse_machines(text), pace.steps / pace.seconds) for text, pace in measured.items()]
        self._errors = [_error(pace) for pace in measured.values()]
        self._sums = [self._added(workers) for workers, _ in self._points]
        self._bounds = [
            speed * max(0.0, 1 - self._deviations * error)
            for (_, speed), error in zip(self._points, self._errors, strict=True)
        ]
        self._fixed, self._each = self._fitted([pace.seconds for pace in measured.values()])
        self._line = [(0.0, 0.0)]
        for sum_, (_, speed), pace in sorted(
            zip(self._sums, self._points, measured.values(), strict=True), key=itemgetter(0)
        ):
            if sum_ > self._line[-1][0]:
                told = (pace.stretches * speed + _FEW * self._fit(sum_)) / (pace.stretches + _FEW)
                self._line.append((sum_, told))
        self._means: dict[float, float] = {}

    @property
    def known(self) -> bool:
        """Whether anything was measured."""
        return bool(self._points)

    @property
    def error(self) -> float:
        """The deviation of the speed, as a share of it."""
        return min(self._errors, default=1.0)

    def has(self, workers: Counts) -> bool:
        """Whether just these were measured."""
        return any(measured == workers for measured, _ in self._points)

    def mean(self, workers: Counts) -> float:
        """Steps per second of these together; 0 where nothing was measured."""
        added = self._added(workers)
        if not added or not self._points:
            return 0.0
        if added not in self._means:  # a decision asks for the same sizes many times
            self._means[added] = self._on_line(added)
        return self._means[added]

    def _on_line(self, added: float) -> float:
        for (before, slower), (after, faster) in pairwise(self._line):
            if added <= after:
                return slower + (faster - slower) * (added - before) / (after - before)
        most, speed = self._line[-1]
        return speed * self._fit(added) / self._fit(most)

    def least(self, workers: Counts) -> float:
        """What they make at least, with the confidence asked for. GPUs that never trained count nothing."""
        added = self._added(workers)
        bounds = (
            bound * min(1.0, added / sum_)
            for (measured, _), bound, sum_ in zip(self._points, self._bounds, self._sums, strict=True)
            if self._alike or all(measured.get(gpu) for gpu in workers)
        )
        return max(bounds, default=0.0)

    def likely(self, workers: Counts) -> float:
        """What they make at least if a step takes as long as the mean supposes, measured or not."""
        return self.mean(workers) * max(0.0, 1 - self._deviations * self.error)

    def _added(self, workers: Counts) -> float:
        """The speeds of these added up, in those of one without a GPU or of a teraflop per second."""
        if self._alike:
            return float(sum(workers.values()))
        return sum(count * _power(gpu) for gpu, count in workers.items())

    def _fit(self, added: float) -> float:
        return 1 / (self._each / added + self._fixed)

    def _fitted(self, lasted: list[float]) -> tuple[float, float]:
        """The seconds of a step that more workers do not shorten, and those that they share: least squares, each point
        by the time that it was measured for. One size of cluster does not tell them apart: all is shared then."""
        xs = [1 / each for each in self._sums]
        ys = [1 / speed for _, speed in self._points]
        if not xs:
            return 0.0, 0.0
        x, y = _mean(xs, lasted), _mean(ys, lasted)
        spread = _mean([(each - x) ** 2 for each in xs], lasted)
        both = _mean([(a - x) * (b - y) for a, b in zip(xs, ys, strict=True)], lasted)
        slope = both / spread if spread > 1e-12 * x * x else y / x
        slope = min(max(slope, 0.0), y / x)
        return y - slope * x, slope


def _error(pace: Pace) -> float:
    speed = pace.steps / pace.seconds
    varies = max(0.0, pace.squares / pace.seconds / speed**2 - 1)
    return math.sqrt((varies + _YOUNG_ERROR**2) / pace.stretches)


def _mean(values: list[float], weights: list[float]) -> float:
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / sum(weights)


@cache
def _power(gpu: str) -> float:
    return (accelerator(gpu).teraflops if gpu != "cpu" else 0.0) or 1.0
