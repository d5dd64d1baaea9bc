"""What revocations cost a search: the best point found, with 60 of them an hour and with none, for as much worker time.

Nothing is rented and nothing trains: the controller's decisions, the journal's fold and Optuna's sampler are the real
ones, and a trial's value is looked up in a table: 576 points of three parameters, smooth, with a ridge where two of
them depend on each other, and a roughness of each point's own. A trial takes `TRIAL` seconds of a worker. A revocation
takes one of the workers: what its trial made since the last checkpoint is made again, by whichever place is free next,
and the place is empty until the next VM has booted and joined.

The regret is the distance from the table's best value, as a share of the distance between its best value and its
median. Both courses of a seed see the same table and are cut off after as many seconds of workers that were there.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from _common import say

from transient_magics.controller.studies.decisions import Ask, Declare, End, StopRun, Tell, decide
from transient_magics.journal import ClusterState, Event, StudyState, events, fold
from transient_magics.protocol.run import RunSpec, Value
from transient_magics.protocol.study import StudySpec, parse_space
from transient_magics.trials import Twin, point

WORKERS = 4
TRIAL, SAVED_EVERY, ANEW = 120, 20, 60
"""Seconds: of a trial's steps, between two checkpoints, and from a revocation to the first step in its place."""
TURN = 10
"""Seconds of the clock between two looks."""
SPACE = "lr=0.0001:1:log units=16,32,48,64,96,128 depth=1:4:int"
RATES = 24


class Table:
    """Values by point, drawn by `seed`."""

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        best = chance.uniform(-3.0, -1.0), chance.uniform(0.3, 0.7), chance.uniform(1.5, 3.5)
        self._values = {
            (rate, units, depth): self._smooth(rate, units, depth, best) + chance.gauss(0.0, 0.01)
            for rate in range(RATES) for units in (16, 32, 48, 64, 96, 128) for depth in range(1, 5)
        }  # fmt: skip
        self.best, self.median = max(self._values.values()), statistics.median(self._values.values())

    def _smooth(self, rate: int, units: int, depth: int, best: tuple[float, float, float]) -> float:
        size = units / 128
        ridge = -4 + 4 * rate / (RATES - 1) - best[0] + (size - best[1])  # wider layers want a smaller rate
        return 0.97 - 0.2 * math.tanh(ridge**2) - 0.1 * (size - best[1]) ** 2 - 0.02 * (depth - best[2]) ** 2

    def value(self, params: Mapping[str, Value]) -> float:
        """Of the point that is nearest in the table."""
        place = round((math.log10(float(params["lr"])) + 4) / 4 * (RATES - 1))
        return self._values[place, int(params["units"]), int(params["depth"])]

    def regret(self, found: float) -> float:
        """A share of the distance from the best value to the median."""
        return (self.best - found) / (self.best - self.median)


