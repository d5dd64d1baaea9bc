"""The common parts of the rows of `bench_calibration.py`: trials, rows, worlds, best intervals, and courses of runs.

Each `_calibration_*.py` holds the rows of one part in its `ROWS`. A trial measures something in a simulated world, asks
the product for its 90 % interval, and draws what comes. Trials of a row are seeded by its name and their number, so
that a row gives the same figures wherever it runs, and after others are added.
"""

from __future__ import annotations

import importlib
import math
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path
from zlib import crc32

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from transient_magics.planner.run_records import Observation, Record
from transient_magics.planner.speeds.throughput import capacity, cluster_speed, worker_speed
from transient_magics.planner.speeds.workloads import Workload

Array = NDArray[np.float64]

LEVEL = 0.9
COVERAGE = (0.85, 0.95)
MOST_WIDTH = 1.5
CORRELATED_HOURS = (30 / 3600, 10 / 60, 0.5, 2.0)
ABSENT_HOURS = 4 / 60
"""Hours from a revocation until the replacement trains."""
_GRID_HOURS = 2 / 60
_WARM_UP_HOURS, _PART_HOURS, _MOST_PARTS, _SHORTEST_HOURS = 5 / 3600, 30 / 3600, 4, 10 / 3600
"""Limits by which `planner.run_records` divides stretches into observations."""


@dataclass(frozen=True)
class Trial:
    """The interval from `low` to `high` that a user sees, and what `came`.

    `best`: the middle 90 % of the predictive distribution given the same measurements, for one who knows the laws of
    the world; None where it is not computed.
    """

    low: float
    high: float
    came: float
    best: tuple[float, float] | None = None


@dataclass(frozen=True)
class Row:
    """An interval of the product, by what was measured before. A trial is None where the product shows none.

    `target`: whether the goals apply to it; a row of one noise level, or of a guess, is reported without them.
    """

    interval: str
    measured: str
    trial: Callable[[np.random.Generator], Trial | None]
    trials: int = 400
    target: bool = True

    @property
    def name(self) -> str:
        return f"{self.interval}: {self.measured}"


@dataclass(frozen=True)
class Result:
    """The summary of a row's trials. `best_coverage` and `best_width`: of the best interval; None without one."""

    interval: str
    measured: str
    trials: int
    shown: int
    coverage: float
    below: float
    """The share of trials in which less came than the interval's low end."""
    above: float
    width: float
    best_coverage: float | None
    best_width: float | None
    target: bool

    @property
    def error(self) -> float:
        """The standard error of the coverage."""
        return math.sqrt(max(self.coverage * (1 - self.coverage), 1e-4) / max(self.shown, 1))

    @property
    def ratio(self) -> float | None:
        """The median width over that of the best interval."""
        return self.width / self.best_width if self.best_width else None

    @property
    def holds(self) -> bool | None:
        """Whether the goals are met; None where they do not apply."""
        if not self.target or not self.shown:
            return None
        covers = COVERAGE[0] <= round(self.coverage, 6) <= COVERAGE[1]
        return covers and (self.ratio is None or self.ratio <= MOST_WIDTH)

    def to_dict(self) -> dict[str, object]:
        return {**asdict(self), "error": self.error, "ratio": self.ratio, "holds": self.holds}

    def __str__(self) -> str:
        name = f"{self.interval}: {self.measured}"
        if not self.shown:
            return f"{name:76} no interval shown"
        best = "" if self.best_coverage is None else f"best holds {self.best_coverage:.0%}"
        ratio = "    -" if self.ratio is None else f"{self.ratio:5.2f}"
        verdict = {True: "holds", False: "MISSES", None: "no target"}[self.holds]
        shown = f"{self.shown / self.trials:4.0%}"
        return (
            f"{name:76} {self.coverage:6.1%} ± {self.error:4.1%} (below {self.below:5.1%}, above {self.above:5.1%})  "
            f"width {self.width:8.3g}  ratio {ratio}  shown {shown}  {verdict:9}  {best}".rstrip()
        )


def run(row: Row, trials: int | None = None) -> Result:
    """All trials of a row, or fewer."""
    return summary(row, drawn(row, 0, trials or row.trials))


def drawn(row: Row, first: int, end: int) -> list[Trial | None]:
    """The trials of a row with the numbers from `first` to before `end`."""
    seed = crc32(row.name.encode())
    return [row.trial(np.random.default_rng([seed, number])) for number in range(first, end)]


