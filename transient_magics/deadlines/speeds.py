"""How fast workers of a run are together, as measured, and how fast they are at least: pure.

A parameter server holds many workers up, so a speed grows less than the workers do: it is concave. From this the lower
bound follows without a model: of fewer workers than were measured it is their share of the measured speed, of more the
measured speed itself. The mean lies on straight lines between no worker and the sizes that were measured, for servers
hold nobody up until there are many; beyond the largest a step takes a/m + c seconds, m being the workers' speeds added
up and c the parameter servers' part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import copy
from functools import cache
from itertools import pairwise
from operator import itemgetter
from statistics import NormalDist

from ..catalog import accelerator
from ..journal.deadlines import Block
from .history import Point, history

Counts = Mapping[str, int]
"""Workers by GPU."""
LEAST_ERROR = 0.02
"""The least error of a speed, however long it was measured: no run is steadier than that for hours."""
_FEW = 25.0  # seconds of a size that count as much as the other sizes do
_YOUNG_ERROR, _YOUNG = 0.1, 5.0  # in the first so many seconds: first quarters of CM-DARE's runs are 8 % off


class Speeds:
    """The speed of a run's workers, from the blocks of its progress.

    Parameters
    ----------
    blocks : sequence of Block
        Oldest first.
    confidence : float
        Of the lower bounds, between 0.5 and 1.
    alike : bool
        Whether GPUs make no difference, as on the emulator.
    rate : float
        How many times the cloud's clock outpaces the one of the blocks.
    """

    def __init__(
        self, blocks: Sequence[Block], confidence: float, *, alike: bool = False, rate: float = 1.0
    ) -> None:  # fmt: skip
        self._alike, self._deviations = alike, NormalDist().inv_cdf(confidence)
        self._points, self._noise = history(tuple(blocks), rate)
        self._sums = [self._added(point.workers) for point in self._points]
        self._fixed, self._each = self._fitted([point.seconds for point in self._points])
        self._line = [(0.0, 0.0)]
        for sum_, point in sorted(zip(self._sums, self._points, strict=True), key=itemgetter(0)):
            if sum_ > self._line[-1][0]:
                few = _FEW / rate
                speed = (point.seconds * point.speed + few * self._fit(sum_)) / (point.seconds + few)
                self._line.append((sum_, speed))
        self._means: dict[float, float] = {}
        self._leasts: dict[tuple[tuple[str, int], ...], float] = {}
        self._rate, self._factor = rate, 1.0
        self._servers = 0.0  # their share of a step of the smallest size that was measured
        self._own = [self._noise.variance(point.seconds * rate) + self._young(point) for point in self._points]

    @property
    def known(self) -> bool:
        """Whether anything was measured."""
        return bool(self._points)

    def error(self, workers: Counts) -> float:
        """The standard deviation of the logarithmic speed of such workers on other VMs, for the rest of the run."""
        if not self._points:
            return 1.0
        vms = max(sum(workers.values()), 1)
        own = min(
            own + self._noise.between**2 * (1 / point.vms + 1 / vms)
            for own, point in zip(self._own, self._points, strict=True)
        )
        return max(math.sqrt(own), LEAST_ERROR)

    def drift(self, rest: float = math.inf) -> float:
        """Return the standard deviation of the logarithmic speed of the VMs that were measured, in `rest` seconds."""
        if not self._points:
            return 1.0
        point = self._surest
        ahead = self._noise.ahead(point.seconds * self._rate, rest * self._rate)
        return max(math.sqrt(ahead + self._young(point)), LEAST_ERROR)

    @property
    def vms(self) -> int:
        """How many VMs the speed was measured of."""
        return self._surest.vms if self._points else 0

    @property
    def _surest(self) -> Point:
        return self._points[min(range(len(self._points)), key=self._own.__getitem__)]

    @property
    def differ(self) -> float:
        """The standard deviation of VMs' logarithmic speeds."""
        return self._noise.between

    def scaled(self, factor: float, held: float = 0.0) -> Speeds:
        """Return these speeds times `factor`.

        `held`: each worker makes the steps of the others longer by this share, beside the smallest size that was
        measured. It says how fast fewer workers are, and more where no other size was measured.
        """
        found = copy(self)
        found._factor = self._factor * factor
        if held:
            _, smallest = min(zip(self._sums, self._points, strict=True), key=itemgetter(0))
            fewest = sum(smallest.workers.values())
            found._servers = held * fewest / (1 - held + held * fewest)
        found._means, found._leasts = {}, {}
        return found

    def has(self, workers: Counts) -> bool:
        """Whether just these were measured."""
        return any(point.workers == workers for point in self._points)

    def mean(self, workers: Counts) -> float:
        """Steps per second of these together; 0 where nothing was measured."""
        added = self._added(workers)
        if not added or not self._points:
            return 0.0
        if added not in self._means:  # a decision asks for the same sizes many times
            self._means[added] = self._factor * self._on_line(added)
        return self._means[added]

    def _on_line(self, added: float) -> float:
        least, slowest = self._line[1]
        if added <= least or len(self._line) == 2:
            return slowest / ((1 - self._servers) * least / added + self._servers)
        for (before, slower), (after, faster) in pairwise(self._line):
            if added <= after:
                return slower + (faster - slower) * (added - before) / (after - before)
        most, speed = self._line[-1]
        return speed * self._fit(added) / self._fit(most)

    def least(self, workers: Counts) -> float:
        """What they make at least, with the confidence asked for. GPUs that never trained count nothing."""
        key = tuple(workers.items())
        if key not in self._leasts:
            self._leasts[key] = self._factor * self._least(workers)
        return self._leasts[key]

    def _least(self, workers: Counts) -> float:
        added, vms = self._added(workers), max(sum(workers.values()), 1)
        bounds = (
            point.speed * min(1.0, added / sum_) * self._lower(own + self._noise.between**2 * (1 / point.vms + 1 / vms))
            for point, own, sum_ in zip(self._points, self._own, self._sums, strict=True)
            if self._alike or all(point.workers.get(gpu) for gpu in workers)
        )
        return max(bounds, default=0.0)

    def likely(self, workers: Counts) -> float:
        """What they make at least if a step takes as long as the mean supposes, measured or not."""
        return self.mean(workers) * math.exp(-self._deviations * self.error(workers))

    def _lower(self, variance: float) -> float:
        return math.exp(-self._deviations * max(math.sqrt(variance), LEAST_ERROR))

    def _young(self, point: Point) -> float:
        return _YOUNG_ERROR**2 / (1 + point.seconds * self._rate / _YOUNG)

    def _added(self, workers: Counts) -> float:
        """The speeds of these added up, in those of one without a GPU or of a teraflop per second."""
        added = 0.0
        for gpu, count in workers.items():  # no generator: simulated courses spend most of their time here
            added += count if self._alike else count * _power(gpu)
        return added

    def _fit(self, added: float) -> float:
        return 1 / (self._each / added + self._fixed)

    def _fitted(self, lasted: list[float]) -> tuple[float, float]:
        """The seconds of a step that more workers do not shorten, and those that they share: least squares, each point
        by the time that it was measured for. One size of cluster does not tell them apart: all is shared then."""
        xs = [1 / each for each in self._sums]
        ys = [1 / point.speed for point in self._points]
        if not xs:
            return 0.0, 0.0
        x, y = _mean(xs, lasted), _mean(ys, lasted)
        spread = _mean([(each - x) ** 2 for each in xs], lasted)
        both = _mean([(a - x) * (b - y) for a, b in zip(xs, ys, strict=True)], lasted)
        slope = both / spread if spread > 1e-12 * x * x else y / x
        slope = min(max(slope, 0.0), y / x)
        return y - slope * x, slope


def _mean(values: list[float], weights: list[float]) -> float:
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / sum(weights)


@cache
def _power(gpu: str) -> float:
    return (accelerator(gpu).teraflops if gpu != "cpu" else 0.0) or 1.0
