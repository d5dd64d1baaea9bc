"""Rows about measures of stalls: the parts of a step, and what a change would make of it in another run.

A measure repeats its arrangements as the product does, forwards and backwards in turn, in one run on four VMs. What a
change takes away differs from what the model says as far as series of `bench_stalls.py` found it off. Best is who knows
these laws, but none of the eight seconds before they are measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from _calibration import Array, Row, Trial, World, mean_correlation, predictive
from numpy.typing import NDArray

from transient_magics.planner.stalls.parts import COMPUTE, STALLS, Repeat, Stalls
from transient_magics.planner.stalls.terms import Change, seconds, what_if
from transient_magics.protocol.step_parts import MEASURES, Measure

SERIES_OFF = (0.063, 0.038, 0.105)
"""Mean distance of the predicted step from the step that came, relatively, in three series of three cases of
`bench_stalls.py` (docs/evidence.md). A case took away about as much as it left. What the product takes for it plays no
part here."""
MODELS_OFF = math.sqrt(math.pi / 2) * np.array(SERIES_OFF)
"""The standard deviations of normal distributions with these mean distances; each world has one of them."""
STEP: Mapping[Measure, float] = {
    "S0": 0.1, "S1": 0.11, "S2": 0.15, "S3": 0.16, "S4": 0.161, "S5": 0.162, "R4": 0.02, "R5": 0.02,
}  # fmt: skip
"""Seconds of each measure on usual VMs in a usual run."""
VMS = 4
HOURS = 5.0
"""The hours of the next run."""


@dataclass(frozen=True)
class Measured:
    """One measure of stalls: the logarithms of its seconds in order of time, and which arrangement each is of."""

    world: World
    repeats: int
    length: float
    """Hours of one arrangement."""
    session: float
    """The log of how much faster its run is than the usual one, with its VMs."""
    noise: Array

    @classmethod
    def draw(cls, repeats: int, length: float, random: np.random.Generator) -> Measured:
        """Draw the world and the measure."""
        world = World.draw(random)
        begins = length * np.arange(repeats * len(MEASURES))
        noise = world.mean_noise(random, begins, begins + length)
        return cls(world, repeats, length, session_of(world, random), noise)

    @property
    def places(self) -> NDArray[np.int_]:
        """The moment of each of `MEASURES`."""
        forwards = np.arange(len(MEASURES))
        return np.concatenate([forwards if turn % 2 == 0 else forwards[::-1] for turn in range(self.repeats)])

    @property
    def away(self) -> Array:
        """The deviations of the logarithms of the measured seconds."""
        return -self.session - self.noise

    @property
    def stalls(self) -> Stalls:
        """The measurement in the form that the product stores."""
        taken = list[Repeat]()
        for away, places in zip(np.split(self.away, self.repeats), np.split(self.places, self.repeats), strict=True):
            names = [MEASURES[place] for place in places]
            taken.append(Repeat({name: STEP[name] * math.exp(log) for name, log in zip(names, away, strict=True)}))
        lasted = 3600 * self.length * len(self.noise)
        return Stalls("k80", ("worker-0",), tuple(taken), 32, lasted=lasted)

    def best(
        self, of: Callable[[Mapping[Measure, float]], float], variance: Callable[[World], float]
    ) -> tuple[float, float]:
        """Return the middle 90 % of a figure `of` the seconds, in a run of its own, which adds a `variance`."""
        return self._best(of, variance, lambda world, correlation: np.zeros(len(correlation)))

    def best_now(self, of: Callable[[Mapping[Measure, float]], float]) -> tuple[float, float]:
        """Return the middle 90 % of a figure `of` the seconds while they were measured."""

        def variance(world: World) -> float:
            together = mean_correlation([0.0], [self.length * len(self.noise)], world.hours)[0, 0]
            return session_variance(world) + world.noise**2 * float(together)

        return self._best(
            of, variance, lambda world, correlation: session_variance(world) + world.noise**2 * correlation.mean(axis=0)
        )

    def _best(
        self, of: Callable[[Mapping[Measure, float]], float], variance: Callable[[World], float],
        shared: Callable[[World, Array], Array],
    ) -> tuple[float, float]:  # fmt: skip
        begins = self.length * np.arange(len(self.noise))
        correlations = dict[float, Array]()

        def correlation(world: World) -> Array:
            if world.hours not in correlations:
                correlations[world.hours] = mean_correlation(begins, begins + self.length, world.hours)
            return correlations[world.hours]

        def covariances(world: World) -> list[Array]:
            return [session_variance(world) + world.noise**2 * correlation(world) + 1e-9 * np.eye(len(begins))]

        weights = slopes(of)
        found = predictive(
            [self.away], [np.eye(len(MEASURES))[self.places]], covariances,
            lambda world: (weights, variance(world), [shared(world, correlation(world))]),
        )  # fmt: skip
        return of(STEP) * math.exp(found.quantile(0.05)), of(STEP) * math.exp(found.quantile(0.95))


def session_of(world: World, random: np.random.Generator) -> float:
    """The log of how much faster one run is than the usual one, with its VMs."""
    return world.run_effect(random) + float(world.vm_effects(random, VMS).mean())


def session_variance(world: World) -> float:
    """The variance of `session_of`."""
    return world.run**2 + world.vm**2 / VMS


def slopes(of: Callable[[Mapping[Measure, float]], float]) -> Array:
    """The derivatives of a figure's logarithm by the logarithm of each of the seconds."""
    step = 1e-6

    def log(name: Measure, by: float) -> float:
        return math.log(of({**STEP, name: STEP[name] * math.exp(by)}))

    return np.array([(log(name, step) - log(name, -step)) / (2 * step) for name in MEASURES])


