"""Spot markets that plans with a deadline simulate: a mixture of Markov chains, learnt from published availability.

A chain has a chance, each step, that a spell ends: of being open, or of not. It depends on the spell's age, in classes
that double (`AGES`). Markets differ: the mixture of a few chains says how.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from importlib import resources

import numpy as np
from numpy.typing import NDArray

GRID = 720.0
"""Seconds of a step: the 12 minutes that the published traces' slowest sampling still tells apart."""
AGES = (1, 2, 4, 8)
"""The youngest age of each class of spells, in steps; a spell's first step has the age 1."""
_PRIOR = "prior.csv"
_SETTLING, _MOST_SETTLING = 30, 2000  # steps of a drawn market before a window of it begins
Open = NDArray[np.bool_]
"""Whether a zone has a Spot VM at the beginning of each step; one row a window."""


@dataclass(frozen=True)
class Chains:
    """`weight[k]`: how likely chain k is; `ends[k, o, c]`: the chance that a spell of class c ends within a step, where
    o is 1 for open and 0 for not."""

    weight: NDArray[np.float64]
    ends: NDArray[np.float64]

    def class_of(self, age: NDArray[np.int64]) -> NDArray[np.int64]:
        """The class of a spell's age in steps."""
        return np.searchsorted(AGES, age, side="right") - 1

    def drawn(self, runs: int, steps: int, seed: int = 0) -> Open:
        """Windows of markets like these, each of one chain, which begin anywhere in its course."""
        random = np.random.default_rng(seed)
        chain = random.choice(len(self.weight), runs, p=self.weight / self.weight.sum())
        settling = min(_SETTLING * AGES[-1], _MOST_SETTLING)
        found = np.zeros((runs, steps), bool)
        now = random.random(runs) < 0.5
        age = np.ones(runs, int)
        for step in range(-settling, steps):
            if step >= 0:
                found[:, step] = now
            ended = random.random(runs) < self.ends[chain, now.astype(int), self.class_of(age)]
            now = now ^ ended
            age = np.where(ended, 1, age + 1)
        return found


def published() -> Chains:
    """Return the chains of the published traces of 2022 (`prior.csv`, which names its source)."""
    text = resources.files("transient_magics.planner.deadlines").joinpath(_PRIOR).read_text(encoding="utf-8")
    rows = list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))
    weight = {int(row["chain"]): float(row["weight"]) for row in rows}
    ends = np.zeros((len(weight), 2, len(AGES)))
    for row in rows:
        ends[int(row["chain"]), int(row["open"]), AGES.index(int(row["from_age"]))] = float(row["ends"])
    return Chains(np.array([weight[k] for k in range(len(weight))]), ends)