def summary(row: Row, trials: Sequence[Trial | None]) -> Result:
    """Summarize these trials of a row."""
    count, shown = len(trials), [trial for trial in trials if trial is not None]
    low, high, came = (np.array([getattr(trial, name) for trial in shown]) for name in ("low", "high", "came"))
    best = np.array([trial.best for trial in shown if trial.best is not None]).reshape(-1, 2)
    known = np.array([trial.came for trial in shown if trial.best is not None])
    below, above = (float(np.mean(out)) if shown else math.nan for out in (came < low, came > high))
    return Result(
        interval=row.interval, measured=row.measured, trials=count, shown=len(shown),
        coverage=1 - below - above, below=below, above=above,
        width=float(np.median(high - low)) if shown else math.nan,
        best_coverage=float(np.mean((best[:, 0] <= known) & (known <= best[:, 1]))) if len(best) else None,
        best_width=float(np.median(best[:, 1] - best[:, 0])) if len(best) else None,
        target=row.target,
    )  # fmt: skip


def modules() -> list[str]:
    """The names of the modules that hold rows."""
    found = pkgutil.iter_modules([str(Path(__file__).parent)])
    return sorted(module.name for module in found if module.name.startswith("_calibration_"))


def rows() -> Iterator[tuple[str, int, Row]]:
    """All rows: the module, the place in its `ROWS`, the row."""
    for module in modules():
        for place, row in enumerate(importlib.import_module(module).ROWS):
            yield module, place, row


def drawn_of(module: str, place: int, first: int, end: int) -> list[Trial | None]:
    """These trials of the row at that place of a module: what another process can be asked for."""
    return drawn(importlib.import_module(module).ROWS[place], first, end)


@dataclass(frozen=True)
class World:
    """The variation of log speeds in one world, which estimators do not know. All but `hours` are standard deviations.

    `run`: between runs. `vm`: between VMs. `noise`: in time, of an AR(1) process whose correlation falls to 1/e within
    `hours`.
    """

    run: float
    vm: float
    noise: float
    hours: float

    @classmethod
    def draw(cls, random: np.random.Generator) -> World:
        """One of the worlds that the targets are about."""
        return cls(
            float(random.uniform(0.02, 0.06)), float(random.uniform(0.01, 0.05)), float(random.uniform(0.01, 0.05)),
            float(random.choice(CORRELATED_HOURS)),
        )  # fmt: skip

    def run_effect(self, random: np.random.Generator) -> float:
        """The log of how much faster one run is than the usual one."""
        return self.run * float(random.normal())

    def vm_effects(self, random: np.random.Generator, count: int) -> Array:
        """The logs of how much faster these VMs are than the usual one."""
        return self.vm * random.normal(size=count)

    def noise_at(self, random: np.random.Generator, hours: ArrayLike) -> Array:
        """The AR(1) process at these moments, which do not decrease."""
        at = np.asarray(hours, float)
        kept = np.exp(-np.diff(at, prepend=at[:1]) / self.hours)
        fresh = random.normal(size=len(at))
        values = np.empty(len(at))
        last = fresh[0] if len(at) else 0.0
        for place in range(len(at)):
            last = kept[place] * last + math.sqrt(1 - kept[place] ** 2) * fresh[place] if place else last
            values[place] = last
        return self.noise * values

    def mean_noise(self, random: np.random.Generator, begin: ArrayLike, end: ArrayLike) -> Array:
        """The means of the AR(1) process over these stretches of one run, which do not overlap (hours)."""
        covariance = mean_correlation(begin, end, self.hours)
        factor = np.linalg.cholesky(covariance + 1e-10 * np.eye(len(covariance)))
        return self.noise * (factor @ random.normal(size=len(covariance)))


def mean_correlation(begin: ArrayLike, end: ArrayLike, hours: float) -> Array:
    """The covariance of means over stretches of an AR(1) process in continuous time with the variance 1.

    Integrals of exp(-|s - t| / hours) over two stretches; these are in order of time and do not overlap. Shape (n, n).
    """
    start, stop = np.asarray(begin, float), np.asarray(end, float)
    lengths = (stop - start) / hours
    apart = np.maximum(start[np.newaxis, :] - stop[:, np.newaxis], 0.0) / hours
    each = -np.expm1(-lengths) / lengths
    upper = np.triu(np.exp(-apart) * each[:, np.newaxis] * each[np.newaxis, :], 1)
    alone = 2 * (1 - each) / lengths
    return upper + upper.T + np.diag(alone)