def what_if_seconds(repeats: int, length: float, change: Change, random: np.random.Generator) -> Trial:
    """Seconds of a step with the change in a run of its own."""
    measured = Measured.draw(repeats, length, random)
    found = what_if(measured.stalls, change).seconds
    after, off = _changed(change, random)
    later = session_of(measured.world, random) + float(measured.world.mean_noise(random, [0.0], [HOURS])[0])

    def variance(world: World) -> float:
        together = float(mean_correlation([0.0], [HOURS], world.hours)[0, 0])
        return session_variance(world) + world.noise**2 * together + off**2

    best = measured.best(lambda at: seconds(Repeat(at), change), variance)
    return Trial(found.low, found.high, after * math.exp(-later), best)


def what_if_times(repeats: int, length: float, change: Change, random: np.random.Generator) -> Trial:
    """Predict how many times as fast a step becomes, in the mean over runs."""
    measured = Measured.draw(repeats, length, random)
    found = what_if(measured.stalls, change).times
    after, off = _changed(change, random)
    best = measured.best(lambda at: seconds(Repeat(at), Change()) / seconds(Repeat(at), change), lambda world: off**2)
    return Trial(found.low, found.high, seconds(Repeat(STEP), Change()) / after, best)


def _changed(change: Change, random: np.random.Generator) -> tuple[float, float]:
    """The seconds of a usual step with the change, and how far off the log of the model's is (standard deviation)."""
    before, after = seconds(Repeat(STEP), Change()), seconds(Repeat(STEP), change)
    taken = before - after
    off = float(random.choice(MODELS_OFF)) * float(random.normal())
    return after + off * taken, float(np.sqrt((MODELS_OFF**2).mean())) * taken / after


def part_seconds(repeats: int, length: float, name: str, random: np.random.Generator) -> Trial:
    """Seconds of a part of the step, in the mean while it was measured."""
    measured = Measured.draw(repeats, length, random)
    stalls = measured.stalls
    found = next(each for each in (stalls.compute, *stalls.parts) if each.name == name).seconds

    def part(at: Mapping[Measure, float]) -> float:
        if name == COMPUTE:
            return at["S0"]
        without, whole = STALLS[name]
        return at[whole] - at[without]

    came = part(STEP) * math.exp(-measured.session - float(measured.noise.mean()))
    return Trial(found.low, found.high, came, measured.best_now(part))


MEASURES_OF = ((5, 2.0), (3, 30.0), (10, 30.0))
"""Repeats, and seconds of each arrangement: the product's default first."""
CHANGES = {"twice the link": Change(link=2.0), "twice the GPU": Change(gpu=2.0)}


def _rows() -> Iterator[Row]:
    for repeats, length in MEASURES_OF:
        for name, change in CHANGES.items():
            measured = f"{repeats} repeats of {length:g} s, {name}"
            hours = length / 3600
            yield Row("what-if seconds of a step", measured, partial(what_if_seconds, repeats, hours, change))
            yield Row("what-if times as fast", measured, partial(what_if_times, repeats, hours, change))
        for part in (COMPUTE, "network"):
            measured = f"{repeats} repeats of {length:g} s, {part}"
            yield Row("seconds of a part of a step", measured, partial(part_seconds, repeats, length / 3600, part))


ROWS: list[Row] = list(_rows())