class Course:
    """A study in `sampler`'s way, on workers of which so many are revoked an hour."""

    def __init__(self, table: Table, seed: int, sampler: Literal["random", "tpe"], revoked_per_hour: float) -> None:
        run = RunSpec("s", TRIAL)
        self._spec = StudySpec(
            "s", run, "max accuracy", space=parse_space(SPACE), trials=1000, sampler=sampler, seed=seed
        )
        self._table, self._chance, self._rate = table, random.Random(seed), revoked_per_hour / 3600
        self._state, self._time, self._number = ClusterState(phase="ready"), 0, 0
        self._empty_until = [0] * WORKERS
        self._made: dict[str, int] = {}
        self.revoked = self.again = 0
        self.worked = 0
        """Seconds of workers that were there."""
        self._record(events.StudyDeclared(study="s", spec=self._spec.to_dict()))
        self._twin = Twin(self._spec)

    def until(self, worker_seconds: int) -> float:
        """The best value that was found by then."""
        while self.worked < worker_seconds:
            if not self._look():
                self._turn()
        values = [trial.value for trial in self._study.trials.values() if trial.value is not None]
        return max(values)

    @property
    def trials(self) -> int:
        """How many have ended."""
        return sum(trial.value is not None for trial in self._study.trials.values())

    @property
    def _study(self) -> StudyState:
        return self._state.studies["s"]

    def _record(self, event: Event) -> None:
        self._number += 1
        self._state = fold(self._state, replace(event, seq=self._number, time=(1000 + self._time) * 10**9))

    def _look(self) -> bool:
        self._twin.catch_up(self._study, self._state.runs)
        there = {place: "k80" for place, until in enumerate(self._empty_until) if until <= self._time}
        decisions = decide(self._study, self._state, there, 1000 + self._time)
        for decision in decisions:
            match decision:
                case Tell(trial, state, value, reason):
                    self._record(events.StudyTold(study="s", trial=trial, state=state, value=value, reason=reason))
                case End(reason):
                    self._record(events.StudyEnded(study="s", reason=reason))
                case Ask(trial):
                    names = self._spec.run_names(trial)
                    self._record(events.StudyAsked(study="s", trial=trial, params=self._point(trial), runs=names))
                case Declare(trial, repeat):
                    spec = self._spec.run_of(trial, repeat, self._study.trials[trial].params)
                    self._record(events.TrainDeclared(run=spec.name, spec=spec.without_token()))
                case StopRun():
                    raise AssertionError("nothing is pruned here")
        return bool(decisions)

    def _point(self, trial: int) -> Mapping[str, Value]:
        known = point(self._spec, trial)
        return self._twin.propose() if known is None else known

    def _turn(self) -> None:
        self._time += TURN
        there = [place for place, until in enumerate(self._empty_until) if until <= self._time]
        turns = dict(zip((run.name for run in self._state.turns), there, strict=False))
        self._record(events.ClusterLeased(ports=turns, workers={str(place): name for name, place in turns.items()}))
        self.worked += TURN * len(there)
        for name, place in turns.items():
            if not self._made.get(name):
                self._record(events.TrainStarted(run=name, step=0))
            if self._chance.random() < self._rate / WORKERS * TURN:
                self._revoke(name, place)
                continue
            self._made[name] = made = self._made.get(name, 0) + TURN
            if made >= TRIAL:
                value = self._table.value(self._study.trials[self._state.runs[name].spec.trial].params)
                self._record(events.TrainProgress(run=name, step=TRIAL, loss=1.0))
                self._record(events.TrainEvaluated(run=name, step=TRIAL, metrics={"accuracy": value}))
                self._record(events.TrainFinished(run=name, step=TRIAL))

    def _revoke(self, name: str, place: int) -> None:
        kept = self._made.get(name, 0) // SAVED_EVERY * SAVED_EVERY
        self.revoked += 1
        self.again += self._made.get(name, 0) - kept + TURN
        self._made[name] = kept
        self._empty_until[place] = self._time + ANEW


def main() -> None:
    """Print both regrets and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="5 seeds (30)")
    parser.add_argument("--seeds", type=int, default=30, help="so many courses of each kind")
    parser.add_argument("--trials", type=int, default=40, help="so many trials' worth of worker time")
    given = parser.parse_args()
    seeds, seconds = range(5 if given.quick else given.seeds), given.trials * TRIAL
    samplers: tuple[Literal["random", "tpe"], ...] = ("random", "tpe")
    for sampler in samplers:
        quiet, revoked, lost = list[float](), list[float](), list[float]()
        for seed in seeds:
            table = Table(seed)
            for rate, regrets in ((0.0, quiet), (60.0, revoked)):
                course = Course(table, seed, sampler, rate)
                regrets.append(table.regret(course.until(seconds)))
                if rate:
                    lost.append(course.again / seconds)
        apart = [with_ - without for with_, without in zip(revoked, quiet, strict=True)]
        interval = 1.96 * statistics.stdev(apart) / math.sqrt(len(apart))
        say(f"{sampler}: regret with no revocation, mean", statistics.fmean(quiet), "", more=f"n {len(quiet)}")
        say(f"{sampler}: with 60 an hour on {WORKERS} workers", statistics.fmean(revoked), "")
        say(
            f"{sampler}: that over the regret without",
            statistics.fmean(revoked) / statistics.fmean(quiet),
            "",
            "<= 1.05",
        )
        say(f"{sampler}: difference", statistics.fmean(apart), "", more=f"± {interval:.3f}")
        say(f"{sampler}: worker time made again", statistics.fmean(lost), "")


if __name__ == "__main__":
    main()