@cache
def worlds(count: int = 128) -> tuple[World, ...]:
    """Worlds evenly spread over their law: by them `best` is computed."""
    from scipy.stats import qmc

    places = qmc.Sobol(3, seed=0).random(count // len(CORRELATED_HOURS))
    return tuple(
        World(0.02 + 0.04 * run, 0.01 + 0.04 * vm, 0.01 + 0.04 * noise, hours)
        for run, vm, noise in places.tolist() for hours in CORRELATED_HOURS
    )  # fmt: skip


@dataclass(frozen=True)
class Gaussian:
    """A mixture of normal distributions, one for each world that may be: `weights`, `means`, `deviations`."""

    weights: Array
    means: Array
    deviations: Array

    def quantile(self, share: float) -> float:
        """Bisect the distribution function."""
        low = float((self.means - 9 * self.deviations).min())
        high = float((self.means + 9 * self.deviations).max())
        for _ in range(60):
            middle = (low + high) / 2
            below = float(self.weights @ special.ndtr((middle - self.means) / self.deviations))
            low, high = (middle, high) if below < share else (low, middle)
        return (low + high) / 2

    def draw(self, random: np.random.Generator, count: int) -> Array:
        which = random.choice(len(self.weights), count, p=self.weights)
        return self.means[which] + self.deviations[which] * random.normal(size=count)


def predictive(
    measured: Sequence[Array], design: Sequence[Array], covariances: Callable[[World], Sequence[Array]],
    target: Callable[[World], tuple[Array, float, Sequence[Array]]],
) -> Gaussian:  # fmt: skip
    """The predictive distribution of a number, given measurements of independent blocks (as runs), over `worlds`.

    Linear and Gaussian given the world: block b is `measured[b]` = `design[b]` @ coefficients + an error with
    `covariances(world)[b]`, the coefficients have a flat prior. `target(world)`: the number's own row of the design,
    its variance, and its covariance with each block.
    """
    targets = [target(world) for world in worlds()]
    stacked = [np.stack(block) for block in zip(*(covariances(world) for world in worlds()), strict=True)]
    row = targets[0][0].astype(float)
    many, size = len(targets), len(row)
    information, pulled, gain = np.zeros((many, size, size)), np.zeros((many, size)), np.tile(row, (many, 1))
    logs, square, mean, known = np.zeros(many), np.zeros(many), np.zeros(many), np.zeros(many)
    for block, (y, x, covariance) in enumerate(zip(measured, design, stacked, strict=True)):
        factor = np.linalg.cholesky(covariance)
        crosses = np.stack([each[2][block] for each in targets])[:, :, np.newaxis]
        same = np.broadcast_to(np.column_stack([y, x]), (many, len(y), 1 + size))
        solved = np.linalg.solve(factor, np.concatenate([same, crosses], axis=2))
        white, tall, cross = solved[:, :, 0], solved[:, :, 1:-1], solved[:, :, -1]
        information += np.einsum("wni,wnj->wij", tall, tall)
        pulled += np.einsum("wni,wn->wi", tall, white)
        gain -= np.einsum("wni,wn->wi", tall, cross)
        mean += (cross * white).sum(axis=1)
        known += (cross**2).sum(axis=1)
        square += (white**2).sum(axis=1)
        logs += np.log(np.diagonal(factor, axis1=1, axis2=2)).sum(axis=1)
    both = np.linalg.solve(information, np.stack([pulled, gain], axis=2))
    logs += np.linalg.slogdet(information)[1] / 2
    fitted = -logs - (square - (pulled * both[:, :, 0]).sum(axis=1)) / 2
    mean += (gain * both[:, :, 0]).sum(axis=1)
    variance = np.array([each[1] for each in targets]) - known + (gain * both[:, :, 1]).sum(axis=1)
    likely = np.exp(fitted - fitted.max())
    return Gaussian(likely / likely.sum(), mean, np.sqrt(np.maximum(variance, 1e-12)))


@dataclass(frozen=True)
class Stretch:
    """A time of a run, in hours, with the same workers: `vms` by place, None for one that is absent."""

    begin: float
    end: float
    vms: tuple[int | None, ...]


def revoked_times(random: np.random.Generator, places: int, revocations: int, hours: float) -> list[Stretch]:
    """A run with so many revocations at random moments, each replaced after some minutes."""
    moments = np.sort(random.uniform(0.02 * hours, 0.98 * hours, revocations))
    changes = [(float(at), int(random.integers(places))) for at in moments]
    return _stretches(places, changes, [(at + ABSENT_HOURS, place) for at, place in changes], hours)


def revoked_after(random: np.random.Generator, places: int, mean_hours: float, hours: float) -> list[Stretch]:
    """A run whose VMs live exponentially long, each replaced after some minutes."""
    left = list[tuple[float, int]]()
    for place in range(places):
        at = float(random.exponential(mean_hours))
        while at < hours:
            left.append((at, place))
            at += ABSENT_HOURS + float(random.exponential(mean_hours))
    return _stretches(places, left, [(at + ABSENT_HOURS, place) for at, place in left], hours)


def _stretches(
    places: int, left: Sequence[tuple[float, int]], joined: Sequence[tuple[float, int]], hours: float
) -> list[Stretch]:
    vms: list[int | None] = list(range(places))
    newest, since, found = places, 0.0, list[Stretch]()
    events = sorted([*((at, place, False) for at, place in left), *((at, place, True) for at, place in joined)])
    for at, place, joins in [*events, (hours, 0, False)]:
        until = min(at, hours)
        if until > since:
            found.append(Stretch(since, until, tuple(vms)))
            since = until
        vms[place] = newest if joins else None
        newest += joins
    return found


def speed_of(workload: Workload, gpus: Sequence[str], effects: Array, servers: int) -> float:
    """Steps per second of workers with these GPUs, each as much faster than usual as its effect (log) says."""
    offered = sum(
        float(worker_speed(workload.compute[gpu].seconds, workload.service_seconds, servers)) * float(np.exp(effect))
        for gpu, effect in zip(gpus, effects, strict=True)
    )
    limit = capacity(workload.service_seconds, servers, workload.scaling)
    return float(cluster_speed(offered, limit)) if offered else 0.0


@cache
def _factor(count: int, hours: float) -> Array:
    edges = _GRID_HOURS * np.arange(count + 1)
    return np.linalg.cholesky(mean_correlation(edges[:-1], edges[1:], hours) + 1e-10 * np.eye(count))


@dataclass(frozen=True)
class Part:
    """One observation, when it was (hours), and of which VMs."""

    observation: Observation
    begin: float
    end: float
    vms: tuple[int, ...]


@dataclass(frozen=True)
class Course:
    """One run that was trained: its `stretches`, and its speed (steps per second) between `edges` (hours)."""

    gpus: tuple[str, ...]
    servers: int
    stretches: tuple[Stretch, ...]
    edges: Array
    speeds: Array

    @classmethod
    def draw(
        cls, random: np.random.Generator, world: World, workload: Workload, gpus: Sequence[str],
        stretches: Sequence[Stretch], servers: int = 1, effects: Array | None = None,
    ) -> Course:  # fmt: skip
        """One course of the world; `effects` of its VMs are drawn where they are not given."""
        end = stretches[-1].end
        count = int(np.ceil(end / _GRID_HOURS))
        noise = world.noise * (_factor(count, world.hours) @ random.normal(size=count)) + world.run_effect(random)
        vms = 1 + max(vm for stretch in stretches for vm in stretch.vms if vm is not None)
        effects = world.vm_effects(random, vms) if effects is None else effects
        begins = np.array([stretch.begin for stretch in stretches])
        undisturbed = []
        for stretch in stretches:
            there = [place for place, vm in enumerate(stretch.vms) if vm is not None]
            own = effects[[vm for vm in stretch.vms if vm is not None]]
            undisturbed.append(speed_of(workload, [gpus[place] for place in there], own, servers))
        edges = np.unique(np.concatenate([_GRID_HOURS * np.arange(count), begins, [end]]))
        middles = (edges[:-1] + edges[1:]) / 2
        which = np.searchsorted(begins, middles, side="right") - 1
        at = np.minimum((middles / _GRID_HOURS).astype(int), count - 1)
        return cls(tuple(gpus), servers, tuple(stretches), edges, np.array(undisturbed)[which] * np.exp(noise[at]))

    @cached_property
    def _made(self) -> Array:
        return np.concatenate([[0.0], np.cumsum(3600 * self.speeds * np.diff(self.edges))])

    def steps_by(self, hours: float) -> float:
        return float(np.interp(hours, self.edges, self._made))

    def finish(self, steps: float) -> float:
        """The hours after which so many steps are made. Raises ValueError where they never are."""
        if steps > self._made[-1]:
            raise ValueError("the simulated course is too short")
        return float(np.interp(steps, self._made, self.edges))

    def parts(self, until: float = np.inf) -> list[Part]:
        """Return the observations that `planner.run_records` would make of it by then."""
        found = list[Part]()
        for stretch in self.stretches:
            begin, end = stretch.begin + _WARM_UP_HOURS, min(stretch.end, until)
            there = [place for place, vm in enumerate(stretch.vms) if vm is not None]
            if end - begin < _SHORTEST_HOURS or not there:
                continue
            count = min(max(int((end - begin) / _PART_HOURS), 1), _MOST_PARTS)
            kinds = [self.gpus[place] for place in there]
            workers = {gpu: kinds.count(gpu) for gpu in dict.fromkeys(kinds)}
            vms = tuple(vm for vm in stretch.vms if vm is not None)
            edges = np.linspace(begin, end, count + 1).tolist()
            for since, to in pairwise(edges):
                speed = (self.steps_by(to) - self.steps_by(since)) / (3600 * (to - since))
                found.append(Part(Observation(workers, self.servers, speed, 3600 * (to - since)), since, to, vms))
        return found

    def record(self, parameters: int = 0) -> Record:
        """Return the record that the store keeps of it."""
        seen = tuple(part.observation for part in self.parts())
        return Record(seen, "own", batch_size=128, parameters=parameters, over=True, workers=float(len(self.gpus)))


def best_speed(runs: Sequence[Sequence[Part]], usual: Sequence[Sequence[float]], current: tuple[int, ...] = (),
               rest: tuple[float, float] = (0.0, 0.0), kept: float = 0.0) -> Gaussian:  # fmt: skip
    """The log of how much faster than usual all runs of the world are, by the parts of some that were measured.

    `usual`: what the parts' clusters make, without effects. With `current` (VMs of the only run) it is how much faster
    that run is in the time `rest` (begin and end in hours), in which these VMs have the share `kept` of the work.
    """
    measured = [
        np.log([part.observation.steps_per_second for part in run]) - np.log(speeds)
        for run, speeds in zip(runs, usual, strict=True)
    ]
    times = [[(part.begin, part.end) for part in run] for run in runs]
    membership = [_membership([part.vms for part in run]) for run in runs]
    shared = [each @ each.T for each in membership]
    begins, ends = ([[at[place] for at in run] for run in times] for place in (0, 1))
    noise = {
        hours: [mean_correlation(begin, end, hours) for begin, end in zip(begins, ends, strict=True)]
        for hours in CORRELATED_HOURS
    }

    def covariances(world: World) -> list[Array]:
        return [
            world.run**2 + world.vm**2 * same + world.noise**2 * drift + 1e-9 * np.eye(len(same))
            for same, drift in zip(shared, noise[world.hours], strict=True)
        ]

    mine = _membership([*(part.vms for part in runs[0]), current])[-1] if current else np.zeros(0)

    def target(world: World) -> tuple[Array, float, list[Array]]:
        if not current:
            return np.ones(1), 0.0, [np.zeros(len(each)) for each in measured]
        together = mean_correlation([*begins[0], rest[0]], [*ends[0], rest[1]], world.hours)[-1]
        variance = world.run**2 + world.vm**2 * (kept**2 * mine @ mine + (1 - kept) ** 2 / len(current) / 2)
        known = _membership([*(part.vms for part in runs[0]), current])[:-1] @ mine
        cross = world.run**2 + world.vm**2 * kept * known + world.noise**2 * together[:-1]
        return np.ones(1), variance + world.noise**2 * together[-1], [cross]

    return predictive(measured, [np.ones((len(each), 1)) for each in measured], covariances, target)


def _membership(vms: Sequence[tuple[int, ...]]) -> Array:
    """Each VM's share of each cluster, shape (clusters, VMs)."""
    shares = np.zeros((len(vms), 1 + max(vm for some in vms for vm in some)))
    for place, some in enumerate(vms):
        shares[place, list(some)] = 1 / len(some)
    return shares
