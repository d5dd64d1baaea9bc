"""How Spot comes and goes, as far as windows elsewhere tell: a mixture of chains, and what a run's own past says of it.

A chain has a chance, each step, that a spell ends: of being open, or of not. It depends on the spell's age, in classes
that double (`AGES`). Markets differ, and each changes by and by: a mixture of a few chains says how they differ, learnt
by expectation-maximisation from stretches of other markets. A run believes in each chain as much as its own past is
likely under it, and forgets towards the mixture (`MEMORY`).
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import resources

import numpy as np
from numpy.typing import NDArray

from ...errors import PlanError
from .market import Open

AGES = (1, 2, 4, 8)
"""The youngest age of each class of spells, in steps; a spell's first step has the age 1."""
CHAINS = 8
MEMORY = 240
"""Steps, two days of them: each step the belief goes so much closer to the mixture."""
STRETCH = 240
"""Steps of a stretch that is learnt from as of one chain."""
_PRIOR = "prior.csv"
_PRIOR_SPELLS = 4.0  # of the mean of all chains, with which each chain begins
_ROUNDS = 300
_SETTLED = 1e-6
_SETTLING, _MOST_SETTLING = 30, 2000  # steps of a drawn market before a window of it begins
_Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Chains:
    """`weight[k]`: how likely chain k is; `ends[k, o, c]`: the chance that a spell of class c ends within a step, where
    o is 1 for open and 0 for not."""

    weight: _Floats
    ends: _Floats

    @cached_property
    def grows(self) -> _Floats:
        """The chance that a spell that goes on is of the next class one step later, for programs that know its class
        alone."""
        return np.append(1 / np.diff(AGES), 0.0)

    def class_of(self, age: NDArray[np.int64]) -> NDArray[np.int64]:
        """The class of a spell's age in steps."""
        return np.searchsorted(AGES, age, side="right") - 1

    def drawn(self, runs: int, steps: int, seed: int = 0) -> Open:
        """Windows of markets like these, each of one chain, which begin anywhere in its course."""
        random = np.random.default_rng(seed)
        chain = random.choice(len(self.weight), runs, p=self.weight / self.weight.sum())
        settling = min(_SETTLING * AGES[-1], _MOST_SETTLING)
        found, now, age = np.zeros((runs, steps), bool), random.random(runs) < 0.5, np.ones(runs, int)
        for step in range(-settling, steps):
            if step >= 0:
                found[:, step] = now
            ended = random.random(runs) < self.ends[chain, now.astype(int), self.class_of(age)]
            now, age = now ^ ended, np.where(ended, 1, age + 1)
        return found


def published() -> Chains:
    """What the published traces of 2022 tell (`prior.csv`, which names its source)."""
    text = resources.files("transient_magics.planner.deadlines").joinpath(_PRIOR).read_text(encoding="utf-8")
    rows = list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))
    weight = {int(row["chain"]): float(row["weight"]) for row in rows}
    ends = np.zeros((len(weight), 2, len(AGES)))
    for row in rows:
        ends[int(row["chain"]), int(row["open"]), AGES.index(int(row["from_age"]))] = float(row["ends"])
    return Chains(np.array([weight[k] for k in range(len(weight))]), ends)


def as_table(chains: Chains, source: str) -> str:
    """The text of such a file; `source`: what it was learnt from, in a line."""
    rows = [f"# {source}", "chain,weight,open,from_age,ends"]
    for (k, kind, c), chance in np.ndenumerate(chains.ends):
        rows.append(f"{k},{chains.weight[k]:.5f},{kind},{AGES[c]},{chance:.5f}")
    return "\n".join(rows) + "\n"


def learnt(series: Sequence[Open], chains: int = CHAINS) -> Chains:
    """A mixture of so many chains from availability elsewhere. Raises PlanError where there is too little of it."""
    told = [_told(part) for each in series for part in np.array_split(each, max(round(len(each) / STRETCH), 1))]
    if len(told) < 2 * chains:
        raise PlanError(f"{len(told)} stretches of {STRETCH} steps do not tell {chains} chains apart",
                        fix="Learn from more or longer traces.")  # fmt: skip
    ended, stayed = np.array([each[0] for each in told]), np.array([each[1] for each in told])
    order = np.argsort(stayed[:, 1].sum(1) / (stayed.sum((1, 2)) + 1), kind="stable")
    shares = np.zeros((len(told), chains))
    shares[order, np.arange(len(told)) * chains // len(told)] = 1.0  # begin with how open they are
    for _ in range(_ROUNDS):
        found = _mixture(shares, ended, stayed)
        fits = np.tensordot(ended, np.log(found.ends), ((1, 2), (1, 2))) + np.log(found.weight)
        fits += np.tensordot(stayed, np.log1p(-found.ends), ((1, 2), (1, 2)))
        before, shares = shares, np.exp(fits - fits.max(1, keepdims=True))
        shares /= shares.sum(1, keepdims=True)
        if np.abs(shares - before).max() < _SETTLED:
            break
    return _mixture(shares, ended, stayed)


def _mixture(shares: _Floats, ended: _Floats, stayed: _Floats) -> Chains:
    """The chains, given which share of each stretch is of which; each begins with a few spells like the mean of all."""
    mean = (ended.sum(0) + 1) / (ended.sum(0) + stayed.sum(0) + 2)
    up, down = np.tensordot(shares.T, ended, 1), np.tensordot(shares.T, stayed, 1)
    weight = shares.sum(0) + 1
    return Chains(weight / weight.sum(), (up + _PRIOR_SPELLS * mean) / (up + down + _PRIOR_SPELLS))


def _told(series: Open) -> tuple[_Floats, _Floats]:
    """How often spells of each kind and class ended within a step, and how often they went on."""
    age = np.ones(len(series), int)
    for step in range(1, len(series)):
        age[step] += age[step - 1] if series[step] == series[step - 1] else 0
    ended = series[1:] != series[:-1]
    counts = np.zeros((2, 2, len(AGES)))
    np.add.at(counts, (ended.astype(int), series[:-1].astype(int), np.searchsorted(AGES, age[:-1], "right") - 1), 1)
    return counts[1], counts[0]


class Belief:
    """What many runs believe, each by its own past: `share[i, k]` of chain k, and the `age` of the spell it is in."""

    def __init__(self, chains: Chains, runs: int) -> None:
        self.chains = chains
        self.share = np.tile(chains.weight, (runs, 1))
        self.open = np.zeros(runs, bool)
        self.age = np.zeros(runs, int)

    def see(self, open_: Open) -> None:
        """What the next step shows."""
        ended = open_ != self.open
        if self.age.all():
            chance = self.ending()
            self.share *= np.where(ended[:, np.newaxis], chance, 1 - chance)
            self.share /= self.share.sum(1, keepdims=True)
            self.share += (self.chains.weight - self.share) / MEMORY
        self.age = np.where(ended, 1, self.age + 1)
        self.open = open_

    def ending(self) -> _Floats:
        """Of each run and chain, the chance that its spell ends within this step."""
        return self.chains.ends[:, self.open.astype(int), self.chains.class_of(self.age)].T
